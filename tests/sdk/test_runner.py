"""The evaluator: concurrency, retries, failures as data, resume, stops, early ends."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wander import Example, LocalEnvironment, Rollout, Rubric, SamplingArgs, ScriptedClient, SingleTurnEnv
from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.clients.openai import OpenAIClient
from wander.errors import (
    AuthenticationFailed,
    ConfigError,
    DatasetError,
    EndpointUnreachable,
    EnvironmentFault,
    ModelError,
    RunError,
)
from wander.evals.run import runner, stopping
from wander.evals.run.runner import EvaluationPlan, EvaluationResult, Progress, evaluate
from wander.evals.run.stopping import StopRequest
from wander.evals.stats.summary import summarize_run
from wander.evals.store.folder import RunFolder
from wander.handle import RolloutRequest
from wander.types import Failure
from wander.wire import EnvironmentPin


def exact(completion: list[dict[str, Any]], answer: str) -> float:
    return float(completion[-1]["content"] == answer)


def rows(count: int) -> list[dict[str, Any]]:
    return [{"question": f"{i}?", "answer": str(i)} for i in range(count)]


def echo_environment(count: int = 10, rubric: Rubric | None = None) -> LocalEnvironment:
    return LocalEnvironment(
        SingleTurnEnv(eval_dataset=rows(count), rubric=rubric or Rubric([exact]), name="echo")
    )


async def test_a_bad_row_fails_only_itself_unless_strict(tmp_path):
    bad = [{**row, "answer": "\ud800"} if row["answer"] in {"1", "3"} else row for row in rows(5)]
    environment = LocalEnvironment(SingleTurnEnv(eval_dataset=bad, rubric=Rubric([exact]), name="echo"))
    client = ScriptedClient(answer_of)
    for shuffle in (False, True):
        plan = EvaluationPlan(rollouts_per_example=2, shuffle=shuffle)
        result = await evaluate(environment, client, plan, tmp_path / str(shuffle), pin(environment))
        assert (result.summary.rollouts, result.summary.failed) == (10, 4)
        failures = [each for each in RunFolder.open(tmp_path / str(shuffle)).rollouts() if each.failure]
        assert {each.example_id for each in failures} == {"1", "3"}
        for each in failures:
            assert (each.failure.boundary, each.failure.type) == ("environment", "DatasetError")
            assert f"row {each.example_id} " in each.failure.message
            assert "`answer`" in each.failure.message
        with pytest.raises(DatasetError, match=r"row [13] "):
            await evaluate(
                environment, client, EvaluationPlan(strict=True, shuffle=shuffle), None, pin(environment)
            )


def answer_of(request: ModelRequest) -> str:
    return str(request.messages[-1]["content"]).rstrip("?")


def pin(environment: LocalEnvironment, **fields: Any) -> EnvironmentPin:
    return EnvironmentPin(name="echo", info=environment.info, **fields)


async def run(
    folder: Path | None,
    client: Client | Callable[[ModelRequest], Any] = answer_of,
    environment: LocalEnvironment | None = None,
    **options: Any,
) -> EvaluationResult:
    environment = environment or echo_environment()
    given = {
        name: options.pop(name) for name in ("resume", "checked", "on_progress", "stop") if name in options
    }
    version = options.pop("version", None)
    client = client if isinstance(client, Client) else ScriptedClient(client)
    return await evaluate(
        environment, client, EvaluationPlan(**options), folder, pin(environment, version=version), **given
    )


@pytest.fixture(autouse=True)
def _fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_RETRY_SECONDS", 0.001)


async def test_every_rollout_is_played_recorded_and_summarized(tmp_path: Path) -> None:
    told: list[Progress] = []
    result = await run(
        tmp_path / "run", num_examples=4, rollouts_per_example=3, seed=5, on_progress=told.append
    )
    assert result.summary.reward_mean == 1.0
    assert not result.interrupted
    folder = RunFolder.open(tmp_path / "run")
    keys = {rollout.key for rollout in folder.rollouts()}
    assert keys == {(str(i), j) for i in range(4) for j in range(3)}
    assert folder.manifest.ended_at is not None
    assert folder.manifest.seed == 5
    assert folder.manifest.expected_rollouts == 12
    assert folder.summary() == result.summary == summarize_run(folder.manifest, folder.rollouts())
    assert (told[0].done, told[-1].done, told[-1].total, told[-1].in_flight) == (0, 12, 12, 0)


@pytest.mark.parametrize(("checked", "asked"), [(False, 1), (True, 0)])
async def test_the_client_is_checked_once_unless_the_caller_has_done_it(checked: bool, asked: int) -> None:
    class Checked(ScriptedClient):
        checks = 0

        async def check(self) -> None:
            self.checks += 1

    client = Checked(answer_of)
    await run(None, client, checked=checked)
    assert client.checks == asked


async def test_without_a_folder_the_rollouts_are_kept_in_memory() -> None:
    result = await run(None)
    assert result.run_dir is None
    assert len(result.rollouts) == 10


async def test_concurrency_is_limited_and_used(chat_server: Any) -> None:
    chat_server.delay = 0.02
    client = OpenAIClient("m", chat_server.url)
    result = await run(None, client, echo_environment(40), concurrency=7)
    await client.close()
    assert result.summary.rollouts == 40
    assert chat_server.most_in_flight == 7


async def test_a_failed_rollout_is_recorded_and_others_continue() -> None:
    def rubric(completion: list[dict[str, Any]], answer: str) -> float:
        if answer == "3":
            raise ZeroDivisionError("boom")
        return 1.0

    def model(request: ModelRequest) -> str:
        if answer_of(request) == "7":
            raise ModelError("content filter")
        return "x"

    result = await run(None, model, echo_environment(rubric=Rubric([rubric])))
    assert result.summary.failures == {"model": 1, "rubric": 1}
    assert result.summary.reward_mean == 1.0
    assert result.summary.rollouts == 10
    assert not result.interrupted


class Handle(LocalEnvironment):
    """An environment handle whose rollouts do what a test says."""

    def __init__(self, behavior: Callable[[Example], Any]) -> None:
        super().__init__(echo_environment().env)
        self.behavior = behavior

    async def play_request(self, request: RolloutRequest) -> list[Rollout]:
        self.behavior(request.example)
        return await super().play_request(request)


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3)])
async def test_a_handle_that_raises_fails_one_rollout(error: BaseException) -> None:
    def behavior(example: Example) -> None:
        if example.index == 2:
            raise error

    result = await run(None, environment=Handle(behavior))
    assert result.summary.failures == {"environment": 1}
    assert result.summary.rollouts == 10


async def test_retryable_failures_are_played_again_and_counted() -> None:
    seen: dict[str, int] = {}

    def flaky(request: ModelRequest) -> str:
        seen[request.rollout_id] = seen.get(request.rollout_id, 0) + 1
        if request.rollout_id == "1/0" and seen["1/0"] < 3:
            raise ModelError("busy", retryable=True)
        if request.rollout_id == "2/0":
            raise ModelError("busy for ever", retryable=True)
        if request.rollout_id == "3/0":
            raise ModelError("final")
        return "x"

    result = await run(None, flaky, max_retries=2)
    assert (seen["0/0"], seen["1/0"], seen["2/0"], seen["3/0"]) == (1, 3, 3, 1)
    assert result.retried == 4
    assert result.summary.failed == 2


async def test_a_group_is_played_retried_and_resumed_as_one(tmp_path: Path) -> None:
    def best(completions: list[Any]) -> list[float]:
        lengths = [len(each[-1]["content"]) for each in completions]
        return [float(length == max(lengths)) for length in lengths]

    played: list[str] = []

    def model(request: ModelRequest) -> str:
        played.append(request.rollout_id)
        if request.rollout_id == "1/1" and len(played) < 13:
            raise ModelError("busy")
        return "x" * (1 + int(request.rollout_id[-1]))

    environment = echo_environment(3, Rubric([best]))
    assert environment.info.group_rewards
    options: dict[str, Any] = {"rollouts_per_example": 4, "concurrency": 8}
    first = await run(tmp_path, model, environment, **options)
    assert first.summary.failures == {"model": 1}
    assert len(played) == 12
    second = await run(tmp_path, model, environment, resume=True, **options)
    assert sorted(played[12:]) == ["1/0", "1/1", "1/2", "1/3"]
    assert second.resumed == 8
    assert second.summary.failed == 0
    assert second.summary.reward_mean == pytest.approx(0.25)


async def test_resume_plays_missing_and_failed_rollouts_only(tmp_path: Path) -> None:
    asked: list[str] = []

    def model(request: ModelRequest) -> str:
        asked.append(request.rollout_id)
        if request.rollout_id in ("2/0", "4/1") and len(asked) <= 20:
            raise ModelError("down")
        return answer_of(request)

    first = await run(tmp_path, model, rollouts_per_example=2)
    assert first.summary.failed == 2
    file = tmp_path / "rollouts.jsonl"
    folder = RunFolder.open(tmp_path)
    folder.resume()
    folder.close()
    lines = file.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(b'{"example_id":"9","index":1')]
    file.write_bytes(b"".join(kept) + b'{"example_id":"9","ind')
    del asked[:]
    asked.extend(["-"] * 20)
    second = await run(tmp_path, model, rollouts_per_example=2, resume=True)
    assert sorted(asked[20:]) == ["2/0", "4/1", "9/1"]
    assert second.resumed == 17
    assert second.torn is not None
    assert second.summary.failed == 0
    assert second.summary.rollouts == 20
    assert second.manifest.run_id == first.manifest.run_id
    assert second.summary == RunFolder.open(tmp_path).summary()
    asked.clear()
    before = content(tmp_path)
    third = await run(tmp_path, model, rollouts_per_example=2, resume=True)
    assert asked == []
    assert third.summary.reward_mean == second.summary.reward_mean
    assert content(tmp_path) == before


async def test_a_run_killed_just_before_its_end_is_finished(tmp_path: Path) -> None:
    await run(tmp_path)
    folder = RunFolder.open(tmp_path)
    folder.resume()
    folder.close()
    open_end = folder.manifest.model_copy(update={"ended_at": None})
    (tmp_path / "run.json").write_text(open_end.model_dump_json(by_alias=True))
    with (tmp_path / "rollouts.jsonl").open("ab") as file:
        file.write(b'{"example_id":"0","in')
    result = await run(tmp_path, resume=True)
    assert (result.resumed, result.interrupted) == (10, False)
    closed = RunFolder.open(tmp_path)
    assert closed.manifest.ended_at is not None
    assert len(list(closed.rollouts())) == 10
    assert (tmp_path / "rollouts.torn").exists()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": 1}, "the seed"),
        ({"num_examples": 5}, "the examples"),
        ({"rollouts_per_example": 2}, "the number of rollouts of each example"),
        ({"sampling": SamplingArgs(temperature=0.5)}, "the sampling"),
        ({"version": "2"}, "the environment or its version"),
        ({"client": ScriptedClient(answer_of, model="other")}, "the model"),
        (
            {"environment": echo_environment(rubric=Rubric([exact], [2.0]))},
            "the environment's description of itself",
        ),
    ],
)
async def test_another_run_is_not_resumed_into_this_one(
    tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    await run(tmp_path)
    before = content(tmp_path)
    with pytest.raises(RunError, match=field) as caught:
        await run(tmp_path, resume=True, **change)
    assert caught.value.hint
    assert before == content(tmp_path)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def test_an_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    await run(tmp_path)
    with pytest.raises(RunError, match="already contains a run"):
        await run(tmp_path)


async def test_shuffling_draws_from_the_whole_split_by_the_seed() -> None:
    environment = echo_environment(100)
    draws = [
        [rollout.example_id for rollout in (await run(None, environment=environment, **options)).rollouts]
        for options in (
            {"num_examples": 5, "shuffle": True, "seed": seed, "concurrency": 1} for seed in (1, 1, 2)
        )
    ]
    assert draws[0] == draws[1] != draws[2]
    assert max(int(name) for draw in draws for name in draw) > 10


async def test_contradictory_plans_are_rejected() -> None:
    for options in (
        {"rollouts_per_example": 0},
        {"concurrency": 0},
        {"max_retries": -1},
        {"num_examples": 0},
    ):
        with pytest.raises(ConfigError, match="must be at least"):
            EvaluationPlan(**options)
    twins = LocalEnvironment(
        SingleTurnEnv(
            eval_dataset=[{"question": "a", "example_id": "x"}, {"question": "b", "example_id": "x"}],
            rubric=Rubric([exact]),
        )
    )
    with pytest.raises(DatasetError, match="x"):
        await run(None, environment=twins)


class Slow(Client):
    """Answers only the first requests, immediately; counts the canceled ones."""

    model = "slow"

    def __init__(self, quick: int, stubborn: bool = False) -> None:
        self.quick = quick
        self.stubborn = stubborn
        self.waiting = 0
        self.canceled = 0
        self.stuck = asyncio.Event()

    async def complete(self, request: ModelRequest) -> ModelResponse:
        if self.quick:
            self.quick -= 1
            return ModelResponse(message={"role": "assistant", "content": answer_of(request)})
        self.waiting += 1
        if self.waiting == 4:
            self.stuck.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.canceled += 1
            if self.stubborn:
                await asyncio.sleep(3600)
            raise
        raise AssertionError


async def test_a_stop_keeps_what_finished_and_can_be_resumed(tmp_path: Path) -> None:
    stop, client = StopRequest(), Slow(quick=5)
    running = asyncio.create_task(run(tmp_path, client, stop=stop, concurrency=4))
    await client.stuck.wait()
    stop.request()
    result = await running
    assert result.interrupted
    assert client.canceled == 4
    assert result.summary.rollouts == 5
    folder = RunFolder.open(tmp_path)
    assert folder.manifest.ended_at is None
    assert len(folder.keys_done()) == 5
    client.quick = 100
    again = await run(tmp_path, client, resume=True)
    assert (again.resumed, again.interrupted) == (5, False)


async def test_a_second_stop_request_does_not_wait(tmp_path: Path) -> None:
    stop, client = StopRequest(), Slow(quick=5, stubborn=True)
    running = asyncio.create_task(run(tmp_path, client, stop=stop, concurrency=4))
    await client.stuck.wait()
    stop.request()
    await asyncio.sleep(0.05)
    assert not running.done()
    stop.request()
    async with asyncio.timeout(60):
        result = await running
    assert result.interrupted
    assert len(RunFolder.open(tmp_path).keys_done()) == 5


async def test_a_rollout_that_outlives_its_run_is_not_recorded(tmp_path: Path) -> None:
    class Deaf(Slow):
        async def complete(self, request: ModelRequest) -> ModelResponse:
            try:
                return await super().complete(request)
            except asyncio.CancelledError:
                await released.wait()
                return ModelResponse(message={"role": "assistant", "content": "late"})

    released, stop, client = asyncio.Event(), StopRequest(), Deaf(quick=5)
    running = asyncio.create_task(run(tmp_path, client, stop=stop, concurrency=4))
    await client.stuck.wait()
    stop.request()
    stop.request()
    await running
    before = content(tmp_path)
    released.set()
    await asyncio.sleep(0.05)
    assert content(tmp_path) == before


async def test_waiting_for_stubborn_rollouts_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "STOP_GRACE_SECONDS", 0.05)
    stop, client = StopRequest(), Slow(quick=5, stubborn=True)
    running = asyncio.create_task(run(None, client, stop=stop, concurrency=4))
    await client.stuck.wait()
    stop.request()
    async with asyncio.timeout(60):
        assert (await running).interrupted


async def test_canceling_the_caller_keeps_what_finished(tmp_path: Path) -> None:
    client = Slow(quick=5)
    running = asyncio.create_task(run(tmp_path, client, concurrency=4))
    await client.stuck.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert client.canceled == 4
    folder = RunFolder.open(tmp_path)
    folder.resume()
    assert len(folder.keys_done()) == 5


async def test_an_unreachable_endpoint_is_reported_before_a_run_starts(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    client = OpenAIClient("m", f"http://127.0.0.1:{unused_tcp_port}/v1", max_retries=0)
    with pytest.raises(EndpointUnreachable):
        await run(tmp_path / "run", client)
    await client.close()
    assert not (tmp_path / "run").exists()


async def test_a_rejected_key_stops_a_run_at_its_first_rollout(
    tmp_path: Path, chat_server: Any, faults: dict[str, Any]
) -> None:
    chat_server.script = lambda body, number: faults["401"]
    client = OpenAIClient("m", chat_server.url)
    with pytest.raises(AuthenticationFailed, match=r"first rollout failed at the model.*bad key"):
        await run(tmp_path, client, echo_environment(500), concurrency=1)
    await client.close()
    assert len(chat_server.requests) == 1


async def test_a_model_without_valid_responses_stops_a_run_early(
    chat_server: Any, faults: dict[str, Any]
) -> None:
    chat_server.script = lambda body, number: faults["html"]
    client = OpenAIClient("m", chat_server.url)
    with pytest.raises(ModelError, match="first 8 rollouts failed") as caught:
        await run(None, client, echo_environment(500), concurrency=4)
    await client.close()
    assert type(caught.value).__name__ == "InvalidResponse"
    assert len(chat_server.requests) < 20


async def test_a_dying_endpoint_stops_the_run_and_keeps_its_rollouts(
    tmp_path: Path, chat_server: Any
) -> None:
    client = OpenAIClient("m", chat_server.url, max_retries=0)
    environment = echo_environment(400)

    def script(body: dict[str, Any], number: int) -> str:
        if number == 30:
            stopped.append(asyncio.ensure_future(chat_server.stop()))
        return str(body["messages"][-1]["content"]).rstrip("?")

    stopped: list[asyncio.Future[None]] = []
    chat_server.script = script
    options: dict[str, Any] = {"concurrency": 4, "max_retries": 0}
    with pytest.raises(EndpointUnreachable, match="last 50 rollouts"):
        await run(tmp_path, client, environment, **options)
    await asyncio.gather(*stopped)
    kept = RunFolder.open(tmp_path).keys_done()
    assert 25 <= len(kept) < 60
    chat_server.script = lambda body, number: str(body["messages"][-1]["content"]).rstrip("?")
    await chat_server.start()
    result = await run(tmp_path, client, environment, resume=True, **options)
    await client.close()
    assert result.resumed == len(kept)
    assert (result.summary.rollouts, result.summary.failed, result.summary.reward_mean) == (400, 0, 1.0)


async def test_an_environment_that_cannot_restart_stops_the_run() -> None:
    class Gone(LocalEnvironment):
        async def play_request(self, request: RolloutRequest) -> list[Rollout]:
            failure = Failure(boundary="environment", type="WorkerLost", message="killed by SIGKILL")
            example_id = request.example.example_id
            return [
                Rollout(example_id=example_id, index=0, seed=0, prompt=[], completion=[], failure=failure)
            ]

    with pytest.raises(EnvironmentFault, match="SIGKILL"):
        await run(None, environment=Gone(echo_environment().env))


@pytest.mark.parametrize("fault", ["500", "truncated", "cut_off", "error_in_200"])
async def test_occasional_errors_lose_no_rollout(
    chat_server: Any, faults: dict[str, Any], fault: str
) -> None:
    def script(body: dict[str, Any], number: int) -> Any:
        return faults[fault] if number % 5 == 0 else str(body["messages"][-1]["content"]).rstrip("?")

    chat_server.script = script
    client = OpenAIClient("m", chat_server.url)
    client.attempts.retry_seconds = 0.001
    result = await run(None, client, echo_environment(40), concurrency=6, max_retries=4)
    await client.close()
    assert (result.summary.failed, result.summary.reward_mean) == (0, 1.0)


async def test_a_full_disk_stops_the_run_and_keeps_written_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = RunFolder.append

    def full(folder: RunFolder, rollout: Rollout) -> Rollout:
        if rollout.example_id == "6":
            raise RunError("the disk is full", hint="free space")
        return append(folder, rollout)

    monkeypatch.setattr(RunFolder, "append", full)
    with pytest.raises(RunError, match="full"):
        await run(tmp_path, concurrency=1)
    monkeypatch.undo()
    assert len(RunFolder.open(tmp_path).keys_done()) == 6


EVALUATION = """
import asyncio, sys
from pathlib import Path
from wander import LocalEnvironment, Rubric, SingleTurnEnv
from wander.clients.openai import OpenAIClient
from wander.evals.run.runner import EvaluationPlan, evaluate
from wander.wire import EnvironmentPin

