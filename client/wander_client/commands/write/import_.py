"""`wander env import`: bring in what others have: environments, and results of evaluations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from wander_client.errors import ClientError, Unavailable, UsageError
from wander_client.names import parse_name
from wander_client.terminal.command import Argument, CommandGroup, Option

if TYPE_CHECKING:
    from wander.sandbox import SandboxPolicy
    from wander.types import EnvironmentInfo
    from wander.wire import CheckSummary

    from wander_client.packages.building.build import Builder
    from wander_client.packages.built_package import BuiltPackage
    from wander_client.packages.install import Trial
    from wander_client.packages.origins.conversion import ConvertedProject
    from wander_client.packages.origins.source import PackageOrigin

app = CommandGroup("Bring in environments and results of other libraries.")


@dataclass(frozen=True)
class _Wishes:
    """The options of an import."""

    owner: Annotated[str | None, Option(help="publish under this owner")] = None
    out: Annotated[Path | None, Option(help="keep the completed project in this folder")] = None
    entry_point: Annotated[
        str | None, Option("--entry-point", help="MODULE:FUNCTION, if there are several")
    ] = None
    argument: Annotated[
        list[str] | None, Option("-a", "--arg", help="argument to load it with: KEY=VALUE")
    ] = None
    pass_env: Annotated[
        list[str] | None, Option("--pass-env", help="variable that it may see when loaded and checked")
    ] = None
    dry_run: Annotated[bool, Option("--dry-run", help="do everything but publish")] = False
    build: BuildFlag = False
    sandbox: SandboxFlag = None
    sandbox_limit: SandboxLimits = None
    no_check: Annotated[bool, Option("--no-check", help="do not install, load or check it")] = False
    allow_file: AllowFile = None


@dataclass(frozen=True)
class _Many:
    """How many packages are imported."""

    report: Annotated[Path, Option(help="of many: JSON lines; what it has is passed over")] = Path(
        "imports.jsonl"
    )
    jobs: Annotated[int, Option("-j", "--jobs", help="of many: imports at once", min=1)] = 2


@app.command()
def path(
    source: Annotated[str, Argument(help="a folder, an sdist or a wheel")],
    wishes: _Wishes,
    many: _Many,
    every: Annotated[bool, Option("--all", help="import every package in the folder")] = False,
) -> int | None:
    """Make a package of this machine an environment of the hub, its code as it is.

    \b
    wander env import path ./wordle --dry-run
    wander env import path sophistry_bench_sprint-0.1.6-py3-none-any.whl --owner acme
    wander env import path ./environments --all --jobs 4 --report imports.jsonl

    Works out which library and generation it is written for and writes what is missing into a copy (entry
    point, build system, dependency, README, a note of origin). Builds it, installs it into a virtual
    environment of its own, loads and checks it there, and publishes it with what the check found.
    With `--all` the report tells where each one failed; the same line again goes on and tries those again.
    """
    from wander_client.packages.origins.source import bring_project

    if every:
        from wander_client.commands.write.import_many import candidates_in, import_many

        found = candidates_in(Path(source))
        return import_many(found, wishes.owner, _options_of(wishes), many.report, many.jobs)
    _import(lambda work, builder: bring_project(source, work, builder), wishes)
    return None


@app.command()
def git(
    url: Annotated[str, Argument(help="URL[@REVISION][#subdirectory=FOLDER]")],
    wishes: _Wishes,
) -> None:
    """Make a package of a git repository an environment of the hub; as `wander env import path` does.

    \b
    wander env import git https://example.org/envs.git@v1.2#subdirectory=environments/wordle --dry-run
    wander env import git git@example.org:team/envs.git --owner acme

    One revision is fetched (branch, tag or commit), without submodules, hooks and filters.
    """
    from wander_client.packages.origins.git import clone_project

    _import(lambda work, builder: clone_project(url, work, builder), wishes)


@app.command()
def prime(
    name: Annotated[str, Argument(help="OWNER/NAME[@VERSION], or what `prime env pull` wrote")],
    wishes: _Wishes,
) -> None:
    """Make an environment of Prime Intellect's hub one of this hub; as `wander env import path` does.

    \b
    wander env import prime will/wordle --dry-run
    wander env import prime ./environments/wordle --owner acme

    Public environments need no key; `PRIME_API_KEY` is sent to their hub where it is set.
    """
    from wander_client.packages.origins.prime import fetch_environment

    _import(lambda work, builder: fetch_environment(name, work, builder), wishes)


@app.command()
def results(
    folder: Annotated[Path, Argument(help="the folder of one evaluation")],
    environment: Annotated[
        str | None, Option(help="owner/name[@version] that was evaluated, to post the run")
    ] = None,
    out: Annotated[Path | None, Option(help="the run folder to write")] = None,
) -> None:
    """Turn results of verifiers into a run folder.

    \b
    wander env import results outputs/evals/my-env--gpt-5/1a2b3c4d
    wander env import results ./old --environment acme/my-env@1.2.0 --out runs/old

    Reads `metadata.json` with `results.jsonl`, in both of their schemas, and `traces.jsonl` of verifiers.v1.
    Failed rollouts have no reward, whatever the file says. A posted run of this kind counts as claimed.
    """
    from wander.evals.foreign_run import import_results

    from wander_client.packages.install import exact_version

    here = current()
    published = None
    if environment is not None:
        with here.hub() as hub:
            published = exact_version(hub, parse_name(environment))
    source = folder.expanduser().resolve()
    target = out or here.settings.runs_dir / f"imported-{source.name}"
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
    here.output.answer(data, "\n".join(lines))
    here.output.next(f"wander post {target}" if known else f"wander view {target}")


def _options_of(wishes: _Wishes) -> list[str]:
    """Return the options of one import of many; raises `UsageError` for those that are of one alone."""
    if wishes.out is not None or wishes.entry_point is not None or wishes.argument:
        raise UsageError(
            "`--out`, `--entry-point` and `--arg` are for one package", hint="import that one by itself"
        )
    passed = [word for name in wishes.pass_env or [] for word in ("--pass-env", name)]
    passed += [word for name in wishes.allow_file or [] for word in ("--allow-file", name)]
    passed += [word for limit in wishes.sandbox_limit or [] for word in ("--sandbox-limit", limit)]
    chosen = {
        "--dry-run": wishes.dry_run,
        "--no-check": wishes.no_check,
        "--build": wishes.build,
        "--sandbox": wishes.sandbox is True,
        "--no-sandbox": wishes.sandbox is False,
    }
    return [*(option for option, is_set in chosen.items() if is_set), *passed]


@dataclass(frozen=True)
class _Tried:
    """What loading and checking a package in its own virtual environment told."""

    info: EnvironmentInfo
    check: CheckSummary
    lock: str


def _import(bring: Callable[[Path, Builder], tuple[Path, PackageOrigin]], wishes: _Wishes) -> None:
    """Bring a package, complete it, build it, try it out, publish it."""
    import shutil
    import tempfile

    from wander_client.packages.built_package import build_package, upload
    from wander_client.packages.needs import HUB_OWNER
    from wander_client.packages.origins.conversion import convert_project
    from wander_client.packages.publish import choose_owner, require_no_leaks

    here = current()
    policy = policy_for_import(here, wishes.sandbox, wishes.sandbox_limit)
    allow_builds(here, wishes.build, None if wishes.sandbox is False else policy)
    builder = builder_of(here, policy)
    owner, importer = wishes.owner, None
    if not wishes.dry_run:  # the token is checked before anything is fetched
        with here.hub(login=True) as hub:
            owner, importer = choose_owner(hub, wishes.owner), hub.whoami().user
    here.output.step = "convert"
    if wishes.out is not None and wishes.out.exists() and any(wishes.out.iterdir()):
        raise ClientError(f"`{wishes.out}` is not empty", hint="choose another folder")
    with tempfile.TemporaryDirectory(prefix="wander-import-") as work:
        folder, origin = bring(Path(work), builder)
        origin = replace(origin, importer=importer)
        converted = convert_project(folder, origin, wishes.entry_point)
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
            require_no_leaks(here, converted.folder, package, wishes.allow_file or [])
            lock = None if wishes.no_check and wishes.dry_run else _lock(owner, package, wishes)
            tried = None if wishes.no_check else _try(package, wishes, owner or HUB_OWNER, lock, policy)
            if wishes.out is not None:
                shutil.copytree(converted.folder, wishes.out, dirs_exist_ok=True)
                if tried is not None:
                    (wishes.out / "pylock.toml").write_text(tried.lock, encoding="utf-8")
                here.output.note(f"kept in {wishes.out}")
            sent: frozenset[str] = frozenset()
            if owner is not None and not wishes.dry_run:
                here.output.step = "publish"
                here.output.note(f"uploading to {here.settings.hub}")
                with here.hub(login=True) as hub:
                    check = None if tried is None else tried.check
                    sent = upload(hub, owner, package, check, lock=lock, warn=here.output.warn).sent
            _answer(converted, origin, package, tried, owner, sent=bool(sent), dry_run=wishes.dry_run)


def _try(
    package: BuiltPackage, wishes: _Wishes, owner: str, lock: bytes | None, policy: SandboxPolicy | None
) -> _Tried:
    """Install a built package into a virtual environment of its own, load it there and check it."""
    import os

    from wander.checks import check_environment
    from wander.checks.engine import LONGEST_PROBE
    from wander.errors import LoadError

    from wander_client.environments.location import parse_arguments
    from wander_client.packages.built_package import line_of, summary_of
    from wander_client.packages.install import try_out
    from wander_client.packages.virtualenvs import VirtualEnvironments

    here = current()
    arguments = parse_arguments(wishes.argument or [], None)
    places = VirtualEnvironments(here.settings.data_dir), here.settings.cache_dir
    here.output.step = "install"
    here.output.note("installing it into a virtual environment of its own")
    with (
        here.hub() as hub,
        try_out(hub, *places, owner, package.wheel.path, here.output.warn, lock) as trial,
    ):
        here.output.step = "load"
        here.output.note("loading and checking it: it is played twice, for at most 5 minutes each")
        passed = {name: os.environ[name] for name in wishes.pass_env or [] if name in os.environ}
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
        # What does not load may still do so in a worker, which has a judge at hand, or it says why not.
        info = report.info or _load(package, trial, arguments, passed, confined)
        here.output.step = "check"
        for each in report.failed:
            here.output.warn(line_of(each))
        summary = summary_of(report)
        here.output.note(f"wander check: {summary.counts}")
        return _Tried(info, summary, trial.lock)


def _load(
    package: BuiltPackage,
    trial: Trial,
    arguments: dict[str, Any],
    passed: Iterable[str],
    policy: SandboxPolicy | None,
) -> EnvironmentInfo:
    """Return what an environment says of itself in a worker; raises `LoadError` with the true cause."""
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


def _lock(owner: str | None, package: BuiltPackage, wishes: _Wishes) -> bytes | None:
    """Lock what it runs with; a package of somebody else's is published also where that cannot be done."""
    from wander_client.packages.built_package import find_published
    from wander_client.packages.lock import resolve_lock
    from wander_client.packages.needs import HUB_OWNER

    here = current()
    here.output.step = "install"
    with here.hub(login=not wishes.dry_run) as hub:
        if owner is not None and not wishes.dry_run and find_published(hub, owner, package)[1]:
            return None
        here.output.note("locking the packages that it runs with")
        places = here.settings.cache_dir, owner or HUB_OWNER, package.wheel.path
        try:
            return resolve_lock(hub, *places, warn=here.output.warn).content
        except Unavailable:
            raise
        except ClientError as error:
            here.output.warn(f"it gets no lock: {error}")
            return None


def _answer(
    converted: ConvertedProject,
    origin: PackageOrigin,
    package: BuiltPackage,
    tried: _Tried | None,
    owner: str | None,
    *,
    sent: bool,
    dry_run: bool,
) -> None:
    from dataclasses import asdict

    from packaging.utils import canonicalize_name

    here = current()
    name = canonicalize_name(converted.name)
    full = f"{owner}/{name}" if owner else name
    data = {
        "environment": full,
        "version": package.version,
        "library": converted.library,
        "generation": converted.generation,
        "kind": None if tried is None else tried.info.kind,
        "examples": None if tried is None else tried.info.eval_examples,
        "deterministic": None if tried is None else tried.info.deterministic,
        "entry_point": converted.target,
        "origin": asdict(origin),
        "written": converted.written,
        "check": None if tried is None else tried.check,
        "dry_run": dry_run,
        "sent": sent,
        "url": None if dry_run else f"{here.settings.hub}/{full}",
    }
    verb = "would publish" if dry_run else "published" if sent else "already published"
    here.output.answer(data, f"{verb} {full} {package.version}")
    if not dry_run:
        here.output.next(f"wander eval {full} --model ...")
