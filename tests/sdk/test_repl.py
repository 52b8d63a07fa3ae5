"""The process that runs a model's code: whatever the code does, the host goes on."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import pytest
from sandboxes import needs_sandbox
from wander.envs.rlm import repl as repl_module
from wander.envs.rlm.repl import Query, Repl, ReplLimits, cut
from wander.errors import ModelError, SandboxError

LIMITS = ReplLimits(cell_seconds=20, output_chars=400)
QUICK = ReplLimits(cell_seconds=0.3, output_chars=400)


async def upper(queries: list[Query]) -> list[str]:
    return [query.prompt.upper() for query in queries]


async def refuse(queries: list[Query]) -> str:
    return "the budget is spent"


@pytest.fixture(autouse=True)
def _no_process_is_left(tmp_path, monkeypatch):
    # A folder of its own: tests that run beside this one make such folders too.
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield
    assert list(folder.glob("wander-repl-*")) == []


@pytest.fixture
async def made():
    """Make REPLs that are closed at the end, however the test ends."""
    repls: list[Repl] = []

    def make(*args, **kwargs) -> Repl:
        repls.append(Repl(*args, **kwargs))
        return repls[-1]

    yield make
    for repl in repls:
        await repl.close()


@pytest.fixture
def repl(made):
    return made(LIMITS, seed=7)


@pytest.fixture
def quick(made):
    return made(QUICK)


async def output(repl, code, answer=upper):
    return (await repl.run(code, answer)).output


async def test_variables_persist_and_the_last_expression_is_shown(repl):
    repl.loaded["context"] = {"text": "abc" * 1000, "rows": [1, 2]}
    assert await output(repl, "x = len(context['text'])\nprint('a')\nx") == "a\n3000\n"
    assert await output(repl, "def f():\n    return x + context['rows'][1]") == ""
    assert await output(repl, "f()") == "3002\n"


async def test_output_of_subprocesses_is_in_order(repl):
    code = "import os\nprint('one')\n_ = os.system('echo two; echo three >&2')\nprint('four')"
    assert await output(repl, code) == "one\ntwo\nthree\nfour\n"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("1/0", 'File "<cell 1>", line 1, in <module>\n    1/0\n'),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("x = b'a' * 10**11", "MemoryError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("class E(Exception):\n def __str__(self): return 1/0\nraise E", "E: <exception str() failed>"),
        ("input()", "EOFError"),
        ("import json; json.loads('{')", "json.decoder.JSONDecodeError: Expecting property name"),
        ("'\\x00'\nprint(undefined)", "NameError: name 'undefined' is not defined"),
        ("llm_query_batched(['a'], [])", "ValueError: 1 prompts but 0 contexts"),
        ("llm_query('a', object())", "TypeError: Object of type object is not JSON serializable"),
        ("\x00", "source code string cannot contain null bytes"),
        ("def f(): f()\nf()", "RecursionError"),
    ],
)
async def test_failures_are_reported(repl, code, told):
    result = await repl.run(code, upper)
    assert result.ended == "error"
    assert told in result.output
    assert "repl_child" not in result.output
    assert sys.base_prefix not in result.output, "no folders of this machine"
    assert await output(repl, "1 + 1") == "2\n"


async def test_code_cannot_exit_the_process(repl):
    result = await repl.run("import sys\nx = 1\nsys.exit(3)", upper)
    assert (result.ended, result.output) == ("ok", "SystemExit: 3 (the REPL continues)\n")
    assert await output(repl, "x") == "1\n"


async def test_code_can_call_the_model(repl):
    code = "print(llm_query('one'))\nprint(llm_query_batched(['a', 'b'], contexts=['x', None]))"
    asked: list[list[Query]] = []

    async def answer(queries):
        asked.append(queries)
        return await upper(queries)

    assert await output(repl, code, answer) == "ONE\n['A', 'B']\n"
    assert asked == [[Query("one")], [Query("a", "x"), Query("b")]]
    assert await output(repl, "llm_query_batched([])", answer) == "[]\n"


async def test_a_rejected_query_is_an_exception_in_the_cell(repl):
    code = "try:\n    llm_query('x')\nexcept RuntimeError as error:\n    print('refused:', error)"
    assert await output(repl, code, refuse) == "refused: the budget is spent\n"


async def test_only_the_main_thread_calls_the_model(repl):
    code = (
        "import threading\n"
        "thread = threading.Thread(target=lambda: llm_query('x'))\n"
        "thread.start()\nthread.join()"
    )
    shown = await output(repl, code)
    assert "RuntimeError: ask from the main thread; `llm_query_batched` asks several things" in shown


@pytest.mark.parametrize("error", [ModelError("gone"), TimeoutError("late"), KeyError("x")])
async def test_a_model_error_is_not_blamed_on_the_code(repl, error):
    async def fail(queries):
        raise error

    with pytest.raises((type(error), repl_module.AnswerTimeout)):
        await repl.run("x = 1\nllm_query('x')", fail)
    assert await output(repl, "'x' in globals()") == "False\n", "the process was started anew"


async def test_model_time_does_not_count_for_the_cell(quick):
    async def slowly(queries):
        await asyncio.sleep(2 * QUICK.cell_seconds)
        return await upper(queries)

    result = await quick.run("x = llm_query('slow')\nx", slowly)
    assert (result.ended, result.output) == ("ok", "'SLOW'\n")


async def test_an_endless_cell_is_stopped_and_variables_are_kept(quick):
    await quick.run("x = 1", upper)
    result = await quick.run("print('begun')\nwhile True: pass", upper)
    assert (result.ended, result.output, result.restarted) == ("timeout", "begun\n", False)
    sleeping = await quick.run("try:\n    import time; time.sleep(60)\nexcept Exception: pass", upper)
    assert sleeping.ended == "timeout"
    assert await output(quick, "x") == "1\n"


STUBBORN = "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass"


async def test_a_cell_that_will_not_stop_is_killed(quick, monkeypatch):
    monkeypatch.setattr(repl_module, "GRACE_SECONDS", 0.2)
    quick.loaded["context"] = "kept"
    await quick.run("x = 1", upper)
    result = await quick.run(STUBBORN, upper)
    assert (result.ended, result.restarted) == ("timeout", True)
    assert await output(quick, "context, 'x' in globals()") == "('kept', False)\n"


DEATHS = ["import os; os._exit(3)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]


@pytest.mark.parametrize("code", DEATHS)
async def test_a_dead_process_is_restarted(repl, code):
    repl.loaded["context"] = "kept"
    result = await repl.run("print('last words', flush=True)\n" + code, upper)
    assert (result.ended, result.output, result.restarted) == ("died", "last words\n", True)
    assert await output(repl, "context") == "'kept'\n"


LIES = """
import gc, struct
channel = next(o for o in gc.get_objects() if type(o).__name__ == "Channel")
"""


@pytest.mark.parametrize(
    "lie",
    [
        "channel._output.write(struct.pack('>I', 1 << 31)); channel._output.flush()",
        "channel._output.write(struct.pack('>I', 3) + b'{{{'); channel._output.flush()",
        "channel.send(['not', 'an', 'object'])",
        "channel.send({'op': 'query', 'queries': [{'prompt': 7}]})",
        "channel.send({'op': 'done', 'ended': 'splendidly'})",
    ],
)
async def test_a_process_with_invalid_messages_is_stopped(repl, lie):
    result = await repl.run(LIES + lie, upper)
    assert (result.ended, result.restarted) == ("died", True)
    assert await output(repl, "1") == "1\n"


async def test_long_output_is_cut_and_its_size_is_shown(repl):
    result = await repl.run("for i in range(100000): print(i)", upper)
    assert result.output_chars == 588890
    assert result.output.startswith("0\n1\n2\n")
    assert result.output.endswith("99998\n99999\n")
    assert "[588490 of 588890 characters left out]" in result.output
    assert len(result.output) < LIMITS.output_chars + 80


async def test_endless_output_fills_a_file_of_limited_size(made):
    repl = made(ReplLimits(file_mb=1, output_chars=400))
    result = await repl.run("while True: print('y' * 1000)", upper)
    assert result.ended == "error"
    assert "OSError: [Errno 27] File too large" in result.output
    assert result.output_chars <= 1 << 20
    assert await output(repl, "print('on')") == "on\n"


@pytest.mark.parametrize(
    "code", ["import sys; sys.stdout.close()", "import sys, io; sys.stdout = io.StringIO()", "print = None"]
)
async def test_broken_output_is_repaired(repl, code):
    await repl.run(code, upper)
    assert await output(repl, "import sys\n_ = sys.stdout.write('back')") == "back"


async def test_bytes_that_are_not_text_are_shown(repl):
    code = "import sys\nprint('\\ud800')\n_ = sys.stdout.buffer.write(b'\\xff')"
    assert await output(repl, code) == "\\ud800\n\ufffd"


async def test_addresses_and_folders_do_not_leak(repl):
    shown = await output(repl, "import os\nprint(object(), os.getcwd(), os.environ['HOME'])")
    assert shown == "<object object at 0x...> /tmp /tmp\n"


async def test_the_hosts_environment_does_not_reach_the_code(repl, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    assert await output(repl, "import os\n'SECRET_KEY' in os.environ") == "False\n"


async def test_two_processes_draw_the_same_random_numbers(made):
    code = "import random\nprint(random.random(), {'a', 'b', 'c', 'd'}, hash('x'))"
    seen = []
    for seed in (1, 1, 2):
        seen.append(await output(made(LIMITS, seed=seed), code))
    assert seen[0] == seen[1]
    assert seen[0] != seen[2]


async def test_final_answers_come_from_code(repl):
    assert (await repl.run("FINAL(6 * 7)", upper)).final == "42"
    assert (await repl.run("answer = 'so'\nFINAL_VAR('answer')", upper)).final == "so"
    assert (await repl.run("FINAL_VAR(answer)", upper)).final == "so"
    assert (await repl.run("1", upper)).final is None


async def test_a_variable_is_read_as_text(repl, monkeypatch):
    monkeypatch.setattr(repl_module, "GRACE_SECONDS", 0.5)
    await repl.run("x = [1]\nclass Bad:\n    def __str__(self): return 1/0\nbad = Bad()", upper)
    assert await repl.value("x") == "[1]"
    assert await repl.value("nope") is None
    assert "ZeroDivisionError" in str(await repl.value("bad"))
    slow = "class Slow:\n    def __str__(self):\n        while True: pass\nslow = Slow()"
    await repl.run(slow, upper)
    assert await repl.value("slow") is None


async def test_closing_ends_everything_that_code_started(repl):
    code = "import subprocess\nchild = subprocess.Popen(['sleep', '600'])\nprint(child.pid)"
    pid = int(await output(repl, code))
    os.kill(pid, 0)
    await repl.close()
    for _ in range(200):
        if not alive(pid):
            return
        await asyncio.sleep(0.02)
    pytest.fail("the code's process is still there")


async def test_canceling_ends_a_busy_cell(repl):
    asked: asyncio.Queue[int] = asyncio.Queue()

    async def noted(queries):
        asked.put_nowait(int(queries[0].prompt))
        return [""]

    running = asyncio.create_task(repl.run("import os\nllm_query(os.getpid())\nwhile True: pass", noted))
    process = await asked.get()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not alive(process)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat")
        return not state.exists() or state.read_text().split()[2] != "Z"
    except ProcessLookupError:
        return False


async def test_a_missing_interpreter_is_reported():
    with pytest.raises(SandboxError, match="cannot be started"):
        await Repl(LIMITS, python="/no/such/python").run("1", upper)


async def test_an_interpreter_that_does_not_start_is_reported(tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no luck\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(SandboxError, match="did not start: no luck"):
        await Repl(LIMITS, python=str(broken)).run("1", upper)


async def test_a_context_larger_than_the_memory_is_reported(made):
    repl = made(ReplLimits(memory_mb=120))
    repl.loaded["context"] = "x" * 60_000_000
    with pytest.raises(SandboxError, match="ended while it loaded `context`") as caught:
        await repl.run("1", upper)
    assert "120 MB" in str(caught.value.hint)


async def test_a_missing_sandbox_is_rejected(made, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name, **_: None)
    monkeypatch.setattr("wander.sandbox.support.PACKAGE", "no_such_package")
    with pytest.raises(SandboxError, match="bubblewrap is not installed"):
        await Repl(LIMITS, sandbox="bwrap").run("1", upper)
    assert (await made(LIMITS, sandbox="auto").run("1", upper)).ended == "ok"


@needs_sandbox
async def test_the_sandbox_keeps_code_inside(made):
    repl = made(LIMITS, sandbox="bwrap")
    repl.loaded["context"] = "kept"
    assert await output(repl, "context") == "'kept'\n"
    assert await output(repl, "llm_query('hello')") == "'HELLO'\n"
    users = "[line.split(':')[0] for line in open('/etc/passwd')]"
    assert await output(repl, users) == "['root', 'nobody']\n", "its own file, not the host's"
    shown = {path for path in (sys.prefix, sys.base_prefix) if path.startswith("/root/")}
    names = sorted({Path(path).parts[2] for path in shown})
    probes = {
        "open('/proc/sys/kernel/core_pattern', 'w')": "Permission denied",
        "open('/etc/shadow')": "No such file",
        f"open({str(Path(__file__))!r})": "No such file",
        "open('/usr/x', 'w')": "Read-only file system",
        f"open({sys.base_prefix!r} + '/x', 'w')": "Read-only file system",
        "import socket; socket.create_connection(('127.0.0.1', 80))": "Connection refused",
        "import os; os.setuid(1)": "OSError",
        "os.chroot('/tmp')": "Operation not permitted",
        "os.getuid(), sorted(os.listdir('/root')), os.uname().nodename": f"(0, {names}, 'box')",
    }
    for probe, told in probes.items():
        assert told in await output(repl, probe), probe
    assert await output(repl, "open('/tmp/x', 'w').write('y')") == "1\n"
    flood = "for i in range(9): open(f'/tmp/{i}', 'w').write('y' * 9_000_000)"
    assert "No space left" in await output(repl, flood)


@needs_sandbox
async def test_closing_a_box_also_ends_processes_that_left_their_group(made):
    repl = made(LIMITS, sandbox="bwrap")
    mark = f"sleep {600 + os.getpid()}"
    await output(repl, f"import subprocess\nsubprocess.Popen({mark.split()!r}, start_new_session=True)")
    assert commands_like(mark) == [mark]
    await repl.close()
    assert commands_like(mark) == []


def commands_like(mark: str) -> list[str]:
    shown = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in shown.splitlines() if line == mark]


@pytest.fixture
def environment_below_tmp():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        venv.create(folder, symlinks=True)
        yield folder


@needs_sandbox
async def test_the_sandbox_shows_an_interpreter_below_tmp(made, environment_below_tmp):
    repl = made(LIMITS, sandbox="bwrap", python=f"{environment_below_tmp}/bin/python")
    assert await output(repl, "import sys; sys.prefix") == f"{environment_below_tmp!r}\n"


@pytest.mark.parametrize("chars", [1, 3, 10])
def test_shortening_keeps_both_ends(chars):
    text = "0123456789"
    shown = cut(text, chars, len(text))
    assert shown.startswith(text[: chars * 3 // 4])
    assert shown.endswith(text[len(text) - (chars - chars * 3 // 4) :])
