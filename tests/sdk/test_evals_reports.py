"""Reports of several runs, as text and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from wander.evals.report.contents import RunReport, report_of
from wander.evals.report.document import report_lines, report_markdown
from wander.evals.store.manifest import new_manifest
from wander.types import EnvironmentInfo, Example, Failure, Rollout, Turn
from wander.wire import EnvironmentPin, ModelPin, RunManifest


class Recorded:
    """A run in memory."""

    def __init__(self, manifest: RunManifest, rollouts: Sequence[Rollout]) -> None:
        self.manifest = manifest
        self._rollouts = rollouts

    def rollouts(self) -> Iterator[Rollout]:
        return iter(self._rollouts)


def run(model: str, rewards: Sequence[float], said: str = "yes", environment: str = "echo") -> Recorded:
    pin = EnvironmentPin(
        owner="alice", name=environment, version="1", info=EnvironmentInfo(name=environment, kind="tool")
    )
    examples = [
        Example(example_id=str(i), index=i, seed=i, prompt=[], stratum=i % 2) for i in range(len(rewards))
    ]
    call = {"function": {"name": said, "arguments": said}}
    message = {"role": "assistant", "content": said, "reasoning_content": said, "tool_calls": [call]}
    rollouts = [
        Rollout(
            example_id=str(i),
            index=index,
            seed=i,
            prompt=[{"role": "user", "content": said}],
            completion=[message],
            turns=[Turn(message=message, context_messages=1)],
            reward=reward,
            metrics={said[:20]: reward},
            answer=said,
            stop_reason=said,
        )
        for i, reward in enumerate(rewards)
        for index in range(2)
    ]
    failure = Failure(boundary="model", type="X", message=said)
    rollouts[-1] = rollouts[-1].model_copy(update={"failure": failure, "reward": None})
    manifest = new_manifest(
        environment=pin, model=ModelPin(name=model, kind="k"), examples=examples, rollouts_per_example=2
    )
    return Recorded(manifest, rollouts)


def two() -> RunReport:
    return report_of([run("before", [0.0, 1.0, 0.0, 0.0]), run("after", [1.0, 1.0, 0.0, 1.0])])


def test_the_text_of_several_runs_ends_with_the_comparison() -> None:
    text = "\n".join(report_lines(two()))
    assert text.index("before on alice/echo 1") < text.index("after on alice/echo 1")
    assert re.search(r"pass@k +95% interval +pass\^k", text)
    assert re.search(r"stratum +reward", text)
    assert re.search(r"(?m)^after +\+0\.5000 .* within chance$", text)
    assert "compared with" not in "\n".join(report_lines(report_of([run("one", [1.0, 0.0])])))


def test_incomparable_runs_are_shown_side_by_side() -> None:
    report = report_of([run("m", [1.0, 0.0]), run("m", [1.0, 0.0], environment="other")])
    assert len({one.label for one in report.runs}) == 2
    assert report.contrasts[0].comparison is None
    assert "the runs have different environments" in report_markdown(report)


def test_each_run_is_compared_with_the_first_of_its_environment() -> None:
    runs = [run("a", [1.0, 0.0]), run("a", [1.0, 1.0], environment="other"), run("b", [1.0, 1.0])]
    report = report_of([*runs, run("b", [0.0, 0.0], environment="other")])
    labels = [one.label for one in report.runs]
    assert len(set(labels)) == 4
    assert [(each.label, each.base) for each in report.contrasts] == [
        (labels[2], labels[0]),
        (labels[3], labels[1]),
    ]
    assert all(each.comparison is not None for each in report.contrasts)
    assert re.search("compared with the first run of the same environment", "\n".join(report_lines(report)))


def test_equal_values_are_shown_as_a_number() -> None:
    equal = report_of([run("one", [0.25, 0.25])])
    assert "every reward is 0.25" in "\n".join(report_lines(equal))
    assert "#####" not in report_markdown(equal)


def test_markdown_tables_are_complete() -> None:
    for block in report_markdown(two()).split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({row.replace("\\|", "").count("|") for row in rows}) <= 1, block
