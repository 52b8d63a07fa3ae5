"""The suites of `wander eval`: from a TOML file, or from several `-m` options."""

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
from wander_client.runs.lookup import SUITE_FILE, require_same_folder
from wander_client.runs.shards import require_no_shards, require_run
from wander_client.suites.file import Suite, find_newest, name_run, read_suite, require_distinct
from wander_client.suites.play import EvaluationOutcome, describe_spending, play_suite, prepare, share_budget
from wander_client.suites.progress import SuiteProgress
from wander_client.terminal.output import counted, shell_word

if TYPE_CHECKING:
    from wander.evals.run.budget import SharedBudget
    from wander.evals.store.examples import PackedExamples

    from wander_client.context import Invocation
    from wander_client.environments.opening import OpenedEnvironment
    from wander_client.settings import Settings
    from wander_client.suites.merge import Merged
    from wander_client.terminal.output import Cell, Output


def play(context: Invocation, options: dict[str, Any], flags: CommandFlags) -> int:
    """Play or resume the suite of a command line, and report the results."""
    output = context.output
    suite, resumed = find_suite(context, options, flags)
    suite = _select_shard(suite, options.get("shard"), resumed)
    if resumed is not None:
        require_same_folder(resumed, flags.out)
    folder = resumed or flags.out or fresh_folder(context.settings.runs_dir, suite.name)
    if resumed is None and (folder / SUITE_FILE).exists():
        raise UsageError(
            f"`{folder}` already contains a suite", hint=f"resume it with `{resume_command(folder)}`"
        )
    if resumed is None:
        require_no_shards(folder)
    ready = prepare(context, suite, folder, allow_changed_code=flags.allow_changed_code)
    budget = share_budget(suite, ready)
    if flags.dry_run:
        return show_plans([item.evaluation for item in ready], output)
    if resumed is not None:
        suite = suite.model_copy(update={"started_at": Suite.load(resumed).command.started_at})
    suite.write(folder)
    unfinished = sum(item.finished is None for item in ready)
    output.note(
        f"suite {suite.name}: {counted(len(ready), 'evaluation')}, {unfinished} to play, "
        f"{suite.evaluations_at_once} at a time, {counted(suite.concurrency, 'concurrent call')} per "
        "endpoint\n"
        f"saving to {folder}"
    )
    shown = SuiteProgress(output, [item.run.name for item in ready])
    outcomes = asyncio.run(play_suite(context, suite, ready, shown, budget))
    return _report(suite, folder, outcomes, budget, flags.fail_under, output)


def find_suite(
    context: Invocation, options: dict[str, Any], flags: CommandFlags
) -> tuple[Suite, Path | None]:
    """Return the suite of a command line, and the suite's folder if it is resumed."""
    suite, resumed = _find_suite(context.settings, options, flags)
    if resumed is not None:
        require_run(resumed)
    # A budget on the command line applies to the whole suite.
    budgets: dict[str, Any] = {name: options[name] for name in BUDGETS if name in options}
    return suite.model_copy(update=budgets), resumed


def report_merged(
    suite: Suite, folder: Path, merged: list[Merged], fail_under: float | None, output: Output
) -> int:
    """Report a suite whose runs were merged from shards."""
    runs = {run.name: run for run in suite.runs}
    outcomes = [
        EvaluationOutcome(
            runs[run.name],
            run.run_dir,
            "partial" if run.summary.failed else "done",
            run.manifest,
            run.summary,
        )
        for run in merged
    ]
    return _report(suite, folder, outcomes, None, fail_under, output)


def _find_suite(user: Settings, options: dict[str, Any], flags: CommandFlags) -> tuple[Suite, Path | None]:
    if flags.only_failed:
        raise UsageError(
            "`--only-failed` does not apply to suites", hint="pass a single run: `--resume RUN --only-failed`"
        )
    if options.get("exhaustive"):
        raise UsageError("`exhaustive` does not apply to suites", hint="pass one environment and one model")
    word = options.get("environment", "")
    file = Path(word) if word.endswith(".toml") else None
    resumed = flags.resume
    is_typed = {"environment", "model"} <= options.keys()
    if file is None and (resumed is None or (is_typed and not Suite.load(resumed).is_own)):
        return _suite_of_models(options, user), resumed
    for name in sorted(options.keys() - {"environment", "shard", *BUDGETS}):
        table = "at the top" if name == "concurrency" else "under `[defaults]`"
        raise UsageError(
            f"a suite does not accept `{name}` on the command line",
            hint=f"set it in the suite's file, {table}",
        )
    if file is None:
        assert resumed is not None
        words = f"--resume {shlex.quote(str(resumed))}"
        hint = f"pass the suite's file, `wander eval FILE.toml {words}`, or its models, `-m MODEL -m MODEL`"
        return Suite.load_own(resumed, hint), resumed
    suite = read_suite(file, user)
    if resumed is not None and str(resumed) == NEWEST:
        assert suite.file is not None
        resumed = find_newest(user.runs_dir, Path(suite.file))
    if resumed is not None:
        Suite.load(resumed)  # raises an error if this is not a suite
    return suite, resumed


def _suite_of_models(options: dict[str, Any], user: Settings) -> Suite:
    if "environment" not in options:
        raise UsageError("missing argument `ENVIRONMENT`", hint="run `wander eval --help` for examples")
    common = {key: value for key, value in options.items() if key not in (*BUDGETS, "shard")}
    runs = []
    for model in options["model"]:
        settings = settings_for({**common, "model": model}, user)
        runs.append(name_run(settings, f"`-m {model}`"))
    require_distinct(runs)
    at_once = min(4, len(runs))
    return Suite(name="models", concurrency=settings.concurrency, evaluations_at_once=at_once, runs=runs)


