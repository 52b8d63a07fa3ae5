"""`wander eval`: evaluate a model on an environment, or run a suite."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander_client.context import current
from wander_client.environments.sandbox import require_confined
from wander_client.errors import FAILED, OK, PARTIAL, UsageError
from wander_client.evaluate.options import NEWEST, CommandFlags, SettingFlags, read_options
from wander_client.models.reference import require_asked
from wander_client.runs.lookup import require_same_folder
from wander_client.runs.shards import has_begun, require_no_shards
from wander_client.terminal.command import Typed, refuse_options
from wander_client.terminal.output import shell_word

if TYPE_CHECKING:
    from wander.evals.run.runner import EvaluationResult

    from wander_client.evaluate.settings import EvaluationSettings
    from wander_client.terminal.output import Output


def evaluate(typed: Typed, wanted: SettingFlags, flags: CommandFlags) -> int:
    """Evaluate a model on an environment, or run a suite of evaluations.

    \b
    wander eval admin/tictactoe -m smollm2 -n 20
    wander eval admin/tictactoe -m NAME -b http://127.0.0.1:8000/v1 -r 4
    wander eval admin/tictactoe -m ./checkpoint --serve vllm
    wander eval ./my-env -m scripted:my_env:solver
    wander eval someone/new-env -m NAME -b http://127.0.0.1:8000/v1 --sandbox
    wander eval --resume runs/RUN
    wander eval admin/tictactoe -m ./checkpoint --set exhaustive=true
    wander eval admin/tictactoe -m smollm2 --set sampling.top_p=0.9 --set strata=true
    wander eval suite.toml --dry-run

    \b
    Models:
      NAME -b URL                the model NAME of an OpenAI-compatible endpoint (key: OPENAI_API_KEY)
      smollm2, hf:NAME, ./DIR    a local model; it runs in this process, or in vLLM with --serve vllm
      hub:OWNER/NAME             a local model that you fetched with `wander model pull`
      scripted:MODULE:FUNCTION   a function in the environment's package that plays instead of a model

    `--set` changes any setting, with or without an option of its own. `/docs/evaluating` on every hub lists
    them.

    Every rollout is saved as soon as it ends, and Ctrl-C keeps the saved rollouts. Exit status 6 means that
    some rollouts failed, or that the budget was spent before all rollouts were played.
    """
    from wander_client.evaluate.settings import settings_for
    from wander_client.suites.folder import is_suite

    options = read_options(typed)
    _require_together(options, flags)
    if flags.engine is not None or (flags.resume is not None and has_begun(flags.resume)):
        return _play_on_engine(options, flags)
    if is_suite(options, flags):
        from wander_client.suites import command as suite_command

        return suite_command.play(current(), options, flags)
    if flags.resume is not None:
        return _resume(flags.resume, options, flags)
    _require_named(options)
    settings = settings_for({**options, "model": options["model"][0]}, current().settings)
    return _play(settings, flags.out, flags, exactly="num_examples" in options)


def _require_together(options: dict[str, Any], flags: CommandFlags) -> None:
    """Raise `UsageError` for options that contradict each other or need another option."""
    if flags.only_failed and flags.resume is None:
        raise UsageError("`--only-failed` requires `--resume`", hint="pass `--resume RUN --only-failed`")
    if flags.resume is None:
        refuse_options("allow_changed_code", because="requires `--resume`")
    if "base_url" in options:
        require_asked([*options.get("model", ()), *options.get("players", {}).values()])
    if str(flags.resume) == NEWEST and not options.get("environment", "").endswith(".toml"):
        raise UsageError("`--resume` needs a run", hint="run `wander runs` to list your runs")
    if {"serve", "base_url"} <= options.keys():
        raise UsageError(
            "`--serve` starts a server, but `-b` names a running server", hint="pass only one of them"
        )


def _play_on_engine(options: dict[str, Any], flags: CommandFlags) -> int:
    """Play or resume an evaluation or a suite in shards on a cluster, and report the result."""
    from wander.evals.run.runner import EvaluationResult

    from wander_client.engines import EngineAddress, load_engine
    from wander_client.evaluate.evaluation import fresh_folder
    from wander_client.evaluate.settings import settings_for
    from wander_client.suites import command as suite_command
    from wander_client.suites.folder import is_suite

    wanted = {name: options.get(name) for name in ("shard", "exhaustive")}
    for name in ("only_failed", "dry_run", "allow_changed_code"):
        wanted[f"--{name.replace('_', '-')}"] = getattr(flags, name)
    for name in filter(wanted.get, wanted):
        raise UsageError(f"`{name}` cannot be used with `--engine`", hint=f"remove `{name}`")
    address = EngineAddress.parse(flags.engine or "ray")
    engine, context = load_engine(address.engine), current()
    out, suite = flags.out, None
    if flags.resume is not None:
        require_same_folder(flags.resume, out)
        out = flags.resume
        suite, merged = engine.resume(context, out, address, options)
    elif is_suite(options, flags):
        suite, _ = suite_command.find_suite(context, options, flags)
        out = out or fresh_folder(context.settings.runs_dir, suite.name)
        merged = engine.evaluate_suite(context, suite, out, address)
    else:
        _require_named(options)
        settings = settings_for({**options, "model": options["model"][0]}, context.settings)
        merged = [engine.evaluate(context, settings, out, address)]
    if suite is not None and out is not None:
        return suite_command.report_merged(suite, out, merged, flags.fail_under, context.output)
    (run,) = merged
    result = EvaluationResult(
        run.manifest, run.summary, run.run_dir, [], interrupted=False, resumed=0, retried=0, torn=None
    )
    return _report(result, flags.fail_under, context.output)


def _require_named(options: dict[str, Any]) -> None:
    for key, name in (("environment", "argument `ENVIRONMENT`"), ("model", "option `--model`")):
        if key not in options:
            raise UsageError(f"missing {name}", hint="run `wander eval --help` for examples")


def _resume(run_dir: Path, options: dict[str, Any], flags: CommandFlags) -> int:
    from wander_client.evaluate import evaluation as evaluations
    from wander_client.runs.lookup import resumable_folder

    run_dir = resumable_folder(current(), run_dir)
    require_same_folder(run_dir, flags.out)
    if len(options.get("model", ())) > 1:
        raise UsageError(f"`{run_dir}` is a run of one model", hint="pass `-m` once")
    command = evaluations.resume_command(run_dir)
    settings = evaluations.settings_to_resume(current(), run_dir, options, command)
    return _play(settings, run_dir, flags, resuming=True)


def _play(
    settings: EvaluationSettings,
    out: Path | None,
    flags: CommandFlags,
    *,
    resuming: bool = False,
    exactly: bool = False,
) -> int:
    """Play and report the result. `exactly` means that the user chose the number of examples."""
    from wander_client.evaluate import evaluation as evaluations

    context = current()
    output = context.output
    settings, location = evaluations.resolve_settings(context, settings, out if resuming else None)
    for name in settings.pass_env:
        if name not in os.environ:
            output.warn(f"`{name}` is not set, so it is not passed to the environment")
    require_confined(context, settings.sandbox, location, settings.model, in_process=settings.in_process)
    run_dir = out or evaluations.new_run_dir(context.settings.runs_dir, location, settings.model)
    evaluation = evaluations.Evaluation(
        context, settings, location, run_dir, resuming, flags.allow_changed_code
    )
    if flags.dry_run:
        from wander_client.suites.command import show_plans

        return show_plans([evaluation], output)
    if not resuming and (run_dir / "run.json").exists():
        raise UsageError(
            f"`{run_dir}` already contains a run",
            hint=f"resume it with `{evaluations.resume_command(run_dir)}`",
        )
    if not resuming:
        require_no_shards(run_dir)
    if settings.exhaustive:
        refuse_options("only_failed", "fail_under", because="does not apply to an exhaustive evaluation")
        from wander_client.evaluate.exhaustive import walk_and_report

        return walk_and_report(evaluation)
    import asyncio

    from wander_client.evaluate.progress import play

    result = asyncio.run(play(evaluation, only_failed=flags.only_failed, exactly=exactly))
    if result.interrupted:
        raise evaluations.explain_interruption(result)
    return _report(result, flags.fail_under, output)


def _report(result: EvaluationResult, fail_under: float | None, output: Output) -> int:
    from wander_client.evaluate.progress import require_scored
    from wander_client.runs.text import show_summary

    summary, manifest = result.summary, result.manifest
    data: dict[str, Any] = {
        "run_id": manifest.run_id,
        "run_dir": str(result.run_dir),
        "environment": manifest.environment.model_dump(mode="json", exclude={"info"}),
        "model": manifest.model.model_dump(mode="json"),
        "players": {player: pin.model_dump(mode="json") for player, pin in manifest.players.items()},
        "summary": summary.model_dump(mode="json"),
        "resumed": result.resumed,
        "retried": result.retried,
        "endpoints": (manifest.endpoints or result.endpoints).model_dump(mode="json"),
        "spending": None if manifest.spending is None else manifest.spending.model_dump(mode="json"),
        "budget_spent": result.spent,
        "left_out": result.left_out,
    }
    below = fail_under is not None and (summary.reward_mean is None or summary.reward_mean < fail_under)
    if fail_under is not None:
        data["fail_under"], data["passed"] = fail_under, not below
    require_scored(result, output)
    if below:
        output.warn(f"the reward is below {fail_under}")

    def show() -> None:
        show_summary(summary, output, manifest)
        if manifest.spending is not None and manifest.spending.usd is not None:
            output.line(f"cost    {manifest.spending.usd:.4g} USD")

    output.answer(data, show)
    _show_next(result, output)
    if below:
        return FAILED
    return PARTIAL if summary.failed or summary.rollouts < summary.expected else OK


def _show_next(result: EvaluationResult, output: Output) -> None:
    from wander_client.evaluate.evaluation import more_budget, resume_command

    run = shell_word(result.run_dir)
    if result.summary.failed:
        output.next(f"wander view {run} --failed")
    if result.spent is not None and (spending := result.manifest.spending) is not None:
        tokens = spending.usage.prompt_tokens + spending.usage.completion_tokens
        facts = (tokens, spending.usd or 0.0, spending.budget_tokens, spending.budget_usd)
        output.next(resume_command(result.run_dir) + more_budget(*facts))
    if result.manifest.shard is not None:  # the hub accepts only the merged run
        output.next(f"wander view {run}", "wander runs merge SHARDS... --out RUN")
        return
    pin = result.manifest.environment
    output.next(
        f"wander view {run}",
        # A run of a folder cannot be posted: nobody else could repeat it.
        f"wander post {run}" if pin.owner else f"wander publish {shell_word(pin.path)}",
    )
