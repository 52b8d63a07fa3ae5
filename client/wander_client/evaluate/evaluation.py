"""Run an evaluation from the command line's settings, and continue one from its folder."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import os
import re
import secrets
import shlex
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander_client.environments.location import Location, locate, log_folder
from wander_client.environments.opening import open_environment
from wander_client.environments.replay import locate_started
from wander_client.errors import ClientError, Interrupted, NotFound, NothingScored, UsageError, name_option
from wander_client.evaluate.settings import EvaluationSettings, resume_settings, settings_for
from wander_client.models.pool import ModelChoice, ModelPool
from wander_client.names import looks_like_path
from wander_client.runs.lookup import require_kind
from wander_client.runs.own_records import (
    KeptCommand,
    foreign_record,
    read_command,
    restore_if_refused,
    write_command,
)

if TYPE_CHECKING:
    from wander.clients.base import Client
    from wander.evals.run.budget import Share
    from wander.evals.run.runner import EvaluationResult, Progress
    from wander.evals.run.stopping import StopRequest
    from wander.types import EnvironmentInfo

    from wander_client.context import Invocation
    from wander_client.environments.opening import OpenedEnvironment

COMMAND_FILE = "command.json"
"""The settings of the command, in the run's folder, so that `--resume` needs nothing else."""
LOG_FILE = "environment.log"
"""What the environment printed."""
SERVER_LOG_FILE = "server.log"
"""What a server that was started for the run printed."""

_NO_SOURCE = frozenset({"__pycache__", "build", "dist", "runs", "venv", "node_modules"})
_LARGE_BYTES = 16 * 1024 * 1024


def settings_to_resume(
    context: Invocation, run_dir: Path, said: Mapping[str, Any], command: str
) -> EvaluationSettings:
    """Return the settings with which a run continues.

    They are those that this user's own record holds, and of any other folder those of the command line alone:
    `said`, by key. Raises `ClientError` that shows what a received folder asks for.
    """
    is_typed = {"environment", "model"} <= said.keys()
    try:
        kept = read_settings_of(run_dir)
    except ClientError:
        if not (is_typed and (run_dir / "run.json").exists()):
            raise
        return settings_for({**said, "model": said["model"][0]}, context.settings)
    if kept.is_own:
        settings = resume_settings(kept.command, said, run_dir, command)
        warn_of_endpoints(context, kept.command, settings)
        return settings
    if not is_typed:
        asked = kept.command.as_options()
        words = " ".join(["wander eval", *asked, "--resume", shlex.quote(str(run_dir))])
        raise foreign_record(run_dir, asked, f"give the options that you want to use: `{words}`")
    return settings_for({**said, "model": said["model"][0]}, context.settings)


def read_settings_of(run_dir: Path) -> KeptCommand[EvaluationSettings]:
    """Return the settings that a run's folder says it was started with, and whether this user wrote them."""
    try:
        return read_command(run_dir / COMMAND_FILE, EvaluationSettings)
    except FileNotFoundError:
        known = "it was not started by `wander eval`" if (run_dir / "run.json").exists() else "it is no run"
        raise NotFound(
            f"`{run_dir}` cannot be resumed: {known}", hint="`wander runs` lists the runs here", code="no_run"
        ) from None
    except ClientError:
        require_kind(run_dir, "evaluation")
        raise


def settle(
    context: Invocation, settings: EvaluationSettings, begun: Path | None = None
) -> tuple[EvaluationSettings, Location]:
    """Make the settings independent of the folder they were typed in and of newer versions.

    `begun` is the folder of a run that goes on.
    """
    if begun is None:
        location = locate(context, settings.environment, no_lock=settings.no_lock or None)
    else:
        location = locate_started(context, settings.environment, begun)
    if settings.no_lock and location.folder is not None:
        raise UsageError("a folder has no lock that could be left aside", hint="leave out `no_lock`")
    return with_exact_names(settings, location), location


def with_exact_names(settings: EvaluationSettings, location: Location) -> EvaluationSettings:
    """Return settings that name the environment, and the folder of a model, so that it holds anywhere."""
    model = settings.model if settings.base_url is not None else _absolute(settings.model)
    players = {player: _absolute(spec) for player, spec in settings.players.items()}
    return settings.model_copy(
        update={"environment": location.exact_name, "model": model, "players": players}
    )


