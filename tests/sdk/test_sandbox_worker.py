"""What has to go on working in the sandbox: rollouts, judges, REPLs, tools; and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sandboxes import answered, came_up, confined, needs_sandbox, none_left, played, small
from wander import Example, Rollout, ScriptedClient
from wander.clients.base import ModelRequest
from wander.errors import LoadError, SandboxError
from wander.rollout.outside_calls import PUBLIC_KEY
from wander.sandbox.control_groups import ControlGroup
from wander.sandbox.support import require_support
from wander.sandbox.visible import VIRTUALENV, Runtime, choose_binds, own_python
from wander.worker.host import link
from wander.worker.host.environment import WorkerEnvironment
from wander.worker.process.sandboxed import confine

ROOT = Path(__file__).resolve().parents[2]
pytestmark = needs_sandbox


def reversing(request: ModelRequest) -> str:
    text = str(request.messages[-1]["content"]).rpartition("\n")[2]
    return f"<reversed_text>{text[::-1] if request.rollout_id.endswith('0') else text}</reversed_text>"


def moving(request: ModelRequest) -> str:
    cells = [4, 0, 8, 2, 6, 1, 3, 5, 7, 9]
    return f"<think>.</think><move>{cells[request.turn % len(cells)]}</move>"


async def rollouts_of(name: str, client: Any, log: Path, **options: Any) -> list[dict[str, Any]]:
    environment = await WorkerEnvironment.start(
        None, None, path=ROOT / "environments" / name, log_path=log, **options
    )
    try:
        examples = await environment.examples("eval", 0, 6)
        played = [
            await environment.rollout(ScriptedClient(client), example, index=index, run_seed=11)
            for example in examples
            for index in range(2)
        ]
    finally:
        await environment.close()
    untimed = {"started_at", "seconds", "scoring_seconds", "turns"}
    return [rollout.model_dump(exclude=untimed) for rollout in played]


@pytest.mark.parametrize(
    ("name", "client"),
    [("tictactoe", moving), pytest.param("reverse_text", reversing, marks=pytest.mark.full)],
)
async def test_rollouts_are_equal_inside_and_outside_of_the_sandbox(name, client, tmp_path):
    outside = await rollouts_of(name, client, tmp_path / "outside.log")
    inside = await rollouts_of(name, client, tmp_path / "inside.log", sandbox=small())
    assert [each["failure"] for each in outside] == [None] * 12
    assert len({each["reward"] for each in outside}) > 1
    assert inside == outside


JUDGED = '''
import os
from openai import AsyncOpenAI, OpenAI
from wander import Rubric, SingleTurnEnv

async def judged(completion):
    said = await AsyncOpenAI(max_retries=0).chat.completions.create(
        model="judge", messages=[{"role": "user", "content": completion[-1]["content"]}])
    return 1.0 if said.choices[0].message.content == "yes" else 0.0

def asked_again(completion):
    """A synchronous client, which holds up the whole worker while it waits."""
    said = OpenAI(max_retries=0).chat.completions.create(
        model="second", messages=[{"role": "user", "content": completion[-1]["content"]}])
    return float(len(said.choices[0].message.content))

def load_environment():
    assert os.environ["OPENAI_API_KEY"].startswith("wander-"), "the host's key is in the worker"
    rows = [{"question": f"q{number}"} for number in range(5)]
    return SingleTurnEnv(eval_dataset=rows, rubric=Rubric([judged, asked_again], [1.0, 0.0]), name="judged")
'''


async def test_judges_of_the_environment_call_through_the_host(tmp_path, chat_server, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", chat_server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "the-hosts-own-key")
    chat_server.script = lambda body, number: "yes" if body["model"] == "judge" else "Paris"
    # Even where the key is passed by name, it stays outside: it would be of no use inside.
    async with confined(tmp_path, body=JUDGED, environ=["OPENAI_API_KEY"]) as environment:
        examples = await environment.examples("eval")
        rollouts = await asyncio.gather(
            *(environment.rollout(ScriptedClient(["x"]), each) for each in examples)
        )
        assert [rollout.failure for rollout in rollouts] == [None] * 5
        assert {rollout.reward for rollout in rollouts} == {1.0}
        assert {rollout.metrics["asked_again"] for rollout in rollouts} == {5.0}
        assert [len(rollout.info[PUBLIC_KEY]) for rollout in rollouts] == [2] * 5
        assert (environment.outside_calls.calls, environment.outside_calls.failed) == (10, 0)
    assert {headers["Authorization"] for headers in chat_server.headers} == {"Bearer the-hosts-own-key"}


async def test_other_clients_reach_only_the_endpoint(tmp_path, chat_server):
    async with confined(tmp_path) as environment:
        code = """
        import http.client, socket, urllib.parse
        base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
        connection = http.client.HTTPConnection(base.hostname, base.port, timeout=60)
        connection.request("POST", "/v1/files")
        answer = [connection.getresponse().status]
        program = "import os, urllib.request as r; r.urlopen(os.environ['OPENAI_BASE_URL'], b'{}')"
        started = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        answer.append("401" in started.stderr)
        for address in (("127.0.0.1", PORT), ("127.0.0.1", 22), ("8.8.8.8", 53), ("10.0.0.1", 1)):
            try:
                socket.create_connection(address, timeout=60)
                answer.append("connected")
            except OSError as error:
                answer.append(errno.errorcode[error.errno])
        """
        text = "import errno\n" + textwrap.dedent(code).replace("PORT", str(chat_server.port))
        closed = ["ECONNREFUSED", "ECONNREFUSED", "ENETUNREACH", "ENETUNREACH"]
        assert await answered(environment, text) == [401, True, *closed]


async def test_no_folder_or_socket_of_the_host_is_inherited(tmp_path):
    code = """
    import socket, stat
    answer = []
    for name in os.listdir("/proc/self/fd"):
        try:
            mode = os.fstat(int(name)).st_mode
        except OSError:
            continue  # that of the listing
        if stat.S_ISDIR(mode):
            answer.append(os.readlink(f"/proc/self/fd/{name}"))
        elif stat.S_ISSOCK(mode):
            with socket.socket(fileno=os.dup(int(name))) as found:
                answer.append(found.family.name)
    """
    async with confined(tmp_path) as environment:
        found = await answered(environment, textwrap.dedent(code))
    assert sorted(found) == ["AF_INET", "AF_UNIX", "AF_UNIX"], "the connection, and the loop's own pair"


REPL = """
from wander import RLMEnv, Rubric

