"""Evaluate again from a run's manifest, and test whether the two runs agree."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander.evals.store.folder import RunFolder

from wander_client.environments.replay import locate_pinned
from wander_client.environments.sandbox import SandboxChoice, choose_policy, confines, require_confined
from wander_client.errors import ClientError, NotFound, Unavailable, UsageError
from wander_client.evaluate import evaluation as evaluations
from wander_client.evaluate.repeating import choose_arguments, own_settings, pinned_spec
from wander_client.evaluate.settings import EvaluationSettings
from wander_client.models.reference import KEY_VARIABLE, NAMED, OPENAI_URL, asks_endpoint, endpoint_of
from wander_client.names import run_path

if TYPE_CHECKING:
    from wander.evals.run.runner import EvaluationResult, Progress
    from wander.wire import RunManifest
    from wander.wire.verification import Agreement

    from wander_client.context import Invocation
    from wander_client.environments.location import Location
    from wander_client.environments.opening import OpenedEnvironment
    from wander_client.runs.found import FoundRun


@dataclass(frozen=True)
class Repetition:
    """A run that repeats another one, and how the two compare."""

    result: EvaluationResult
    run_dir: Path
    agreement: Agreement

    @property
    def agrees(self) -> bool:
        """Whether the runs agree, and played the same games as far as that was checked."""
        from wander.evals.stats.agreement import UNCHECKED

        unchecked = {f"model.{name}" for name in UNCHECKED} & {*self.agreement.differing}
        return self.agreement.verdict == "agrees" and not unchecked


async def repeat_run(
    context: Invocation,
    found: FoundRun,
    *,
    model: str | None = None,
    base_url: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    key_variable: str = KEY_VARIABLE,
    margin: float = 0.1,
    concurrency: int = 32,
    out: Path | None = None,
    folder: Path | None = None,
    sandbox: SandboxChoice = (None, None),
) -> Repetition:
    """Play a run's examples again with its settings, and compare.

    - `model`, `base_url`, `arguments`: None means the run's own. Raises `UsageError` for an endpoint, a
      program, a folder or arguments that only a stranger's record chose.
    - `margin`: largest difference that counts as the same, as a share of the rewards' range.
    - `folder`: a folder in place of the pinned environment.
    """
    from wander.evals.stats.agreement import agreement

    if found.manifest.kind != "evaluation":
        raise UsageError(f"`{found.place}` is a training run", hint="evaluate a checkpoint of it instead")
    own = own_settings(found)
    by_default = confines(context.settings, pinned_spec(found, folder), model or found.manifest.model.name)
    policy = choose_policy(*sandbox, default=by_default)
    pin = choose_arguments(found, arguments, confined=policy is not None, is_own=own is not None)
    if model is None:
        model = _find_weights(context, found)
    if own is not None and model is None:
        model, base_url = own.model, base_url or own.base_url
    if own is None:
        _require_chosen(found, model, base_url)
    location = locate_pinned(context, pin, folder=folder, is_own=own is not None)
    settings = _settings(found.manifest, location, model, base_url, own).model_copy(
        update={
            "arguments": pin.arguments,
            "key_variable": key_variable,
            "concurrency": concurrency,
            "sandbox": policy,
        }
    )
    require_confined(context, policy, location, settings.model, in_process=False)
    result = await _play_again(context, found.manifest, settings, location, out)
    assert result.run_dir is not None
    again = RunFolder.open(result.run_dir)
    said = agreement(found.manifest, found.rollouts(), again.manifest, again.rollouts(), margin=margin)
    return Repetition(result, result.run_dir, said)


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


def _find_weights(context: Invocation, found: FoundRun) -> str | None:
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
    with context.hub() as hub:
        try:
            links = hub.read(run_path(found.manifest.run_id, "links"), RunLinks)
        except (NotFound, Unavailable):  # a run that nobody posted, or no hub: the run's own name is left
            return None
    name = links.pushed.get(pin.weights_sha256)
    return f"hub:{pull_model(context, parse_model(name))[0].record}" if name is not None else None


def _settings(
    manifest: RunManifest,
    location: Location,
    model: str | None,
    base_url: str | None,
    own: EvaluationSettings | None,
) -> EvaluationSettings:
    """Return the settings of an evaluation that repeats a run; `own` are those that this user gave it."""
    asked = model or manifest.model.name
    if base_url is None and model is None:
        base_url = manifest.model.base_url
    return EvaluationSettings(
        environment=location.exact_name,
        model=asked,
        base_url=base_url,
        num_examples=len(manifest.example_ids),
        rollouts=manifest.rollouts_per_example,
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


async def _play_again(
    context: Invocation,
    original: RunManifest,
    settings: EvaluationSettings,
    location: Location,
    out: Path | None,
) -> EvaluationResult:
    """Play the run again, saved like any other; what is missing of it can be resumed."""
    run_dir = out or evaluations.new_run_dir(context.settings.runs_dir, location, settings.model)
    if (run_dir / "run.json").exists():
        raise UsageError(f"`{run_dir}` holds a run already", hint="choose another folder with `--out`")
    with context.output.progress("repeating", original.expected_rollouts, unit="rollouts") as bar:

        def on_start(_opened: OpenedEnvironment) -> None:
            context.output.note(f"repeating {original.run_id} with {settings.model}\nsaving to {run_dir}")

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

        evaluation = evaluations.Evaluation(context, settings, location, run_dir)
        result = await evaluations.run_alone(evaluation, evaluations.Listeners(on_start, on_progress))
    if result.interrupted:
        raise evaluations.explain_interruption(result)
    if result.summary.failed == result.summary.rollouts:
        raise evaluations.all_failed(result)
    return result