def _absolute(model: str) -> str:
    """Return a model's name so that a folder is found from anywhere."""
    bare = model.removeprefix("hf:")
    folder = looks_like_path(bare) or Path(bare, "config.json").is_file()
    return str(Path(bare).expanduser().resolve()) if folder else model


def warn_of_endpoints(context: Invocation, stored: EvaluationSettings, settings: EvaluationSettings) -> None:
    """Say so when a run goes on at another endpoint, which may serve other weights under the same name."""
    before, now = (
        (one.base_url or os.environ.get("OPENAI_BASE_URL") or "").rstrip("/") for one in (stored, settings)
    )
    if before != now:
        context.output.warn(
            f"the run began at `{before or 'no endpoint'}` and goes on at `{now}`: it has rollouts of both"
        )


def new_run_dir(runs_dir: Path, location: Location, model: str) -> Path:
    """Return a fresh folder name: `<env>--<model>--<id>`, sortable by time within one model."""
    if looks_like_path(model):
        short = Path(model).name
    else:
        short = model.removeprefix("hf:").removeprefix("scripted:").rpartition("/")[2]
    return fresh_folder(runs_dir, location.label, short)


def fresh_folder(runs_dir: Path, *names: str) -> Path:
    """Return a folder that is not there, called after some names and the time."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    parts = (*names, f"{stamp}-{secrets.token_hex(2)}")
    return runs_dir / "--".join(re.sub(r"[^A-Za-z0-9._=-]+", "-", part)[:100].strip("-.") for part in parts)


@dataclass(frozen=True)
class Evaluation:
    """An evaluation that is about to play: what is asked for, of which environment, and where it is saved."""

    context: Invocation
    settings: EvaluationSettings
    location: Location
    run_dir: Path
    resume: bool = False
    """Whether the folder holds a part of it."""
    allow_changed_code: bool = False
    """Whether it may go on although files of a folder's environment changed."""
    opened: OpenedEnvironment | None = None
    """Its environment, where that is open already and stays so."""

    def open(self, log_path: Path) -> AbstractAsyncContextManager[OpenedEnvironment]:
        """Open its environment."""
        if self.opened is not None:
            return contextlib.nullcontext(self.opened)
        return open_environment(
            self.context,
            self.location,
            self.settings.arguments,
            in_process=self.settings.in_process,
            pass_environ=self.settings.pass_env,
            log_path=log_path,
            sandbox=self.settings.sandbox,
            workers=self.settings.choose_workers(),
        )


@dataclass(frozen=True)
class Listeners:
    """Who is told how an evaluation goes."""

    on_start: Callable[[OpenedEnvironment], None] = lambda opened: None
    on_progress: Callable[[Progress], None] = lambda progress: None


async def run_evaluation(
    evaluation: Evaluation,
    listeners: Listeners,
    *,
    pool: ModelPool,
    only_failed: bool = False,
    stop: StopRequest | None = None,
    share: Share | None = None,
) -> EvaluationResult:
    """Play the evaluation into the folder, until its end, until a stop is requested, or the budget is spent.

    Without a `stop` of the caller's the signals of this process request it, once rollouts play.
    """
    from wander.evals.run.runner import evaluate

    begun = begin(evaluation, pool, on_start=listeners.on_start, stop=stop)
    async with begun as (environment, client, stopping):
        return await evaluate(
            environment.handle,
            client,
            evaluation.settings.plan(only_failed=only_failed, share=share),
            evaluation.run_dir,
            environment.pin,
            resume=evaluation.resume,
            checked=True,
            on_progress=listeners.on_progress,
            stop=stopping,
        )


