"""`wander runs rerun`: evaluate again from a run's manifest, and test whether the two runs agree."""

from __future__ import annotations

import shlex
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from wander_client.commands.run.replay import Arguments
from wander_client.context import current
from wander_client.environments.sandbox import (
    SandboxFlag,
    SandboxLimits,
    choose_policy,
    confines,
    require_confined,
)
from wander_client.errors import FAILED, OK, PARTIAL, ClientError, NotFound, Unavailable, UsageError
from wander_client.models.reference import KEY_VARIABLE, NAMED, OPENAI_URL, asks_endpoint, endpoint_of
from wander_client.names import run_path
from wander_client.terminal.command import Argument, Option

if TYPE_CHECKING:
    from wander.evals.run.runner import EvaluationResult, Progress
    from wander.wire import RunManifest
    from wander.wire.verification import Agreement

    from wander_client.environments.location import Location
    from wander_client.environments.opening import OpenedEnvironment
    from wander_client.evaluate.settings import EvaluationSettings
    from wander_client.runs.found import FoundRun
    from wander_client.terminal.output import Output


def rerun(
    run: Annotated[str | None, Argument(help="folder, run id, or nothing for the newest run")] = None,
    model: Annotated[
        str | None, Option("-m", "--model", help="as `wander eval` takes it (default: the run's)")
    ] = None,
    base_url: Annotated[
        str | None, Option("-b", "--base-url", help="OpenAI-compatible endpoint (default: your run's)")
    ] = None,
    arguments: Arguments = None,
    key_variable: Annotated[
        str, Option(help="environment variable that holds the endpoint's key")
    ] = KEY_VARIABLE,
    margin: Annotated[
        float,
        Option(help="largest difference that counts as the same, as a share of the rewards' range"),
    ] = 0.1,
    concurrency: Annotated[int, Option("-c", "--concurrency", min=1, help="model calls at once")] = 32,
    out: Annotated[Path | None, Option(help="the new run's folder")] = None,
    env: Annotated[Path | None, Option("--env", help="this folder instead of the pinned environment")] = None,
    sandbox: SandboxFlag = None,
    sandbox_limit: SandboxLimits = None,
) -> int:
    """Repeat a run from its manifest against an endpoint, and test whether the two agree.

    \b
    wander runs rerun RUN_ID -m NAME -b http://127.0.0.1:8000/v1
    wander runs rerun runs/RUN --margin 0.05 --json

    Everything but the endpoint is the run's: environment version, arguments, examples, seed, sampling. They
    agree when the 90 % interval of the paired difference lies within the margin, and differ when its 95 %
    interval leaves out zero; otherwise too little was played to tell. Exit status 0 means that they agree.

    Posted, the new run says which one it repeats. If it agrees and another user posted it, the page and the
    board show the first run as repeated by that user.
    """
    from wander.evals.stats.agreement import UNCHECKED, agreement
    from wander.evals.store.folder import RunFolder

    from wander_client.environments.replay import locate_pinned
    from wander_client.evaluate.repeating import choose_arguments, own_settings, pinned_spec
    from wander_client.runs.lookup import find_run

    found = find_run(current(), run)
    if found.manifest.kind != "evaluation":
        raise UsageError(f"`{found.place}` is a training run", hint="evaluate a checkpoint of it instead")
    own = own_settings(found)
    policy = choose_policy(
        sandbox,
        sandbox_limit,
        default=confines(current().settings, pinned_spec(found, env), model or found.manifest.model.name),
    )
    pin = choose_arguments(found, arguments, confined=policy is not None, is_own=own is not None)
    if model is None:
        model = _weights_of(found)
    if own is not None and model is None:
        model, base_url = own.model, base_url or own.base_url
    if own is None:
        _require_chosen(found, model, base_url)
    location = locate_pinned(current(), pin, folder=env, is_own=own is not None)
    settings = _settings(found.manifest, location, model, base_url, own).model_copy(
        update={
            "arguments": pin.arguments,
            "key_variable": key_variable,
            "concurrency": concurrency,
            "sandbox": policy,
        }
    )
    require_confined(current(), settings.sandbox, location, settings.model, in_process=False)
    result = _play_again(found.manifest, settings, location, out)
    assert result.run_dir is not None
    again = RunFolder.open(result.run_dir)
    said = agreement(found.manifest, found.rollouts(), again.manifest, again.rollouts(), margin=margin)
    _answer(said, found, result, current().output)
    if result.summary.failed and said.verdict == "inconclusive":
        return PARTIAL
    unchecked = {f"model.{name}" for name in UNCHECKED} & {*said.differing}
    return OK if said.verdict == "agrees" and not unchecked else FAILED


def _require_chosen(found: FoundRun, model: str | None, base_url: str | None) -> None:
    """Raise `UsageError` for an endpoint, a program or a folder that only the author of the run chose."""
    pin, words = found.manifest.model, ["wander", "runs", "rerun", found.place]
    if model is None and base_url is None and pin.base_url not in (None, OPENAI_URL, endpoint_of(None)):
        typed = shlex.join([*words, "-m", pin.name, "-b", pin.base_url])
        raise UsageError(
            f"the run names the endpoint `{pin.base_url}`, which would get your prompts and your key",
            hint=f"choose one with `-b URL`; `{typed}` asks that one",
            code="endpoint_of_another",
        )
    if model is None and not (asks_endpoint(pin.name) or pin.name.lower() in NAMED):
        raise UsageError(
            f"the run names the model `{pin.name}`, which is code or a folder of this machine",
            hint=f"choose one with `-m MODEL`; `{shlex.join([*words, '-m', pin.name])}` takes that one",
            code="model_of_another",
        )
    from wander.wire.run_record import SCRIPT

    others = {name: each.name for name, each in found.manifest.players.items() if each.kind != SCRIPT}
    if local := {name: each for name, each in others.items() if not asks_endpoint(each)}:
        name, each = next(iter(local.items()))
        raise UsageError(
            f"the run names `{each}` as its player `{name}`, which is a model of this machine",
            hint=f"evaluate it instead: `wander eval ENVIRONMENT -m MODEL --player {name}=MODEL`",
            code="model_of_another",
        )


