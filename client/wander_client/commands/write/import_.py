"""`wander env import`: import environments and evaluation results from other libraries."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from wander_client.commands.write.publish import AllowFile
from wander_client.context import current
from wander_client.environments.sandbox import (
    BuildFlag,
    SandboxFlag,
    SandboxLimits,
    allow_builds,
    builder_of,
    hide_own,
    policy_for_import,
)
from wander_client.errors import ClientError, Unavailable
from wander_client.names import as_folder, parse_name
from wander_client.terminal.command import (
    Argument,
    CommandGroup,
    EnvironmentArguments,
    Option,
    refuse_options,
)
from wander_client.terminal.output import counted, shell_word

if TYPE_CHECKING:
    from wander.sandbox import SandboxPolicy
    from wander.types import EnvironmentInfo
    from wander.wire import CheckSummary

    from wander_client.packages.building.build import Builder
    from wander_client.packages.built_package import BuiltPackage
    from wander_client.packages.install import Trial
    from wander_client.packages.origins.conversion import ConvertedProject
    from wander_client.packages.origins.source import PackageOrigin

_ProjectFolder = Annotated[
    Path, Option("-o", "--out", help="new folder for the project; the environment gets the folder's name")
]

app = CommandGroup("Import environments and evaluation results from other libraries.")


@dataclass(frozen=True)
class _ImportOptions:
    """The options of every import."""

    owner: Annotated[str | None, Option(help="publish under this owner")] = None
    out: Annotated[Path | None, Option(help="save the converted project in this folder")] = None
    entry_point: Annotated[
        str | None,
        Option("--entry-point", help="MODULE:FUNCTION that loads the environment, if there are several"),
    ] = None
    argument: EnvironmentArguments = None
    pass_env: Annotated[
        list[str] | None,
        Option("--pass-env", help="environment variable to pass while it is loaded and checked"),
    ] = None
    dry_run: Annotated[bool, Option("--dry-run", help="do everything except publishing")] = False
    build: BuildFlag = False
    sandbox: SandboxFlag = None
    sandbox_limit: SandboxLimits = None
    no_check: Annotated[bool, Option("--no-check", help="do not install, load and check the package")] = False
    allow_file: AllowFile = None


@app.command()
def path(
    source: Annotated[str, Argument(help="a folder, an sdist or a wheel")],
    options: _ImportOptions,
) -> None:
    """Publish a package on this machine as an environment, without changing its code.

    \b
    wander env import path ./wordle --dry-run
    wander env import path sophistry_bench_sprint-0.1.6-py3-none-any.whl --owner acme

    Wander detects which library the package was written for, and for which version of its API. It adds the
    missing parts to a copy: entry point, build system, dependencies, README and a note of origin. Then it
    builds the package, installs it into a new virtual environment, loads and checks it, and publishes it
    together with the results of the check.
    """
    from wander_client.packages.origins.source import bring_project

    _import(lambda work, builder: bring_project(source, work, builder), options)


@app.command()
def git(
    url: Annotated[str, Argument(help="URL[@REVISION][#subdirectory=FOLDER]")],
    options: _ImportOptions,
) -> None:
    """Publish a package in a git repository as an environment, like `wander env import path`.

    \b
    wander env import git https://example.org/envs.git@v1.2#subdirectory=environments/wordle --dry-run
    wander env import git git@example.org:team/envs.git --owner acme

    The command fetches one revision (branch, tag or commit), without submodules, hooks and filters.
    """
    from wander_client.packages.origins.git import clone_project

    _import(lambda work, builder: clone_project(url, work, builder), options)


@app.command()
def harbor(
    source: Annotated[
        str, Argument(help="a task folder, a folder of tasks, or URL[@REVISION][#subdirectory=FOLDER]")
    ],
    out: _ProjectFolder,
    start_from: Annotated[
        Literal["task", "dockerfile", "host"],
        Option(
            help="default for what boxes start from; an evaluation can change it with -a start_from=...",
        ),
    ] = "task",
) -> None:
    """Write the project of an environment that contains Harbor tasks, ready to check and publish.

    \b
    wander env import harbor ./tasks/fix-the-build --out fix-the-build
    wander env import harbor https://example.org/tasks.git@v2#subdirectory=tasks --out terminal-tasks

    A box is the small isolated system in which the model's commands run. By default, boxes start from each
    task's image or Dockerfile, which needs Podman or Docker. With `--start-from host`, boxes show the system
    of this machine instead. This works only for tasks whose Dockerfile just copies files and sets variables.
    The command leaves out tasks that need GPUs, several containers or anything else that Wander does not
    support, and prints a warning for each.
    """
    _import_tasks("harbor", source, out, start_from=start_from)


@app.command()
def openenv(
    source: Annotated[
        str, Argument(help="a folder with `openenv.yaml`, or URL[@REVISION][#subdirectory=FOLDER]")
    ],
    out: _ProjectFolder,
) -> None:
    """Write the project of an environment that plays on the server of an OpenEnv folder.

    \b
    wander env import openenv ./echo_env --out echo
    wander env import openenv https://example.org/envs.git#subdirectory=envs/echo_env --out echo

    The range of the reward, the tags and the time limit come from `openenv.yaml`. Start the server
    before you play.
    """
    _import_tasks("openenv", source, out)


def _import_tasks(format_name: str, source: str, out: Path, **options: Any) -> None:
    """Write the project of an environment for tasks of another format."""
    from wander_client.packages.origins.task_folders import import_tasks

    here = current()
    written, origin = import_tasks(format_name, source, out, **options)
    for task, reasons in written.left_out.items():
        here.output.warn(f"left out `{task}`: {'; '.join(reasons)}")
    for limit in written.limits:
        here.output.note(f"not honored: {limit}")
    data = {
        "folder": str(out),
        "name": written.name,
        "tasks": written.tasks,
        "left_out": written.left_out,
        "not_honored": written.limits,
        "origin": asdict(origin),
    }
    count = counted(len(written.tasks), "task")
    here.output.answer(data, f"wrote {out} with {count}")
    here.output.next(f"wander check {shell_word(as_folder(out))}")


@app.command()
def results(
    source: Annotated[Path, Argument(help="file or folder of one evaluation")],
    environment: Annotated[
        str | None,
        Option(help="owner/name[@version] of the evaluated environment, so that you can post the run"),
    ] = None,
    out: Annotated[Path | None, Option(help="folder of the new run")] = None,
) -> None:
    """Convert results of verifiers, Inspect or Every Eval Ever into a run.

    \b
    wander env import results outputs/evals/my-env--gpt-5/1a2b3c4d
    wander env import results ./old --environment acme/my-env@1.2.0 --out runs/old
    wander env import results logs/2026-01-02T03-04-05_gsm8k.eval

    Reads `metadata.json` and `results.jsonl` of verifiers (of all its versions), `traces.jsonl` of
    verifiers.v1, and with wander-integrations `.eval` logs of Inspect and `UUID_samples.jsonl` of Every Eval
    Ever. The notes in the run's manifest say which data the files lack. Failed rollouts get no reward, even
    if the file has one. If you post such a run, its level is `claimed`.
    """
    from wander.evals.foreign_run import import_results

    from wander_client.packages.install import exact_version

    here = current()
    published = None
    if environment is not None:
        with here.hub() as hub:
            published = exact_version(hub, parse_name(environment))
    source = source.expanduser().resolve()
    target = out or here.settings.runs_dir / f"imported-{source.stem if source.is_file() else source.name}"
    run = import_results(source, target, published)
    summary = run.summary()
    pin = run.manifest.environment
    known = pin.owner is not None
    data: dict[str, Any] = {
        "folder": str(target),
        "run_id": run.manifest.run_id,
        "environment": f"{pin.owner}/{pin.name}@{pin.version}" if known else pin.name,
        "model": run.manifest.model.name,
        "source": run.manifest.notes,
        "summary": None if summary is None else summary.model_dump(mode="json"),
    }
    lines = [f"imported {data['environment']} with {data['model']} to {target}"]
    if summary is not None:
        mean = "none" if summary.reward_mean is None else f"{summary.reward_mean:.4g}"
        lines.append(f"  {summary.rollouts} rollouts, {summary.failed} failed, mean reward {mean}")
    lines.append(f"  {run.manifest.notes}")
    here.output.answer(data, "\n".join(lines))
    here.output.next(f"wander post {shell_word(target)}" if known else f"wander view {shell_word(target)}")


@dataclass(frozen=True)
class _TrialResult:
    """The result of loading and checking a package in its own virtual environment."""

    info: EnvironmentInfo
    check: CheckSummary
    lock: str


def _import(bring: Callable[[Path, Builder], tuple[Path, PackageOrigin]], options: _ImportOptions) -> None:
    """Fetch, convert, build, try out and publish a package."""
    import shutil
    import tempfile

    from wander_client.packages.built_package import build_package, upload
    from wander_client.packages.needs import HUB_OWNER
    from wander_client.packages.origins.conversion import convert_project
    from wander_client.packages.publish import choose_owner, require_no_leaks

    here = current()
    if options.no_check:
        reason = "applies while the package is loaded, but `--no-check` does not load it"
        refuse_options("argument", "pass_env", because=reason)
    for name in options.pass_env or []:
        if name not in os.environ:
            here.output.warn(f"`{name}` is not set, so it is not passed to the environment")
    policy = policy_for_import(here, options.sandbox, options.sandbox_limit)
    allow_builds(here, options.build, None if options.sandbox is False else policy)
    builder = builder_of(here, policy)
    owner, importer = options.owner, None
    if not options.dry_run:  # the token is checked before anything is fetched
        with here.hub(login=True) as hub:
            owner, importer = choose_owner(hub, options.owner), hub.whoami().user
    here.output.step = "convert"
    if options.out is not None and options.out.exists() and any(options.out.iterdir()):
        raise ClientError(f"`{options.out}` is not empty", hint="choose another folder")
    with tempfile.TemporaryDirectory(prefix="wander-import-") as work:
        folder, origin = bring(Path(work), builder)
        origin = replace(origin, importer=importer)
        converted = convert_project(folder, origin, options.entry_point)
        generation = "" if converted.generation is None else f", generation {converted.generation}"
        kind = f"{converted.library}{generation}"
        here.output.note(f"{converted.name}: an environment of {kind}, loaded by `{converted.target}`")
        if converted.written:
            here.output.note(f"written: {', '.join(converted.written)}")
        here.output.step = "build"
        here.output.note(f"building {converted.name}")
        with build_package(converted.folder, builder) as package:
            for warning in package.warnings:
                here.output.warn(warning)
            require_no_leaks(here, converted.folder, package, options.allow_file or [])
            lock = None if options.no_check and options.dry_run else _lock(owner, package, options)
            trial_result = (
                None if options.no_check else _try(package, options, owner or HUB_OWNER, lock, policy)
            )
            if options.out is not None:
                shutil.copytree(converted.folder, options.out, dirs_exist_ok=True)
                if trial_result is not None:
                    (options.out / "pylock.toml").write_text(trial_result.lock, encoding="utf-8")
                here.output.note(f"kept in {options.out}")
            sent: frozenset[str] = frozenset()
            if owner is not None and not options.dry_run:
                here.output.step = "publish"
                here.output.note(f"uploading to {here.settings.hub}")
                with here.hub(login=True) as hub:
                    check = None if trial_result is None else trial_result.check
                    sent = upload(hub, owner, package, check, lock=lock, warn=here.output.warn).sent
            _answer(converted, origin, package, trial_result, owner, sent=bool(sent), dry_run=options.dry_run)


def _try(
    package: BuiltPackage,
    options: _ImportOptions,
    owner: str,
    lock: bytes | None,
    policy: SandboxPolicy | None,
) -> _TrialResult:
    """Install a built package into its own virtual environment, load it there and check it."""
    from wander.checks import check_environment
    from wander.checks.engine import LONGEST_PROBE
    from wander.errors import LoadError

    from wander_client.environments.location import parse_arguments
    from wander_client.packages.built_package import line_of, summary_of
    from wander_client.packages.install import try_out
    from wander_client.packages.virtualenvs import VirtualEnvironments

    here = current()
    arguments = parse_arguments(options.argument or [], None)
    folders = VirtualEnvironments(here.settings.data_dir), here.settings.cache_dir
    here.output.step = "install"
    here.output.note("installing it into its own virtual environment")
    with (
        here.hub() as hub,
        try_out(hub, *folders, owner, package.wheel.path, here.output.warn, lock) as trial,
    ):
        here.output.step = "load"
        here.output.note("loading and checking it: it is played twice, at most 5 minutes each time")
        passed = {name: os.environ[name] for name in options.pass_env or [] if name in os.environ}
        confined = None if policy is None else hide_own(policy, here.settings)
        report = check_environment(
            package.target,
            arguments,
            python=trial.python,
            variables=passed,
            sandbox=confined,
            runtime=trial.runtime,
        )
        load = report.by_id("load.works")
        if load.status == "fail" and report.seconds > LONGEST_PROBE:
            raise LoadError(load.message)
        # An environment that needs a judge fails this check but loads in a worker, which can provide one.
        # For all other environments, the worker reports why loading failed.
        info = report.info or _load(package, trial, arguments, passed, confined)
        here.output.step = "check"
        for result in report.failed:
            here.output.warn(line_of(result))
        summary = summary_of(report)
        here.output.note(f"wander check: {summary.counts}")
        return _TrialResult(info, summary, trial.lock)


def _load(
    package: BuiltPackage,
    trial: Trial,
    arguments: dict[str, Any],
    passed: Iterable[str],
    policy: SandboxPolicy | None,
) -> EnvironmentInfo:
    """Load the environment in a worker and return its info. Raises `LoadError` with the cause."""
    import asyncio

    from wander.worker.host.environment import WorkerEnvironment

    from wander_client.environments.location import log_folder

    log = log_folder(current()) / f"import-{package.name}.log"
    log.unlink(missing_ok=True)

    async def load() -> EnvironmentInfo:
        environment = await WorkerEnvironment.start(
            trial.python,
            package.target,
            arguments=arguments,
            environ=passed,
            log_path=log,
            sandbox=policy,
            runtime=trial.runtime,
        )
        await environment.close()
        return environment.info

    return asyncio.run(load())


def _lock(owner: str | None, package: BuiltPackage, options: _ImportOptions) -> bytes | None:
    """Lock the packages of an environment. Returns None with a warning if they cannot be locked."""
    from wander_client.packages.built_package import find_published
    from wander_client.packages.lock import resolve_lock
    from wander_client.packages.needs import HUB_OWNER

    here = current()
    here.output.step = "install"
    with here.hub(login=not options.dry_run) as hub:
        if owner is not None and not options.dry_run and find_published(hub, owner, package)[1]:
            return None
        here.output.note("locking its packages")
        targets = here.settings.cache_dir, owner or HUB_OWNER, package.wheel.path
        try:
            return resolve_lock(hub, *targets, warn=here.output.warn).content
        except Unavailable:
            raise
        except ClientError as error:
            here.output.warn(f"published without a lock: {error}")
            return None


def _answer(
    converted: ConvertedProject,
    origin: PackageOrigin,
    package: BuiltPackage,
    trial_result: _TrialResult | None,
    owner: str | None,
    *,
    sent: bool,
    dry_run: bool,
) -> None:
    from packaging.utils import canonicalize_name

    here = current()
    name = canonicalize_name(converted.name)
    full = f"{owner}/{name}" if owner else name
    data = {
        "environment": full,
        "version": package.version,
        "library": converted.library,
        "generation": converted.generation,
        "kind": None if trial_result is None else trial_result.info.kind,
        "examples": None if trial_result is None else trial_result.info.eval_examples,
        "deterministic": None if trial_result is None else trial_result.info.deterministic,
        "entry_point": converted.target,
        "origin": asdict(origin),
        "written": converted.written,
        "check": None if trial_result is None else trial_result.check,
        "dry_run": dry_run,
        "sent": sent,
        "url": None if dry_run else f"{here.settings.hub}/{full}",
    }
    verb = "would publish" if dry_run else "published" if sent else "already published"
    here.output.answer(data, f"{verb} {full} {package.version}")
    if not dry_run:
        here.output.next(f"wander eval {full} --model ...")
