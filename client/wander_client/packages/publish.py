"""Publish a folder: build it, lock its packages, check the wheel after installing it, and upload."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name
from wander.wire import CheckSummary
from wander.wire.changes import MemberList
from wander.wire.environments import Visibility, wanted_visibility

from wander_client.errors import ClientError, NotFound, Unavailable, UsageError, name_option
from wander_client.hub.api import HubApi
from wander_client.names import target_path
from wander_client.packages import built_package
from wander_client.packages.built_package import BuiltPackage
from wander_client.packages.folder import python_of
from wander_client.packages.needs import HUB_OWNER
from wander_client.packages.virtualenvs import VirtualEnvironments, runtime_of

if TYPE_CHECKING:
    from wander.sandbox import SandboxPolicy

    from wander_client.context import Invocation
    from wander_client.hub.transfer import Publication
    from wander_client.packages.building.build import Builder
    from wander_client.packages.lock import ResolvedLock

SHOWN_FILES = 30
_KIB = 1024


@dataclass(frozen=True)
class PublishOptions:
    """The options for publishing a folder."""

    owner: str | None = None
    """Owner to publish under; None means the only possible owner."""
    dry_run: bool = False
    """Whether to build, check and show the package without uploading it."""
    private: bool = False
    internal: bool = False
    check: bool = True
    lock: bool = True
    exclude_newer: str | None = None
    keep_hosts: Collection[str] = ()
    attestations: Path | None = None
    """Folder with the attestations of the wheel and the source distribution."""
    allowed_files: Collection[str] = ()
    """Files and folders to publish even if they look like secrets."""

    def __post_init__(self) -> None:
        if self.private and self.internal:
            raise UsageError(
                "an environment cannot be both private and internal", hint="pass only one of them"
            )

    @property
    def visibility(self) -> Visibility | None:
        """Visibility of a new environment; None means the owner's setting."""
        return wanted_visibility(self.private or None, internal=self.internal)


@dataclass(frozen=True)
class PublishedFolder:
    """The result of publishing a folder. The built files have been removed."""

    package: BuiltPackage
    owner: str | None
    """Owner, or None after a dry run without an owner."""
    published: Publication | None
    """Result of the upload, or None after a dry run."""
    check: CheckSummary | None
    lock: ResolvedLock | None

    @property
    def name(self) -> str:
        """`owner/name`, or only the name without an owner."""
        name = canonicalize_name(self.package.name)
        return f"{self.owner}/{name}" if self.owner else name


def publish_folder(
    context: Invocation, given: Path, options: PublishOptions, builder: Builder
) -> PublishedFolder:
    """Publish a folder and report the steps. Raises `ClientError`, after which nothing of it is visible.

    Everything that `builder` runs in a sandbox is also checked in this sandbox.
    Published versions never change: publishing the same files again does nothing, changed files need a new
    version.
    """
    folder, output = given.expanduser().resolve(), context.output
    if not folder.is_dir():
        raise NotFound(
            f"the folder `{given}` does not exist", hint="run `wander new NAME` to create an environment"
        )
    name = built_package.require_project(folder)["name"]
    target_owner = options.owner
    if not options.dry_run:  # the token is checked before anything is built
        with context.hub(login=True, publishes=(options.owner, name)) as hub:
            target_owner = choose_owner(hub, options.owner)
    output.note(f"building {folder.name}")
    with built_package.build_package(folder, builder) as package:
        for warning in package.warnings:
            output.warn(warning)
        output.note(f"{package.name} {package.version}")
        for file, members in ((package.wheel, package.members), (package.sdist, package.source_members)):
            output.note(f"{file.path.name}:")
            for name, size in sorted(members)[:SHOWN_FILES]:
                output.note(f"  {size:>9,}  {name}")
            if len(members) > SHOWN_FILES:
                output.note(f"  ... and {len(members) - SHOWN_FILES} more files")
        require_no_leaks(context, folder, package, options.allowed_files)
        to_send = True
        if target_owner is not None and not options.dry_run:  # before the check, which takes seconds
            with context.hub(login=True) as hub:
                to_send = not built_package.find_published(hub, target_owner, package)[1]
        lock = check = published = None
        if target_owner is not None and not options.dry_run and to_send and options.lock:
            lock = _lock(context, package, target_owner, options)
        if to_send and options.check:
            check = _check(
                context,
                package,
                target_owner or HUB_OWNER,
                given,
                lock,
                builder.policy,
                dry_run=options.dry_run,
            )
        if target_owner is not None and not options.dry_run:
            attestations_dir = options.attestations
            signed = (
                None if attestations_dir is None else built_package.attestations_in(attestations_dir, package)
            )
            published = _send(context, package, target_owner, check, lock, signed, seen_by=options.visibility)
    return PublishedFolder(package, target_owner, published, check, lock)


