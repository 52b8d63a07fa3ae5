"""`wander eval --engine ray`: an evaluation or a suite, in shards that Ray plays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander_client.errors import UsageError
from wander_client.evaluate.evaluation import new_run_dir, settle
from wander_client.evaluate.settings import BUDGETS, EvaluationSettings
from wander_client.ray_engine.engine import finish, hold, play, shard_folders
from wander_client.ray_engine.parts import RayChoice
from wander_client.runs.shards import parts_of, require_free
from wander_client.suites.file import Suite, name_run
from wander_client.suites.merge import Merged, merge_part, merge_suite

if TYPE_CHECKING:
    from wander_client.context import Invocation


def evaluate(
    context: Invocation, settings: EvaluationSettings, out: Path | None, choice: RayChoice
) -> Merged:
    """Play one evaluation on Ray and return its run; a budget is that of all shards together."""
    settings, location = settle(context, settings)
    out = out or new_run_dir(context.settings.runs_dir, location, settings.model)
    alone = settings.model_copy(update={"budget_tokens": None, "budget_usd": None})
    suite = Suite(
        name=out.name,
        concurrency=settings.concurrency,
        evaluations_at_once=1,
        runs=[name_run(alone, "the evaluation")],
        budget_tokens=settings.budget_tokens,
        budget_usd=settings.budget_usd,
    )
    (merged,) = _play(context, suite, out, choice)
    return merged


def evaluate_suite(context: Invocation, suite: Suite, out: Path, choice: RayChoice) -> list[Merged]:
    """Play a suite on Ray and return its runs, which lie in `out`."""
    for run in suite.runs:
        if run.settings.budget_tokens is not None or run.settings.budget_usd is not None:
            raise UsageError(
                f"{run.where}: a budget of one evaluation is not shared among shards",
                hint="write the budget at the top of the suite's file",
            )
    exact = [
        run.model_copy(update={"settings": settle(context, run.settings)[0]}) for run in suite.runs
    ]  # an environment and a version that hold on all nodes
    return _play(context, suite.model_copy(update={"runs": exact}), out, choice)


def resume(
    context: Invocation, out: Path, choice: RayChoice, said: Mapping[str, Any]
) -> tuple[Suite, list[Merged]]:
    """Go on with what was begun on Ray; the number of shards stays, and nothing but budgets may change."""
    if other := sorted(said.keys() - set(BUDGETS)):
        raise UsageError(
            f"`{other[0]}` cannot change while a run goes on", hint="only its budgets can: leave it out"
        )
    shard_folders(out)
    hint = "play it again into another folder: `wander eval ... --engine ray --out NEW`"
    suite = Suite.load_own(parts_of(out), hint).model_copy(update=dict(said))
    return suite, _play(context, suite, out, choice)


def is_alone(suite: Suite) -> bool:
    """Tell whether what was begun is one evaluation, and no suite."""
    return suite.file is None and len(suite.runs) == 1


def _play(context: Invocation, suite: Suite, out: Path, choice: RayChoice) -> list[Merged]:
    require_free(out)
    with hold(out):
        play(suite, out, choice, context.output)
        require_free(out)
        folders = shard_folders(out)
        if is_alone(suite):
            (run,) = suite.runs
            merged = [merge_part([folder / run.folder for folder in folders], out, run.name)]
        else:
            merged = merge_suite(folders, out)
            suite.write(out)  # with the calls at once of the whole
        finish(out)
    return merged
