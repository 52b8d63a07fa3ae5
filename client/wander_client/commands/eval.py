"""`wander eval`: evaluate a model on an environment."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wander_client.command import command_app, typed_options
from wander_client.errors import FAILED, OK, PARTIAL, UsageError
from wander_client.invocation import current
from wander_client.output import counted
from wander_client.sandboxing import SandboxFlag, SandboxLimits, chosen_policy, require_confined
from wander_client.workers import RolloutTimeout, TokenFile, WorkerAddresses, WorkerCount, worker_fields

if TYPE_CHECKING:
    from wander.evals.runner import EvaluationResult, Progress

    from wander_client.environments import Location, OpenedEnvironment
    from wander_client.evaluations import EvaluationSettings

app = command_app()

DEFAULT_EXAMPLES = 20
LONG_STALL_SECONDS = 5.0
"""A stall of the event loop that is worth a warning; a busy machine makes shorter ones."""

BaseUrl = Annotated[str | None, typer.Option("-b", "--base-url", help="OpenAI-compatible endpoint")]
Examples = Annotated[int, typer.Option("-n", "--num-examples", "--limit", min=1, help="examples to play")]
PassEnv = Annotated[
    list[str] | None, typer.Option("--pass-env", help="variable that the environment may see")
]
MaxRollouts = Annotated[
    int | None, typer.Option(min=1, help="rollouts at once (default: twice the concurrency)")
]
Resume = Annotated[Path | None, typer.Option(help="go on with this run, folder or id; needs no more")]
ChangedCode = Annotated[
    bool, typer.Option("--allow-changed-code", help="resume though files of ./folder changed")
]


@app.command(name="eval")
def evaluate(
    context: typer.Context,
    environment: Annotated[str | None, typer.Argument(help="owner/name[@version], or ./folder")] = None,
    model: Annotated[str | None, typer.Option("-m", "--model", help="see above")] = None,
    base_url: BaseUrl = None,
    key_variable: Annotated[str, typer.Option(help="variable of the endpoint's key")] = "OPENAI_API_KEY",
    num_examples: Examples = DEFAULT_EXAMPLES,
    all_examples: Annotated[bool, typer.Option("--all", help="play every example of the split")] = False,
    rollouts: Annotated[int, typer.Option("-r", "--rollouts", min=1, help="rollouts of each example")] = 1,
    concurrency: Annotated[int, typer.Option("-c", "--concurrency", min=1, help="model calls at once")] = 32,
    max_rollouts: MaxRollouts = None,
    split: Annotated[str, typer.Option(help="eval or train")] = "eval",
    seed: Annotated[int, typer.Option(help="the run's seed")] = 0,
    temperature: Annotated[float | None, typer.Option("-t", "--temperature", min=0.0)] = None,
    top_p: Annotated[float | None, typer.Option("--top-p")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="of one turn")] = None,
    sampling: Annotated[str | None, typer.Option(help="further sampling arguments, a JSON object")] = None,
    argument: Annotated[list[str] | None, typer.Option("-a", "--arg", help="environment: KEY=VALUE")] = None,
    args: Annotated[str | None, typer.Option("--args", help="environment arguments, a JSON object")] = None,
    out: Annotated[Path | None, typer.Option(help="the run's folder")] = None,
    resume: Resume = None,
    allow_changed_code: ChangedCode = False,
    in_process: Annotated[bool, typer.Option("--in-process", help="run a folder in this process")] = False,
    pass_env: PassEnv = None,
    sandbox: SandboxFlag = None,
    sandbox_limit: SandboxLimits = None,
    workers: WorkerCount = "auto",  # type: ignore[assignment]  # goes through the option's parser
    worker: WorkerAddresses = None,
    worker_token_file: TokenFile = None,
    rollout_timeout: RolloutTimeout = None,
    device: Annotated[str | None, typer.Option(help="for a model in this process: cpu, cuda, mps")] = None,
    fail_under: Annotated[float | None, typer.Option(help="exit 1 when the reward is lower")] = None,
) -> int:
    """Evaluate a model on an environment.

    \b
    wander eval wander/tictactoe -m smollm2 -n 20
    wander eval wander/tictactoe -m NAME -b http://127.0.0.1:8000/v1 -r 4
    wander eval ./my-env -m scripted:my_env:solver
    wander eval someone/new-env -m NAME --sandbox
    wander eval --resume runs/RUN

    \b
    Models:
      NAME -b URL                any OpenAI-compatible endpoint (key: OPENAI_API_KEY)
      smollm2, hf:NAME, ./DIR    a model in this process
      scripted:MODULE:FUNCTION   a function of the environment's package

    Every rollout is saved as it ends; Ctrl-C keeps them. Exit status 6 means that some rollouts failed.
    """
    from wander_client import evaluations
    from wander_client.environments import parse_arguments

    typed = typed_options(context)
    if resume is not None:
        return _go_on(resume, typed, fail_under, allow_changed_code=allow_changed_code)
    if environment is None or model is None:
        raise _missing("the environment" if environment is None else "`-m MODEL`")
    _require_one_number(typed)
    sampled = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
    settings = evaluations.EvaluationSettings(
        environment=environment,
        model=model,
        base_url=base_url,
        key_variable=key_variable,
        arguments=parse_arguments(argument or [], args),
        num_examples=None if all_examples else num_examples,
        rollouts_per_example=rollouts,
        concurrency=concurrency,
        max_rollouts=max_rollouts,
        split=_split(split),
        seed=seed,
        sampling=evaluations.sampling_of(sampled, sampling),
        in_process=in_process,
        pass_environ=pass_env or [],
        sandbox=chosen_policy(sandbox, sandbox_limit),
        **worker_fields(workers, worker, worker_token_file, rollout_timeout),
        device=device,
    )
    return _play(settings, out, fail_under, exactly="num_examples" in typed)


def _missing(what: str) -> UsageError:
    return UsageError(f"{what} is missing", hint="run `wander eval --help` for examples")


def _require_one_number(typed: dict[str, Any]) -> None:
    if typed.get("all_examples") and "num_examples" in typed:
        raise UsageError("`-n` and `--all` contradict each other", hint="pass one of the two")


def _go_on(
    run_dir: Path, typed: dict[str, Any], fail_under: float | None, *, allow_changed_code: bool
) -> int:
    from wander_client import evaluations
    from wander_client.resuming import continued
    from wander_client.runs import resumable_folder

    run_dir = resumable_folder(run_dir)
    stored = evaluations.stored_settings(run_dir)
    settings = continued(stored, typed, run_dir, evaluations.resume_command(run_dir))
    return _play(settings, run_dir, fail_under, resuming=True, allow_changed_code=allow_changed_code)


def _split(word: str) -> Literal["train", "eval"]:
    if word == "train":
        return "train"
    if word == "eval":
        return "eval"
    raise UsageError(f"`--split {word}` is unknown", hint="use `eval` or `train`")


def _play(
    settings: EvaluationSettings,
    out: Path | None,
    fail_under: float | None,
    *,
    resuming: bool = False,
    allow_changed_code: bool = False,
    exactly: bool = False,
) -> int:
    """Play and report; `exactly` says that the number of examples is the user's own."""
    from wander_client import evaluations

    output = current().output
    settings, location = evaluations.settled(settings)
    for name in settings.pass_environ:
        if name not in os.environ:
            output.warn(f"`{name}` is not set, so the environment does not get it")
    require_confined(settings.sandbox, location, settings.model, in_process=settings.in_process)
    run_dir = out or evaluations.new_run_dir(current().settings.runs_dir, location, settings.model)
    if not resuming and (run_dir / "run.json").exists():
        raise UsageError(
            f"`{run_dir}` holds a run already", hint=f"go on with `{evaluations.resume_command(run_dir)}`"
        )
    with output.progress("evaluating", None, unit="rollouts") as bar:

        def on_start(opened: OpenedEnvironment) -> None:
            output.note(_plan_line(settings, location, opened, run_dir))
            if exactly and (fewer := _fewer(settings, opened)):
                output.note(fewer)

        def on_progress(progress: Progress) -> None:
            bar.total = progress.total
            mean = "" if progress.reward_mean is None else f"reward {progress.reward_mean:.3f}"
            failed = f"  {progress.failed} failed" if progress.failed else ""
            bar.update(progress.done, f"{mean}{failed}{_rate_limit(progress)}")

        result = asyncio.run(
            evaluations.run_evaluation(
                settings,
                location,
                run_dir,
                resume=resuming,
                allow_changed_code=allow_changed_code,
                on_start=on_start,
                on_progress=on_progress,
            )
        )
    if result.torn:
        output.warn(result.torn)
    if settings.in_process and result.longest_stall > LONG_STALL_SECONDS:
        held_up = f"the environment's code held up all rollouts for {result.longest_stall:.0f} s at a time"
        output.warn(f"{held_up}; leave out `--in-process`, or make it asynchronous")
    if result.interrupted:
        raise evaluations.interrupted(result)
    return _report(result, fail_under)


