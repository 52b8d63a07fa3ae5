"""MCP environments against real server processes, over stdio and over streamable HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from wander.clients.scripted import ScriptedClient
from wander.envs.mcp.connection import MCPServer, MCPToolFailed
from wander.envs.mcp.env import MCPEnv
from wander.errors import ConfigError, MissingExtra

SERVERS = Path(__file__).parent / "mcp_servers"


def bare(mode="ok", name="bare", **kwargs) -> MCPServer:
    return MCPServer(name, command=sys.executable, args=(str(SERVERS / "bare.py"), mode, name), **kwargs)


def workshop(**kwargs) -> MCPServer:
    return MCPServer(
        "workshop", command=sys.executable, args=(str(SERVERS / "workshop.py"), "stdio"), **kwargs
    )


@pytest.fixture
async def made():
    """Make environments that are torn down at the end, however the test ends."""
    environments: list[MCPEnv] = []

    def make(*servers, **kwargs) -> MCPEnv:
        environments.append(MCPEnv(dataset=[{"question": "go"}], mcp_servers=list(servers), **kwargs))
        return environments[-1]

    yield make
    for environment in environments:
        await environment.teardown()


class HTTPServer:
    """The workshop in a process of its own, on a free port."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("w")
        command = [sys.executable, str(SERVERS / "workshop.py"), "http"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        assert self.process.stdout is not None
        port = self.process.stdout.readline().strip()
        assert port, log.read_text()
        self.url = f"http://127.0.0.1:{port}/mcp"

    def stop(self) -> None:
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self._log.close()


@pytest.fixture(scope="module")
def http_server(tmp_path_factory):
    server = HTTPServer(tmp_path_factory.mktemp("mcp") / "log")
    yield server
    server.stop()


def call(name, arguments=None, call_id="c"):
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments or {})},
    }


def calls(*entries):
    return {"content": "", "tool_calls": list(entries)}


async def played(environment, *replies, **kwargs):
    return await environment.rollout(ScriptedClient([*replies, "done"]), environment.dataset()[0], **kwargs)


def contents(rollout):
    return [message["content"] for message in rollout.completion if message["role"] == "tool"]


def ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z"


WORK = [
    calls(call("add", {"a": 2, "b": 3}), call("count", {}, "d")),
    calls(call("count"), call("fail", {"reason": "because"}, "d"), call("add", {"a": "two"}, "e")),
    calls(
        call("point", {"x": 2}), call("picture", {}, "d"), call("odd_name", {}, "e"), call("nope", {}, "f")
    ),
]


async def check_work(environment):
    seen = []
    replies = iter([*WORK, "done"])

    def script(request):
        seen.append(request)
        return next(replies)

    rollout = await environment.rollout(ScriptedClient(script), environment.dataset()[0])
    assert rollout.failure is None
    assert rollout.stop_reason == "no_tools_called"
    tools = {tool["function"]["name"]: tool["function"] for tool in seen[0].tools}
    assert tools["add"]["description"] == "Add two numbers."
    assert tools["add"]["parameters"]["required"] == ["a"]
    five, first, second, failed, wrong, point, picture, odd, nope = contents(rollout)
    assert (five, first, second, odd) == ("5", "1", "2", "odd")
    assert failed.startswith("error: Error executing tool fail")
    assert "valid integer" in wrong
    assert json.loads(point) == {"x": 2.0}
    assert picture == [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}]
    assert "there is no tool `nope`; the tools are add, count" in nope
    assert rollout.metrics == {"total_tool_calls": 9.0, "tool_errors": 3.0}
    return rollout


async def test_tools_of_a_real_server_are_called_over_stdio(made):
    environment = made(workshop())
    assert not environment.info.deterministic
    assert environment.info.kind == "mcp"
    await check_work(environment)


async def test_tools_of_a_real_server_are_called_over_http(made, http_server):
    environment = made(MCPServer("workshop", url=http_server.url))
    await check_work(environment)
    await check_work(environment)  # the count starts anew: a rollout has a session of its own


async def test_rollouts_at_the_same_time_share_nothing_over_http(made, http_server):
    environment = made(MCPServer("workshop", url=http_server.url))
    rollouts = await asyncio.gather(*(played(environment, calls(call("count"))) for _ in range(4)))
    assert [contents(rollout) for rollout in rollouts] == [["1"]] * 4


async def test_rollouts_may_share_a_session_over_http(made, http_server):
    environment = made(MCPServer("workshop", url=http_server.url, protocol="legacy"), session="environment")
    rollouts = await asyncio.gather(*(played(environment, calls(call("count"))) for _ in range(4)))
    assert sorted(contents(rollout)[0] for rollout in rollouts) == ["1", "2", "3", "4"]


async def test_every_rollout_has_its_own_process_over_stdio(made):
    environment = made(bare())
    rollouts = await asyncio.gather(
        *(played(environment, calls(call("say")), calls(call("say"), call("where"))) for _ in range(3))
    )
    said = [contents(rollout) for rollout in rollouts]
    assert [each[:2] for each in said] == [["bare 1", "bare 2"]] * 3
    pids = {int(each[2]) for each in said}
    assert len(pids) == 3
    assert all(ended(pid) for pid in pids), "no process is left when the rollouts are over"


