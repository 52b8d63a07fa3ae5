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
    COMMAND_FILE,
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

LOG_FILE = "environment.log"
"""Log of the environment's output."""
SERVER_LOG_FILE = "server.log"
"""Log of the server that was started for the run."""

_NO_SOURCE = frozenset({"__pycache__", "build", "dist", "runs", "venv", "node_modules"})
_LARGE_BYTES = 16 * 1024 * 1024


def settings_to_resume(
    context: Invocation, run_dir: Path, options: Mapping[str, Any], command: str
) -> EvaluationSettings:
    """Return the settings of a resumed run.

    They come from the record that this user wrote. For a folder from somebody else, they come only from the
    command line (`options`). Raises `ClientError` that shows the settings of a received folder.
    """
    is_typed = {"environment", "model"} <= options.keys()
    try:
        record = read_settings_of(run_dir)
    except ClientError:
        if not (is_typed and (run_dir / "run.json").exists()):
            raise
        return settings_for({**options, "model": options["model"][0]}, context.settings)
    if record.is_own:
        settings = resume_settings(record.command, options, run_dir, command)
        warn_of_endpoints(context, record.command, settings)
        return settings
    if not is_typed:
        requested = record.command.as_options()
        words = " ".join(["wander eval", *requested, "--resume", shlex.quote(str(run_dir))])
        raise foreign_record(run_dir, requested, f"pass the options that you want to use: `{words}`")
    return settings_for({**options, "model": options["model"][0]}, context.settings)


def read_settings_of(run_dir: Path) -> KeptCommand[EvaluationSettings]:
    """Read the settings that a run was started with, and whether this user started it."""
    try:
        return read_command(run_dir / COMMAND_FILE, EvaluationSettings)
    except FileNotFoundError:
        reason = (
            "it was not started by `wander eval`" if (run_dir / "run.json").exists() else "it is not a run"
        )
        raise NotFound(
            f"`{run_dir}` cannot be resumed: {reason}",
            hint="run `wander runs` to list your runs",
            code="no_run",
        ) from None
    except ClientError:
        require_kind(run_dir, "evaluation")
        raise


def resolve_settings(
    context: Invocation, settings: EvaluationSettings, resumed_dir: Path | None = None
) -> tuple[EvaluationSettings, Location]:
    """Make the settings independent of the working directory and of newer versions.

    `resumed_dir` is the folder of a run that is resumed.
    """
    if resumed_dir is None:
        location = locate(context, settings.environment, no_lock=settings.no_lock or None)
    else:
        location = locate_started(context, settings.environment, resumed_dir)
    if settings.no_lock and location.folder is not None:
        raise UsageError("a folder has no lock to ignore", hint="remove `no_lock`")
    return with_exact_names(settings, location), location


def with_exact_names(settings: EvaluationSettings, location: Location) -> EvaluationSettings:
    """Return the settings with the exact version of the environment and absolute paths."""
    model = settings.model if settings.base_url is not None else _absolute(settings.model)
    players = {player: _absolute(spec) for player, spec in settings.players.items()}
    return settings.model_copy(
        update={"environment": location.exact_name, "model": model, "players": players}
    )


def _absolute(model: str) -> str:
    """Return a model's name. The path of a folder becomes absolute."""
    bare = model.removeprefix("hf:")
    folder = looks_like_path(bare) or Path(bare, "config.json").is_file()
    return str(Path(bare).expanduser().resolve()) if folder else model


def warn_of_endpoints(context: Invocation, stored: EvaluationSettings, settings: EvaluationSettings) -> None:
    """Warn if a run is resumed at another endpoint, which may serve other weights under the same name."""
    before, now = (
        (source.base_url or os.environ.get("OPENAI_BASE_URL") or "").rstrip("/")
        for source in (stored, settings)
    )
    if before != now:
        context.output.warn(
            f"the run started at `{before or 'no endpoint'}` and continues at `{now}`, so it has rollouts of "
            "both"
        )


def new_run_dir(runs_dir: Path, location: Location, model: str) -> Path:
    """Return a new folder name, `<env>--<model>--<time>`, which sorts by time for each model."""
    if looks_like_path(model):
        short = Path(model).name
    else:
        short = model.removeprefix("hf:").removeprefix("scripted:").rpartition("/")[2]
    return fresh_folder(runs_dir, location.label, short)


