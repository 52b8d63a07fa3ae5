"""Agent programs in a box: how their model calls become turns, and what happens if they misbehave."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import Any

import pytest
from repair_task import STEPS, repair, repair_env
from wander import LocalEnvironment, ReplayClient, Rollout, Rubric, SamplingArgs, ScriptedClient
from wander.boxes import Box
from wander.boxes.programs import PROGRAMS
from wander.clients.base import ModelRequest, ModelResponse
from wander.clients.replay import TranscriptClient
from wander.envs import AgentEnv
from wander.errors import ConfigError, ContextOverflow, ModelError
from wander.sandbox import SandboxPolicy
from wander.train.rollouts.rows import trajectories_of
from wander.types import Message, State, TurnTokens, Usage
from wander.wire.run_record import read_sub_calls
from wander.worker.host.environment import WorkerEnvironment

LIBRARY = '''
import json, os, subprocess, sys, time, urllib.error, urllib.request

TASK = os.environ["WANDER_INSTRUCTION"]
BASH = {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": BASH}]


def ask(messages, tools=TOOLS, **more):
    """Return the assistant's message, or the error's body."""
    body = json.dumps({"model": "gpt-x", "messages": messages, "tools": tools, **more}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
    try:
        with urllib.request.urlopen(request) as response:
            return json.load(response)["choices"][0]["message"]
    except urllib.error.HTTPError as error:
        return {"status": error.code, **json.load(error)}


def work(messages):
    while True:
        message = ask(messages)
        if "status" in message:
            sys.exit(message["error"]["message"])
        # Programs do not send reasoning back.
        messages.append({key: message[key] for key in ("role", "content", "tool_calls") if key in message})
        if not message.get("tool_calls"):
            return message["content"]
        for call in message["tool_calls"]:
            command = json.loads(call["function"]["arguments"])["command"]
            ran = subprocess.run(command, shell=True, capture_output=True, text=True)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": ran.stdout})
'''
USER = '[{"role": "user", "content": TASK}]'


class ProgramEnv(AgentEnv):
    """Runs a Python program that uses `LIBRARY`."""

    def __init__(self, program: str, **options: Any) -> None:
        async def solved(box: Box) -> float:
            return float((await box.exec("cat /work/out")).output.strip() == "done")

        rows = [{"question": f"Write done into out ({number})."} for number in range(3)]
        super().__init__(
            eval_dataset=rows, rubric=Rubric([solved]), agent="cd /work; python3 /work/.agent.py", **options
        )
        self.code = program

    async def setup_box(self, box: Box, state: State) -> None:
        await box.upload({"/work/.agent.py": f"{LIBRARY}\n{self.code}\n"})


def bash(command: str, number: int = 0, **more: Any) -> Message:
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call], **more}


def write_done(request: ModelRequest) -> Message | str:
    """Write the file in the first turn, and answer in the second."""
    answers = sum(message["role"] == "assistant" for message in request.messages)
    return "finished" if answers else bash("echo done > out", reasoning_content="I must write it")


async def play(env: AgentEnv, client: Any, *, index: int = 0, **options: Any) -> Rollout:
    local = LocalEnvironment(env)
    try:
        example = (await local.examples("eval", index, 1))[0]
        return await local.rollout(client, example, **options)
    finally:
        await local.close()


def failure_of(rollout: Rollout) -> tuple[str, str]:
    assert rollout.failure is not None
    return rollout.failure.boundary, rollout.failure.message


async def test_a_program_is_played_until_it_exits():
    requests: list[ModelRequest] = []

    def answer(request: ModelRequest) -> ModelResponse:
        requests.append(request)
        reply = write_done(request)
        message = reply if isinstance(reply, dict) else {"role": "assistant", "content": reply}
        return ModelResponse(message=message, usage=Usage(prompt_tokens=10, completion_tokens=2))

    env = ProgramEnv(f"work({USER}); print('bye')")
    rollout = await play(env, ScriptedClient(answer))
    assert rollout.failure is None, rollout.failure
    assert (rollout.reward, rollout.stop_reason, rollout.truncated) == (1.0, "program_exited", False)
    assert [message["role"] for message in rollout.completion] == ["assistant", "tool", "assistant"]
    assert [turn.context_messages for turn in rollout.turns] == [1, 3]
    # The reasoning that the program left out is back, because the policy continues what it sampled.
    assert requests[1].messages[1]["reasoning_content"] == "I must write it"
    assert [request.turn for request in requests] == [0, 1]
    assert rollout.tools is not None
    assert rollout.tools[0]["function"]["name"] == "bash"
    record = rollout.info["agent"]
    assert (record["exit_status"], record["output"], record["models"]) == (0, "bye\n", {"gpt-x": 2})
    assert record["sub_calls"] == []
    assert (rollout.usage.prompt_tokens, rollout.usage.completion_tokens) == (20, 4)


SIDE = f"""
title = ask([{{"role": "user", "content": "title?"}}], tools=None)
messages = {USER}
work(messages)
for number in (1, 2):
    work([{{"role": "user", "content": f"side {{number}}"}}])