def _select_shard(suite: Suite, word: str | None, resumed: Path | None) -> Suite:
    """Return the suite with the shard of the command line, or with that of its folder if it is resumed."""
    stored = Suite.load(resumed).command.shard if resumed is not None else None
    if word is None:
        return suite.model_copy(update={"shard": stored})
    shard = check_settings({"environment": "", "model": "", "shard": word}).shard
    if resumed is not None and shard != stored:
        contents = f"shard {stored}" if stored else "a whole suite"
        raise UsageError(
            f"`{resumed}` contains {contents}, not shard {shard}", hint="choose another folder with `--out`"
        )
    return suite.model_copy(update={"shard": shard})


_COLUMNS = ["evaluation", "rollouts", "reward", "low", "high", "failed", "tokens", "USD", "state", "run"]


def _report(
    suite: Suite,
    folder: Path,
    outcomes: list[EvaluationOutcome],
    budget: SharedBudget | None,
    fail_under: float | None,
    output: Output,
) -> int:
    data = {
        "name": suite.name,
        "suite_dir": str(folder),
        "runs": [_data(outcome) for outcome in outcomes],
        "spending": None if budget is None else describe_spending(budget),
    }
    for outcome in outcomes:
        if outcome.error is not None:
            output.warn(f"{outcome.run.name}: {outcome.error}")
    stopped = sum(outcome.state == "stopped" for outcome in outcomes)
    if stopped:
        raise Interrupted(
            f"interrupted; {stopped} of {counted(len(outcomes), 'evaluation')} are incomplete, "
            f"finished rollouts are saved in `{folder}`",
            hint=f"resume with `{resume_command(folder)}`",
        )
    below = [outcome for outcome in outcomes if fail_under is not None and _mean(outcome) < fail_under]
    for outcome in below:
        output.warn(f"{outcome.run.name}: the reward is below {fail_under}")
    spent = None if budget is None else budget.spent
    incomplete = sum(outcome.state == "partial" for outcome in outcomes)
    if spent is not None and incomplete:
        output.warn(f"{spent}: {incomplete} of {counted(len(outcomes), 'evaluation')} are incomplete")
    rows = [_row(outcome) for outcome in outcomes]
    output.answer(
        data,
        lambda: output.table(_COLUMNS, rows, shrink=["evaluation"], drop=["run", "low", "high", "tokens"]),
    )
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    partial = any(outcome.state in ("partial", "failed") for outcome in outcomes)
    if partial:
        facts = budget and (budget.spent_tokens, budget.spent_usd, budget.tokens, budget.usd)
        output.next(resume_command(folder) + (more_budget(*facts) if facts else ""))
    else:
        output.next(f"wander view {shell_word(outcomes[0].run_dir)}")
    if below:
        return FAILED
    if len(errors) == len(outcomes):
        return errors[0].status
    return PARTIAL if partial else OK


def _mean(outcome: EvaluationOutcome) -> float:
    summary = outcome.summary
    return float("-inf") if summary is None or summary.reward_mean is None else summary.reward_mean


def _row(outcome: EvaluationOutcome) -> list[Cell]:
    summary = outcome.summary
    numbers: list[Cell] = [None] * 7
    if summary is not None:
        spending = None if outcome.manifest is None else outcome.manifest.spending
        tokens = summary.usage.prompt_tokens + summary.usage.completion_tokens
        rewards = (summary.reward_mean, summary.reward_low, summary.reward_high)
        usd = None if spending is None else spending.usd
        numbers = [summary.rollouts, *rewards, summary.failed, tokens, usd]
    return [outcome.run.name, *numbers, outcome.state, outcome.run_dir.name]


def _data(outcome: EvaluationOutcome) -> dict[str, Any]:
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
    """Show the planned examples, rollouts and calls without calling a model."""
    data = asyncio.run(_plan_all(evaluations))
    columns = ["environment", "version", "model", "endpoint", "key", "examples", "rollouts"]
    names = ["environment", "version", "model", "base_url", "key_variable", "examples", "rollouts"]
    rows: list[list[Cell]] = [
        [*(plan[name] for name in names), _calls(plan["calls_least"], plan["calls_most"])] for plan in data
    ]
    whole = {"evaluations": data, "rollouts": sum(plan["rollouts"] for plan in data)}
    output.answer(whole, lambda: output.table([*columns, "calls"], rows, shrink=["model", "environment"]))
    return OK


async def _plan_all(evaluations: list[Evaluation]) -> list[dict[str, Any]]:
    from wander.evals.run.plan import planned_examples

    from wander_client.environments.location import log_folder

    plans = []
    for evaluation in evaluations:
        require_settings(evaluation.settings)
        async with evaluation.open(log_folder(evaluation.context) / "dry-run.log") as environment:
            examples = await planned_examples(environment.handle, evaluation.settings.plan())
            plans.append(_plan(evaluation.settings, environment, examples))
    return plans


def _plan(
    settings: EvaluationSettings, environment: OpenedEnvironment, examples: PackedExamples
) -> dict[str, Any]:
    strata: dict[str, int] = {}
    for stratum in examples.strata if settings.strata else ():
        strata[str(stratum)] = strata.get(str(stratum), 0) + 1
    rollouts = len(examples) * settings.rollouts
    uses_endpoint = settings.serve is None and (
        settings.base_url is not None or asks_endpoint(settings.model)
    )
    turns = environment.handle.info.max_turns
    return {
        "environment": environment.location.label,
        "version": environment.pin.version,
        "model": settings.model,
        "base_url": endpoint_of(settings.base_url) if uses_endpoint else None,
        "key_variable": settings.key_variable if uses_endpoint else None,
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
