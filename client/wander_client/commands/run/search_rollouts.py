"""`wander runs search`: search the rollouts of all runs on the hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from wander_client.context import current
from wander_client.errors import UsageError
from wander_client.terminal.command import Argument, Option
from wander_client.terminal.output import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wander.wire.environments import RunMatches

    from wander_client.terminal.output import Cell

Shown = Literal["all", "scored", "failed"]


def search_rollouts(
    text: Annotated[str | None, Argument(help="text that a message or the example's ID contains")] = None,
    environment: Annotated[
        str | None, Option("--environment", "-e", help="only runs of this environment: owner/name")
    ] = None,
    model: Annotated[
        str | None, Option("--model", "-m", help="only runs of this model: its full name")
    ] = None,
    reward_min: Annotated[float | None, Option(help="lowest reward")] = None,
    reward_max: Annotated[float | None, Option(help="highest reward")] = None,
    ended_by: Annotated[str | None, Option(help="stop reason, such as `max_turns_reached`")] = None,
    only: Annotated[Shown, Option(help="which rollouts")] = "all",
    limit: Annotated[int, Option(min=1, help="number of runs with matches to show")] = 20,
) -> None:
    """Search the rollouts of all runs on the hub that you may see. The newest run is first.

    \b
    wander runs search "I cannot help"
    wander runs search "<move>5</move>" -e admin/tictactoe --reward-max 0
    wander runs search --ended-by max_turns_reached --model tiny --json

    For each run, the first five matches are listed. The hub reads whole transcripts, or, in large runs, the
    example's ID and the beginning of the last reply.
    """
    from wander.wire.environments import RolloutSearchPage

    from wander_client.hub.connection import MOST_PAGES

    here = current()
    asked = {
        "text": text,
        "environment": environment,
        "model": model,
        "reward_min": reward_min,
        "reward_max": reward_max,
        "stop_reason": ended_by,
        "only": None if only == "all" else only,
    }
    if all(value is None for value in asked.values()):
        raise UsageError("nothing to search for", hint="pass a text or a filter, such as `--ended-by`")
    with here.hub() as hub, here.output.progress("searching", None, unit="runs") as bar:
        found, searched, cursor = [], 0, None
        left_out: dict[str, str] = {}
        for _ in range(MOST_PAGES):
            page = hub.read("/api/v1/runs/rollouts", RolloutSearchPage, {**asked, "cursor": cursor})
            found += page.data
            searched += page.searched_runs
            left_out |= dict.fromkeys(page.too_large, "it has too many rollouts")
            left_out |= dict.fromkeys(page.missing, "the hub has lost a file of it")
            bar.update(searched)
            cursor = page.next
            if cursor is None or len(found) >= limit:
                break
    for run_id, reason in left_out.items():
        here.output.warn(f"`{run_id}` was not searched: {reason}")
    complete, found = cursor is None and len(found) <= limit, found[:limit]
    data = {"runs": found, "searched_runs": searched, "complete": complete}
    here.output.answer(data, lambda: _show(found, searched, complete=complete))


def _show(found: Sequence[RunMatches], searched: int, *, complete: bool) -> None:
    output = current().output
    rows: list[list[Cell]] = [
        [
            run.run_id,
            run.model,
            row.number,
            row.example_id,
            row.reward,
            row.failure or row.stop_reason,
            row.preview,
        ]
        for run in found
        for row in run.rollouts
    ]
    output.table(
        ["run", "model", "number", "example", "reward", "ended by", "last reply"],
        rows,
        shrink=["last reply", "example"],
        drop=["model", "ended by"],
    )
    matching = sum(run.matching for run in found)
    output.note(
        f"{counted(matching, 'rollout')} of {counted(len(found), 'run')} matched; "
        f"{counted(searched, 'run')} searched"
        + ("" if complete else ", and there are older ones: pass a larger `--limit`")
    )
