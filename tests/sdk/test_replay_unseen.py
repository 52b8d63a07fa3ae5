"""Code of an environment cannot tell whether it is evaluated or replayed, and sees nothing of the record."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from sandboxes import confined, needs_sandbox
from wander import Rollout, ScriptedClient
from wander.clients.base import NOT_RECORDED, Client, ModelRequest
from wander.clients.replay import ReplayClient, TranscriptClient
from wander.environment import LocalEnvironment
from wander.envs.multi_turn import TIMEOUT
from wander.errors import ModelError
from wander.evals.replay import replay_run
from wander.evals.run.runner import EvaluationPlan, evaluate
from wander.loading import load_path
from wander.rollout.outside_calls import JUDGE_ANSWERS, PUBLIC_KEY
from wander.wire import EnvironmentPin
from wander.worker import WorkerEnvironment
from wander.worker.openai_proxy import UNATTRIBUTED

pytestmark = pytest.mark.usefixtures("warm_workers")

LOOKING = '''
import ctypes, gc, hashlib, json, os, re, resource, sys, threading, time
from wander import MultiTurnEnv, Rubric

def look(state, client):
    """Return what this process can see of itself and of whoever started it."""
    status = open("/proc/self/status").read()
    names = {type(each).__name__ for each in gc.get_objects()}
    clock = time.time()
    open("/tmp/written", "w").close()
    return {
        "state": sorted(map(str, state)),
        "variables": sorted(set(os.environ) - {"LC_CTYPE"}),  # set by Python for some of the drawn locales
        "arguments": [sys.argv, sys.orig_argv, sys.flags.hash_randomization],
        "first process": open("/proc/1/cmdline").read().split(chr(0)),
        "files": [__file__, sys.prefix, sys.executable, os.getcwd(), sorted(os.listdir("/"))],
        "mounts": [line.split()[4:6] for line in open("/proc/self/mountinfo")],
        "threads": sorted(each.name for each in threading.enumerate()),
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "limits": [resource.getrlimit(each) for each in range(16)],
        "user": [os.getuid(), os.getgid(), os.umask(0o22)],
        "classes": sorted(each for each in names if "Client" in each or "Replay" in each or "Record" in each),
        "host": sorted(vars(state["host"])) + [type(state["host"]._client).__name__],
        "model": client.model,
        "clock": [type(time.time).__name__, abs(os.stat("/tmp/written").st_mtime - clock) < 60],
        "filter": [line for line in status.splitlines() if line.startswith(("Seccomp", "Cap", "NoNew"))],
    }

def holds():
    """Return what of the record is in the memory of this process, which knows digests alone."""
    found = set()
    with open("/proc/self/maps") as maps:
        areas = [line.split()[:2] for line in maps]
    for area, rights in areas:
        start, end = (int(each, 16) for each in area.split("-"))
        if rights.startswith("rw"):
            for planted in re.findall(rb"PLANTED-(.{8})", ctypes.string_at(start, end - start), re.DOTALL):
                found.add(DIGESTS.get(hashlib.sha256(planted).hexdigest()))
    return sorted(found - {None})

def pays(completion, state):
    state["public"]["scoring"] = look(state, state["host"]._client)
    return 1.0

class Env(MultiTurnEnv):
    async def play(self, state, model):
        state["model calls"] = model.client
        await super().play(state, model)

    async def env_response(self, messages, state):
        state["public"]["seen"] = look(state, state["model calls"])
        state["public"]["held"] = holds()
        return [{"role": "user", "content": "and now?"}]

def load_environment():
    return Env(eval_dataset=[{"question": f"q{n}"} for n in range(2)], rubric=Rubric([pays]), max_turns=2)
'''


PLACES = {"info": "info1234", "metrics": "metr1234", "judge": "judg1234", "call": "call1234"}
"""What is planted into a record, behind `PLANTED-`, by its place."""
DIGESTS = {hashlib.sha256(mark.encode()).hexdigest(): place for place, mark in PLACES.items()}
LOOKING = f"DIGESTS = {DIGESTS!r}\n{LOOKING}"


def planted(rollout: Rollout) -> Rollout:
    """Return a record with more in it than was played."""
    marks = {place: f"PLANTED-{mark}" for place, mark in PLACES.items()}
    told = {"digest": "0", "answer": marks["judge"]}
    called = {"digest": "0", "path": "x", "request": {}, "status": 200, "response": marks["call"]}
    info = {**rollout.info, "planted": marks["info"], JUDGE_ANSWERS: [told], PUBLIC_KEY: [called]}
    metrics = {**rollout.metrics, marks["metrics"]: 0.5}
    return rollout.model_copy(update={"info": info, "metrics": metrics, "reward": 0.123})


def same_but_for_chance(value: Any) -> Any:
    """Leave out what is drawn for every process: the name of its host, and ports."""
    return json.loads(re.sub(r"host-\w{8}|\b\d{4,5}\b(?=\]|,)", "0", json.dumps(value)))


async def played(environment: WorkerEnvironment, client: Client) -> list[Rollout]:
    return [await environment.rollout(client, each) for each in await environment.examples("eval")]


@needs_sandbox
async def test_a_confined_environment_sees_the_same_in_a_replay_as_in_an_evaluation(tmp_path: Path) -> None:
    asked = ScriptedClient(["look", "end"])
    asked.model = "org/model-8b"
    async with confined(tmp_path, body=LOOKING) as environment:
        at_home = await played(environment, asked)
    assert [each.failure for each in at_home] == [None, None]
    async with confined(tmp_path, body=LOOKING) as environment:
        replaying = ReplayClient(map(planted, at_home), "org/model-8b", scripts={})
        again = await played(environment, replaying)
    for was, now in zip(at_home, again, strict=True):
        assert now.failure is None
        assert (was.info["held"], now.info["held"]) == ([], [])
        for moment in ("seen", "scoring"):
            before, after = (same_but_for_chance(each.info[moment]) for each in (was, now))
            for name in before:
                assert before[name] == after[name], name
        assert set(now.info) == set(was.info), "nothing of the record is published again"
        assert (now.reward, now.metrics) == (was.reward, was.metrics)


@needs_sandbox
async def test_rescoring_does_not_show_the_recorded_score_to_the_rubric(tmp_path: Path) -> None:
    body = LOOKING.replace(
        'state["public"]["scoring"] = look(state, state["host"]._client)',
        'state["public"]["held"] = holds()',
    )
    async with confined(tmp_path, body=body) as environment:
        recorded = await played(environment, ScriptedClient(["look", "end"]))
        again = await played(environment, TranscriptClient(map(planted, recorded), "org/model-8b"))
    for now in again:
        assert (now.failure, now.reward, now.info["held"]) == (None, 1.0, ["info"])
        assert now.info["planted"] == "PLANTED-info1234", "what the environment published is its own"
        assert JUDGE_ANSWERS not in now.info


SILENT = """
from wander import MultiTurnEnv, Rubric