@contextlib.asynccontextmanager
async def begin(
    evaluation: Evaluation,
    pool: ModelPool,
    *,
    on_start: Callable[[OpenedEnvironment], None],
    stop: StopRequest | None = None,
) -> AsyncIterator[tuple[OpenedEnvironment, Client, StopRequest]]:
    """Yield the loaded environment, the model and what stops them, the settings written to the folder."""
    from wander.clients.players import require_players
    from wander.evals.run.stopping import StopRequest

    settings, location, run_dir = evaluation.settings, evaluation.location, evaluation.run_dir
    logs = log_folder(evaluation.context)
    log_path, server_log = logs / f"{run_dir.name}.log", logs / f"{run_dir.name}.server.log"
    settings.plan()
    choice = _choice_of(settings, run_dir)
    pool.require(choice)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(_keep_log, log_path, run_dir, LOG_FILE)
        environment = await stack.enter_async_context(evaluation.open(log_path))
        _require_examples(environment.handle.info, settings.split)
        require_players(environment.handle.info, settings.players)
        stack.callback(_keep_log, server_log, run_dir, SERVER_LOG_FILE)
        client = await stack.enter_async_context(
            pool.client(choice, location, name=run_dir.name, log_path=server_log)
        )
        await client.check()  # before a folder is made for its run
        if environment.handle.info.calls_tools:
            client.check_tools()
        client.check_sampling(settings.sampling)
        if evaluation.resume:
            await _require_same_environment(evaluation, environment)
        on_start(environment)
        files = source_digests(location.folder) if location.folder else None
        asked = settings.model_copy(update={"environment_files": files})
        run_dir.mkdir(parents=True, exist_ok=True)
        stack.enter_context(restore_if_refused(run_dir / COMMAND_FILE))
        write_command(run_dir / COMMAND_FILE, asked)
        stack.callback(_remove_unless_begun, run_dir)
        if stop is None:
            stop = StopRequest()
            stack.enter_context(stop_on_signals(stop))
        yield environment, client, stop


def _choice_of(settings: EvaluationSettings, run_dir: Path) -> ModelChoice:
    """Return the model; the chat template of a resumed run shows the date on which the run started."""
    from wander.evals.store.folder import RunFolder

    choice = settings.choose_model()
    if settings.template_date is None and (run_dir / "run.json").is_file():
        details = RunFolder.open(run_dir).manifest.model.details
        shown = (details.get("server") or details).get("template_date")
        with contextlib.suppress(ValueError):  # what a server showed is not always known
            return dataclasses.replace(choice, template_date=date.fromisoformat(str(shown)))
    return choice


async def run_alone(
    evaluation: Evaluation, listeners: Listeners, *, only_failed: bool = False
) -> EvaluationResult:
    """Play one evaluation as `run_evaluation` does; the first Ctrl-C ends it in order."""
    async with ModelPool(evaluation.context) as pool:
        return await run_evaluation(evaluation, listeners, pool=pool, only_failed=only_failed)


def require_settings(settings: EvaluationSettings) -> None:
    """Raise what is wrong with an evaluation, as far as that can be known before anything is loaded."""
    settings.plan()
    settings.choose_model().require()


def _require_examples(info: EnvironmentInfo, split: str) -> None:
    """Refuse a split without examples before a folder is made for its run."""
    counts = {"eval": info.eval_examples, "train": info.train_examples}
    if counts[split] != 0:
        return
    other = "train" if split == "eval" else "eval"
    hint = "look at what `load_environment` reads"
    if counts[other]:
        hint = name_option("split", other) + f" has {counts[other]}"
    raise UsageError(f"the {split} split of `{info.name}` has no examples", hint=hint, code="no_examples")


async def _require_same_environment(evaluation: Evaluation, environment: OpenedEnvironment) -> None:
    """Refuse to go on with other code, unless that is allowed and the examples are the same."""
    from wander.evals.run.plan import planned_examples
    from wander.evals.store.folder import RunFolder

    settings, run_dir, folder = evaluation.settings, evaluation.run_dir, evaluation.location.folder
    if folder is None or settings.environment_files is None or not (run_dir / "run.json").exists():
        return
    changed = find_changed_files(settings.environment_files, source_digests(folder))
    if not changed:
        return
    examples = await planned_examples(environment.handle, settings.plan())
    same = examples.task_set_sha256 == RunFolder.open(run_dir).manifest.task_set_sha256
    if not same or not evaluation.allow_changed_code:
        raise environment_changed(
            changed, examples_changed=not same, folder=shlex.quote(str(folder)), model=settings.model
        )
    warn = evaluation.context.output.warn
    warn(f"the environment's files changed since this run began: {', '.join(changed[:5])}")


def _remove_unless_begun(run_dir: Path) -> None:
    """Leave no folder behind for a run that never began."""
    if (run_dir / "run.json").exists():
        return
    with contextlib.suppress(OSError):  # the folder holds something of the user's: it stays
        (run_dir / COMMAND_FILE).unlink(missing_ok=True)
        run_dir.rmdir()