def exact(completion, answer):
    return float(completion[-1]["content"] == answer)

async def main():
    rows = [{"question": f"{i}?", "answer": str(i)} for i in range(300)]
    env = LocalEnvironment(SingleTurnEnv(eval_dataset=rows, rubric=Rubric([exact]), name="echo"))
    client = OpenAIClient("m", sys.argv[2])
    pin = EnvironmentPin(name="echo", info=env.info)
    result = await evaluate(env, client, EvaluationPlan(concurrency=8), Path(sys.argv[1]), pin, resume=True)
    await client.close()
    print(result.resumed, result.summary.rollouts, result.summary.reward_mean)

asyncio.run(main())
"""


async def test_a_killed_evaluation_resumes(tmp_path: Path, chat_server: Any) -> None:
    chat_server.delay = 0.005
    halfway = asyncio.Event()

    def script(body: dict[str, Any], number: int) -> str:
        if number == 150:
            halfway.set()
        return str(body["messages"][-1]["content"]).rstrip("?")

    chat_server.script = script
    command = [sys.executable, "-c", EVALUATION, str(tmp_path / "run"), chat_server.url]
    victim = await asyncio.create_subprocess_exec(*command)
    async with asyncio.timeout(60):
        await halfway.wait()
    victim.send_signal(signal.SIGKILL)
    await victim.wait()
    kept = RunFolder.open(tmp_path / "run").keys_done()
    assert len(kept) >= 130
    before = len(chat_server.requests)
    again = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    async with asyncio.timeout(60):
        output, _ = await again.communicate()
    assert output.decode().split() == [str(len(kept)), "300", "1.0"]
    assert len(chat_server.requests) - before == 300 - len(kept)


async def test_code_that_blocks_the_event_loop_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_SYNC_SECONDS", 0.01)

    def slow(completion: list[dict[str, Any]]) -> float:
        time.sleep(0.3)
        return 1.0

    async def model(request: ModelRequest) -> str:
        await asyncio.sleep(0.02)
        return "x"

    result = await run(None, model, echo_environment(1, Rubric([slow])))
    assert result.longest_stall > 0.2


async def test_process_settings_are_restored_after_an_evaluation() -> None:
    usual = gc.get_threshold()
    during: list[int] = []

    def model(request: ModelRequest) -> str:
        during.append(gc.get_threshold()[0])
        return "x"

    await asyncio.gather(run(None, model), run(None, model))
    assert min(during) > usual[0]
    assert gc.get_threshold() == usual


async def test_sync_runs_while_rollouts_are_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_SYNC_SECONDS", 0.01)
    synced: list[float] = []
    fsync = os.fsync

    def spy(file: int) -> None:
        synced.append(time.monotonic())
        fsync(file)

    async def model(request: ModelRequest) -> str:
        await asyncio.sleep(0.02)
        return "x"

    monkeypatch.setattr(os, "fsync", spy)
    await run(tmp_path, model, concurrency=1)
    assert len(synced) > 5
