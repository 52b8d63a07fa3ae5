"""`wander publish`: build, check and upload an environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from wander_client.context import current
from wander_client.environments.sandbox import (
    BuildFlag,
    SandboxFlag,
    SandboxLimits,
    allow_builds,
    builder_of,
    choose_policy,
)
from wander_client.errors import Interrupted
from wander_client.terminal.command import Argument, Option, refuse_options, require_date

if TYPE_CHECKING:
    from wander_client.packages.publish import PublishedFolder


AllowFile = Annotated[
    list[str] | None,
    Option(
        "--allow-file", metavar="NAME", help="publish this file even if it looks like a secret; repeatable"
    ),
]
ExcludeNewer = Annotated[
    str | None,
    Option(
        "--exclude-newer",
        metavar="DATE",
        help="ignore packages that were uploaded after this time",
        callback=require_date,
    ),
]
KeepHosts = Annotated[
    list[str] | None,
    Option(
        "--keep-host",
        metavar="HOST",
        help="keep the URLs of files on this host in the lock, instead of writing PyPI's; repeatable",
    ),
]


def publish(
    path: Annotated[Path, Argument(help="folder of the environment")] = Path(),
    owner: Annotated[str | None, Option(help="publish under this owner")] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="build, check and show the package without uploading it")
    ] = False,
    private: Annotated[
        bool, Option("--private", help="make a new environment visible only to its members")
    ] = False,
    internal: Annotated[
        bool, Option("--internal", help="make a new environment visible only to signed-in users")
    ] = False,
    no_check: Annotated[bool, Option("--no-check", help="publish without `wander check`")] = False,
    no_lock: Annotated[bool, Option("--no-lock", help="publish without a lock")] = False,
    exclude_newer: ExcludeNewer = None,
    keep_host: KeepHosts = None,
    build: BuildFlag = False,
    sandbox: SandboxFlag = None,
    sandbox_limit: SandboxLimits = None,
    attestations: Annotated[
        Path | None,
        Option(metavar="DIR", help="folder with signed attestations of the wheel and the sdist (PEP 740)"),
    ] = None,
    allow_file: AllowFile = None,
) -> None:
    """Build, check and upload an environment.

    \b
    wander publish ./wordle --dry-run
    wander publish ./wordle
    wander publish ./wordle --owner acme --json

    The wheel, the sdist and the lock become visible together, after all of them have arrived. Run the command
    again to resume an interrupted upload.

    Files that look like keys, tokens, credentials, runs or caches are rejected, and so are files that git
    ignores. Published versions never change. Publishing the same files again does nothing; changed files need
    a new version.

    The check runs on the wheel, installed with the lock into its own virtual environment. Environments that
    fail `wander check` are not published. The environment's page shows the results of the check,
    or that the check was skipped. The lock pins every package by its digest, so that later installations are
    the same.
    """
    from wander_client.packages.publish import PublishOptions, publish_folder

    here = current()
    policy = choose_policy(sandbox, sandbox_limit, default=bool(here.settings.sandbox))
    allow_builds(here, build, policy)
    if no_lock:
        refuse_options("exclude_newer", "keep_host", because="applies to the lock, but `--no-lock` omits it")
    options = PublishOptions(
        owner=owner,
        dry_run=dry_run,
        private=private,
        internal=internal,
        check=not no_check,
        lock=not no_lock,
        exclude_newer=exclude_newer,
        keep_hosts=keep_host or [],
        attestations=attestations,
        allowed_files=allow_file or [],
    )
    try:
        _answer(publish_folder(here, path, options, builder_of(here, policy)), dry_run=dry_run)
    except KeyboardInterrupt:
        hint = "run the same command again to continue"
        raise Interrupted("interrupted; nothing was published yet", hint=hint) from None


def _answer(outcome: PublishedFolder, *, dry_run: bool) -> None:
    here = current()
    package, published, lock = outcome.package, outcome.published, outcome.lock
    name = outcome.name
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
        "source_members": [{"path": path, "size": size} for path, size in package.source_members],
        "check": outcome.check,
        "source": source or {"tree_sha256": package.tree_sha256},
        "resumed_bytes": published.resumed_bytes if published is not None else 0,
        "lock": None
        if lock is None
        else {"sha256": lock.sha256, "packages": lock.packages, "everywhere": lock.everywhere},
        "url": f"{here.settings.hub}/{name}" if outcome.owner else None,
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