def correct(completion, answer, parser):
    return float(parser.parse_answer(completion) == answer)

def load_environment(sandbox):
    row = {"question": "which?", "context": "a b c 42", "answer": "42"}
    return RLMEnv(eval_dataset=[row], rubric=Rubric([correct]), sandbox=sandbox)
"""


@pytest.mark.parametrize("sandbox", ["none", "auto", "bwrap"])
async def test_the_repl_of_a_recursive_model_works(sandbox, tmp_path):
    replies = ["```repl\nfound = context.split()[-1]\nprint(found)\n```", "FINAL_VAR(found)"]
    async with confined(tmp_path, body=REPL, arguments={"sandbox": sandbox}) as environment:
        (example,) = await environment.examples("eval")
        rollout = await environment.rollout(ScriptedClient(replies), example)
        assert (rollout.failure, rollout.reward) == (None, 1.0)


TOOLS = '''
import subprocess, sys
from wander import Rubric, ToolEnv

def compute(expression: str) -> str:
    """Compute with another Python.

    Args:
        expression: what to compute
    """
    done = subprocess.run([sys.executable, "-c", f"import wander; print({expression})"],
                          capture_output=True, text=True, check=True)
    return done.stdout.strip()

def load_environment():
    return ToolEnv(eval_dataset=[{"question": "6 * 7?"}], tools=[compute], rubric=Rubric(), max_turns=3)
'''


async def test_tools_start_programs(tmp_path):
    call = {
        "id": "a",
        "type": "function",
        "function": {"name": "compute", "arguments": '{"expression": "6*7"}'},
    }
    async with confined(tmp_path, body=TOOLS) as environment:
        (example,) = await environment.examples("eval")
        client = ScriptedClient([{"role": "assistant", "content": "", "tool_calls": [call]}, "42"])
        rollout = await environment.rollout(client, example)
        assert rollout.failure is None
        assert rollout.completion[1]["content"] == "42"


SERVER = ROOT / "tests" / "sdk" / "mcp_servers" / "bare.py"
MCP = f"""
import sys
from wander import MCPEnv, MCPServer, Rubric