messages.append({{"role": "user", "content": "and now?"}})
work(messages)
"""


async def test_further_conversations_are_sub_calls_with_their_own_tokens():
    ids = iter(range(1000, 9000))
    sampled: dict[str, list[int]] = {}

    def answer(request: ModelRequest) -> ModelResponse:
        reply = write_done(request)
        message = reply if isinstance(reply, dict) else {"role": "assistant", "content": reply}
        known = sampled.get(request.rollout_id, [])
        tokens = TurnTokens(
            prompt_ids=[*known, next(ids)], completion_ids=[next(ids), next(ids)], logprobs=[-1, -1]
        )
        sampled[request.rollout_id] = [*tokens.prompt_ids, *tokens.completion_ids]
        return ModelResponse(message=message, usage=Usage(completion_tokens=2), tokens=tokens)

    env = ProgramEnv(SIDE, max_turns=50)
    # The first conversation has no tools, so it is a title and not the work on the task.
    assert env.program is not None
    env.program = replace(env.program, offers_tools=True)
    rollout = await play(env, ScriptedClient(answer))
    assert rollout.failure is None, rollout.failure
    assert rollout.reward == 1.0
    roles = [message["role"] for message in rollout.completion]
    assert roles == ["assistant", "tool", "assistant", "user", "assistant"]
    calls = read_sub_calls(rollout)
    assert [call.path for call in calls] == ["1", "2", "3"]
    assert [call.prompt[-1]["content"] for call in calls] == ["title?", "side 1", "side 2"]
    assert [len(call.turns) for call in calls] == [1, 2, 2]
    assert [call.tools is None for call in calls] == [True, False, False]
    assert rollout.usage.completion_tokens == 2 * (3 + 5)
    sequences = trajectories_of(rollout)
    assert [sum(sequence.mask) for sequence in sequences] == [6, 2, 4, 4]
    await assert_replays(env, rollout)


async def assert_replays(env: AgentEnv, rollout: Rollout) -> None:
    """The record alone plays the same rollout again, and scores the same state."""
    again = await play(env, ReplayClient([rollout]))
    assert again.failure is None, again.failure
    assert again.completion == rollout.completion
    assert again.info["box"]["state"]["digest"] == rollout.info["box"]["state"]["digest"]
    assert again.info["agent"] == rollout.info["agent"]
    scored = await play(env, TranscriptClient([rollout]))
    assert (scored.reward, scored.failure) == (rollout.reward, None)


async def test_the_rollout_decides_how_to_sample_and_the_program_may_limit_it():
    asked: list[SamplingArgs] = []

    def answer(request: ModelRequest) -> str:
        asked.append(request.sampling)
        return "ok"

    program = f"""
