"""Publish a folder: build it, lock its packages, check the wheel as it will be installed, send all of it."""

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
    """How a folder is published."""

    owner: str | None = None
    """None means the only owner that it can be."""
    dry_run: bool = False
    """Build, check and tell, but send nothing."""
    private: bool = False
    internal: bool = False
    check: bool = True
    lock: bool = True
    exclude_newer: str | None = None
    keep_hosts: Collection[str] = ()
    attestations: Path | None = None
    """Folder with those of wheel and source."""
    allowed_files: Collection[str] = ()
    """Files and folders to publish although they look like secrets."""

    def __post_init__(self) -> None:
        if self.private and self.internal:
            raise UsageError("an environment is private or internal, not both", hint="pass one of them")

    @property
    def visibility(self) -> Visibility | None:
        """Who is to see what is new; None leaves it to the owner's settings."""
        return wanted_visibility(self.private or None, internal=self.internal)


@dataclass(frozen=True)
class PublishedFolder:
    """What came of publishing a folder. The files that were built are gone."""

    package: BuiltPackage
    owner: str | None
    """None after a dry run that named none."""
    published: Publication | None
    """None after a dry run."""
    check: CheckSummary | None
    lock: ResolvedLock | None

    @property
    def name(self) -> str:
        """`owner/name`, or the name alone without an owner."""
        name = canonicalize_name(self.package.name)
        return f"{self.owner}/{name}" if self.owner else name


def publish_folder(
    context: Invocation, given: Path, wishes: PublishOptions, builder: Builder
) -> PublishedFolder:
    """Publish a folder and tell the steps; raises `ClientError`, and then nothing of it is visible.

    What `builder` confines is checked in the same sandbox.

    A version never changes: publishing the same bytes again is fine, other bytes need another version.
    """
    folder, output = given.expanduser().resolve(), context.output
    if not folder.is_dir():
        raise NotFound(f"the folder `{given}` does not exist", hint="`wander new NAME` makes an environment")
    name = built_package.require_project(folder)["name"]
    under = wishes.owner
    if not wishes.dry_run:  # the token is checked before anything is built
        with context.hub(login=True, publishes=(wishes.owner, name)) as hub:
            under = choose_owner(hub, wishes.owner)
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
        require_no_leaks(context, folder, package, wishes.allowed_files)
        to_send = True
        if under is not None and not wishes.dry_run:  # before the seconds that a check takes
            with context.hub(login=True) as hub:
                to_send = not built_package.find_published(hub, under, package)[1]
        lock = check = published = None
        if under is not None and not wishes.dry_run and to_send and wishes.lock:
            lock = _lock(context, package, under, wishes)
        if to_send and wishes.check:
            check = _check(
                context, package, under or HUB_OWNER, given, lock, builder.policy, dry_run=wishes.dry_run
            )
        if under is not None and not wishes.dry_run:
            place = wishes.attestations
            signed = None if place is None else built_package.attestations_in(place, package)
            published = _send(context, package, under, check, lock, signed, seen_by=wishes.visibility)
    return PublishedFolder(package, under, published, check, lock)


def require_no_leaks(
    context: Invocation, folder: Path, package: BuiltPackage, allowed: Collection[str]
) -> None:
    """Raise `ClientError` for a package with files that must not be published, such as keys."""
    from wander_client.packages.building import leaks

    values = leaks.secret_variables()
    if (credential := context.credential()) is not None:
        values["the token of your hub"] = credential.token
    archives = package.wheel.path, package.sdist.path
    leaks.require_no_leaks(folder, *archives, allowed=allowed, values=values)


def choose_owner(hub: HubApi, wanted: str | None) -> str:
    """Return the owner to publish under: the one that is named, or the only one that it can be.

    Raises `NotFound` for an owner that there is not, `ClientError` for one under whom the caller may not.
    """
    who = hub.whoami()
    if wanted is not None:
        owner = wanted.lower()
        if owner not in who.owners:  # which lists not all under whom an administrator may
            try:
                hub.read(target_path(owner, "members"), MemberList)
            except ClientError as error:
                if error.code != "not_permitted":
                    raise
            if not who.admin:
                raise ClientError(
                    f"`{who.user}` may not publish under `{owner}`",
                    hint=f"you may publish under {', '.join(f'`{one}`' for one in who.owners) or 'nobody'}",
                    code="not_permitted",
                )
        return owner
    if who.user in who.owners or len(who.owners) == 1:
        return who.user if who.user in who.owners else who.owners[0]
    raise UsageError(
        f"`{who.user}` may publish under {len(who.owners)} owners",
        hint="choose one with " + name_option("owner", "NAME"),
    )


def _lock(context: Invocation, package: BuiltPackage, owner: str, wishes: PublishOptions) -> ResolvedLock:
    """Resolve every package that the environment will run with."""
    from wander_client.packages.lock import resolve_lock

    context.output.note("locking the packages that it runs with")
    with context.hub() as hub:
        return resolve_lock(
            hub,
            context.settings.cache_dir,
            owner,
            package.wheel.path,
            exclude_newer=wishes.exclude_newer,
            keep_hosts=wishes.keep_hosts,
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
    """Check what is about to be sent and show the outcome in one line, with one more for each warning."""
    from wander.checks import check_environment

    from wander_client.packages.install import try_out

    output = context.output
    output.note(f"installing and checking {package.wheel.path.name}, which takes a few seconds")
    settings = context.settings
    with ExitStack() as stack:
        hub = stack.enter_context(context.hub())
        content = lock.content if lock is not None else None
        places = VirtualEnvironments(settings.data_dir), settings.cache_dir
        trial = try_out(hub, *places, owner, package.wheel.path, output.warn, content)
        try:
            tried = stack.enter_context(trial)
        except Unavailable as error:
            if not dry_run:
                raise
            output.warn(f"{error}; the folder is checked in place of the installed wheel")
            folder = given.expanduser().resolve()
            python = python_of(folder, settings.data_dir, output.note)
            runtime = runtime_of(python) if python != Path(sys.executable) else None
            report = check_environment(folder, python=python, sandbox=policy, runtime=runtime)
        else:
            report = check_environment(
                package.target, python=tried.python, sandbox=policy, runtime=tried.runtime
            )
    built_package.require_sound(report, package, given)
    for each in report.checks:
        if each.status == "warn":
            output.warn(built_package.line_of(each))
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
    """Send what the hub lacks and make all of it visible."""
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
        output.note(f"{published.resumed_bytes:,} bytes were there from an earlier attempt")
    return published
