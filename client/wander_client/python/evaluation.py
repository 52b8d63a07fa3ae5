"""Evaluations from Python: they use the code of `wander eval` on an open environment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander.types import SamplingArgs

from wander_client.context import Invocation
from wander_client.engines import EngineAddress, load_engine
from wander_client.environments.location import default_log
from wander_client.environments.opening import OpenedEnvironment, open_environment
from wander_client.environments.workers import WorkerChoice
from wander_client.errors import ClientError, UsageError
from wander_client.evaluate.evaluation import (
    Evaluation,
    explain_interruption,
    find_changed_files,
    new_run_dir,
    read_settings_of,
    settings_to_resume,
    source_digests,
    with_exact_names,
)
from wander_client.evaluate.progress import play, require_scored
from wander_client.evaluate.settings import EvaluationSettings, settings_for
from wander_client.models.pool import ModelPool
from wander_client.python.background import background
from wander_client.python.keywords import KEYS
from wander_client.python.models import Model, open_model_pool
from wander_client.python.run import Run
from wander_client.runs.lookup import resumable_folder
from wander_client.runs.shards import require_no_shards

if TYPE_CHECKING:
    from wander.clients.base import Client
    from wander.evals.run.runner import EvaluationResult
    from wander.handle import EnvironmentHandle
    from wander.sandbox import SandboxPolicy
    from wander.types import Example, Rollout

DECIDED_BEFORE = frozenset(
    {
        *("environment", "arguments", "sandbox", "workers", "no_lock", "in_process", "pass_env"),
        *("worker_addresses", "worker_token_file", "rollout_timeout"),
    }
)
"""Settings of an environment and its processes, which are decided when it is loaded."""
ONLY_IN_THE_COMMAND = frozenset({"exhaustive", "max_lines"})
"""Settings of evaluations that do not give a `Run` with rollouts of examples."""

Sampling = SamplingArgs | Mapping[str, Any] | None
"""`temperature`, `top_p`, `max_tokens` and other arguments of the endpoint."""


@dataclass(frozen=True)
class Loaded:
    """An open environment, with the options that it was opened with."""

    context: Invocation
    opened: OpenedEnvironment
    sandbox: SandboxPolicy | None
    workers: WorkerChoice
    files: Mapping[str, str] | None
    """Digests of the folder's files when it was loaded, or None for an installed environment."""

    @property
    def name(self) -> str:
        """`owner/name@version` of an installed environment, or the path of a folder."""
        return self.opened.location.exact_name


async def evaluate(
    loaded: Loaded,
    model: Model,
    tokenizer: Any,
    options: Mapping[str, Any],
    *,
    out: str | os.PathLike[str] | None,
    resume: str | os.PathLike[str] | None,
    only_failed: bool,
    engine: str | None = None,
) -> Run:
    """Evaluate, save the run, and return it. Options that are None are not set."""
    context, location = loaded.context, loaded.opened.location
    if engine is not None:
        if only_failed or options.get("shard") is not None:
            name = "only_failed" if only_failed else "shard"
            raise UsageError(f"`{name}` cannot be used with `engine`", hint=f"remove `{name}`")
        return await _evaluate_on_engine(loaded, model, options, out, resume, engine)
    if only_failed and resume is None:
        raise UsageError("`only_failed` requires `resume`", hint="pass `resume=run`")
    name, pool = open_model_pool(context, model, tokenizer)
    _require_same_files(loaded)
    said = _said(loaded, name, options)
    if resume is None:
        settings = new_settings(loaded, said)
        run_dir = new_run_dir(context.settings.runs_dir, location, name) if out is None else Path(out)
        require_no_shards(run_dir)
    else:
        run_dir = resumable_folder(context, Path(resume))
        command = f'env.evaluate(model, resume="{run_dir}")'
        if read_settings_of(run_dir).is_own:
            settings = settings_to_resume(context, run_dir, said, command)
        else:  # started by somebody else, so all settings come from this call
            settings = new_settings(loaded, said)
    if resume is None and (run_dir / "run.json").exists():
        raise UsageError(f"`{run_dir}` already contains a run", hint=f'resume it with `resume="{run_dir}"`')
    evaluation = Evaluation(
        context, settings, location, run_dir, resume=resume is not None, opened=loaded.opened
    )
    result = await _play_to_its_end(evaluation, pool, only_failed=only_failed, exactly="num_examples" in said)
    require_scored(result, context.output)
    return Run(run_dir)


async def _evaluate_on_engine(
    loaded: Loaded,
    model: Model,
    options: Mapping[str, Any],
    out: str | os.PathLike[str] | None,
    resume: str | os.PathLike[str] | None,
    word: str,
) -> Run:
    """Play in shards on a cluster. On cancellation, the shards are saved before it is passed on."""
    if not isinstance(model, str):
        raise UsageError(
            "an engine does not accept a loaded model, because it loads the model on other machines",
            hint="pass the name of a model, as for `wander eval -m`",
        )
    address = EngineAddress.parse(word)
    engine, context, canceled = load_engine(address.engine), loaded.context, threading.Event()
    if resume is not None:
        place = Path(resume)
        said = {name: value for name, value in options.items() if value is not None}
        playing = asyncio.to_thread(engine.resume, context, place, address, said, canceled)
    else:
        settings = new_settings(loaded, _said(loaded, model, options))
        runs = context.settings.runs_dir
        place = Path(out) if out else new_run_dir(runs, loaded.opened.location, model)
        playing = asyncio.to_thread(engine.evaluate, context, settings, place, address, canceled)
    ended = asyncio.ensure_future(playing)
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        canceled.set()
        await asyncio.wait([ended])
        raise
    return Run(place)