async def test_rollouts_may_share_a_process_over_stdio(made):
    environment = made(bare(), session="environment")
    rollouts = await asyncio.gather(
        *(played(environment, calls(call("say"), call("where"))) for _ in range(3))
    )
    assert sorted(contents(rollout)[0] for rollout in rollouts) == ["bare 1", "bare 2", "bare 3"]
    (pid,) = {int(contents(rollout)[1]) for rollout in rollouts}
    assert not ended(pid)
    await environment.teardown()
    assert ended(pid)


async def test_a_dead_server_has_the_environment_boundary(made):
    rollout = await played(made(bare()), calls(call("say")), calls(call("die")), calls(call("say")))
    assert (rollout.failure.boundary, rollout.failure.retryable) == ("environment", True)
    assert "MCP server `bare` is not available" in rollout.failure.message
    assert "bare burns down" in rollout.failure.message
    assert rollout.reward is None
    assert contents(rollout) == ["bare 1"]


@pytest.mark.full
async def test_a_dead_http_server_has_the_environment_boundary(made, tmp_path):
    server = HTTPServer(tmp_path / "log")
    environment = made(MCPServer("workshop", url=server.url))
    rollout = await played(environment, calls(call("die")))
    server.stop()
    assert (rollout.failure.boundary, rollout.failure.retryable) == ("environment", True)
    unreachable = await played(environment, calls(call("add", {"a": 1})))
    assert unreachable.failure.boundary == "environment"
    assert "MCP server `workshop` is not available: it did not start" in unreachable.failure.message


async def test_the_next_rollout_restarts_a_shared_server(made):
    environment = made(bare(), bare(name="other"), session="environment")
    died = await played(environment, calls(call("other_where")), calls(call("bare_die")))
    assert died.failure.boundary == "environment"
    rollout = await played(environment, calls(call("bare_say"), call("other_where")))
    assert contents(rollout) == ["bare 1", contents(died)[0]], "the one that lives goes on"


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (bare("refuses"), "not today"),
        (bare("garbage"), "it did not start"),
        (bare("mute", start_seconds=0.5), "it did not start within 0.5 seconds"),
        (MCPServer("gone", command="/no/such/server"), "No such file or directory"),
        (MCPServer("gone", url="http://127.0.0.1:1/mcp"), "it did not start (ConnectError"),
        (bare(tools=("say", "sing")), "has no tool `sing`"),
    ],
    ids=["refuses", "garbage", "mute", "no command", "no address", "no tool"],
)
async def test_a_server_that_does_not_start_is_reported(made, server, told):
    rollout = await played(made(server), calls(call("say")))
    assert rollout.failure.boundary == "environment"
    assert told in rollout.failure.message
    assert rollout.turns == []


async def test_a_tool_timeout_is_reported_to_the_model(made, http_server):
    environment = made(MCPServer("workshop", url=http_server.url, call_seconds=0.3))
    rollout = await played(environment, calls(call("slow")), calls(call("add", {"a": 1})))
    assert rollout.failure is None
    assert "timed out" in contents(rollout)[0].lower()
    assert contents(rollout)[1] == "2"


async def test_a_refusal_without_text_is_an_error(made):
    rollout = await played(made(bare()), calls(call("refuse")))
    assert contents(rollout) == ["error: the server gave no reason"]
    fatal = await played(made(bare(), stop_errors=[MCPToolFailed]), calls(call("refuse")))
    assert fatal.failure.boundary == "tool"


async def test_every_kind_of_content_becomes_a_part(made):
    (content,) = contents(await played(made(bare()), calls(call("content"))))
    assert content == [
        {"type": "text", "text": "look"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "text", "text": "of a file"},
        {"type": "text", "text": "[binary resource file:///b.bin]"},
        {"type": "text", "text": "[resource_link file:///c]"},
    ]


async def test_conflicting_tool_names_get_a_prefix(made):
    def say(text: str) -> str:
        """A function of the author."""
        return text

    environment = made(bare(tools=("say",)), bare(name="two", tools=("say", "where")), tools=[say])
    seen = []

    def script(request):
        seen.append(request)
        several = calls(call("say", {"text": "mine"}), call("bare_say", {}, "d"), call("two_say", {}, "e"))
        return several if len(seen) == 1 else "done"

    rollout = await environment.rollout(ScriptedClient(script), environment.dataset()[0])
    assert [tool["function"]["name"] for tool in seen[0].tools] == ["say", "bare_say", "two_say", "where"]
    assert contents(rollout) == ["mine", "bare 1", "two 1"]
    assert rollout.metrics["say_calls"] == 1.0


async def test_only_the_variables_that_are_passed_reach_a_server(made, monkeypatch):
    monkeypatch.setenv("PASSED_KEY", "one")
    monkeypatch.setenv("OTHER_KEY", "two")
    environment = made(bare(env={"GIVEN": "three"}, pass_env=("PASSED_KEY", "ABSENT_KEY")))
    names = ["PASSED_KEY", "OTHER_KEY", "GIVEN"]
    rollout = await played(environment, calls(*(call("variable", {"text": name}, name) for name in names)))
    assert contents(rollout) == ["one", "None", "three"]