class Env(MultiTurnEnv):
    async def env_response(self, messages, state):
        state["public"]["recorded"] = state.get("recorded")
        return [{"role": "user", "content": "more"}]

def load_environment(timeout=None):
    return Env(eval_dataset=[{"question": "q"}], rubric=Rubric(), max_turns=4, timeout_seconds=timeout)
"""


@pytest.mark.parametrize(("limit", "turns"), [(3600, 2), (None, 4)])
async def test_a_recorded_timeout_is_replayed_if_the_environment_has_the_limit(
    limit: int | None, turns: int, tmp_path: Path
) -> None:
    module = tmp_path / "silent.py"
    module.write_text(SILENT)
    options: dict[str, Any] = {
        "path": module,
        "log_path": tmp_path / "log",
        "arguments": {"timeout": limit},
    }
    environment = await WorkerEnvironment.start(None, None, **options)
    try:
        (example,) = await environment.examples("eval")
        whole = await environment.rollout(ScriptedClient(["x"] * 4), example)
        assert whole.info == {"recorded": None}
        place = {"turns": 2, "messages": 3}
        struck = whole.model_copy(update={"info": {**whole.info, TIMEOUT: place}})
        again = await environment.rollout(ReplayClient([struck]), example)
    finally:
        await environment.close()
    assert len(again.turns) == turns
    assert again.info.get(TIMEOUT) == (place if limit else None)


@pytest.mark.parametrize("asks", ["a turn more", "a judge"])
async def test_a_missing_record_looks_like_an_unreachable_model(asks: str) -> None:
    rollout = Rollout(
        example_id="0", index=0, seed=0, prompt=[], completion=[], turns=[], stop_reason="x", started_at=""
    )
    client = ReplayClient([rollout], "m")
    request = ModelRequest(rollout_id="0/0", turn=0, messages=[])
    asking = client.recall("0/0", "judge", "f" * 64) if asks == "a judge" else client.complete(request)
    with pytest.raises(ModelError) as raised:
        await asking
    assert type(raised.value) is ModelError
    assert not re.search("record|replay", str(raised.value))
    assert client.missing["0/0"]


PROBING = """
import asyncio, json, os, threading, urllib.request
from pathlib import Path

from wander import MultiTurnEnv, Rubric
from wander.clients.base import ModelRequest
from wander.rollout.outside_calls import HEADER

