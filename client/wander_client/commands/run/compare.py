"""`wander runs compare`: test whether one run does better than another, example by example."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wander_client.context import current
from wander_client.terminal.command import Argument, Option

if TYPE_CHECKING:
    from wander.evals.stats.comparison import Comparison

    from wander_client.runs.found import FoundRun
    from wander_client.terminal.output import Output


def compare(
    before: Annotated[str, Argument(help="folder or run ID of the baseline")],
    after: Annotated[str, Argument(help="folder or run ID")],
    limit: Annotated[int, Option(min=0, help="examples to list for each run")] = 5,
) -> None:
    """Test whether one run does better than another, example by example.

    \b
    wander runs compare runs/before runs/after
    wander runs compare RUN_ID runs/mine --json

    The command pairs the examples that both runs scored, and computes the confidence interval from the
    differences. It can show a difference even if the intervals of the two runs overlap.
    """
    from wander.evals.stats.comparison import compare_runs

    from wander_client.runs.lookup import find_run
    from wander_client.terminal.output import counted

    output = current().output
    first, second = find_run(current(), before), find_run(current(), after)
    comparison = compare_runs(first.manifest, first.rollouts(), second.manifest, second.rollouts())
    if comparison.differing:
        output.warn(f"the runs differ in more than the model: {', '.join(comparison.differing)}")
    if comparison.unshared:
        examples = counted(comparison.unshared, "example")
        output.warn(f"{examples} skipped: not scored in both runs, or not the same in both")
    data = {
        "before_run": first.manifest.run_id,
        "after_run": second.manifest.run_id,
        "significant": comparison.significant,
        **comparison.model_dump(mode="json"),
    }
    output.answer(data, lambda: _show(comparison, first, second, limit, output))


def _show(comparison: Comparison, first: FoundRun, second: FoundRun, limit: int, output: Output) -> None:
    output.line(f"before      {comparison.before:.4f}  {first.manifest.model.name}")
    output.line(f"after       {comparison.after:.4f}  {second.manifest.model.name}")
    output.line(f"difference  {_difference(comparison)}", style="bold")
    output.line(
        f"examples    {comparison.examples}: {comparison.wins} better, {comparison.losses} worse, "
        f"{comparison.ties} the same"
    )
    if comparison.detectable:
        output.line(f"detectable  {comparison.detectable:.4f} with this number of examples, at 80% power")
    worst = [pair for pair in comparison.by_example[:limit] if pair.difference < 0]
    best = [pair for pair in comparison.by_example[::-1][:limit] if pair.difference > 0]
    if worst or best:
        output.line()
        output.table(
            ["example", "before", "after", "difference"],
            [
                [pair.example_id, pair.before, pair.after, pair.difference]
                for pair in [*worst, *reversed(best)]
            ],
            shrink=["example"],
        )


def _difference(comparison: Comparison) -> str:
    text = f"{comparison.difference:+.4f}"
    if comparison.low is None or comparison.high is None or comparison.p_value is None:
        return f"{text}  (no interval for a single example)"
    verdict = "clear" if comparison.significant else "within chance"
    return f"{text}  [{comparison.low:+.4f}, {comparison.high:+.4f}]  p {comparison.p_value:.2g}  {verdict}"
