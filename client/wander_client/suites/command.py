"""`wander eval` with a suite: from a file, or from several `-m`."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander_client.errors import FAILED, OK, PARTIAL, Interrupted, UsageError
from wander_client.evaluate.evaluation import (
    Evaluation,
    fresh_folder,
    more_budget,
    require_settings,
    resume_command,
)
from wander_client.evaluate.options import NEWEST, CommandFlags
from wander_client.evaluate.settings import BUDGETS, EvaluationSettings, check_settings, settings_for
from wander_client.models.reference import asks_endpoint, endpoint_of
from wander_client.runs.lookup import SUITE_FILE
from wander_client.runs.shards import require_no_shards, require_run
from wander_client.suites.file import Suite, find_newest, name_run, read_suite, require_distinct
from wander_client.suites.play import Outcome, describe_spending, play_suite, prepare, share_budget
from wander_client.suites.table import SuiteTable
from wander_client.terminal.output import counted

if TYPE_CHECKING:
    from wander.evals.run.budget import SharedBudget
    from wander.evals.store.examples import PackedExamples

    from wander_client.context import Invocation
    from wander_client.environments.opening import OpenedEnvironment
    from wander_client.settings import Settings
    from wander_client.suites.merge import Merged
    from wander_client.terminal.output import Cell, Output


def play(context: Invocation, said: dict[str, Any], flags: CommandFlags) -> int:
    """Play the suite of a command line, or go on with it, and report."""
    output = context.output
    suite, begun = find_suite(context, said, flags)
    suite = _take_part(suite, said.get("shard"), begun)
    folder = begun or flags.out or fresh_folder(context.settings.runs_dir, suite.name)
    if begun is None and (folder / SUITE_FILE).exists():
        raise UsageError(f"`{folder}` holds a suite already", hint=f"go on with `{resume_command(folder)}`")
    if begun is None:
        require_no_shards(folder)
    ready = prepare(context, suite, folder, allow_changed_code=flags.allow_changed_code)
    budget = share_budget(suite, ready)
    if flags.dry_run:
        return show_plans([each.evaluation for each in ready], output)
    if begun is not None:
        suite = suite.model_copy(update={"started_at": Suite.load(begun).command.started_at})
    suite.write(folder)
    left = sum(each.finished is None for each in ready)
    output.note(
        f"suite {suite.name}: {counted(len(ready), 'evaluation')}, {left} to play, "
        f"{suite.evaluations_at_once} at a time, {counted(suite.concurrency, 'call')} at once of each "
        f"endpoint\nsaving to {folder}"
    )
    table = SuiteTable(output, [each.run.name for each in ready])
    with table.show():
        outcomes = asyncio.run(play_suite(context, suite, ready, table, budget))
    return _report(suite, folder, outcomes, budget, flags.fail_under, output)


def find_suite(context: Invocation, said: dict[str, Any], flags: CommandFlags) -> tuple[Suite, Path | None]:
    """Return the suite that a command line means, and its folder where one goes on."""
    suite, begun = _find_suite(context.settings, said, flags)
    if begun is not None:
        require_run(begun)
    # A typed budget is that of all evaluations.
    budgets: dict[str, Any] = {name: said[name] for name in BUDGETS if name in said}
    return suite.model_copy(update=budgets), begun


def report_merged(
    suite: Suite, folder: Path, merged: list[Merged], fail_under: float | None, output: Output
) -> int:
    """Report a suite whose runs were made of shards."""
    runs = {run.name: run for run in suite.runs}
    outcomes = [
        Outcome(
            runs[each.name],
            each.run_dir,
            "partial" if each.summary.failed else "done",
            each.manifest,
            each.summary,
        )
        for each in merged
    ]
    return _report(suite, folder, outcomes, None, fail_under, output)


def _find_suite(user: Settings, said: dict[str, Any], flags: CommandFlags) -> tuple[Suite, Path | None]:
    word = said.get("environment", "")
    file = Path(word) if word.endswith(".toml") else None
    resumed = flags.resume
    is_typed = {"environment", "model"} <= said.keys()
    if file is None and (resumed is None or (is_typed and not Suite.load(resumed).is_own)):
        return _suite_of_models(said, user), resumed
    if flags.only_failed:
        raise UsageError("`--only-failed` is for one run", hint="name it: `--resume RUN --only-failed`")
    for name in sorted(said.keys() - {"environment", "shard", *BUDGETS}):
        table = "at the top" if name == "concurrency" else "under `[defaults]`"
        raise UsageError(
            f"`{name}` belongs in the suite's file, not on the command line", hint=f"write it there, {table}"
        )
    if file is None:
        assert resumed is not None
        words = f"--resume {shlex.quote(str(resumed))}"
        hint = f"give the suite's file, `wander eval FILE.toml {words}`, or its models, `-m MODEL -m MODEL`"
        return Suite.load_own(resumed, hint), resumed
    suite = read_suite(file, user)
    if resumed is not None and str(resumed) == NEWEST:
        assert suite.file is not None
        resumed = find_newest(user.runs_dir, Path(suite.file))
    if resumed is not None:
        Suite.load(resumed)  # or it is none
    return suite, resumed


def _suite_of_models(said: dict[str, Any], user: Settings) -> Suite:
    if "environment" not in said:
        raise UsageError("the environment is missing", hint="run `wander eval --help` for examples")
    alone = {key: value for key, value in said.items() if key not in (*BUDGETS, "shard")}
    runs = []
    for model in said["model"]:
        settings = settings_for({**alone, "model": model}, user)
        runs.append(name_run(settings, f"`-m {model}`"))
    require_distinct(runs)
    at_once = min(4, len(runs))
    return Suite(name="models", concurrency=settings.concurrency, evaluations_at_once=at_once, runs=runs)


def _take_part(suite: Suite, word: str | None, begun: Path | None) -> Suite:
    """Return the part of a suite that a command line means: the one that its folder holds, if it goes on."""
    held = Suite.load(begun).command.shard if begun is not None else None
    if word is None:
        return suite.model_copy(update={"shard": held})
    asked = check_settings({"environment": "", "model": "", "shard": word}).shard
    if begun is not None and asked != held:
        what = f"shard {held}" if held else "all of the suite"
        raise UsageError(
            f"`{begun}` holds {what}, not shard {asked}", hint="choose another folder with `--out`"
        )
    return suite.model_copy(update={"shard": asked})


_COLUMNS = ["evaluation", "rollouts", "reward", "low", "high", "failed", "tokens", "USD", "state", "run"]


def _report(
    suite: Suite,
    folder: Path,
    outcomes: list[Outcome],
    budget: SharedBudget | None,
    fail_under: float | None,
    output: Output,
) -> int:
    data = {
        "name": suite.name,
        "suite_dir": str(folder),
        "runs": [_data(each) for each in outcomes],
        "spending": None if budget is None else describe_spending(budget),
    }
    for each in outcomes:
        if each.error is not None:
            output.warn(f"{each.run.name}: {each.error}")
    stopped = sum(each.state == "stopped" for each in outcomes)
    if stopped:
        raise Interrupted(
            f"interrupted; {stopped} of {counted(len(outcomes), 'evaluation')} are not complete, "
            f"what was played is kept in `{folder}`",
            hint=f"go on with `{resume_command(folder)}`",
        )
    below = [each for each in outcomes if fail_under is not None and _mean(each) < fail_under]
    for each in below:
        output.warn(f"{each.run.name}: the reward is below {fail_under}")
    spent = None if budget is None else budget.spent
    incomplete = sum(each.state == "partial" for each in outcomes)
    if spent is not None and incomplete:
        output.warn(f"{spent}: {incomplete} of {counted(len(outcomes), 'evaluation')} are not complete")
    rows = [_row(each) for each in outcomes]
    output.answer(
        data,
        lambda: output.table(_COLUMNS, rows, shrink=["evaluation"], drop=["run", "low", "high", "tokens"]),
    )
    broken = [each.error for each in outcomes if each.error is not None]
    partial = any(each.state in ("partial", "failed") for each in outcomes)
    if partial:
        facts = budget and (budget.spent_tokens, budget.spent_usd, budget.tokens, budget.usd)
        output.next(resume_command(folder) + (more_budget(*facts) if facts else ""))
    else:
        output.next(f"wander view {outcomes[0].run_dir}")
    if below:
        return FAILED
    if len(broken) == len(outcomes):
        return broken[0].status
    return PARTIAL if partial else OK


def _mean(outcome: Outcome) -> float:
    summary = outcome.summary
    return float("-inf") if summary is None or summary.reward_mean is None else summary.reward_mean


def _row(outcome: Outcome) -> list[Cell]:
    summary = outcome.summary
    numbers: list[Cell] = [None] * 7
    if summary is not None:
        spending = None if outcome.manifest is None else outcome.manifest.spending
        tokens = summary.usage.prompt_tokens + summary.usage.completion_tokens
        rewards = (summary.reward_mean, summary.reward_low, summary.reward_high)
        usd = None if spending is None else spending.usd
        numbers = [summary.rollouts, *rewards, summary.failed, tokens, usd]
    return [outcome.run.name, *numbers, outcome.state, outcome.run_dir.name]


def _data(outcome: Outcome) -> dict[str, Any]:
    manifest, summary, error = outcome.manifest, outcome.summary, outcome.error
    spending = None if manifest is None else manifest.spending
    return {
        "name": outcome.run.name,
        "state": outcome.state,
        "environment": outcome.run.settings.environment,
        "model": outcome.run.settings.model,
        "sampling": outcome.run.settings.sampling.given(),
        "run_dir": str(outcome.run_dir),
        "run_id": None if manifest is None else manifest.run_id,
        "summary": None if summary is None else summary.model_dump(mode="json"),
        "spending": None if spending is None else spending.model_dump(mode="json"),
        "error": None if error is None else {"code": error.code, "message": str(error), "hint": error.hint},
    }


def show_plans(evaluations: list[Evaluation], output: Output) -> int:
    """Show what would be played, without asking a model: examples, rollouts, and the calls they take."""
    data = asyncio.run(_plan_all(evaluations))
    columns = ["environment", "version", "model", "endpoint", "key", "examples", "rollouts"]
    names = ["environment", "version", "model", "base_url", "key_variable", "examples", "rollouts"]
    rows: list[list[Cell]] = [
        [*(each[name] for name in names), _calls(each["calls_least"], each["calls_most"])] for each in data
    ]
    whole = {"evaluations": data, "rollouts": sum(each["rollouts"] for each in data)}
    output.answer(whole, lambda: output.table([*columns, "calls"], rows, shrink=["model", "environment"]))
    return OK


async def _plan_all(evaluations: list[Evaluation]) -> list[dict[str, Any]]:
    from wander.evals.run.plan import planned_examples

    from wander_client.environments.location import log_folder

    shown = []
    for each in evaluations:
        require_settings(each.settings)
        async with each.open(log_folder(each.context) / "dry-run.log") as environment:
            examples = await planned_examples(environment.handle, each.settings.plan())
            shown.append(_plan(each.settings, environment, examples))
    return shown


def _plan(
    settings: EvaluationSettings, environment: OpenedEnvironment, examples: PackedExamples
) -> dict[str, Any]:
    strata: dict[str, int] = {}
    for stratum in examples.strata if settings.strata else ():
        strata[str(stratum)] = strata.get(str(stratum), 0) + 1
    rollouts = len(examples) * settings.rollouts
    asked = settings.serve is None and (settings.base_url is not None or asks_endpoint(settings.model))
    turns = environment.handle.info.max_turns
    return {
        "environment": environment.location.label,
        "version": environment.pin.version,
        "model": settings.model,
        "base_url": endpoint_of(settings.base_url) if asked else None,
        "key_variable": settings.key_variable if asked else None,
        "sandbox": settings.sandbox is not None,
        "sampling": settings.sampling.given(),
        "split": settings.split,
        "examples": len(examples),
        "strata": strata,
        "rollouts_per_example": settings.rollouts,
        "rollouts": rollouts,
        "calls_least": rollouts,
        "calls_most": None if turns is None or turns < 1 else rollouts * turns,
    }


def _calls(least: int, most: int | None) -> str:
    if most is None:
        return f"{least:,} or more"
    return f"{least:,}" if most == least else f"{least:,} to {most:,}"