def load_environment():
    server = MCPServer("bare", command=sys.executable, args=({str(SERVER)!r}, "ok"))
    return MCPEnv(eval_dataset=[{{"question": "say"}}], mcp_servers=[server], rubric=Rubric())
"""


async def test_tool_servers_work_over_pipes(tmp_path):
    call = {"id": "a", "type": "function", "function": {"name": "say", "arguments": "{}"}}
    async with confined(tmp_path, f"read={SERVER}", body=MCP) as environment:
        (example,) = await environment.examples("eval")
        client = ScriptedClient([{"role": "assistant", "content": "", "tool_calls": [call]}, "done"])
        rollout = await environment.rollout(client, example)
        assert rollout.failure is None
        assert "bare 1" in str(rollout.completion[1]["content"])


async def test_several_workers_have_separate_sandboxes(tmp_path):
    kinds = ("pid", "net", "mnt", "ipc", "user")
    code = f"answer = [os.readlink('/proc/self/ns/' + kind) for kind in {kinds}]"
    all_under_way = asyncio.Barrier(4)

    async def say(request: ModelRequest) -> str:
        if len(request.messages) > 1:
            return "end"
        await all_under_way.wait()
        return code

    async with confined(tmp_path, workers=2) as environment:
        (example,) = await environment.examples("eval")
        played = await asyncio.gather(
            *(environment.rollout(ScriptedClient(say), example, index=index) for index in range(4))
        )
    found = [json.loads(str(rollout.completion[1]["content"])) for rollout in played]
    assert len({tuple(each) for each in found}) == 2
    outside = {os.readlink(f"/proc/self/ns/{kind}") for kind in kinds}
    assert not outside & {each for namespaces in found for each in namespaces}


async def test_threads_pools_and_shared_memory_work(tmp_path):
    async with confined(tmp_path) as environment:
        code = """
        import multiprocessing as processes, concurrent.futures as futures
        with processes.get_context("fork").Pool(2) as pool:
            answer = pool.map(abs, [-1, -2])
        with futures.ThreadPoolExecutor(2) as pool:
            answer += pool.map(abs, [-3])
        answer = asyncio.to_thread(lambda found: found + [4], answer)
        """
        assert await answered(environment, textwrap.dedent(code)) == [1, 2, 3, 4]


def test_the_control_socket_never_gets_the_port_of_the_endpoint():
    code = """
    import fcntl, socket, struct
    from wander.sandbox import inside

    with socket.socket() as any_socket:  # the loopback interface of a new network namespace is down
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))

    def draw_from(ports):
        open("/proc/sys/net/ipv4/ip_local_port_range", "w").write(ports)

    def connect(address, connect=socket.create_connection):
        draw_from("40000 60000")
        return connect(address)

    socket.create_connection = connect
    draw_from("34488 34489")
    host, channel = socket.socketpair()
    inside._connect(channel.detach(), "127.0.0.1", 34489)
    """
    words = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", textwrap.dedent(code)]
    subprocess.run(words, check=True)


async def test_each_sandbox_has_random_surroundings_and_few_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("SANDBOX_TEST_NAMED", "told")
    monkeypatch.setenv("SANDBOX_TEST_SECRET", "untold")
    code = """
    named = os.environ["SANDBOX_TEST_NAMED"]
    answer = [[hash("text"), os.uname().nodename], sorted(os.environ), named, os.getcwd(), os.getuid()]
    """
    found = []
    for _ in range(2):
        async with confined(tmp_path, environ=["SANDBOX_TEST_NAMED"]) as environment:
            found.append(await answered(environment, textwrap.dedent(code)))
    assert not {*found[0][0]} & {*found[1][0]}
    for each in found:
        each[1] = sorted({*each[1]} - {"LC_CTYPE"})  # Python sets it for some of the drawn locales
    assert found[0][1:] == found[1][1:]
    assert found[0][2:] == ["told", "/tmp", 1000]
    assert not {"SANDBOX_TEST_SECRET", "USERNAME", "SHELL", "TMPDIR"} & set(found[0][1])


async def test_neighboring_files_are_hidden_and_visible_folders_are_read_only(tmp_path):
    (tmp_path / "beside.txt").write_text("private")
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "rows.txt").write_text("rows")
    (tmp_path / "shown").chmod(0o755)
    async with confined(tmp_path, f"read={tmp_path / 'shown'}") as environment:
        code = f"os.chdir({str(tmp_path)!r}); answer = [sorted(os.listdir()), open('shown/rows.txt').read()]"
        assert await answered(environment, code) == [["obedient_environment.py", "shown"], "rows"]
        rollout = await played(environment, "open('shown/new', 'w')")
        assert "Read-only file system" in rollout.failure.message


def made_virtualenv(place: Path) -> Runtime:
    """Make a folder that looks like a virtual environment; return what a host would have recorded of it."""
    python, prefix = own_python()
    version = ".".join(map(str, sys.version_info[:3]))
    runtime = Runtime(python, prefix, version, str(place))
    (place / runtime.site_packages).mkdir(parents=True)
    (place / "bin").mkdir()
    (place / "bin" / "python").symlink_to(python)
    (place / "pyvenv.cfg").write_text(f"home = {Path(python).parent}\n")
    place.chmod(0o755)
    return runtime


def seen_by(runtime: Runtime, script: Path, program: str, *limits: str) -> Any:
    """Return what a program prints as JSON that runs confined in a virtual environment."""
    script.write_text(program)
    script.chmod(0o755)
    policy = small(*limits)
    ready = confine(
        *(policy, require_support(), choose_binds(runtime, None, [str(script), *policy.read])),
        *(ControlGroup(), {"arguments": [str(script)]}, {}),
    )
    done = subprocess.run(
        ready.command, env=ready.environ, pass_fds=ready.descriptors, capture_output=True, check=False
    )
    for descriptor in (*ready.own, ready.ready):
        os.close(descriptor)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_a_pth_file_does_not_run_before_the_sandbox_is_complete(tmp_path):
    runtime = made_virtualenv(tmp_path / "venv")
    site = tmp_path / "venv" / runtime.site_packages
    (site / "hook.pth").write_text("import os; open(os.environ.get('HOOK', '/tmp/hook'), 'w').close()\n")
    (site / "sitecustomize.py").write_text("open('/tmp/customized', 'w').close()\n")
    marker = tmp_path / "ran-outside"
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-c", ""], env={"HOOK": str(marker)}, check=True)
    assert marker.exists(), "outside the hook runs, else this test would prove nothing"
    program = "import os, sys, json; print(json.dumps([os.listdir('/tmp'), sys.path, sys.prefix]))"
    files, path, prefix = seen_by(runtime, tmp_path / "look.py", program)
    assert not {"hook", "customized"} & set(files)
    assert f"{VIRTUALENV}/{runtime.site_packages}" in path
    assert prefix == VIRTUALENV


HOST = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {harness!r})
from sandboxes import answered, confined

async def main():
    folder = Path({folder!r})
    async with confined(folder, environ=["SANDBOX_TEST_HOST"]) as environment:
        code = {code!r} + "answer = subprocess.call(['sh', '-c', 'setsid sleep 600 & exit 0'])"
        print(await answered(environment, code), flush=True)
        await asyncio.sleep({seconds})

asyncio.run(main())
"""


