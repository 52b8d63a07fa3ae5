"""Code that does not return is named: the example, and the hook, tool or reward function."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from wander import LocalEnvironment, Rubric, ScriptedClient, SingleTurnEnv
from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.dataset import ProceduralRows
from wander.handle import EnvironmentHandle
from wander.loading import load_path
from wander.rollout.activity import PLAY, Activity, Notices, Silence, SilenceWatch
from wander.worker.host.environment import WorkerEnvironment
from wander.worker.host.link import LocalLink
from wander.worker.note import NOTE_BYTES, Note, read_note, read_silence
from wander.worker.protocol import LastWords

BODY = '''
import asyncio, time
from pathlib import Path
from wander import Rubric, ToolEnv, stop
from wander.rollout.hooks import cleanup

SIGN = Path({sign!r})

async def hang(sync):
    """Return once somebody has noticed."""
    while not SIGN.exists():
        if sync:
            time.sleep(0.005)
        else:
            await asyncio.sleep(0.005)

class Env(ToolEnv):
    place, sync = "", False

    async def at(self, place):
        if place == self.place:
            await hang(self.sync)

    async def setup_state(self, state):
        await self.at("setup_state")

    async def env_response(self, messages, state):
        await self.at("env_response")
        return await super().env_response(messages, state)

    async def update_tool_args(self, tool_name, tool_args, messages, state):
        await self.at("update_tool_args")
        return tool_args

    @stop
    async def is_over(self, state):
        await self.at("is_over")
        return False

    @cleanup
    async def tidy(self, state):
        await self.at("tidy")

    async def play(self, state, model):
        await self.at("play")
        await super().play(state, model)

class Own(Rubric):
    async def score(self, state, parser=None):
        await self.env.at("score")
        return await super().score(state, parser)

def load_environment(place, sync=False):
    async def look_up(word: str) -> str:
        await env.at("look_up")
        return word

    async def graded(completion):
        await env.at("graded")
        return 1.0

    async def compared(completions):
        await env.at("compared")
        return [1.0 for _ in completions]

    rubric = Own([compared if place == "compared" else graded])
    rows = [{{"question": str(number), "answer": ""}} for number in range(3)]
    env = Env(eval_dataset=rows, rubric=rubric, tools=[look_up], name="silent")
    env.place, env.sync, rubric.env = place, sync, env
    return env
'''
PLACES = (
    *("setup_state", "env_response", "update_tool_args", "is_over", "tidy", "play", "score"),
    *("look_up", "graded", "compared"),
)


def calls_then_answers(request: ModelRequest) -> Any:
    call = {"id": "a", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "w"}'}}
    return {"role": "assistant", "content": "", "tool_calls": [call]} if request.turn == 0 else "done"


@asynccontextmanager
async def opened(
    folder: Path, notices: Notices, *, worker: bool, **arguments: Any
) -> AsyncIterator[EnvironmentHandle]:
    module = folder / "silent_environment.py"
    module.write_text(BODY.format(sign=str(folder / "sign")))
    handle: LocalEnvironment | WorkerEnvironment
    if worker:
        log = folder / "worker.log"
        handle = await WorkerEnvironment.start(
            None, None, path=module, arguments=arguments, log_path=log, notices=notices
        )
    else:
        handle = LocalEnvironment(load_path(module, **arguments))
        handle.report_silence(notices)
    try:
        yield handle
    finally:
        await handle.close()


async def noticed(folder: Path, place: str, *, sync: bool, worker: bool) -> list[Silence]:
    """Play an example whose code hangs until that was noticed; return what was reported."""
    reported: list[Silence] = []

    def tell(silence: Silence) -> None:
        reported.append(silence)
        if silence.place == place:  # a busy machine may be silent before it comes there
            (folder / "sign").touch()

    async with opened(folder, Notices(tell, 0.1), worker=worker, place=place, sync=sync) as handle:
        example = (await handle.examples("eval", 1, 1))[0]
        client = ScriptedClient(calls_then_answers)
        async with asyncio.timeout(60):
            if handle.info.group_rewards:
                rollout = (await handle.rollout_group(client, example, indices=[0, 1]))[0]
            else:
                rollout = await handle.rollout(client, example)
    assert rollout.failure is None
    assert rollout.reward == 1.0
    return reported


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("place", PLACES)
async def test_the_blocking_function_in_this_process_is_named(
    tmp_path: Path, place: str, *, sync: bool
) -> None:
    first, *_ = await noticed(tmp_path, place, sync=sync, worker=False)
    assert (first.place, first.examples) == (place, ["1"])
    assert first.seconds >= 0.1


@pytest.mark.parametrize(
    ("place", "sync"),
    [
        ("graded", True),
        pytest.param("graded", False, marks=pytest.mark.full),
        pytest.param("look_up", False, marks=pytest.mark.full),
        pytest.param("setup_state", True, marks=pytest.mark.full),
    ],
)
async def test_the_blocking_function_in_a_worker_is_named_once(
    tmp_path: Path, place: str, *, sync: bool
) -> None:
    found = await noticed(tmp_path, place, sync=sync, worker=True)
    assert (found[-1].place, found[-1].examples) == (place, ["1"])
    assert len({each.place for each in found}) == len(found)


async def test_a_late_report_of_the_blocking_function_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, the host notices that the worker is blocked before the worker's own thread does."""
    asked, last_silence = 0, LocalLink.last_silence

    def late(link: LocalLink) -> Silence | None:
        nonlocal asked
        asked += 1
        return last_silence(link) if asked > 6 else None

    monkeypatch.setattr(LocalLink, "last_silence", late)
    found = await noticed(tmp_path, "graded", sync=True, worker=True)
    assert [each.place for each in found] == [PLAY, "graded"]