def _keep_log(log_path: Path, run_dir: Path, name: str) -> None:
    """Move what was printed into the run's folder, if there is one and anything was."""
    from wander.system.plain_files import open_to_append

    if not log_path.exists():
        return
    if log_path.stat().st_size == 0:
        log_path.unlink()
    elif run_dir.is_dir():
        with os.fdopen(open_to_append(run_dir / name), "ab") as kept, log_path.open("rb") as log:
            shutil.copyfileobj(log, kept)
        log_path.unlink()


@contextlib.contextmanager
def stop_on_signals(stop: StopRequest) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into a request to stop; the second one is urgent."""
    loop = asyncio.get_running_loop()
    caught = []
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(RuntimeError, ValueError):  # not the main thread: signals are not ours
            loop.add_signal_handler(number, stop.request)
            caught.append(number)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


def explain_interruption(result: EvaluationResult) -> Interrupted:
    """Return the error that says what an interrupted evaluation kept."""
    summary = result.summary
    return Interrupted(
        f"interrupted; {summary.rollouts} of {summary.expected} rollouts are kept in `{result.run_dir}`",
        hint="go on with " + name_resumption(result.run_dir),
    )


def all_failed(result: EvaluationResult) -> ClientError:
    """Return the error for a run in which no rollout could be scored."""
    from wander_client.runs.text import failure_reasons

    reasons = failure_reasons(result.run_dir) if result.run_dir is not None else []
    number = result.summary.rollouts
    failed = "the only rollout failed; it is" if number == 1 else f"all {number} rollouts failed; they are"
    return NothingScored(
        f"{failed} kept in `{result.run_dir}`",
        hint="mend the cause, then play again with " + name_resumption(result.run_dir),
        retryable=set(result.summary.failures) == {"model"},
        detail="\n".join(f"{count} x {reason}" for reason, count in reasons),
    )


def resume_command(run_dir: Path | None) -> str:
    """Return the command that continues a run."""
    return f"wander eval --resume {shlex.quote(str(run_dir))}"


def name_resumption(run_dir: Path | None) -> str:
    """Return how a run is continued, as a hint names it."""
    return name_option("resume", str(run_dir), command="wander eval")


def more_budget(spent_tokens: int, spent_usd: float, tokens: int | None, usd: float | None) -> str:
    """Return the options that go on where a budget is spent, with twice what it took."""
    words = ""
    if tokens is not None and spent_tokens >= tokens:
        words += f" --budget-tokens {2 * spent_tokens}"
    if usd is not None and spent_usd >= usd:
        words += f" --budget-usd {2 * spent_usd:.4g}"
    return words


def source_digests(folder: Path) -> dict[str, str]:
    """Return what the files of an environment's folder hold, by their place in it.

    Hidden files, caches, builds, virtual environments and runs do not count; of a file of more than 16 MiB
    the size and the time of its last change stand for the content.
    """
    found: dict[str, str] = {}
    for place, folders, files in os.walk(folder):
        here = Path(place)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name not in _NO_SOURCE and not name.endswith(".egg-info")
            if not any((here / name / mark).exists() for mark in ("pyvenv.cfg", "run.json"))
        )
        for name in files:
            if not name.startswith("."):
                found[str((here / name).relative_to(folder))] = _digest(here / name)
    return found


def find_changed_files(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the files that were added, removed or changed, in order."""
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def environment_changed(files: list[str], *, examples_changed: bool, folder: str, model: str) -> ClientError:
    """Return the refusal to go on with a run whose environment's files are others now."""
    which = "\n".join(files[:10]) + (f"\nand {len(files) - 10} more" if len(files) > 10 else "")
    anew = f"start a new run: `wander eval {folder} -m {model}`"
    if examples_changed:
        return ClientError(
            "the environment's files changed since this run began, and so did its examples",
            detail=which,
            hint=anew,
            code="environment_changed",
        )
    return ClientError(
        "the environment's files changed since this run began; its examples are the same",
        detail=which,
        hint=f"{anew}; or go on with `--allow-changed-code`, if old and new rollouts may stand side by side",
        code="environment_changed",
    )


def _digest(file: Path) -> str:
    from wander.system.plain_files import open_file

    try:
        with open_file(file) as opened:
            facts = os.fstat(opened.fileno())
            if facts.st_size > _LARGE_BYTES:
                return f"{facts.st_size} bytes at {facts.st_mtime_ns}"
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:  # a dangling link, a socket: it is the same as long as it fails the same way
        return f"unreadable: {error.strerror}"