async def play_rollout(
    loaded: Loaded,
    model: Model,
    tokenizer: Any,
    base_url: str | None,
    example: Example,
    *,
    index: int,
    run_seed: int,
    sampling: Sampling,
) -> Rollout:
    """Play a rollout of an example."""
    name, pool = open_model_pool(loaded.context, model, tokenizer)
    settings = new_settings(loaded, _said(loaded, name, {"base_url": base_url, "sampling": sampling}))
    async with open_client(loaded, pool, settings) as client:
        return await loaded.opened.handle.rollout(
            client, example, index=index, run_seed=run_seed, sampling=settings.sampling
        )


async def play_rollouts(
    loaded: Loaded, model: Model, tokenizer: Any, options: Mapping[str, Any]
) -> list[Rollout]:
    """Play the rollouts of an evaluation with these options, and keep them in memory."""
    from wander.evals.run.runner import evaluate as play_plan

    name, pool = open_model_pool(loaded.context, model, tokenizer)
    settings = new_settings(loaded, _said(loaded, name, options))
    async with open_client(loaded, pool, settings) as client:
        plan, opened = settings.plan(), loaded.opened
        result = await play_plan(opened.handle, client, plan, None, opened.pin, checked=True)
    places = {example: place for place, example in enumerate(result.manifest.example_ids)}
    return sorted(result.rollouts, key=lambda rollout: (places[rollout.example_id], rollout.index))


@contextlib.asynccontextmanager
async def open_client(loaded: Loaded, pool: ModelPool, settings: EvaluationSettings) -> AsyncIterator[Client]:
    """Yield the client of a model, after checking that the model is available."""
    location = loaded.opened.location
    choice, log = settings.choose_model(), default_log(loaded.context, location)
    pool.require(choice)
    async with pool, pool.client(choice, location, name="rollouts", log_path=log) as client:
        await client.check()
        yield client


@contextlib.asynccontextmanager
async def open_again(loaded: Loaded) -> AsyncIterator[EnvironmentHandle]:
    """Yield the same environment in another process, on the caller's loop."""
    context, opened = loaded.context, loaded.opened
    again = open_environment(
        context,
        opened.location,
        opened.pin.arguments,
        sandbox=loaded.sandbox,
        workers=loaded.workers,
    )
    async with again as opened_again:
        yield opened_again.handle


def new_settings(loaded: Loaded, said: Mapping[str, Any]) -> EvaluationSettings:
    """Return the settings that are saved with a run, so that `wander eval --resume` can also resume it."""
    settings = settings_for(said, loaded.context.settings)
    kept = {
        "sandbox": loaded.sandbox,
        "workers": loaded.workers.count,
        "no_lock": loaded.opened.pin.unlocked == "chosen",
    }
    return with_exact_names(settings.model_copy(update=kept), loaded.opened.location)


def _said(loaded: Loaded, model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options by the names of the settings. The option `settings` holds further ones."""
    said = {KEYS.get(key, key): value for key, value in options.items() if value is not None}
    others = said.pop("settings", {})
    said = _join(said, others)
    if isinstance(said.get("sampling"), Mapping):
        said["sampling"] = dict(said["sampling"])
    own = {"environment": loaded.name, "model": model, "arguments": dict(loaded.opened.pin.arguments)}
    return {**said, **own}


def _join(said: dict[str, Any], others: Any) -> dict[str, Any]:
    if not isinstance(others, Mapping):
        raise UsageError("`settings` is not a mapping", hint='for example: `settings={"reasoning": "keep"}`')
    for name in others:
        if name in said or name == "model":
            raise UsageError(f"`{name}` is set twice", hint=f"remove `{name}` from `settings`")
        if name in DECIDED_BEFORE:
            raise UsageError(
                f"`{name}` cannot change, because the environment is open",
                hint="pass it to `wander.load`, or use `wander eval` if `wander.load` does not accept it",
            )
        if name in ONLY_IN_THE_COMMAND:
            raise UsageError(
                f"`{name}` is a setting of the command", hint=f"run `wander eval --set {name}=...`"
            )
    return {**said, **others}


async def _play_to_its_end(
    evaluation: Evaluation, pool: ModelPool, *, only_failed: bool, exactly: bool
) -> EvaluationResult:
    """Play on the background loop. On cancellation, the rollouts are saved before it is passed on."""
    from wander.evals.run.stopping import StopRequest

    stop, loop = StopRequest(), background().loop
    playing = play(evaluation, pool=pool, stop=stop, only_failed=only_failed, exactly=exactly)
    ended = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(playing, loop))
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        loop.call_soon_threadsafe(stop.request)
        result = await asyncio.shield(ended)
        if result.interrupted:
            interruption = explain_interruption(result)
            evaluation.context.output.note(f'{interruption}: resume with `resume="{result.run_dir}"`')
        raise


def _require_same_files(loaded: Loaded) -> None:
    """Raise `ClientError` if a folder's code has changed since it was loaded."""
    folder = loaded.opened.location.folder
    if folder is None or loaded.files is None:
        return
    if changed := find_changed_files(loaded.files, source_digests(folder)):
        raise ClientError(
            f"`{folder}` has changed since it was loaded: {', '.join(changed[:5])}",
            hint=f'load it again: `wander.load("{folder}")`',
            code="environment_changed",
        )