ask({USER}, temperature=0.9, max_tokens=50, stop=["END"], seed=3)
ask({USER}, max_tokens=500, tool_choice="required", reasoning_effort="high")
"""
    sampling = SamplingArgs(temperature=0.2, max_tokens=100)
    await play(ProgramEnv(program), ScriptedClient(answer), sampling=sampling)
    assert [args.given() for args in asked] == [
        {"temperature": 0.2, "max_tokens": 50, "stop": ["END"]},
        {"temperature": 0.2, "max_tokens": 100, "tool_choice": "required"},
    ]


async def test_unsupported_requests_are_errors_only_for_the_program():
    class Strict(ScriptedClient):
        def check_sampling(self, sampling: SamplingArgs) -> None:
            if "tool_choice" in sampling.given():
                raise ModelError("the model does not support `tool_choice`")

    program = f"print(ask({USER}, tool_choice='required')['error']['message']); work({USER})"
    rollout = await play(ProgramEnv(program), Strict(write_done))
    assert (rollout.reward, rollout.failure) == (1.0, None)
    assert rollout.info["agent"]["output"] == "the model does not support `tool_choice`\n"


@pytest.mark.parametrize("stubborn", [False, True])
async def test_after_the_last_turn_calls_are_rejected_and_the_program_is_stopped(stubborn, monkeypatch):
    # A program that leaves by itself ends the wait, so only one that stays is worth a short one.
    monkeypatch.setattr("wander.envs.agent._GRACE_SECONDS", 0.5 if stubborn else 60.0)
    forever = f"""
while True:
    message = ask({USER})
    if message.get("status") == 403 and not {stubborn}:
        sys.exit(message["error"]["message"])
    time.sleep(0.01)
"""
    client = ScriptedClient(lambda request: bash("true"))
    rollout = await play(ProgramEnv(forever, max_turns=3), client)
    assert rollout.failure is None, rollout.failure
    assert rollout.stop_reason == "max_turns_reached"
    assert len(rollout.turns) + sum(len(call.turns) for call in read_sub_calls(rollout)) == 3
    assert rollout.info["agent"].get("exit_status") == (None if stubborn else 1)


async def test_a_program_that_never_exits_is_scored_as_truncated():
    works = f"work({USER}); open('/work/more', 'w')"
    begun = time.monotonic()
    assert (await play(ProgramEnv(works), ScriptedClient(write_done))).reward == 1.0
    enough = 2 * (time.monotonic() - begun) + 1  # to work, however busy this machine is
    program = f"{works}; time.sleep(1000)"
    rollout = await play(ProgramEnv(program, program_seconds=enough), ScriptedClient(write_done))
    assert (rollout.reward, rollout.failure) == (1.0, None)
    assert (rollout.stop_reason, rollout.truncated) == ("program_timeout", True)
    rollout = await play(ProgramEnv(program, timeout_seconds=enough), ScriptedClient(write_done))
    assert (rollout.reward, rollout.failure) == (1.0, None)
    assert (rollout.stop_reason, rollout.truncated) == ("timeout_reached", True)


@pytest.mark.parametrize(
    "program",
    [
        "sys.exit('I have a bad day')",
        "urllib.request.urlopen(os.environ['OPENAI_BASE_URL'] + '/responses', b'bad day')",
        "raise OSError('bad day')",
    ],
)
async def test_a_program_without_model_calls_has_the_environment_boundary(program):
    rollout = await play(ProgramEnv(program), ScriptedClient(write_done))
    boundary, message = failure_of(rollout)
    assert boundary == "environment"
    assert "bad day" in message or "Bad Request" in message


async def test_a_model_error_is_not_blamed_on_the_program():
    def fail(request: ModelRequest) -> str:
        raise ModelError("the endpoint is on fire")

    rollout = await play(ProgramEnv(f"work({USER})"), ScriptedClient(fail))
    assert failure_of(rollout) == ("model", "the endpoint is on fire")


@pytest.mark.parametrize("compacts", [False, True])
async def test_a_program_may_shorten_a_conversation_that_is_too_long(compacts):
    program = f"""
messages = {USER}
while True:
    message = ask(messages)
    if message.get("error", {{}}).get("code") == "context_length_exceeded":
        if not {compacts}:
            sys.exit("too long")
        work([{{"role": "user", "content": "shorter: " + TASK}}])
        break
    messages += [message, {{"role": "tool", "tool_call_id": "call_0", "content": "go on"}}]
"""

    def answer(request: ModelRequest) -> Message | str:
        if len(request.messages) > 4:
            raise ContextOverflow("5 messages, at most 4")
        if request.messages[0]["content"].startswith("shorter"):
            return write_done(request)
        return bash("true")

    rollout = await play(ProgramEnv(program), ScriptedClient(answer))
    assert rollout.failure is None, rollout.failure
    assert len(read_sub_calls(rollout)) == compacts
    assert (rollout.reward, rollout.truncated) == ((1.0, False) if compacts else (0.0, True))
    assert rollout.stop_reason == ("program_exited" if compacts else "context_overflow")


WORKER_MODULE = """
from wander import Rubric
from wander.envs import AgentEnv