def require_no_leaks(
    context: Invocation, folder: Path, package: BuiltPackage, allowed: Collection[str]
) -> None:
    """Raise `ClientError` if a package contains files that must not be published, such as keys."""
    from wander_client.packages.building import leaks

    values = leaks.secret_variables()
    if (credential := context.credential()) is not None:
        values["the token of your hub"] = credential.token
    archives = package.wheel.path, package.sdist.path
    leaks.require_no_leaks(folder, *archives, allowed=allowed, values=values)


def choose_owner(hub: HubApi, wanted: str | None) -> str:
    """Return the owner to publish under: the named owner, or the only possible owner.

    Raises `NotFound` for an unknown owner, and `ClientError` if the caller may not publish under it.
    """
    who = hub.whoami()
    if wanted is not None:
        owner = wanted.lower()
        if owner not in who.owners:  # does not list every owner of an administrator
            try:
                hub.read(target_path(owner, "members"), MemberList)
            except ClientError as error:
                if error.code != "not_permitted":
                    raise
            if not who.admin:
                raise ClientError(
                    f"`{who.user}` cannot publish under `{owner}`",
                    hint="you can publish under "
                    f"{', '.join(f'`{name}`' for name in who.owners) or 'no owner'}",
                    code="not_permitted",
                )
        return owner
    if who.user in who.owners or len(who.owners) == 1:
        return who.user if who.user in who.owners else who.owners[0]
    raise UsageError(
        f"`{who.user}` can publish under {len(who.owners)} owners",
        hint="choose one with " + name_option("owner", "NAME"),
    )


def _lock(context: Invocation, package: BuiltPackage, owner: str, options: PublishOptions) -> ResolvedLock:
    """Lock every package that the environment needs."""
    from wander_client.packages.lock import resolve_lock

    context.output.note("locking its packages")
    with context.hub() as hub:
        return resolve_lock(
            hub,
            context.settings.cache_dir,
            owner,
            package.wheel.path,
            exclude_newer=options.exclude_newer,
            keep_hosts=options.keep_hosts,
            warn=context.output.warn,
        )


def _check(
    context: Invocation,
    package: BuiltPackage,
    owner: str,
    given: Path,
    lock: ResolvedLock | None,
    policy: SandboxPolicy | None,
    *,
    dry_run: bool,
) -> CheckSummary:
    """Check the package that will be uploaded, and show the result with its warnings."""
    from wander.checks import check_environment

    from wander_client.packages.install import try_out

    output = context.output
    output.note(f"installing and checking {package.wheel.path.name}, which takes a few seconds")
    settings = context.settings
    with ExitStack() as stack:
        hub = stack.enter_context(context.hub())
        content = lock.content if lock is not None else None
        folders = VirtualEnvironments(settings.data_dir), settings.cache_dir
        trial = try_out(hub, *folders, owner, package.wheel.path, output.warn, content)
        try:
            tried = stack.enter_context(trial)
        except Unavailable as error:
            if not dry_run:
                raise
            output.warn(f"{error}; checking the folder instead of the installed wheel")
            folder = given.expanduser().resolve()
            python = python_of(folder, settings.data_dir, output.note)
            runtime = runtime_of(python) if python != Path(sys.executable) else None
            report = check_environment(folder, python=python, sandbox=policy, runtime=runtime)
        else:
            report = check_environment(
                package.target, python=tried.python, sandbox=policy, runtime=tried.runtime
            )
    built_package.require_sound(report, package, given)
    for result in report.checks:
        if result.status == "warn":
            output.warn(built_package.line_of(result))
    summary = built_package.summary_of(report)
    output.note(f"wander check: {summary.counts}")
    return summary


def _send(
    context: Invocation,
    package: BuiltPackage,
    owner: str,
    check: CheckSummary | None,
    lock: ResolvedLock | None,
    attestations: Mapping[str, list[dict[str, Any]]] | None,
    *,
    seen_by: Visibility | None,
) -> Publication:
    """Upload the missing files, and make the version visible."""
    output = context.output
    total = package.wheel.size + package.sdist.size
    output.note(f"uploading to {context.settings.hub}")
    with (
        context.hub(login=True) as hub,
        output.progress("uploading", -(-total // _KIB), unit="KiB") as progress,
    ):

        def told(done: int, of: int) -> None:
            progress.total = -(-of // _KIB)
            progress.update(-(-done // _KIB))

        published = built_package.upload(
            hub,
            owner,
            package,
            check,
            lock=lock.content if lock is not None else None,
            visibility=seen_by,
            attestations=attestations,
            warn=output.warn,
            told=told,
        )
    if published.resumed_bytes:
        output.note(f"{published.resumed_bytes:,} bytes were already uploaded by an earlier attempt")
    return published