@pytest.mark.full
async def test_a_server_that_does_not_exit_is_killed(made):
    rollout = await played(made(bare("stubborn")), calls(call("where")))
    assert rollout.failure is None
    assert ended(int(contents(rollout)[0]))


async def test_canceling_a_rollout_leaves_no_process(made):
    environment = made(bare())
    pids: list[int] = []
    asked = asyncio.Event()

    async def script(request):
        if request.turn == 0:
            return calls(call("where"))
        pids.append(int(request.messages[-1]["content"]))
        asked.set()
        return calls(call("hang"))

    playing = asyncio.create_task(environment.rollout(ScriptedClient(script), environment.dataset()[0]))
    await asked.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert ended(pids[0])


async def test_setup_may_call_the_tools(made):
    class Prepared(MCPEnv):
        async def setup_state(self, state):
            state["said"] = await self.offered(state)["say"].call({})

    environment = Prepared(dataset=[{"question": "go"}], mcp_servers=[bare()])
    assert contents(await played(environment, calls(call("say")))) == ["bare 2"]


@pytest.mark.parametrize("hook", ["setup_state", "env_response", "offered"])
async def test_an_error_in_a_hook_leaves_no_process(hook):
    pids: list[int] = []

    def broken(self, *arguments):
        holding = arguments[-1]["mcp_connections"]
        assert holding[0].alive
        pids.append(1)
        raise RuntimeError("hook broke")

    environment = type("Broken", (MCPEnv,), {hook: broken})(
        dataset=[{"question": "go"}], mcp_servers=[bare()]
    )
    before = children()
    rollout = await played(environment, calls(call("say")))
    assert rollout.failure.boundary == "environment"
    assert "hook broke" in rollout.failure.message
    assert pids
    assert children() == before


def children() -> set[str]:
    listed = Path(f"/proc/{os.getpid()}/task")
    if not listed.exists():
        return set()
    return {pid for task in listed.iterdir() for pid in (task / "children").read_text().split()}


def test_invalid_settings_are_rejected():
    for wrong, told in [
        ({"mcp_servers": []}, "`mcp_servers` is empty"),
        ({"mcp_servers": [bare(), bare()]}, "two MCP servers have the name `bare`"),
        ({"mcp_servers": [bare()], "session": "turn"}, "`session` must be"),
        ({"mcp_servers": [{"name": "x"}]}, "either `command` or `url`"),
        ({"mcp_servers": [{"name": "x", "command": "a", "url": "b"}]}, "either `command` or `url`"),
        ({"mcp_servers": [{"command": "a"}]}, "needs a name"),
        ({"mcp_servers": [{"name": "x", "comand": "a"}]}, "has no field `comand`"),
        (
            {"mcp_servers": [{"name": "x", "command": "a", "args": "b"}]},
            "`args` of MCP server `x` must be a list",
        ),
    ]:
        with pytest.raises(ConfigError, match=told):
            MCPEnv(dataset=[{"question": "go"}], **wrong)


def test_servers_may_be_dictionaries():
    given = {
        "name": "files",
        "command": "serve",
        "args": ["--all"],
        "env": {"A": "1"},
        "description": "files",
    }
    environment = MCPEnv(dataset=[{"question": "go"}], mcp_servers=[given], deterministic=True)
    assert environment.servers == [MCPServer("files", command="serve", args=("--all",), env={"A": "1"})]
    assert environment.info.deterministic


def test_the_extra_is_named_when_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtra) as caught:
        MCPEnv(dataset=[{"question": "go"}], mcp_servers=[bare()])
    assert "wander-sdk[mcp]" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("given", "name", "command", "args"),
    [
        ("uvx mcp-server-time --local-timezone=UTC", "mcp-server-time", "uvx", 2),
        ("python3 -u './my server.py' stdio", "my server", "python3", 3),
        ("serve", "serve", "serve", 0),
    ],
)
def test_a_server_is_started_by_its_command_line(given, name, command, args):
    server = MCPServer.of(given)
    assert (server.name, server.command, len(server.args), server.url) == (name, command, args, None)


async def test_a_server_is_given_by_command_line_or_url(made, http_server):
    for line in (f"{sys.executable} {SERVERS / 'workshop.py'} stdio", http_server.url):
        environment = MCPEnv(dataset=[{"question": "go"}], mcp_servers=line)
        rollout = await environment.rollout(ScriptedClient(["done"]), environment.dataset()[0])
        await environment.teardown()
        assert rollout.failure is None
        assert {"add"} <= {tool["function"]["name"] for tool in rollout.tools}
    assert environment.servers == [MCPServer("127.0.0.1", url=http_server.url)]


@pytest.mark.parametrize("given", ["serve 'half", "", "http://"])
def test_invalid_servers_are_rejected(given):
    with pytest.raises(ConfigError, match=r"MCP server"):
        MCPServer.of(given)