def host(folder: Path, seconds: int, code: str = "") -> list[str]:
    harness = str(ROOT / "tests" / "harness")
    (folder / "host.py").write_text(
        HOST.format(harness=harness, folder=str(folder), seconds=seconds, code=code)
    )
    return [sys.executable, str(folder / "host.py")]


@pytest.mark.full
async def test_nothing_outlives_a_host_that_is_killed(tmp_path, monkeypatch):
    mark = f"host-{os.getpid()}-{tmp_path.name}"
    monkeypatch.setenv("SANDBOX_TEST_HOST", mark)
    started = await asyncio.create_subprocess_exec(*host(tmp_path, 600), stdout=subprocess.PIPE)
    assert started.stdout is not None
    assert await started.stdout.readline() == b"0\n"
    assert await came_up(mark, 4)
    started.send_signal(signal.SIGKILL)
    await started.wait()
    assert await none_left(mark)


TAKE_OVER = r"""
import os, platform
# prctl(PR_SET_PDEATHSIG, 0), then pause() for ever, where process 1 goes on once a child of its has ended
code = bytes.fromhex("b89d000000bf0100000031f60f05b8220000000f05ebf7")
if platform.machine() == "x86_64":
    place = int(open("/proc/1/syscall").read().split()[-1], 16)
    with open("/proc/1/mem", "r+b", buffering=0) as memory:
        memory.seek(place)
        memory.write(code)
    subprocess.call(["sh", "-c", "sleep 0.1 & exit 0"])
    time.sleep(1)
    assert open("/proc/1/syscall").read().startswith("34 ")
"""
"""Has process 1 of the sandbox run code of the package's."""


