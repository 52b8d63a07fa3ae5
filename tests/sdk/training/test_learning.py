"""The proof of learning: the same bits with any number of threads, and what is not shown."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
from wander.errors import RunError
from wander.learning import prove_learning
from wander.learning.records import Recipe
from wander.wire.verification import LearningPoint, LearningReport

ROOT = Path(__file__).resolve().parents[3]
SMALL = Recipe(
    transcripts=64,
    hidden=32,
    layers=1,
    imitation_blocks=1,
    imitation_steps=20,
    imitation_tokens=1024,
    probe_examples=8,
    steps=4,
    rollout_tokens=2048,
    points=2,
    examples=40,
)
SOURCE = '''
from wander import Rubric, SingleTurnEnv

ROWS = [{{"question": f"Say {{word}}.", "answer": word}} for word in ("red", "blue", "green", "gray") * 16]


def right(completion, answer):
    """1 for the word."""
    return float(completion[-1]["content"].strip() == answer)


class Words(SingleTurnEnv):
    """Repeats a word."""


def load_environment():
    return Words(ROWS, eval_dataset=ROWS, rubric=Rubric([right]), deterministic={deterministic})
'''


def environment(folder: Path, *, deterministic: bool = True) -> Path:
    file = folder / "words.py"
    file.write_text(SOURCE.format(deterministic=deterministic))
    return file


def report(rewards: tuple[float, float], **other: object) -> LearningReport:
    curve = [LearningPoint(step=40 * number, reward=reward) for number, reward in enumerate(rewards)]
    return LearningReport(schema="wander.learning/1", environment="words", curve=curve, **other)


def test_the_digest_of_a_report_does_not_depend_on_the_machine():
    shown = report((0.31, 0.58), shown=True)
    assert shown.describe() == "learnable: 0.31 to 0.58 in 40 steps"
    assert report((0.5, 0.5), reason="no gain").describe() == "learning not shown: no gain"
    elsewhere = shown.model_copy(update={"cpu_seconds": 9.0, "platform": "x", "versions": {"torch": "2"}})
    assert elsewhere.digest == shown.digest
    assert report((0.31, 0.59), shown=True).digest != shown.digest


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_recipe_does_not_depend_on_threads(tmp_path, monkeypatch):
    stages: list[str] = []
    reports = []
    for threads in ("1", "2"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        monkeypatch.setenv("PYTHONHASHSEED", threads)
        reports.append(
            prove_learning(
                environment(tmp_path),
                python=sys.executable,
                recipe=SMALL,
                progress=lambda stage, done, total: stages.append(stage),
            )
        )
    first, second = reports
    assert first.weights_sha256 is not None, first.reason
    assert first.weights_sha256 == second.weights_sha256
    assert first.digest == second.digest
    assert [point.step for point in first.curve] == [0, 2, 4]
    assert (first.demonstrations, first.demonstrated, first.examples) == ("expert", 1.0, 40)
    assert first.imitation_steps == 20
    assert list(dict.fromkeys(stages)) == [
        "loading the environment",
        "playing transcripts",
        "imitating",
        "learning from rewards",
    ]


@pytest.mark.full
@pytest.mark.timeout(900)
def test_unrepeatable_or_slow_recipes_show_no_learning(tmp_path):
    changing = prove_learning(environment(tmp_path, deterministic=False), recipe=SMALL)
    assert (changing.shown, changing.curve) == (False, [])
    assert "not deterministic" in changing.reason
    slow = prove_learning(environment(tmp_path), recipe=SMALL.model_copy(update={"cpu_seconds": 3}))
    assert not slow.shown
    assert "processor time" in slow.reason


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_signal_ends_the_proof_without_a_report(tmp_path):
    def end_the_recipe(stage: str, done: int, total: int) -> None:
        if (stage, done) == ("learning from rewards", 1):
            for process in psutil.Process().children():
                if "wander.learning.recipe" in process.cmdline():
                    process.terminate()

    with pytest.raises(RunError, match="a signal ended the training"):
        prove_learning(environment(tmp_path), recipe=SMALL, progress=end_the_recipe)


@pytest.mark.slow
def test_the_recipe_shows_that_reverse_text_can_be_learned():
    proved = prove_learning(ROOT / "environments" / "reverse_text")
    assert proved.shown, proved.describe()
    assert proved.held_out
    assert proved.cpu_seconds < 600