LOG = Path(__file__).with_name("learned")

def learn(what):
    with LOG.open("a") as log:
        log.write(f"{what}\\n")

def ask_outside(rollout_id):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], HEADER: rollout_id}
    headers["Content-Type"] = "application/json"
    body = json.dumps({"model": "m", "messages": []}).encode()
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=120) as answer:
        return answer.read()

async def probe(state, model, way):
    rollout_id = f"{state.example.example_id}/{state['index']}"
    if way == "a judge's answer":
        return await state["host"].recall("judge", "f" * 64)
    if way == "a turn more":
        return await model.complete()
    if way == "a turn of another rollout":
        return await model.answer(ModelRequest(rollout_id="9/9", turn=0, messages=[]))
    if way == "a call of another model":
        return ask_outside(rollout_id)
    if way == "a call of another model, in a thread":
        return await asyncio.to_thread(ask_outside, rollout_id)
    return ask_outside("")

class Env(MultiTurnEnv):
    async def play(self, state, model):
        await super().play(state, model)
        if state.example.example_id == "0":
            try:
                learn(type(await probe(state, model, self.way)).__name__)
            except BaseException as error:
                learn(f"raised {type(error).__name__}")
            state["public"]["after"] = True

    def env_response(self, messages, state):
        return [{"role": "user", "content": "and now?"}]

def load_environment(way):
    rows = [{"question": f"q{n}"} for n in range(2)]
    env = Env(eval_dataset=rows, rubric=Rubric([lambda: 1.0]), max_turns=2)
    env.way = way
    return env
"""
WAYS = {
    "a judge's answer": "NoneType",
    "a turn more": "ModelResponse",
    "a turn of another rollout": "ModelResponse",
    "a call of another model": "bytes",
    "a call of another model, in a thread": "bytes",
    "a call outside of any rollout": "bytes",
}
"""How code may ask the host for something that is not on record, and what it gets in an evaluation."""


@pytest.mark.parametrize(
    "way",
    [
        *("a judge's answer", "a turn more", "a call outside of any rollout"),
        *(
            pytest.param(way, marks=pytest.mark.full)
            for way in (
                *("a turn of another rollout", "a call of another model"),
                "a call of another model, in a thread",
            )
        ),
    ],
)
async def test_code_that_asks_for_more_than_is_on_record_never_learns_that_it_is_replayed(
    way: str, tmp_path: Path, chat_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", chat_server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "a key")
    chat_server.script = lambda body, number: "yes"
    module, learned = tmp_path / "probing.py", tmp_path / "learned"
    module.write_text(PROBING)
    options: dict[str, Any] = {"path": module, "log_path": tmp_path / "log", "arguments": {"way": way}}
    environment = await WorkerEnvironment.start(None, None, **options)
    try:
        asked, other = await environment.examples("eval")
        whole = await environment.rollout(ScriptedClient(["x"] * 9), asked)
        assert learned.read_text() == f"{WAYS[way]}\n", "in an evaluation there is an answer"
        plain = await environment.rollout(ScriptedClient(["x"] * 9), other)
        learned.unlink()
        requests = len(chat_server.requests)
        turns, info = whole.turns[:2], {**whole.info, PUBLIC_KEY: []}
        struck = whole.model_copy(update={"turns": turns, "info": info})
        for _ in range(2):
            again = await environment.rollout(ReplayClient([struck]), asked)
            assert again.failure is not None
            assert again.failure.type == (UNATTRIBUTED if "outside" in way else NOT_RECORDED)
        after = await environment.rollout(ReplayClient([plain]), other)
        assert (after.failure, after.reward) == (None, 1.0), "other rollouts come out as before"
        assert len(chat_server.requests) == requests, "a replay asks nobody"
        assert not learned.exists()
    finally:
        await environment.close()


@pytest.mark.parametrize("way", ["a judge's answer", "a turn more"])
async def test_a_rollout_that_asks_for_more_than_is_on_record_differs(way: str, tmp_path: Path) -> None:
    """Whatever its code does with the failure that it gets in this process."""
    module = tmp_path / "probing.py"
    module.write_text(PROBING)
    environment = LocalEnvironment(load_path(module, way=way))
    plan, pin = EvaluationPlan(num_examples=None), EnvironmentPin(name="probing", info=environment.info)
    result = await evaluate(environment, ScriptedClient(lambda request: "x"), plan, None, pin)
    struck = [each.model_copy(update={"turns": each.turns[:2]}) for each in result.rollouts]
    found = await replay_run(environment, result.manifest, struck)
    assert (found.replayed, found.differing, found.undecided) == (2, 1, 0)
    assert found.divergences[0].part == "failure"
