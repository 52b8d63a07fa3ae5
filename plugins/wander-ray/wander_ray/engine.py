"""The engine `ray` of `wander eval`: Ray plays the shards of a suite, and they become one record."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander.wire.run_record import Shard
from wander_client.errors import PARTIAL, ClientError, Interrupted, Unavailable, UsageError
from wander_client.evaluate.evaluation import more_budget, new_run_dir, resolve_settings, resume_command
from wander_client.evaluate.settings import BUDGETS, EvaluationSettings
from wander_client.runs.shards import SHARDS_FILE, parts_of, require_free, require_run, run_of
from wander_client.suites.file import Suite, name_run
from wander_client.suites.merge import Merged, merge_part, merge_suite
from wander_client.suites.progress import SuiteProgress

from wander_ray.cluster import Head, NodeError, Versions, connected, failed
from wander_ray.coordinator import Coordinator, Overview
from wander_ray.models import (
    MOST_CALLS,
    MOST_RESTARTS,
    Actors,
    ModelActor,
    count_actors,
    count_gpus,
    models_of,
)
from wander_ray.task import PROOF_FILE, ShardJob, alone, play_shard
from wander_ray.workers import place_workers as place_workers  # the engine looks for it here

if TYPE_CHECKING:
    from wander.evals.run.runner import Progress
    from wander_client.context import Invocation
    from wander_client.engines import EngineAddress
    from wander_client.models.pool import ModelChoice
    from wander_client.terminal.output import Output

_LOOK_SECONDS = 0.25
_END_SECONDS = 30.0
"""Seconds that a model's server may take to exit."""
_RETRIES = 20
"""Number of times that Ray may restart a shard whose node or process died."""


class BudgetSpent(ClientError):
    """The budget was spent before all rollouts were played."""

    status = PARTIAL


def evaluate(
    context: Invocation,
    settings: EvaluationSettings,
    out: Path | None,
    address: EngineAddress,
    ended: threading.Event | None = None,
) -> Merged:
    """Play one evaluation and return its run. All shards share a budget.

    When `ended` is set, the shards stop in an orderly way, as after Ctrl-C.
    """
    settings, location = resolve_settings(context, settings)
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
    (merged,) = _play(context, suite, out, address, ended)
    return merged


def evaluate_suite(context: Invocation, suite: Suite, out: Path, address: EngineAddress) -> list[Merged]:
    """Play a suite and return its runs, whose folders are in `out`."""
    for run in suite.runs:
        if run.settings.budget_tokens is not None or run.settings.budget_usd is not None:
            raise UsageError(
                f"{run.where}: a budget of one evaluation is not shared among shards",
                hint="write the budget at the top of the suite's file",
            )
    exact = [
        run.model_copy(update={"settings": resolve_settings(context, run.settings)[0]}) for run in suite.runs
    ]  # the same environment and version on all nodes
    return _play(context, suite.model_copy(update={"runs": exact}), out, address)


def resume(
    context: Invocation,
    out: Path,
    address: EngineAddress,
    said: Mapping[str, Any],
    ended: threading.Event | None = None,
) -> tuple[Suite | None, list[Merged]]:
    """Resume a suite, or one evaluation. The suite that is returned is None for an evaluation.

    The number of shards stays the same. Only budgets may change.
    """
    if other := sorted(said.keys() - set(BUDGETS)):
        raise UsageError(
            f"`{other[0]}` cannot change when a run is resumed", hint="only its budgets can: leave it out"
        )
    shard_folders(out)
    hint = "play it again into another folder: `wander eval ... --engine ray --out NEW`"
    suite = Suite.load_own(parts_of(out), hint).model_copy(update=dict(said))
    merged = _play(context, suite, out, address, ended)
    return None if _is_alone(suite) else suite, merged


def _is_alone(suite: Suite) -> bool:
    """Return whether a suite is one evaluation."""
    return suite.file is None and len(suite.runs) == 1


def _play(
    context: Invocation,
    suite: Suite,
    out: Path,
    address: EngineAddress,
    ended: threading.Event | None = None,
) -> list[Merged]:
    """Play the missing rollouts of the shards, merge the shards into one record, and remove them."""
    require_free(out)
    with hold(out):
        play(suite, out, address, context.output, ended or threading.Event())
        require_free(out)
        folders = shard_folders(out)
        if _is_alone(suite):
            (run,) = suite.runs
            merged = [merge_part([folder / run.folder for folder in folders], out, run.name)]
        else:
            merged = merge_suite(folders, out)
            suite.write(out)  # with the concurrency of the whole suite
        shutil.rmtree(parts_of(out))
    return merged


