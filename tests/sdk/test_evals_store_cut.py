"""A run cut at any byte, or stopped at any step of its closing, loses at most the rollout in flight."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from wander.evals.stats.summary import summarize
from wander.evals.store.folder import ROLLOUTS, TORN, RunFolder
from wander.types import EnvironmentInfo, Failure, Rollout
from wander.wire import EnvironmentPin, ModelPin, Platform, RunManifest

MANIFEST = RunManifest(
    run_id="0" * 26,
    environment=EnvironmentPin(name="echo", info=EnvironmentInfo(name="echo", kind="single_turn")),
    model=ModelPin(name="m", kind="ScriptedClient"),
    example_ids=["a", "b", "c"],
    rollouts_per_example=1,
    task_set_sha256="0" * 64,
    started_at=datetime(2026, 1, 1, tzinfo=UTC),
    platform=Platform(wander="0", python="3", system="s", machine="m"),
)


def rollout(example: str, reward: float | None = 1.0) -> Rollout:
    failure = None if reward is not None else Failure(boundary="model", type="X", message="429 \u2028")
    said = [{"role": "assistant", "content": 'é \U0001f600 {"example_id":"a","index":0}\n'}]
    return Rollout(
        example_id=example,
        index=0,
        seed=1,
        prompt=[{"role": "user", "content": "?"}],
        completion=said,
        reward=reward,
        failure=failure,
    )


WRITTEN = [rollout("a"), rollout("b", None), rollout("b", 0.5), rollout("c")]
"""One failed and was played again."""


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    folder = RunFolder.create(tmp_path / "whole", MANIFEST)
    for one in WRITTEN:
        folder.append(one)
    folder.close()
    return tmp_path / "whole"


def kept_of(lines: list[Rollout]) -> dict[tuple[str, int], Rollout]:
    return {one.key: one for one in lines}


@pytest.mark.full
def test_a_file_cut_at_any_byte_loses_at_most_the_line_that_was_cut(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda file: None)  # hundreds of folders, and no power is lost here
    content = (whole / ROLLOUTS).read_bytes()
    ends = [place + 1 for place, byte in enumerate(content) if byte == 0x0A]
    assert len(ends) == len(WRITTEN)
    for size in range(ends[1], len(content) + 1):
        folder = tmp_path / "cut"
        shutil.copytree(whole, folder)
        (folder / ROLLOUTS).write_bytes(content[:size])
        # A line that lost its newline alone is whole.
        lines = sum(end - 1 <= size for end in ends)
        rest = content[ends[lines - 1] : size] if size > ends[lines - 1] else b""

        opened = RunFolder.open(folder)
        assert kept_of(list(opened.rollouts())) == kept_of(WRITTEN[:lines]), size
        assert (opened.torn is not None) == bool(rest), size
        opened.resume()
        for one in WRITTEN[lines:]:
            opened.append(one)
        opened.close()

        again = RunFolder.open(folder)
        assert list(again.rollouts()) == list(RunFolder.open(whole).rollouts()), size
        assert again.torn is None
        assert (folder / ROLLOUTS).read_bytes() == content, "nothing is written twice, nothing is lost"
        set_aside = (folder / TORN).read_bytes() if (folder / TORN).exists() else b""
        assert set_aside == (rest + b"\n" if rest else b""), size
        shutil.rmtree(folder)


class Killed(BaseException):
    """The process ended here."""


def die_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the process die before its so many-th change of the folder."""
    done = 0

    def before(original: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            if done == step:
                raise Killed
            done += 1
            return original(*arguments, **options)

        return changed

    for name in ("replace", "unlink"):
        monkeypatch.setattr(Path, name, before(getattr(Path, name)))


def test_a_run_killed_while_closing_is_complete(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = list(RunFolder.open(whole).rollouts())
    for step in range(100):
        folder = tmp_path / "closing"
        shutil.copytree(whole, folder)
        opened = RunFolder.open(folder)
        opened.resume()
        with monkeypatch.context() as patched:
            die_at(step, patched)
            try:
                opened.finish(summarize(opened.rollouts(), expected=3))
                died = False
            except Killed:
                died = True
        opened.close()
        again = RunFolder.open(folder)
        assert list(again.rollouts()) == expected, step
        assert again.torn is None
        again.resume()
        again.finish(summarize(again.rollouts(), expected=3))
        assert list(RunFolder.open(folder).rollouts()) == expected, step
        shutil.rmtree(folder)
        if not died:
            break
    assert step >= 4, "the manifest, the summary, the compressed file and the plain one"