@pytest.mark.full
async def test_a_sandbox_that_took_over_its_process_1_ends_with_its_host(tmp_path, monkeypatch):
    mark = f"host-{os.getpid()}-{tmp_path.name}"
    monkeypatch.setenv("SANDBOX_TEST_HOST", mark)
    started = await asyncio.create_subprocess_exec(*host(tmp_path, 600, TAKE_OVER), stdout=subprocess.PIPE)
    assert started.stdout is not None
    assert await started.stdout.readline() == b"0\n"
    assert await came_up(mark, 4)
    started.send_signal(signal.SIGKILL)
    await started.wait()
    assert await none_left(mark)


FLOOD = """
import array, socket
kept = [socket.socketpair() for _ in range(64)]
sent = 0
try:
    for pair in kept:
        for _ in range(60):
            whole = array.array("i", [1] * 250).tobytes()
            pair[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, whole)])
            sent += 250
except OSError:
    pass
answer = sent
"""


async def test_descriptors_in_flight_do_not_block_other_sandboxes(tmp_path):
    (tmp_path / "other").mkdir()
    async with confined(tmp_path) as flooding:
        assert await answered(flooding, FLOOD) >= 1000
        async with confined(tmp_path / "other") as other:
            code = "import resource; answer = resource.getrlimit(resource.RLIMIT_NOFILE)"
            assert await answered(other, code) == [1024, 1024]


@contextlib.contextmanager
def ordinary_user() -> Iterator[tuple[Path, Callable[..., str]]]:
    """Give a folder of an ordinary user, and what returns the output of a command that the user runs."""
    user = 61_234
    become = [sys.executable, "-I", str(ROOT / "tests" / "harness" / "ordinary_user.py"), str(user)]
    tried = subprocess.run([*become, sys.executable, "-c", ""], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"cannot become an ordinary user here: {tried.stderr.splitlines()[-1]}")
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="wander-test-") as name:
        os.chown(name, user, user)
        environ = {"HOME": name, "TMPDIR": name, "WANDER_HUB_JOB": "1"}

        def run(*command: str) -> str:
            done = subprocess.run(
                [*become, *command], capture_output=True, text=True, check=False, env=environ
            )
            assert done.returncode == 0, done.stderr
            assert (Path(name) / "worker.log").stat().st_uid == user
            return done.stdout

        yield Path(name), run


@pytest.mark.skipif("os.geteuid() != 0", reason="this is an ordinary user already")
def test_the_sandbox_works_for_an_ordinary_user():
    with ordinary_user() as (folder, run):
        assert run(*host(folder, 0)) == "0\n"


SMALL_PIPES = """
import fcntl, os, resource, runpy, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
kept = [os.pipe()]
while fcntl.fcntl(kept[-1][0], fcntl.F_GETPIPE_SZ) > 8192:
    kept.append(os.pipe())
runpy.run_path(sys.argv[1], run_name="__main__")
"""
"""Run a program whose user exceeds the kernel's limit for pipes, so that new pipes are small."""
PRINTED = "import sys; sys.stdout.write('x' * 4_000_000); sys.stdout.flush()\n"


@pytest.mark.full  # a user with pipes of usual size is below
@pytest.mark.skipif("os.geteuid() != 0", reason="root's pipes are never small")
def test_a_sandbox_does_not_need_large_pipes():
    with ordinary_user() as (folder, run):
        python, program = host(folder, 0, PRINTED)
        assert run(python, "-c", SMALL_PIPES, program) == "0\n"
        assert (folder / "worker.log").stat().st_size > 1_000_000


@pytest.mark.skipif("os.geteuid() != 0", reason="needs a user without other processes")
def test_a_package_cannot_exhaust_kernel_limits_of_the_user():
    with ordinary_user() as (folder, run):
        script = str(ROOT / "tests" / "harness" / "user_counts.py")
        inside, outside = json.loads(run(sys.executable, script, str(folder)))
    timers, refused = inside.pop("timers")
    assert (0 < timers <= 256, refused) == (True, "EAGAIN")
    assert inside == {key: [0, "EPERM"] for key in inside}
    assert {error for _, error in outside.values()} == {None}