def fresh_folder(runs_dir: Path, *names: str) -> Path:
    """Return the path of a new folder, named after some names and the time."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    parts = (*names, f"{stamp}-{secrets.token_hex(2)}")
    return runs_dir / "--".join(re.sub(r"[^A-Za-z0-9._=-]+", "-", part)[:100].strip("-.") for part in parts)


@dataclass(frozen=True)
class Evaluation:
    """An evaluation that is about to start."""

    context: Invocation
    settings: EvaluationSettings
    location: Location
    run_dir: Path
    resume: bool = False
    """Whether the folder contains a part of the run."""
    allow_changed_code: bool = False
    """Whether the run may continue although files of the environment's folder changed."""
    opened: OpenedEnvironment | None = None
    """The environment, if it is already open and stays open."""

    def open(self, log_path: Path) -> AbstractAsyncContextManager[OpenedEnvironment]:
        """Open the environment."""
        if self.opened is not None and self.settings.set_file is not None:
            raise UsageError(
                "`set_file` cannot be used with an environment that is already loaded",
                hint="run `wander eval` with `set_file`",
            )
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
            set_file=None if self.settings.set_file is None else Path(self.settings.set_file),
        )


@dataclass(frozen=True)
class Listeners:
    """Callbacks for the start and the progress of an evaluation."""

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
    """Play the evaluation into its folder, until it ends, a stop is requested, or the budget is spent.

    Without `stop`, the signals of this process request a stop as soon as rollouts play.
    """
    from wander.evals.run.runner import evaluate

    starting = begin(evaluation, pool, on_start=listeners.on_start, stop=stop)
    async with starting as (environment, client, stopping):
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
    """Yield the environment, the model and the stop request, after writing the settings to the folder."""
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
        await client.check()  # before the run's folder is created
        if environment.handle.info.calls_tools:
            client.check_tools()
        client.check_sampling(settings.sampling)
        for warning in client.warnings():
            evaluation.context.output.warn(warning)
        if evaluation.resume:
            await _require_same_environment(evaluation, environment)
        on_start(environment)
        files = source_digests(location.folder) if location.folder else None
        started_with = settings.model_copy(update={"environment_files": files})
        run_dir.mkdir(parents=True, exist_ok=True)
        stack.enter_context(restore_if_refused(run_dir / COMMAND_FILE))
        write_command(run_dir / COMMAND_FILE, started_with)
        stack.callback(_remove_unless_started, run_dir)
        if stop is None:
            stop = StopRequest()
            stack.enter_context(stop_on_signals(stop))
        yield environment, client, stop


def _choice_of(settings: EvaluationSettings, run_dir: Path) -> ModelChoice:
    """Return the model. For a resumed run, its chat template shows the start date of the run."""
    from wander.evals.store.folder import RunFolder

    choice = settings.choose_model()
    if settings.template_date is None and (run_dir / "run.json").is_file():
        details = RunFolder.open(run_dir).manifest.model.details
        shown = (details.get("server") or details).get("template_date")
        with contextlib.suppress(ValueError):  # the date that a server showed may be unknown
            return dataclasses.replace(choice, template_date=date.fromisoformat(str(shown)))
    return choice


async def run_interruptible(
    evaluation: Evaluation, listeners: Listeners, *, only_failed: bool = False
) -> EvaluationResult:
    """Play an evaluation like `run_evaluation`. The first Ctrl-C stops it after saving its rollouts."""
    async with ModelPool(evaluation.context) as pool:
        return await run_evaluation(evaluation, listeners, pool=pool, only_failed=only_failed)


def require_settings(settings: EvaluationSettings) -> None:
    """Raise the errors of an evaluation that can be found before anything is loaded."""
    settings.plan()
    settings.choose_model().require()


def _require_examples(info: EnvironmentInfo, split: str) -> None:
    """Raise `UsageError` for a split without examples, before the run's folder is created."""
    counts = {"eval": info.eval_examples, "train": info.train_examples}
    if counts[split] != 0:
        return
    other = "train" if split == "eval" else "eval"
    hint = "check which data `load_environment` reads"
    if counts[other]:
        hint = name_option("split", other) + f" has {counts[other]} examples"
    raise UsageError(f"the {split} split of `{info.name}` has no examples", hint=hint, code="no_examples")


async def _require_same_environment(evaluation: Evaluation, environment: OpenedEnvironment) -> None:
    """Raise `ClientError` if the code changed, unless that is allowed and the examples are the same."""
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
    warn(f"the environment's files changed since the run started: {', '.join(changed[:5])}")


