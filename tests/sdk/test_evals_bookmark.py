"""What stands beside a long run: it goes on at once, and nothing of that is trusted."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import wander.dataset
from wander import Example, LocalEnvironment, Messages, Rubric, ScriptedClient, SingleTurnEnv
from wander.dataset import ProceduralRows
from wander.errors import ModelError, RunError
from wander.evals.run import runner
from wander.evals.run.runner import EvaluationPlan, EvaluationResult, Progress, evaluate
from wander.evals.run.stopping import StopRequest
from wander.evals.stats.summary import summarize_run
from wander.evals.store import bookmark, jsonl
from wander.evals.store.folder import RunFolder
from wander.handle import Split
from wander.wire import EnvironmentPin

COUNT = 40
PAGE = 8


def played(completion: Messages) -> float:
    return len(completion[-1]["content"]) / 20


class Counting(LocalEnvironment):
    """Remembers which examples it was asked for; some have other rows than usual."""

    def __init__(self, changed: int | None = None, count: int = COUNT) -> None:
        def row(place: int) -> dict[str, str]:
            return {"question": f"say {place}" + ("!" if place == changed else ""), "answer": str(place)}

        rows = ProceduralRows(row, count)
        super().__init__(SingleTurnEnv(eval_dataset=rows, rubric=Rubric([played]), name="say"))
        self.asked: list[int] = []

    async def examples(self, split: Split, start: int = 0, count: int | None = None) -> list[Example]:
        self.asked.append(start)
        return await super().examples(split, start, count)


def answer(request: object) -> str:
    return str(request.messages[-1]["content"])  # type: ignore[attr-defined]


async def play(
    folder: Path, environment: Counting | None = None, *, until: int = COUNT, **plan: object
) -> EvaluationResult:
    environment, stop = environment or Counting(), StopRequest()

    def told(progress: Progress) -> None:
        if progress.done >= until:
            stop.request()

    failing = {"3/0", "5/0"} if not (folder / "run.json").exists() else set()

    def model(request: object) -> str:
        if until < COUNT and request.rollout_id in failing:  # type: ignore[attr-defined]
            raise ModelError("down")
        return answer(request)

    client, pin = ScriptedClient(model), EnvironmentPin(name="say", info=environment.info)
    settings = EvaluationPlan(concurrency=1, **plan)  # type: ignore[arg-type]
    return await evaluate(
        environment, client, settings, folder, pin, resume=True, on_progress=told, stop=stop
    )


@pytest.fixture(autouse=True)
def _short_runs_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookmark, "LONG", 10)
    monkeypatch.setattr(bookmark, "PAGE", PAGE)
    monkeypatch.setattr(runner, "_PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(runner, "_RETRY_SECONDS", 0.0)


def whole(result: EvaluationResult) -> None:
    """Hold a result to what an uninterrupted run has."""
    assert result.run_dir is not None
    folder = RunFolder.open(result.run_dir)
    rollouts = list(folder.rollouts_in_order())
    assert [rollout.key for rollout in rollouts] == [(str(place), 0) for place in range(COUNT)]
    assert all(rollout.failure is None for rollout in rollouts)
    assert [rollout.completion[0]["content"] for rollout in rollouts] == [f"say {n}" for n in range(COUNT)]
    assert result.summary == folder.summary() == summarize_run(folder.manifest, rollouts)
    left = {path.name for path in result.run_dir.iterdir()} - {"rollouts.torn"}
    assert left == {"run.json", "rollouts.jsonl.zst", "summary.json"}


async def test_a_long_run_resumes_without_reading_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await play(tmp_path, until=21)
    read: list[int] = []
    every = RunFolder.every_line
    monkeypatch.setattr(
        RunFolder, "every_line", lambda *given: (read.append(one[0]) or one for one in every(*given))
    )
    environment = Counting()
    result = await play(tmp_path, environment)
    assert (result.resumed, read) == (19, [])
    # The first page at once, for rollouts that failed too; then those with what is missing, each once.
    assert environment.asked == [0, 16, 24, 32]
    whole(result)


async def test_rollouts_after_the_bookmark_are_read(tmp_path: Path) -> None:
    await play(tmp_path, until=12)
    kept = (tmp_path / bookmark.BOOKMARK).read_bytes()
    await play(tmp_path, until=25)
    (tmp_path / bookmark.BOOKMARK).write_bytes(kept)
    result = await play(tmp_path)
    assert result.resumed == 25
    whole(result)


def remove_line(folder: Path) -> None:
    rollouts = folder / "rollouts.jsonl"
    lines = rollouts.read_bytes().splitlines(keepends=True)
    rollouts.write_bytes(b"".join(lines[:7] + lines[8:]))


def cut(name: str, share: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * share)])

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        *(cut(bookmark.BOOKMARK, share) for share in (0.0, 0.3, 0.99)),
        *(cut(bookmark.EXAMPLES, share) for share in (0.0, 0.5, 0.99)),
        *(
            lambda folder, name=name: (folder / name).unlink()
            for name in (bookmark.BOOKMARK, bookmark.EXAMPLES)
        ),
        lambda folder: (folder / bookmark.EXAMPLES).write_bytes(bytes(32 * COUNT)),
        cut("rollouts.jsonl", 0.6),
        remove_line,
    ],
)
async def test_a_bookmark_that_does_not_match_the_record_is_ignored(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    await play(tmp_path, until=25)
    damage(tmp_path)
    whole(await play(tmp_path))


async def test_the_bookmark_of_another_run_is_ignored(tmp_path: Path) -> None:
    await play(tmp_path / "one", until=30)
    await play(tmp_path / "other", until=20)
    for name in (bookmark.BOOKMARK, bookmark.EXAMPLES):
        (tmp_path / "other" / name).write_bytes((tmp_path / "one" / name).read_bytes())
    whole(await play(tmp_path / "other"))


async def test_a_kill_at_any_write_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file that is replaced is lost once, in a first and in a second part."""

    class Killed(BaseException):
        pass

    replace, left = jsonl.replace_file, 0

    def dying(path: Path) -> object:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed
        return replace(path)

    monkeypatch.setattr(jsonl, "replace_file", dying)
    deaths = 0
    for first in (0, 25):
        for number in range(2, 12):
            folder, left = tmp_path / f"{first}-{number}", 0
            if first:
                await play(folder, until=first)
            left = number - 1
            try:
                await play(folder)
            except Killed:
                deaths += 1
            left = 0
            result = await play(folder)
            assert (result.summary.rollouts, result.summary.failed) == (COUNT, 0)
            assert RunFolder.open(folder).summary() == result.summary
    assert deaths >= 8


