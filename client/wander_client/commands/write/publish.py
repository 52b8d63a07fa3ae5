"""`wander publish`: build an environment and publish it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wander_client.commands.write.lock import ExcludeNewer, KeepHosts
from wander_client.context import current
from wander_client.errors import Interrupted, NotFound, Unavailable, UsageError

if TYPE_CHECKING:
    from wander.wire import CheckSummary
    from wander.wire.changes import Whoami

    from wander_client.hub.transfer import Publication
    from wander_client.packages.lock import ResolvedLock
    from wander_client.packages.publish import BuiltPackage

SHOWN_FILES = 30
_KIB = 1024
TOLD_BY_THE_BUILD = {"package.license", "package.sdk"}
"""Checks whose warnings were given when the wheel was read."""


def publish(
    path: Annotated[Path, typer.Argument(help="the environment's folder")] = Path(),
    owner: Annotated[str | None, typer.Option(help="publish under this owner")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="build, check and show, but send nothing")
    ] = False,
    private: Annotated[
        bool, typer.Option("--private", help="make a new environment visible only to those with a role")
    ] = False,
    no_check: Annotated[bool, typer.Option("--no-check", help="publish without `wander check`")] = False,
    no_lock: Annotated[bool, typer.Option("--no-lock", help="publish without locking its packages")] = False,
    exclude_newer: ExcludeNewer = None,
    keep_host: KeepHosts = None,
    attestations: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="folder with signed attestations of wheel and source (PEP 740)"),
    ] = None,
) -> None:
    """Build an environment, check it and upload it.

    \b
    wander publish ./wordle --dry-run
    wander publish ./wordle
    wander publish ./wordle --owner acme --json

    Wheel, source archive and lock become visible together, or none does. An upload that broke off goes on
    when the command is run again.

    Versions never change: the same bytes again are fine, other bytes need a new version. What `wander
    check` faults is not published; the environment's page says what it found, or that nothing was checked.
    Every package that it runs with is locked by its digest, so that later installations are the same. What
    is checked is the wheel, installed with that lock into a virtual environment of its own.
    """
    from wander_client.packages import publish as publishing
    from wander_client.packages.needs import HUB_OWNER

    here = current()
    folder = path.expanduser().resolve()
    if not folder.is_dir():
        raise NotFound(f"the folder `{path}` does not exist", hint="`wander new NAME` makes an environment")
    name = publishing.require_project(folder)["name"]
    under = owner
    if not dry_run:  # the token is checked before anything is built
        with here.hub(login=True, publishes=(owner, name)) as hub:
            under = choose_owner(owner, hub.whoami())
    here.output.note(f"building {folder.name}")
    with publishing.build_package(folder) as package:
        for warning in package.warnings:
            here.output.warn(warning)
        here.output.note(f"{package.name} {package.version}")
        for name, size in sorted(package.members)[:SHOWN_FILES]:
            here.output.note(f"  {size:>9,}  {name}")
        if len(package.members) > SHOWN_FILES:
            here.output.note(f"  ... and {len(package.members) - SHOWN_FILES} more files")
        to_send = True
        if under is not None and not dry_run:  # before the seconds that a check takes
            with here.hub(login=True) as hub:
                to_send = not publishing.find_published(hub, under, package)[1]
        lock = None
        if under is not None and not dry_run and to_send and not no_lock:
            lock = _lock(package, under, exclude_newer, keep_host or [])
        check = None
        if to_send and not no_check:
            check = _check(package, under or HUB_OWNER, folder, path, lock, dry_run=dry_run)
        published = None
        if under is not None and not dry_run:
            signed = None if attestations is None else publishing.attestations_in(attestations, package)
            published = _publish(package, under, check, lock, signed, private=private)
        _answer(package, under, published, check, lock, dry_run=dry_run)


def _publish(
    package: BuiltPackage,
    owner: str,
    check: CheckSummary | None,
    lock: ResolvedLock | None,
    attestations: Mapping[str, list[dict[str, Any]]] | None,
    *,
    private: bool,
) -> Publication:
    """Send what the hub lacks and make all of it visible."""
    from wander_client.packages.publish import upload

    output = current().output
    total = package.wheel.size + package.sdist.size
    output.note(f"uploading to {current().settings.hub}")
    with (
        current().hub(login=True) as hub,
        output.progress("uploading", -(-total // _KIB), unit="KiB") as progress,
    ):

        def told(done: int, of: int) -> None:
            progress.total = -(-of // _KIB)
            progress.update(-(-done // _KIB))

        try:
            published = upload(
                hub,
                owner,
                package,
                check,
                lock=lock.content if lock is not None else None,
                private=private,
                attestations=attestations,
                warn=output.warn,
                told=told,
            )
        except KeyboardInterrupt:
            hint = "the same command goes on where this one stopped"
            raise Interrupted("interrupted; nothing of it is visible yet", hint=hint) from None
    if published.resumed_bytes:
        output.note(f"{published.resumed_bytes:,} bytes were there from an earlier attempt")
    return published


def choose_owner(wanted: str | None, who: Whoami) -> str:
    """Return the owner to publish under: the one that is named, or the only one that it can be."""
    if wanted is not None:
        return wanted.lower()
    if who.user in who.owners or len(who.owners) == 1:
        return who.user if who.user in who.owners else who.owners[0]
    raise UsageError(
        f"`{who.user}` may publish under {len(who.owners)} owners", hint="choose one with `--owner NAME`"
    )


def _check(
    package: BuiltPackage, owner: str, folder: Path, given: Path, lock: ResolvedLock | None, *, dry_run: bool
) -> CheckSummary:
    """Check what is about to be sent and show the outcome in one line, with one more for each warning."""
    from wander.checks import check_environment

    from wander_client.packages.install import try_out
    from wander_client.packages.publish import line_of, require_sound, summary_of

    here = current()
    output = here.output
    output.note(f"installing and checking {package.wheel.path.name}, which takes a few seconds")
    with tempfile.TemporaryDirectory(prefix="wander-try-") as work, here.hub() as hub:
        content = lock.content if lock is not None else None
        wheel, cache_dir = package.wheel.path, here.settings.cache_dir
        try:
            python, _ = try_out(hub, cache_dir, Path(work), owner, wheel, output.warn, content)
        except Unavailable as error:
            if not dry_run:
                raise
            output.warn(f"{error}; the folder is checked in place of the installed wheel")
            report = check_environment(folder)
        else:
            report = check_environment(package.target, python=python)
    require_sound(report, package, given)
    for each in report.checks:
        if each.status == "warn" and each.id not in TOLD_BY_THE_BUILD:
            output.warn(line_of(each))
    summary = summary_of(report)
    output.note(f"wander check: {summary.counts}")
    return summary


def _lock(package: BuiltPackage, owner: str, exclude_newer: str | None, hosts: list[str]) -> ResolvedLock:
    """Resolve every package that the environment will run with."""
    from wander_client.packages.lock import resolve_lock

    here = current()
    here.output.note("locking the packages that it runs with")
    with here.hub() as hub:
        return resolve_lock(
            hub,
            here.settings.cache_dir,
            owner,
            package.wheel.path,
            exclude_newer=exclude_newer,
            keep_hosts=hosts,
            warn=here.output.warn,
        )


def _answer(
    package: BuiltPackage,
    owner: str | None,
    published: Publication | None,
    check: CheckSummary | None,
    lock: ResolvedLock | None,
    *,
    dry_run: bool,
) -> None:
    from packaging.utils import canonicalize_name

    here = current()
    name = f"{owner}/{canonicalize_name(package.name)}" if owner else canonicalize_name(package.name)
    files = [package.wheel, package.sdist]
    sent = published.sent if published is not None else frozenset()
    source = published.version.source if published is not None else None
    data: dict[str, Any] = {
        "environment": name,
        "version": package.version,
        "hub": here.settings.hub,
        "dry_run": dry_run,
        "files": [
            {
                "filename": file.path.name,
                "kind": file.kind,
                "size": file.size,
                "sha256": file.sha256,
                "sent": file.path.name in sent,
            }
            for file in files
        ],
        "members": [{"path": path, "size": size} for path, size in package.members],
        "check": check,
        "source": source or {"tree_sha256": package.tree_sha256},
        "resumed_bytes": published.resumed_bytes if published is not None else 0,
        "lock": None
        if lock is None
        else {"sha256": lock.sha256, "packages": lock.packages, "everywhere": lock.everywhere},
        "url": f"{here.settings.hub}/{name}" if owner else None,
    }
    verb = "would publish" if dry_run else "published" if sent else "already published"
    lines = [f"{verb} {name} {package.version}"]
    lines += [f"  {file.path.name}  {file.size:,} bytes  sha256:{file.sha256}" for file in files]
    lines.append(f"  source tree  sha256:{package.tree_sha256}")
    if lock is not None:
        lines.append(f"  pylock.toml  {lock.packages} packages  sha256:{lock.sha256}")
    here.output.answer(data, "\n".join(lines))
    if not dry_run:
        here.output.note(f"{here.settings.hub}/{name}")
        here.output.next(f"wander install {name}")