async def test_files_readable_only_by_root_are_rejected_with_a_hint(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's sandbox reads what the user does")
    (tmp_path / "private").mkdir(mode=0o700)
    with pytest.raises(SandboxError, match="private` is private to root") as raised:
        async with confined(tmp_path, f"read={tmp_path / 'private'}"):
            pass
    assert raised.value.hint == f"run `chmod -R go+rX {tmp_path / 'private'}`"


@pytest.mark.full
async def test_a_failed_sandbox_start_is_not_blamed_on_the_environment(tmp_path, monkeypatch):
    monkeypatch.setattr("wander.sandbox.bubblewrap._ISOLATION", ("--no-such-option",))
    open_files = []
    for _ in range(3):
        with pytest.raises(SandboxError, match="no-such-option"):
            async with confined(tmp_path):
                pass
        open_files.append(len(os.listdir("/proc/self/fd")))
    assert len(set(open_files)) == 1, "nothing is left open"


async def test_a_failed_sandbox_restart_is_named(tmp_path, monkeypatch):
    async with confined(tmp_path) as environment:
        example: Example = (await environment.examples("eval"))[0]

        def refused() -> None:
            raise SandboxError("bubblewrap is not installed")

        monkeypatch.setattr("wander.worker.process.sandboxed.require_support", refused)
        lost: Rollout = await played(environment, "os.kill(os.getpid(), signal.SIGKILL)")
        assert lost.failure is not None
        assert (lost.failure.boundary, lost.failure.type) == ("environment", "WorkerLost")
        rollout = await environment.rollout(ScriptedClient(["x", "y"]), example)
        assert rollout.failure is not None
        assert (rollout.failure.boundary, rollout.failure.type) == ("sandbox", "SandboxError")
        assert rollout.failure.message == "bubblewrap is not installed"


async def test_a_worker_with_invalid_messages_is_stopped(tmp_path):
    body = """
    import contextlib, os
    for descriptor in range(3, 30):
        with contextlib.suppress(OSError):
            os.write(descriptor, b"x" * 1000)
    """
    with pytest.raises((LoadError, ConnectionError)):
        async with confined(tmp_path, body=textwrap.dedent(body)):
            pass


async def test_a_server_of_the_environment_is_reachable_inside(tmp_path):
    """Tool servers of `verifiers.v1` bind to loopback, in this process or in one that it starts."""
    code = """
    import http.server, socket, threading, urllib.request
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"here")
    answer = []
    for host in ("127.0.0.1", "localhost", "0.0.0.0"):
        with http.server.ThreadingHTTPServer((host, 0), Answers) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            url = f"http://127.0.0.1:{server.server_port}"
            answer.append(urllib.request.urlopen(url, timeout=60).read().decode())
            server.shutdown()
    program = (
        "import socket; server = socket.create_server(('localhost', 0)); "
        "print(server.getsockname()[1], flush=True); server.accept()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        socket.create_connection(("127.0.0.1", int(child.stdout.readline())), timeout=60).close()
        answer.append(child.wait(60))
    """
    async with confined(tmp_path) as environment:
        assert await answered(environment, textwrap.dedent(code)) == ["here", "here", "here", 0]


@pytest.mark.parametrize("event", ["canceled", "killed"])
async def test_a_start_that_ends_before_the_worker_connects_leaves_nothing_waiting(
    event, tmp_path, monkeypatch
):
    """The replay of a run that ended then waited for a server that could not close."""
    serve = link.serve

    async def interrupt(*arguments, **options):
        server = await serve(*arguments, **options)
        if event == "canceled":
            starting.cancel()
        else:
            kill = await asyncio.create_subprocess_exec("pkill", "-KILL", "-P", str(os.getpid()), "bwrap")
            assert await kill.wait() == 0
        return server

    async def start() -> None:
        async with confined(tmp_path):
            pass

    monkeypatch.setattr(link, "serve", interrupt)
    starting = asyncio.create_task(start())
    done, _ = await asyncio.wait([starting], timeout=60)
    assert done == {starting}
    if event == "canceled":
        assert starting.cancelled()
    else:
        assert isinstance(starting.exception(), LoadError)