def play(suite: Suite, out: Path, address: EngineAddress, output: Output, ended: threading.Event) -> None:
    """Play or resume a suite's shards, in a folder next to `out`, until all are complete.

    Raises `Interrupted` after Ctrl-C, or the first error of a shard. Finished rollouts are kept.
    """
    place = parts_of(out).resolve()
    _require_same(place, suite)
    proof = secrets.token_hex(16)
    budget = (suite.budget_tokens, suite.budget_usd)
    with connected(address.cluster, go_on=f"resume with `{resume_command(out)}`") as ray:
        require_free(out)  # connecting takes a while
        total, options, models = _place(ray, suite)
        count = _count_shards(place, address.count, total)
        (place / SHARDS_FILE).write_text(str(count))
        (place / PROOF_FILE).write_text(proof)
        suite.write(place)
        variables = _variables(suite)
        sent_json = share_concurrency(suite, count).model_dump_json(by_alias=True)
        jobs = [
            ShardJob(sent_json, str(place), number, count, proof, variables=variables)
            for number in range(count)
        ]
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        actor = ray.remote(Coordinator).options(num_cpus=0, scheduling_strategy=here)
        coordinator = actor.remote(*budget)
        task = ray.remote(play_shard).options(max_retries=_RETRIES, **options)
        output.note(f"playing {count} shards on Ray, in {place}")
        with _served(ray, models, variables) as actors:
            refs = [task.remote(job, coordinator, actors) for job in jobs]
            problems, overview, stopped = _wait(ray, refs, coordinator, suite, output, ended)
    if stopped and not _broken(problems):
        done = sum(each.done for runs in overview.progress.values() for each in runs)
        raise Interrupted(
            f"interrupted; {done} rollouts are kept in `{place}`",
            hint=f"resume with `{resume_command(out)}`",
        )
    if problems:
        for other in problems[1:]:
            output.warn(f"{other.run + ': ' if other.run else ''}{other.message}")
        raise problems[0].raised()
    if overview.spent is not None and not _is_complete(place, suite, count):
        raise BudgetSpent(
            f"{overview.spent}; what was played is kept in `{place}`",
            hint=f"resume with `{resume_command(out)}{more_budget(overview.tokens, overview.usd, *budget)}`",
            code="budget_spent",
        )


@contextlib.contextmanager
def hold(out: Path) -> Iterator[None]:
    """Keep other processes out of a run's shards. Remove their folder if no shard began."""
    place = parts_of(out)
    place.mkdir(parents=True, exist_ok=True)
    try:
        with alone(place, 0.0):
            fresh = next(place.iterdir(), None) is None
            try:
                yield
            except (Interrupted, BudgetSpent):
                raise
            except Exception:
                if fresh and not _has_begun(place):
                    shutil.rmtree(place)
                raise
    finally:
        with contextlib.suppress(OSError):
            place.rmdir()


def _has_begun(place: Path) -> bool:
    """Return whether a shard has begun a run."""
    return next(place.glob("*/*/run.json"), None) is not None


def _require_same(place: Path, suite: Suite) -> None:
    """Raise `UsageError` if the folder has runs of other evaluations."""
    if not _has_begun(place):
        return
    if [run.folder for run in Suite.load(place).command.runs] != [run.folder for run in suite.runs]:
        raise UsageError(
            f"`{place}` holds shards of another evaluation",
            hint=f"choose another folder with `--out`, or resume with `{resume_command(run_of(place))}`",
        )


def _is_complete(place: Path, suite: Suite, count: int) -> bool:
    """Return whether all shards have played all their runs to the end."""
    from wander.evals.store.folder import RunFolder

    for number in range(count):
        shard = Shard(first=number, end=number + 1, of=count)
        for part in suite.model_copy(update={"shard": shard}).parts():
            run = place / str(number) / part.folder
            if not (run / "run.json").is_file() or RunFolder.open(run).manifest.ended_at is None:
                return False
    return True


def shard_folders(out: Path) -> list[Path]:
    """Return the folders of a run's shards, in order; raises `UsageError` for runs without Ray."""
    require_run(out)
    place = parts_of(out)
    if not (place / SHARDS_FILE).is_file():
        raise UsageError(
            f"`{out}` was not begun with `--engine ray`", hint=f"resume with `{resume_command(out)}`"
        )
    return [place / str(number) for number in range(int((place / SHARDS_FILE).read_text()))]


def _place(ray: Any, suite: Suite) -> tuple[int, dict[str, float], Counter[ModelChoice]]:
    """Return the number of parallel shards, the resources of each, and the models that get actors.

    If the GPUs can hold all models, the models get actors, and shards only need processors. Otherwise each
    shard takes the GPUs that the largest model needs, and loads one model after the other.
    """
    there = ray.cluster_resources()
    gpus, processors = int(there.get("GPU", 0)), int(there.get("CPU", 0))
    if not processors:
        raise Unavailable(
            "the cluster has no processor for a shard", hint="add nodes: `ray start --address ...`"
        )
    actors = count_actors(suite, gpus)
    if actors is None and gpus and (models := models_of(suite)):
        most = max(models, key=count_gpus)
        if (each := count_gpus(most)) > gpus:
            raise Unavailable(
                f"`{most.model}` takes {each} GPUs, and the cluster has {gpus}",
                hint="add nodes: `ray start --address ...`, or lower `--tensor-parallel-size`",
            )
        return gpus // each, {"num_gpus": float(each), "num_cpus": 1.0}, Counter()
    return processors, {"num_cpus": 1.0}, actors or Counter()