def _weights_of(found: FoundRun) -> str | None:
    """Return the model of a hub whose weights a run names by their digest, fetched unless it is here.

    None where the run asked an endpoint, or where nobody pushed its weights.
    """
    pin = found.manifest.model
    if pin.weights_sha256 is None or pin.base_url is not None:
        return None
    from wander.models.pulled import list_pulled
    from wander.wire.models import parse_model
    from wander.wire.postings import RunLinks

    from wander_client.models.pulling import pull_model

    for one in list_pulled():
        if one.record.weights_sha256 == pin.weights_sha256:
            return f"hub:{one.record}"
    with current().hub() as hub:
        try:
            links = hub.read(run_path(found.manifest.run_id, "links"), RunLinks)
        except (NotFound, Unavailable):  # a run that nobody posted, or no hub: the run's own name is left
            return None
    name = links.pushed.get(pin.weights_sha256)
    return f"hub:{pull_model(current(), parse_model(name))[0].record}" if name is not None else None


def _settings(
    manifest: RunManifest,
    location: Location,
    model: str | None,
    base_url: str | None,
    own: EvaluationSettings | None,
) -> EvaluationSettings:
    """Return the settings of an evaluation that repeats a run; `own` are those that this user gave it."""
    from wander_client.evaluate.settings import EvaluationSettings

    asked = model or manifest.model.name
    if base_url is None and model is None:
        base_url = manifest.model.base_url
    return EvaluationSettings(
        environment=location.exact_name,
        model=asked,
        base_url=base_url,
        num_examples=len(manifest.example_ids),
        rollouts_per_example=manifest.rollouts_per_example,
        strata="strata" in manifest.choice,
        shuffle="shuffled" in manifest.choice,
        split=manifest.split,
        seed=manifest.seed,
        sampling=manifest.sampling,
        rerun_of=manifest.run_id,
        template_date=_template_date(manifest),
        players=own.players if own else {player: pin.name for player, pin in manifest.players.items()},
    )


def _template_date(manifest: RunManifest) -> str | None:
    """Return the date that the chat template of the run's model showed, if it showed one that is known."""
    details = manifest.model.details
    shown = (details.get("server") or details).get("template_date")
    try:
        return date.fromisoformat(str(shown)).isoformat()
    except ValueError:
        return None


def _play_again(
    original: RunManifest, settings: EvaluationSettings, location: Location, out: Path | None
) -> EvaluationResult:
    """Play the run again, saved like any other; what is missing of it can be resumed."""
    import asyncio

    from wander.evals.store.folder import RunFolder

    from wander_client.evaluate import evaluation as evaluations

    here = current()
    run_dir = out or evaluations.new_run_dir(here.settings.runs_dir, location, settings.model)
    if (run_dir / "run.json").exists():
        raise UsageError(f"`{run_dir}` holds a run already", hint="choose another folder with `--out`")
    with here.output.progress("repeating", original.expected_rollouts, unit="rollouts") as bar:

        def on_start(_opened: OpenedEnvironment) -> None:
            here.output.note(f"repeating {original.run_id} with {settings.model}\nsaving to {run_dir}")

        def on_progress(progress: Progress) -> None:
            digest = original.task_set_sha256
            if progress.done == 0 and RunFolder.open(run_dir).manifest.task_set_sha256 != digest:
                raise ClientError(
                    "the environment gives different examples here than in the run",
                    hint="`wander runs replay` tells whether its record can be reproduced at all",
                    code="other_examples",
                )
            mean = "" if progress.reward_mean is None else f"reward {progress.reward_mean:.3f}"
            bar.update(progress.done, mean)

        evaluation = evaluations.Evaluation(here, settings, location, run_dir)
        listeners = evaluations.Listeners(on_start, on_progress)
        result = asyncio.run(evaluations.run_alone(evaluation, listeners))
    if result.interrupted:
        raise evaluations.explain_interruption(result)
    if result.summary.failed == result.summary.rollouts:
        raise evaluations.all_failed(result)
    return result


def _answer(said: Agreement, found: FoundRun, result: EvaluationResult, output: Output) -> None:
    if said.differing:
        output.warn(f"the runs differ in more than the endpoint: {', '.join(said.differing)}")
    if said.unshared:
        output.warn(f"{said.unshared} examples are not scored in both runs")
    data: dict[str, Any] = {"run_dir": str(result.run_dir), **said.model_dump(mode="json")}
    output.answer(data, lambda: _show(said, output))
    if found.manifest.environment.owner:
        output.next(f"wander post {result.run_dir}")
    output.next(f"wander runs compare {found.place} {result.run_dir}")


def _show(said: Agreement, output: Output) -> None:
    told = {
        "agrees": "the runs agree",
        "differs": "the runs differ",
        "inconclusive": "too little was played to tell whether the runs agree",
    }
    output.line(f"before      {said.before:.4f}  {said.run_id}")
    output.line(f"after       {said.after:.4f}  {said.rerun_id}")
    output.line(f"difference  {said.told.removeprefix('difference ')}")
    output.line(told[said.verdict], style="bold")