def _remove_unless_started(run_dir: Path) -> None:
    """Remove the folder of a run that did not start."""
    if (run_dir / "run.json").exists():
        return
    with contextlib.suppress(OSError):  # the folder contains other files, so it is kept
        (run_dir / COMMAND_FILE).unlink(missing_ok=True)
        run_dir.rmdir()


def _keep_log(log_path: Path, run_dir: Path, name: str) -> None:
    """Move a log into the run's folder, if the folder exists and the log is not empty."""
    from wander.system.plain_files import open_to_append

    if not log_path.exists():
        return
    if log_path.stat().st_size == 0:
        log_path.unlink()
    elif run_dir.is_dir():
        with os.fdopen(open_to_append(run_dir / name), "ab") as target, log_path.open("rb") as log:
            shutil.copyfileobj(log, target)
        log_path.unlink()


@contextlib.contextmanager
def stop_on_signals(stop: StopRequest) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into a request to stop. The second signal stops immediately."""
    loop = asyncio.get_running_loop()
    caught = []
    for number in (signal.SIGINT, signal.SIGTERM):
        # Outside of the main thread, the embedding program handles signals.
        with contextlib.suppress(RuntimeError, ValueError):
            loop.add_signal_handler(number, stop.request)
            caught.append(number)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


def explain_interruption(result: EvaluationResult) -> Interrupted:
    """Return the error for an interrupted evaluation, which names the saved rollouts."""
    summary = result.summary
    return Interrupted(
        f"interrupted; {summary.rollouts} of {summary.expected} rollouts are saved in `{result.run_dir}`",
        hint="resume with " + name_resumption(result.run_dir),
    )


def all_failed(result: EvaluationResult) -> ClientError:
    """Return the error for a run whose rollouts all failed."""
    from wander_client.runs.text import failure_reasons

    reasons = failure_reasons(result.run_dir) if result.run_dir is not None else []
    number = result.summary.rollouts
    failed = "the only rollout failed; it is" if number == 1 else f"all {number} rollouts failed; they are"
    return NothingScored(
        f"{failed} saved in `{result.run_dir}`",
        hint="fix the cause, then resume with " + name_resumption(result.run_dir),
        retryable=set(result.summary.failures) == {"model"},
        detail="\n".join(f"{count} x {reason}" for reason, count in reasons),
    )


def resume_command(run_dir: Path | None) -> str:
    """Return the command that resumes a run."""
    return f"wander eval --resume {shlex.quote(str(run_dir))}"


def name_resumption(run_dir: Path | None) -> str:
    """Return the command or call that resumes a run, for hints."""
    return name_option("resume", str(run_dir), command="wander eval")


def more_budget(spent_tokens: int, spent_usd: float, tokens: int | None, usd: float | None) -> str:
    """Return the options that double a spent budget, for the command that resumes the run."""
    words = ""
    if tokens is not None and spent_tokens >= tokens:
        words += f" --budget-tokens {2 * spent_tokens}"
    if usd is not None and spent_usd >= usd:
        words += f" --set budget_usd={2 * spent_usd:.4g}"
    return words


def source_digests(folder: Path) -> dict[str, str]:
    """Return digests of the files in an environment's folder, by relative path.

    Hidden files, caches, builds, virtual environments and runs are skipped. For files over 16 MiB, the size
    and the modification time replace the digest.
    """
    digests: dict[str, str] = {}
    for parent, folders, files in os.walk(folder):
        here = Path(parent)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name not in _NO_SOURCE and not name.endswith(".egg-info")
            if not any((here / name / file).exists() for file in ("pyvenv.cfg", "run.json"))
        )
        for name in files:
            if not name.startswith("."):
                digests[str((here / name).relative_to(folder))] = _digest(here / name)
    return digests


def find_changed_files(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the sorted names of the files that were added, removed or changed."""
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def environment_changed(files: list[str], *, examples_changed: bool, folder: str, model: str) -> ClientError:
    """Return the error for resuming a run whose environment's files changed."""
    changed_files = "\n".join(files[:10]) + (f"\nand {len(files) - 10} more" if len(files) > 10 else "")
    restart = f"start a new run: `wander eval {folder} -m {model}`"
    if examples_changed:
        return ClientError(
            "the environment's files and examples changed since the run started",
            detail=changed_files,
            hint=restart,
            code="environment_changed",
        )
    return ClientError(
        "the environment's files changed since the run started; its examples are the same",
        detail=changed_files,
        hint=f"{restart}; or add `--allow-changed-code` to mix rollouts of the old and the new code",
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
    except OSError as error:  # such as a dangling link; unchanged as long as the error is the same
        return f"unreadable: {error.strerror}"