def _plan_line(
    settings: EvaluationSettings, location: Location, opened: OpenedEnvironment, run_dir: Path
) -> str:
    known = [number for number in (settings.num_examples, _available(settings, opened)) if number is not None]
    count = min(known) if known else 0
    version = f" {opened.pin.version}" if opened.pin.version else ""
    examples = f"{counted(count, 'example')} x {settings.rollouts_per_example}"
    return (
        f"evaluating {settings.model} on {location.label}{version}: {examples} = "
        f"{counted(count * settings.rollouts_per_example, 'rollout')}, seed {settings.seed}, "
        f"{counted(settings.concurrency, 'call')} at once\nsaving to {run_dir}"
    )


def _rate_limit(progress: Progress) -> str:
    """Say what the endpoint allows at the moment, where that is less than was asked for."""
    if progress.paused_seconds >= 1:
        return f"  rate-limited: waiting {progress.paused_seconds:.0f} s"
    if progress.rate is None:
        return ""
    from wander.clients.pace import shown_rate

    return f"  rate-limited: {shown_rate(progress.rate)}"


def _available(settings: EvaluationSettings, opened: OpenedEnvironment) -> int | None:
    info = opened.handle.info
    return info.eval_examples if settings.split == "eval" else info.train_examples


def _fewer(settings: EvaluationSettings, opened: OpenedEnvironment) -> str | None:
    """Return what to say when fewer examples exist than were asked for."""
    available, wanted = _available(settings, opened), settings.num_examples
    if available is None or wanted is None or available >= wanted:
        return None
    return f"the {settings.split} split has {counted(available, 'example')}, not {wanted}: all are played"


