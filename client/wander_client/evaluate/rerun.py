"""Evaluate again from a run's manifest, and test whether the two runs agree."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander.evals.store.folder import RunFolder

from wander_client.environments.replay import fetch_set, locate_pinned
from wander_client.environments.sandbox import SandboxChoice, choose_policy, confines, require_confined
from wander_client.errors import ClientError, NotFound, Unavailable, UsageError
from wander_client.evaluate import evaluation as evaluations
from wander_client.evaluate.repeating import choose_arguments, own_settings, pinned_spec
from wander_client.evaluate.settings import DECIDED_AGAIN, OF_THE_MODEL, EvaluationSettings
from wander_client.models.reference import NAMED, OPENAI_URL, asks_endpoint, endpoint_of, require_asked
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
    """A run that repeats another run, with the comparison of both."""

    result: EvaluationResult
    run_dir: Path
    agreement: Agreement

    @property
    def agrees(self) -> bool:
        """Whether the runs agree, and no unchecked property of the model differs."""
        from wander.evals.stats.agreement import UNCHECKED

        unchecked = {f"model.{name}" for name in UNCHECKED} & {*self.agreement.differing}
        return self.agreement.verdict == "agrees" and not unchecked


async def repeat_run(
    context: Invocation,
    source: FoundRun,
    *,
    model: str | None = None,
    base_url: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    key_variable: str | None = None,
    margin: float = 0.1,
    concurrency: int | None = None,
    out: Path | None = None,
    folder: Path | None = None,
    sandbox: SandboxChoice = (None, None),
) -> Repetition:
    """Play a run's examples again with its settings, and compare both runs.

    - `model`, `base_url`, `arguments`: None means those of the run. Raises `UsageError` for an endpoint,
      program, folder or arguments that come only from a stranger's record.
    - `key_variable`, `concurrency`: None means those of the user's own run, else the defaults.
    - `margin`: largest difference that counts as agreement, as a fraction of the reward range.
    - `folder`: folder to use instead of the pinned environment.
    """
    from wander.evals.stats.agreement import agreement

    if source.manifest.kind != "evaluation":
        raise UsageError(
            f"`{source.location}` is a training run", hint="evaluate one of its checkpoints instead"
        )
    own = own_settings(source)
    by_default = confines(context.settings, pinned_spec(source, folder), model or source.manifest.model.name)
    policy = choose_policy(*sandbox, default=by_default)
    pin = choose_arguments(source, arguments, confined=policy is not None, is_own=own is not None)
    of_the_model: dict[str, Any] = {}
    if own is not None and model is None and base_url is None:
        of_the_model = {name: getattr(own, name) for name in OF_THE_MODEL}
    if key_variable is not None:
        of_the_model["key_variable"] = key_variable
    if concurrency is None:
        concurrency = 32 if own is None else own.concurrency
    if model is None:
        model = _find_weights(context, source)
    if own is None:
        _require_chosen(source, model, base_url)
    stored_url = None
    if model is None:
        model = own.model if own else source.manifest.model.name
        stored_url = (own or source.manifest.model).base_url
    kept = kept_settings(source.manifest, own)
    for option, value in (("-b", base_url), ("--key-variable", key_variable)):
        if value is not None:
            require_asked([model, *kept["players"].values()], option)
    location = locate_pinned(context, pin, folder=folder, is_own=own is not None)
    set_file = fetch_set(context, pin)
    settings = EvaluationSettings(
        environment=location.exact_name,
        arguments=pin.arguments,
        sandbox=policy,
        model=model,
        base_url=base_url or stored_url,
        template_date=_template_date(source.manifest),
        num_examples=len(source.manifest.example_ids),
        set_file=None if set_file is None else str(set_file),
        concurrency=concurrency,
        rerun_of=source.manifest.run_id,
    ).model_copy(update=kept | of_the_model)
    require_confined(context, policy, location, settings.model, in_process=False)
    result = await _play_again(context, source.manifest, settings, location, out)
    assert result.run_dir is not None
    again = RunFolder.open(result.run_dir)
    comparison = agreement(
        source.manifest, source.rollouts(), again.manifest, again.rollouts(), margin=margin
    )
    return Repetition(result, result.run_dir, comparison)


def _require_chosen(source: FoundRun, model: str | None, base_url: str | None) -> None:
    """Raise `UsageError` for an endpoint, program or folder that comes only from a stranger's record."""
    pin, words = source.manifest.model, ["wander", "runs", "rerun", source.location]
    if model is None and base_url is None and pin.base_url not in (None, OPENAI_URL, endpoint_of(None)):
        typed = shlex.join([*words, "-m", pin.name, "-b", pin.base_url])
        raise UsageError(
            f"the run used the endpoint `{pin.base_url}`, which would receive your prompts and your key",
            hint=f"choose an endpoint with `-b URL`; to use this one, run `{typed}`",
            code="endpoint_of_another",
        )
    if model is None and not (asks_endpoint(pin.name) or pin.name.lower() in NAMED):
        raise UsageError(
            f"the run used the model `{pin.name}`, which is code or a folder on this machine",
            hint="choose a model with `-m MODEL`; to use this one, run "
            f"`{shlex.join([*words, '-m', pin.name])}`",
            code="model_of_another",
        )
    from wander.wire.run_record import SCRIPT

    others = {name: player.name for name, player in source.manifest.players.items() if player.kind != SCRIPT}
    if local := {name: player for name, player in others.items() if not asks_endpoint(player)}:
        name, player = next(iter(local.items()))
        raise UsageError(
            f"the run used the player `{name}` with the model `{player}`, which is on this machine",
            hint=f"evaluate it instead: `wander eval ENVIRONMENT -m MODEL --player {name}=MODEL`",
            code="model_of_another",
        )