@contextlib.contextmanager
def _served(ray: Any, wanted: Counter[ModelChoice], variables: dict[str, str]) -> Iterator[Actors]:
    """Yield actors with their models loaded, for the length of the block."""
    actors: dict[ModelChoice, list[Any]] = {}
    try:
        for choice, count in wanted.items():
            kind = ray.remote(ModelActor).options(
                num_cpus=0,
                num_gpus=count_gpus(choice),
                max_restarts=MOST_RESTARTS,
                max_task_retries=-1,
                max_concurrency=MOST_CALLS,
            )
            actors[choice] = [kind.remote(choice, variables, Versions()) for _ in range(count)]
        yield actors
    finally:
        there = list(chain.from_iterable(actors.values()))
        if there:
            ray.wait([actor.close.remote() for actor in there], num_returns=len(there), timeout=_END_SECONDS)
        for actor in there:
            ray.kill(actor)


def share_concurrency(suite: Suite, shards: int) -> Suite:
    """Return the suite as one shard plays it: with its share of the calls in flight, at least one."""
    runs = []
    for run in suite.runs:
        share = {"concurrency": max(1, run.settings.concurrency // shards)}
        runs.append(run.model_copy(update={"settings": run.settings.model_copy(update=share)}))
    return suite.model_copy(update={"runs": runs, "concurrency": max(1, suite.concurrency // shards)})


def _count_shards(place: Path, wanted: int | None, usual: int) -> int:
    """Return the number of shards. A resumed run keeps its number."""
    file = place / SHARDS_FILE
    if not file.is_file():
        return wanted or usual
    begun = int(file.read_text())
    if wanted not in (None, begun):
        raise UsageError(
            f"`{place}` was begun with {begun} shards, not {wanted}", hint="leave the number out to resume"
        )
    return begun


def _variables(suite: Suite) -> dict[str, str]:
    """Return the variables of this process that nodes need: keys, endpoint, hub, vLLM's settings."""
    names = {"OPENAI_BASE_URL", "WANDER_HUB"}
    names |= {run.settings.key_variable for run in suite.runs}
    names |= {name for run in suite.runs for name in run.settings.pass_env}
    if any(run.settings.serve is not None for run in suite.runs):
        names |= {name for name in os.environ if name.startswith("VLLM_")}
    return {name: os.environ[name] for name in sorted(names) if name in os.environ}


def _wait(
    ray: Any, refs: list[Any], coordinator: Any, suite: Suite, output: Output, ended: threading.Event
) -> tuple[list[NodeError], Overview, bool]:
    """Wait for all shards and show their progress.

    The first Ctrl-C stops them in an orderly way, the second one immediately. An error that prevents a shard
    from being played has the same effect as the first one.
    """
    shown = SuiteProgress(output, [run.name for run in suite.runs])
    problems: list[NodeError] = []
    head, asked = Head(ray), 0

    def stop(*_: object) -> None:
        nonlocal asked
        asked += 1
        coordinator.stop.remote()

    with _on_signals(stop):
        while refs:
            done, refs = ray.wait(refs, num_returns=len(refs), timeout=_LOOK_SECONDS)
            for ref in done:
                problems += _result(ray, ref)
            if not asked and (ended.is_set() or _broken(problems)):
                stop()
            head.require()
            overview: Overview = ray.get(coordinator.look.remote())
            for number, run in enumerate(suite.runs):
                if parts := overview.progress.get(run.folder):
                    shown.set_progress(number, _sum(parts))
    return problems, overview, asked > 0


def _broken(problems: list[NodeError]) -> bool:
    """Return whether a problem concerns all evaluations, so that there can be no record."""
    return any(not each.run for each in problems)


def _result(ray: Any, ref: Any) -> list[NodeError]:
    try:
        found: list[NodeError] = ray.get(ref)
    except ray.exceptions.RayError as error:
        hint = "run the same command again: it resumes the run"
        if "No module named" in str(error):
            hint = "install the same `wander-ray` on all nodes"
        return [NodeError.of(failed("a shard failed on Ray", error, hint, "shard_failed"))]
    return found


def _sum(parts: list[Progress]) -> Progress:
    """Return the progress of a run from that of its shards."""
    from wander.evals.run.runner import Progress
    from wander.types import Usage

    scored = [(each.reward_mean, each.done) for each in parts if each.reward_mean is not None and each.done]
    weight = sum(done for _, done in scored)
    costs = [each.usd for each in parts if each.usd is not None]
    return Progress(
        done=sum(each.done for each in parts),
        total=sum(each.total for each in parts),
        failed=sum(each.failed for each in parts),
        retried=sum(each.retried for each in parts),
        in_flight=sum(each.in_flight for each in parts),
        reward_mean=sum(mean * done for mean, done in scored) / weight if weight else None,
        usage=sum((each.usage for each in parts), Usage()),
        seconds=max(each.seconds for each in parts),
        calls_in_flight=sum(each.calls_in_flight for each in parts),
        usd=sum(costs) if costs else None,
    )


@contextlib.contextmanager
def _on_signals(stop: Any) -> Iterator[None]:
    """Have SIGINT and SIGTERM call a function while the block runs, where signals are ours."""
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ValueError):  # not the main thread
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