async def test_a_dataset_that_never_loads_is_named(tmp_path: Path) -> None:
    silent, told = threading.Event(), list[Silence]()

    def row(index: int) -> dict[str, Any]:
        silent.wait(60)
        return {"question": "?", "answer": ""}

    def tell(silence: Silence) -> None:
        told.append(silence)
        silent.set()

    environment = LocalEnvironment(SingleTurnEnv(eval_dataset=ProceduralRows(row, 3), rubric=Rubric()))
    environment.report_silence(Notices(tell, 0.05))
    await environment.examples("eval", 0, 1)
    await environment.close()
    assert [(each.place, each.examples) for each in told] == [("eval dataset", [])]
    assert "eval dataset" in str(told[0])


class SlowModel(Client):
    """Answers when it is let."""

    model = "slow"

    def __init__(self) -> None:
        self.asked, self.free = asyncio.Event(), asyncio.Event()

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.asked.set()
        await self.free.wait()
        return ModelResponse(message={"role": "assistant", "content": "done"})


async def test_a_slow_model_is_not_blamed_on_the_environment(tmp_path: Path) -> None:
    told: list[Silence] = []
    async with opened(tmp_path, Notices(told.append, 0.01), worker=False, place="") as handle:
        assert isinstance(handle, LocalEnvironment)
        client = SlowModel()
        playing = asyncio.create_task(handle.rollout(client, (await handle.examples("eval", 0, 1))[0]))
        watch = handle._watch
        assert watch is not None
        await client.asked.wait()
        assert watch.look(time.monotonic() + 1000) == []
        client.free.set()
        assert (await playing).failure is None


def test_a_silence_is_reported_once_with_all_its_examples() -> None:
    watch = SilenceWatch(Notices(lambda silence: None, 10.0))
    activities = [Activity(str(number)) for number in range(5)]
    watch._activities.update(activities)
    for activity in activities[:4]:
        activity.enter("env_response")
        activity.enter("look_up")
    assert watch.look(0.0) == watch.look(9.0) == []
    activities[3].leave("look_up")
    told = {silence.place: silence for silence in watch.look(10.0)}
    assert told["look_up"].examples == ["0", "1", "2"]
    assert told[PLAY].examples == ["4"]
    assert watch.look(15.0) == []
    assert [(each.place, each.examples) for each in watch.look(20.0)] == [("env_response", ["3"])]
    assert watch.look(1000.0) == []


def test_parallel_tools_may_finish_in_any_order() -> None:
    activity = Activity("1")
    for name in ("env_response", "slow", "fast", "fast"):
        activity.enter(name)
    activity.leave("fast")
    activity.leave("fast")
    assert activity.places[-1] == "slow"


def test_a_note_stores_last_words_and_silence_separately() -> None:
    note = Note(None)
    silence = Silence(place="graded", examples=["7", "8"], seconds=2.5)
    words = LastWords(play=3, seconds=1.0, where="x.py:1 f")
    note.leave_silence(silence)
    note.leave(words)
    assert read_note(bytes(note._shared)) == (None, words)
    assert read_silence(bytes(note._shared)) == silence.model_copy(update={"examples": ["7"]})
    note.leave_silence(Silence(place="x" * NOTE_BYTES, examples=[], seconds=1.0))
    assert read_note(bytes(note._shared)) == (None, words)
    assert read_silence(b"") is None


async def test_synchronous_scoring_is_counted_and_asynchronous_is_not() -> None:
    def blocks(completion: Any) -> float:
        time.sleep(0.02)
        return 1.0

    async def waits(completion: Any) -> float:
        await asyncio.sleep(0.02)
        return 1.0

    rows = [{"question": "?", "answer": ""}]
    for functions, is_counted in (([blocks], True), ([waits], False)):
        environment = LocalEnvironment(SingleTurnEnv(eval_dataset=rows, rubric=Rubric(functions)))
        await environment.rollout(
            ScriptedClient(lambda request: "x"), (await environment.examples("eval"))[0]
        )
        assert (environment.scoring_seconds >= 0.02) is is_counted
        await environment.close()