def _find_weights(context: Invocation, source: FoundRun) -> str | None:
    """Return a model from the hub with the weights of a run, found by their digest. Downloads it if
    necessary. Returns None if the run used an endpoint, or if nobody pushed its weights.
    """
    pin = source.manifest.model
    if pin.weights_sha256 is None or pin.base_url is not None:
        return None
    from wander.models.pulled import list_pulled
    from wander.wire.models import parse_model
    from wander.wire.postings import RunLinks

    from wander_client.models.pulling import pull_model

    for model in list_pulled():
        if model.record.weights_sha256 == pin.weights_sha256:
            return f"hub:{model.record}"
    with context.hub() as hub:
        try:
            links = hub.read(run_path(source.manifest.run_id, "links"), RunLinks)
        except (NotFound, Unavailable):  # not posted, or no hub; the run's own model is used
            return None
    name = links.pushed.get(pin.weights_sha256)
    return f"hub:{pull_model(context, parse_model(name))[0].record}" if name is not None else None


def kept_settings(manifest: RunManifest, own: EvaluationSettings | None) -> dict[str, Any]:
    """Return the settings that a repetition takes from the run.

    `own` are the settings with which this user started it. The manifest of another user's run contains fewer.
    """
    if own is not None:
        return {name: getattr(own, name) for name in type(own).model_fields.keys() - {*DECIDED_AGAIN}}
    return {
        "rollouts": manifest.rollouts_per_example,
        "strata": "strata" in manifest.choice,
        "shuffle": "shuffled" in manifest.choice,
        "split": manifest.split,
        "seed": manifest.seed,
        "sampling": manifest.sampling,
        "shard": manifest.shard,
        "players": {player: pin.name for player, pin in manifest.players.items()},
    }


def _template_date(manifest: RunManifest) -> str | None:
    """Return the date that the chat template of the run's model showed, or None if it is unknown."""
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
    """Play the run again and save it like any other run, so that it can be resumed."""
    run_dir = out or evaluations.new_run_dir(context.settings.runs_dir, location, settings.model)
    if (run_dir / "run.json").exists():
        raise UsageError(f"`{run_dir}` already contains a run", hint="choose another folder with `--out`")
    with context.output.progress("repeating", original.expected_rollouts, unit="rollouts") as bar:

        def on_start(_opened: OpenedEnvironment) -> None:
            context.output.note(f"repeating {original.run_id} with {settings.model}\nsaving to {run_dir}")

        def on_progress(progress: Progress) -> None:
            digest = original.task_set_sha256
            if progress.done == 0 and RunFolder.open(run_dir).manifest.task_set_sha256 != digest:
                raise ClientError(
                    "the environment has different examples here than in the run",
                    hint="run `wander runs replay` to check whether the run can be replayed",
                    code="other_examples",
                )
            mean = "" if progress.reward_mean is None else f"reward {progress.reward_mean:.3f}"
            bar.update(progress.done, mean)

        evaluation = evaluations.Evaluation(context, settings, location, run_dir)
        result = await evaluations.run_interruptible(evaluation, evaluations.Listeners(on_start, on_progress))
    if result.interrupted:
        raise evaluations.explain_interruption(result)
    if result.summary.failed == result.summary.rollouts:
        raise evaluations.all_failed(result)
    return result