@pytest.mark.parametrize(("changed", "until"), [(2, 25), (30, 25), (39, 10)])
async def test_a_changed_example_is_rejected_when_its_page_is_played(
    tmp_path: Path, changed: int, until: int
) -> None:
    await play(tmp_path, until=until)
    before = len(RunFolder.open(tmp_path).keys_done())
    with pytest.raises(RunError, match="changed since it began: the examples"):
        await play(tmp_path, Counting(changed))
    kept = list(RunFolder.open(tmp_path).rollouts())
    assert all(int(rollout.example_id) // PAGE != changed // PAGE for rollout in kept[before + 2 :])
    assert not any("!" in str(rollout.prompt) for rollout in kept)
    whole(await play(tmp_path))


@pytest.mark.parametrize("plan", [{"num_examples": 20}, {"shuffle": True}, {"seed": 1}])
async def test_different_examples_are_rejected_immediately(tmp_path: Path, plan: dict[str, object]) -> None:
    await play(tmp_path, until=25)
    with pytest.raises(RunError, match="cannot be resumed"):
        await play(tmp_path, **plan)
    with pytest.raises(RunError, match="cannot be resumed"):
        await play(tmp_path, Counting(count=COUNT + 1))
    whole(await play(tmp_path))


@pytest.mark.full
async def test_memory_hardly_grows_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than 300 bytes a rollout at most, resumed too; an example kept as an object takes 2,700."""
    monkeypatch.setattr(wander.dataset, "_KEPT", 10)
    peaks = {}
    for count in (2_000, 5_000):
        environment = Counting(count=count)
        for until in (count * 9 // 10, count + 1):
            gc.collect()
            tracemalloc.start()
            try:
                await play(tmp_path / str(count), environment, until=until)
                peaks[count, until > count] = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
    for resumed in (False, True):
        grown = peaks[5_000, resumed] - peaks[2_000, resumed]
        assert grown < 3_000 * 300, (resumed, grown / 3_000)
