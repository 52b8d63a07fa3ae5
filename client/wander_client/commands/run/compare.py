"""`wander runs compare`: whether one run does better than another, example by example."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wander_client.context import current
from wander_client.terminal.command import Argument, Option

if TYPE_CHECKING:
    from wander.evals.stats.comparison import Comparison

    from wander_client.runs.found import FoundRun
    from wander_client.terminal.output import Output


def compare(
    before: Annotated[str, Argument(help="folder or run id: the baseline")],
    after: Annotated[str, Argument(help="folder or run id")],
    limit: Annotated[int, Option(min=0, help="examples to list for each run")] = 5,
) -> None:
    """Tell whether one run does better than another, example by example.

    \b
    wander runs compare runs/before runs/after
    wander runs compare RUN_ID runs/mine --json

    Both runs met the same examples, so the interval is that of the paired difference: it finds what two
    overlapping intervals hide.
    """
    from wander.evals.stats.comparison import compare_runs

    from wander_client.runs.lookup import find_run
    from wander_client.terminal.output import counted

    output = current().output
    first, second = find_run(current(), before), find_run(current(), after)
    found = compare_runs(first.manifest, first.rollouts(), second.manifest, second.rollouts())
    if found.differing:
        output.warn(f"the runs differ in more than the model: {', '.join(found.differing)}")
    if found.unshared:
        examples = counted(found.unshared, "example")
        output.warn(f"{examples} left out: not scored in both runs, or not the same in both")
    data = {
        "before_run": first.manifest.run_id,
        "after_run": second.manifest.run_id,
        "significant": found.significant,
        **found.model_dump(mode="json"),
    }
    output.answer(data, lambda: _show(found, first, second, limit, output))


def _show(found: Comparison, first: FoundRun, second: FoundRun, limit: int, output: Output) -> None:
    output.line(f"before      {found.before:.4f}  {first.manifest.model.name}")
    output.line(f"after       {found.after:.4f}  {second.manifest.model.name}")
    output.line(f"difference  {_difference(found)}", style="bold")
    output.line(
        f"examples    {found.examples}: {found.wins} better, {found.losses} worse, {found.ties} the same"
    )
    if found.detectable:
        output.line(f"detectable  {found.detectable:.4f} with so many examples, 4 times in 5")
    worst = [pair for pair in found.by_example[:limit] if pair.difference < 0]
    best = [pair for pair in found.by_example[::-1][:limit] if pair.difference > 0]
    if worst or best:
        output.line()
        output.table(
            ["example", "before", "after", "difference"],
            [[one.example_id, one.before, one.after, one.difference] for one in [*worst, *reversed(best)]],
            shrink=["example"],
        )


def _difference(found: Comparison) -> str:
    text = f"{found.difference:+.4f}"
    if found.low is None or found.high is None or found.p_value is None:
        return f"{text}  (a single example gives no interval)"
    verdict = "clear" if found.significant else "within chance"
    return f"{text}  [{found.low:+.4f}, {found.high:+.4f}]  p {found.p_value:.2g}  {verdict}"