def _report(result: EvaluationResult, fail_under: float | None) -> int:
    from wander_client.evaluations import all_failed
    from wander_client.reports import failure_reasons, show_summary

    output = current().output
    summary, manifest = result.summary, result.manifest
    data: dict[str, Any] = {
        "run_id": manifest.run_id,
        "run_dir": str(result.run_dir),
        "environment": manifest.environment.model_dump(mode="json", exclude={"info"}),
        "model": manifest.model.model_dump(mode="json"),
        "summary": summary.model_dump(mode="json"),
        "resumed": result.resumed,
        "retried": result.retried,
        "endpoints": (manifest.endpoints or result.endpoints).model_dump(mode="json"),
    }
    below = fail_under is not None and (summary.reward_mean is None or summary.reward_mean < fail_under)
    if fail_under is not None:
        data["fail_under"], data["passed"] = fail_under, not below
    if summary.failed == summary.rollouts:
        raise all_failed(result)
    if summary.failed and result.run_dir is not None:
        output.warn(f"{summary.failed} of {summary.rollouts} rollouts failed")
        for reason, count in failure_reasons(result.run_dir):
            output.warn(f"{count} x {reason}")
    if below:
        output.warn(f"the reward is below {fail_under}")
    output.answer(data, lambda: show_summary(summary, output, manifest.endpoints))
    if summary.failed:
        output.next(f"wander view {result.run_dir} --failed")
    pin = manifest.environment
    output.next(
        f"wander view {result.run_dir}",
        # A run of a folder cannot be posted: nobody else could repeat it.
        f"wander post {result.run_dir}" if pin.owner else f"wander publish {pin.path}",
    )
    if below:
        return FAILED
    return PARTIAL if summary.failed else OK
