"""`wander env lock`: lock an environment's packages, and print the lock or attach it to a version."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

from wander_client.context import current
from wander_client.environments.sandbox import BuildFlag, allow_builds, builder_of, choose_policy
from wander_client.errors import UsageError
from wander_client.names import EnvironmentName, parse_environment, source_spec
from wander_client.terminal.command import Argument, Option, refuse_options, require_date

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


def lock(
    environment: Annotated[str, Argument(help="./folder, or owner/name@version on the hub")] = ".",
    owner: Annotated[str | None, Option(help="with a folder: future owner of the environment")] = None,
    exclude_newer: ExcludeNewer = None,
    keep_host: KeepHosts = None,
    out: Annotated[Path | None, Option("--out", "-o", help="write the lock to this file")] = None,
    attach: Annotated[bool, Option("--attach", help="attach the lock to the version on the hub")] = False,
    build: BuildFlag = False,
) -> None:
    """Lock every package that an environment needs, each with the digests of its files.

    \b
    wander env lock ./wordle -o pylock.toml                 # the lock that `wander publish` would upload
    wander env lock ./wordle --exclude-newer 2026-06-01
    wander env lock acme/wordle@0.1.0 --attach              # for a version that you uploaded with twine

    The lock is a `pylock.toml` (PEP 751), which pip and uv can install. The lock of a version never changes.
    Its URLs are those of PyPI even if this machine uses a mirror, so that the lock works everywhere. For
    packages on another public index, pass `--keep-host HOST` to keep their URLs.
    """
    from packaging.utils import canonicalize_name

    from wander_client.packages.built_package import build_package
    from wander_client.packages.install import exact_version, wheel_file
    from wander_client.packages.interpreters import choose_python
    from wander_client.packages.lock import resolve_lock
    from wander_client.packages.needs import fetch_file

    here = current()
    allow_builds(here, build, policy := choose_policy(None, None, default=bool(here.settings.sandbox)))
    source = _find_source(environment, attach=attach)
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(here.hub(login=attach))
        if isinstance(source, Path):
            here.output.note(f"building {source.name}")
            package = stack.enter_context(build_package(source, builder_of(here, policy)))
            owner, name, version = owner or "owner", str(canonicalize_name(package.name)), package.version
            wheel = package.wheel.path
        else:
            detail = exact_version(hub, source)
            owner, name, version = detail.owner, detail.name, detail.version
            python = choose_python(detail.requires_python, f"`{source}`", here.output.note)
            file = wheel_file(detail, python)
            wheel = fetch_file(hub, here.settings.cache_dir, canonicalize_name(name), file).path
        label = f"{owner}/{name}@{version}"
        here.output.note(f"resolving what {name} {version} needs")
        lock_file = resolve_lock(
            hub,
            here.settings.cache_dir,
            owner,
            wheel,
            exclude_newer=exclude_newer,
            keep_hosts=keep_host or (),
            warn=here.output.warn,
        )
        if attach:
            hub.attach_lock(owner, name, version, lock_file.content)
    if out is not None:
        out.write_bytes(lock_file.content)
    summary, text = f"{lock_file.packages} packages, sha256:{lock_file.sha256}", lock_file.content.decode()
    data = {
        "environment": label,
        "sha256": lock_file.sha256,
        "packages": lock_file.packages,
        "everywhere": lock_file.everywhere,
        "attached": attach,
        "path": str(out) if out is not None else None,
        "lock": text,
    }
    if attach or out is not None:
        action = f"attached the lock to {label}" if attach else f"wrote {out}"
        here.output.answer(data, f"{action}: {summary}")
    else:
        here.output.answer(data, text.rstrip("\n"))
        here.output.note(summary)


def _find_source(environment: str, *, attach: bool) -> Path | EnvironmentName:
    """Return the folder or the name of the environment. Raises `UsageError` for options that do not fit."""
    source = parse_environment(source_spec(environment))
    if not isinstance(source, Path):
        refuse_options("owner", because="applies to a folder, but this environment has an owner")
    elif attach:
        raise UsageError(
            "`--attach` needs a version on the hub, not a folder",
            hint="run `wander env lock owner/name@version --attach`",
        )
    return source
