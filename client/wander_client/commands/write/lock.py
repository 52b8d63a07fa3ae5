"""`wander env lock`: resolve the lock of a version, to look at or for a version that was uploaded without."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

from wander_client.context import current
from wander_client.environments.sandbox import BuildFlag, allow_builds, builder_of, choose_policy
from wander_client.errors import UsageError
from wander_client.names import parse_environment, source_spec
from wander_client.terminal.command import Argument, Option

ExcludeNewer = Annotated[
    str | None,
    Option("--exclude-newer", metavar="DATE", help="ignore packages uploaded after this time"),
]
KeepHosts = Annotated[
    list[str] | None,
    Option("--keep-host", help="index that everybody can reach; its addresses stay in the lock"),
]


def lock(
    environment: Annotated[str, Argument(help="folder, or owner/name@version on the hub")] = ".",
    owner: Annotated[str | None, Option(help="with a folder: owner of the future environment")] = None,
    exclude_newer: ExcludeNewer = None,
    keep_host: KeepHosts = None,
    out: Annotated[
        Path | None, Option("--out", "-o", help="write the lock to this file instead of stdout")
    ] = None,
    attach: Annotated[bool, Option("--attach", help="attach the lock to the version on the hub")] = False,
    build: BuildFlag = False,
) -> None:
    """Resolve every package that an environment runs with, each pinned by the digests of its files.

    \b
    wander env lock ./wordle -o pylock.toml                 # what would `wander publish` send?
    wander env lock ./wordle --exclude-newer 2026-06-01
    wander env lock acme/wordle@0.1.0 --attach              # for a version that twine uploaded

    The lock is a `pylock.toml` (PEP 751), which pip and uv install from. A version's lock never changes.
    Files stand in it at PyPI's addresses, whatever mirror they came from, but for those of `--keep-host`.
    """
    from packaging.utils import canonicalize_name

    from wander_client.packages.built_package import build_package
    from wander_client.packages.install import exact_version, wheel_file
    from wander_client.packages.interpreters import choose_python
    from wander_client.packages.lock import resolve_lock
    from wander_client.packages.needs import fetch_file

    here = current()
    allow_builds(here, build, policy := choose_policy(None, None, default=bool(here.settings.sandbox)))
    found = parse_environment(source_spec(environment))
    if attach and isinstance(found, Path):
        raise UsageError(
            "a folder has no version on the hub", hint="write `wander env lock owner/name@version --attach`"
        )
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(here.hub(login=attach))
        if isinstance(found, Path):
            here.output.note(f"building {found.name}")
            package = stack.enter_context(build_package(found, builder_of(here, policy)))
            owner, name, version = owner or "owner", str(canonicalize_name(package.name)), package.version
            wheel = package.wheel.path
        else:
            detail = exact_version(hub, found)
            owner, name, version = detail.owner, detail.name, detail.version
            python = choose_python(detail.requires_python, f"`{found}`", here.output.note)
            file = wheel_file(detail, python)
            wheel = fetch_file(hub, here.settings.cache_dir, canonicalize_name(name), file).path
        label = f"{owner}/{name}@{version}"
        here.output.note(f"resolving what {label} needs")
        made = resolve_lock(
            hub,
            here.settings.cache_dir,
            owner,
            wheel,
            exclude_newer=exclude_newer,
            keep_hosts=keep_host or (),
            warn=here.output.warn,
        )
        if attach:
            hub.attach_lock(owner, name, version, made.content)
    if out is not None:
        out.write_bytes(made.content)
    said, text = f"{made.packages} packages, sha256:{made.sha256}", made.content.decode()
    data = {
        "environment": label,
        "sha256": made.sha256,
        "packages": made.packages,
        "everywhere": made.everywhere,
        "attached": attach,
        "path": str(out) if out is not None else None,
        "lock": text,
    }
    if attach or out is not None:
        done = f"gave {label} its lock" if attach else f"wrote {out}"
        here.output.answer(data, f"{done}: {said}")
    else:
        here.output.answer(data, text.rstrip("\n"))
        here.output.note(said)
