"""`wander view`: read the rollouts of a run in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import nsmallest
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

from wander_client.context import current
from wander_client.errors import NotFound, UsageError
from wander_client.terminal.command import Argument, Option, refuse_options
from wander_client.terminal.output import shell_word
from wander_client.terminal.suggestions import did_you_mean

if TYPE_CHECKING:
    from wander.wire import RolloutRow

    from wander_client.runs.found import FoundRun

SORTED_BY = {"reward": "reward", "turns": "turns", "seconds": "seconds", "tokens": "completion_tokens"}
"""Values of `--sort`, with the field of a row that each sorts by."""


def view(
    run: Annotated[str | None, Argument(help="folder or run ID  [default: the newest run]")] = None,
    rollout: Annotated[str | None, Option(help="show one rollout: its number, or EXAMPLE/INDEX")] = None,
    failed: Annotated[bool, Option("--failed", help="show only failed rollouts")] = False,
    where: Annotated[
        list[str] | None,
        Option(help="show only rollouts that meet a condition, such as `lost==1`; repeatable"),
    ] = None,
    step: Annotated[
        int | None, Option(min=0, help="for a training run: show only rollouts of this step")
    ] = None,
    sort: Annotated[
        str | None,
        Option(
            metavar="reward|turns|seconds|tokens",
            help="order of the rollouts; `-reward` sorts the highest reward first, and so on",
        ),
    ] = None,
    limit: Annotated[int, Option(min=1, help="rows to show")] = 30,
) -> None:
    """Read the rollouts of a run, on this machine or on the hub: a list of them, or one with `--rollout`.

    \b
    wander view
    wander view runs/RUN --sort reward
    wander view runs/RUN --failed
    wander view runs/RUN --where lost==1
    wander view runs/TRAINING --step 40
    wander view runs/RUN --rollout 3
    wander view RUN_ID --json
    """
    from wander_client.runs.lookup import find_run

    here = current()
    source = find_run(here, run)
    if rollout is not None:
        others = ("failed", "where", "step", "sort", "limit")
        refuse_options(*others, because="selects rows of the list, but `--rollout` shows one rollout")
        _show_one(source, rollout)
        return
    shown, matching = _choose(source, step, failed, where, sort, limit)
    data = {
        "run_id": source.manifest.run_id,
        "location": source.location,
        "manifest": source.manifest.model_dump(mode="json", by_alias=True),
        "summary": source.summary.model_dump(mode="json"),
        "rollouts": [row.model_dump(mode="json") for row in shown],
        "matching": matching,
    }
    here.output.answer(data, lambda: _show(source, shown, matching))
    if shown:
        here.output.next(f"wander view {shell_word(run or source.location)} --rollout {shown[0].number}")


def _choose(
    source: FoundRun, step: int | None, failed: bool, where: list[str] | None, sort: str | None, limit: int
) -> tuple[list[RolloutRow], int]:
    """Return the rows to show, and the number of matching rows. Keeps at most `limit` rows in memory."""
    keys = None
    if where:
        from wander.train.data import Condition

        conditions = [Condition.parse(text) for text in where]
        scored = (item for item in source.rollouts() if item.failure is None)
        meeting = (item for item in scored if all(condition.holds(item) for condition in conditions))
        keys = {(*item.key, item.step) for item in meeting}
    matching = 0

    def chosen() -> Iterator[RolloutRow]:
        nonlocal matching
        for row in chain(source.rows(), source.sample_rows()):
            if (
                (step is None or row.step == step)
                and (not failed or row.failure is not None)
                and (keys is None or (row.example_id, row.index, row.step) in keys)
            ):
                matching += 1
                yield row

    order = (lambda row: row.number) if sort is None else _order(sort)
    return nsmallest(limit, chosen(), key=order), matching


def _show_one(source: FoundRun, word: str) -> None:
    from wander_client.runs.text import show_rollout

    output = current().output
    example, slash, index = word.rpartition("/")
    if not slash and not word.isdecimal():
        raise UsageError(
            f"`--rollout {word}`: not a rollout number", hint="for example: `--rollout 3` or `EXAMPLE/0`"
        )
    keys = ((row.number, (row.example_id, str(row.index))) for row in source.rows() if slash)
    number = (
        next((row_number for row_number, key in keys if key == (example, index)), None)
        if slash
        else int(word)
    )
    if number is None:
        raise NotFound(
            f"the run has no rollout `{word}`",
            hint=f"run `wander view {source.location}` to list its rollouts",
            code="rollout_not_found",
        )
    selected = source.rollout(number)
    data = {"number": number, **selected.model_dump(mode="json")}
    output.answer(data, lambda: show_rollout(number, selected, output))


def _order(word: str) -> Callable[[RolloutRow], Any]:
    """Return the sort key for a value of `--sort`."""
    from wander_client.runs.text import row_order

    name = word.removeprefix("-")
    if name not in SORTED_BY:
        hint = did_you_mean(name, SORTED_BY) or f"sort by one of {', '.join(SORTED_BY)}"
        raise UsageError(f"cannot sort by `{name}`", hint=hint)
    return row_order(SORTED_BY[name], falling=word.startswith("-"))


def _show(source: FoundRun, shown: list[RolloutRow], matching: int) -> None:
    from wander.evals.report.document import run_title

    from wander_client.runs.text import ROLLOUT_COLUMNS, rollout_row, show_summary

    output = current().output
    if output.human:
        output.line(run_title(source.manifest), style="bold")
        output.line(
            f"run     {source.manifest.run_id}, started {source.manifest.started_at:%Y-%m-%d %H:%M} UTC"
        )
        if source.manifest.reproduction is not None:
            output.line(f"mode    {source.manifest.reproduction.told()}")
        show_summary(source.summary, output, source.manifest)
        output.line()
    output.table(ROLLOUT_COLUMNS, [rollout_row(row) for row in shown], shrink=["last answer", "example"])
    if matching > len(shown):
        output.note(f"{matching - len(shown)} more; show all with `--limit {matching}`")