CODE = {library!r} + {program!r}


async def solved(box):
    return float((await box.exec("cat /work/out")).output.strip() == "done")


class Program(AgentEnv):
    async def setup_box(self, box, state):
        await box.upload({{"/work/agent.py": CODE}})


def load_environment():
    rows = [{{"question": f"Write done into out ({{number}})."}} for number in range(2)]
    return Program(eval_dataset=rows, rubric=Rubric([solved]), agent="python3 agent.py", name="program")
"""


@pytest.mark.parametrize("confined", [pytest.param(False, marks=pytest.mark.full), True])
async def test_agent_programs_run_in_workers(tmp_path, confined):
    module = tmp_path / "agent_environment.py"
    module.write_text(WORKER_MODULE.format(library=LIBRARY, program=SIDE))
    environment = await WorkerEnvironment.start(
        None,
        None,
        path=module,
        log_path=tmp_path / "worker.log",
        **({"sandbox": SandboxPolicy()} if confined else {}),
    )
    try:
        examples = await environment.examples("eval", 0, 2)
        rollouts = await asyncio.gather(
            *(environment.rollout(ScriptedClient(write_done), example) for example in examples)
        )
    finally:
        await environment.close()
    for rollout in rollouts:
        assert (rollout.reward, rollout.failure) == (1.0, None), rollout.failure
        assert len(read_sub_calls(rollout)) == 3


MISBEHAVIOR = {
    "forks": "import threading\nwhile True:\n    subprocess.Popen(['sleep', '100'])",
    "fills the disk": "with open('/tmp/big', 'wb') as file:\n    while True: file.write(b'x' * (1 << 20))",
    "floods": "while True: print('x' * 100000)",
    "connects": "import socket\nkept = [socket.create_connection(('127.0.0.1', 8080)) for _ in range(900)]",
}


@pytest.mark.parametrize(
    "name", ["forks", *(pytest.param(name, marks=pytest.mark.full) for name in [*MISBEHAVIOR][1:])]
)
async def test_background_processes_cannot_change_the_scored_files(name):
    """The other rollouts go on, and the rollout is scored by what it left."""
    bad = ProgramEnv(f"work({USER})\n{MISBEHAVIOR[name]}", program_seconds=5.0)
    good = ProgramEnv(f"work({USER})")
    rollouts = await asyncio.gather(
        play(bad, ScriptedClient(write_done)), *(play(good, ScriptedClient(write_done)) for _ in range(2))
    )
    for rollout in rollouts[1:]:
        assert (rollout.reward, rollout.failure) == (1.0, None)
    assert rollouts[0].reward == 1.0 or failure_of(rollouts[0])[0] == "sandbox"


async def test_an_unknown_program_is_rejected():
    with pytest.raises(ConfigError) as refused:
        repair_env(agent="codexx")
    assert "codex" in str(refused.value.hint)


@pytest.mark.slow  # installs the programs from npm and PyPI
@pytest.mark.parametrize("agent", PROGRAMS)
async def test_real_agents_repair_two_files(agent):
    rollout = await play(repair_env(agent=agent, program_seconds=120), ScriptedClient(repair))
    assert rollout.failure is None, rollout.failure
    assert (rollout.reward, rollout.stop_reason) == (1.0, "program_exited")
    record = rollout.info["agent"]
    assert record["program"]["version"] == PROGRAMS[agent].version
    assert record["exit_status"] == 0
    # All turns are one conversation: what the program sent back was recognized.
    assert len(rollout.turns) >= len(STEPS)
    assert all(len(call.turns) == 1 for call in read_sub_calls(rollout))


async def test_without_a_program_the_model_plays_by_itself():
    env = repair_env()
    assert (env.info.kind, env.max_turns, env.deterministic) == ("shell", 20, True)
    rollout = await play(env, ScriptedClient(repair))
    assert (rollout.reward, rollout.stop_reason) == (1.0, "no_tools_called")
    assert "agent" not in rollout.info
    env = repair_env(agent="codex")
    assert (env.info.kind, env.max_turns, env.deterministic) == ("agent", 100, False)
