"""`wander lock`: resolve the lock of a version, to look at or for a version that was uploaded without."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wander_client.context import current
from wander_client.errors import UsageError
from wander_client.terminal.command import command_app

if TYPE_CHECKING:
    from wander_client.hub.api import HubApi
    from wander_client.names import EnvironmentName
    from wander_client.packages.lock import ResolvedLock

app = command_app()


@dataclass(frozen=True)
class _Locked:
    """What a lock is made for."""

    owner: str
    name: str
    version: str
    wheel: Path

    @property
    def label(self) -> str:
        """`owner/name@version`."""
        return f"{self.owner}/{self.name}@{self.version}"


@app.command()
def lock(
    environment: Annotated[str, typer.Argument(help="./folder, or owner/name@version on the hub")] = ".",
    owner: Annotated[str | None, typer.Option(help="with a folder: owner of the future environment")] = None,
    exclude_newer: Annotated[
        str | None,
        typer.Option("--exclude-newer", metavar="DATE", help="ignore packages uploaded after this time"),
    ] = None,
    keep_host: Annotated[
        list[str] | None,
        typer.Option("--keep-host", help="index that everybody can reach; its addresses stay in the lock"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="write the lock to this file instead of stdout")
    ] = None,
    attach: Annotated[
        bool, typer.Option("--attach", help="attach the lock to the version on the hub")
    ] = False,
) -> None:
    """Resolve every package that an environment runs with, each pinned by the digests of its files.

    \b
    wander lock ./wordle -o pylock.toml                 # what would `wander publish` send?
    wander lock ./wordle --exclude-newer 2026-06-01
    wander lock acme/wordle@0.1.0 --attach              # for a version that twine uploaded

    The lock is a `pylock.toml` (PEP 751), which pip and uv install from. A version's lock never changes.
    Files stand in it at PyPI's addresses, whatever mirror they came from, but for those of `--keep-host`.
    """
    from wander_client.names import parse_environment
    from wander_client.packages.lock import resolve_lock

    here = current()
    found = parse_environment(environment)
    if attach and isinstance(found, Path):
        raise UsageError(
            "a folder has no version on the hub", hint="write `wander lock owner/name@version --attach`"
        )
    with here.hub(login=attach) as hub:
        wanted = _build(found, owner or "owner") if isinstance(found, Path) else _lock_published(hub, found)
        with wanted as this:
            here.output.note(f"resolving what {this.label} needs")
            made = resolve_lock(
                hub,
                here.settings.cache_dir,
                this.owner,
                this.wheel,
                exclude_newer=exclude_newer,
                keep_hosts=keep_host or (),
                warn=here.output.warn,
            )
            if attach:
                hub.attach_lock(this.owner, this.name, this.version, made.content)
    if out is not None:
        out.write_bytes(made.content)
    _answer(this, made, out, attached=attach)


@contextlib.contextmanager
def _build(folder: Path, owner: str) -> Iterator[_Locked]:
    from packaging.utils import canonicalize_name

    from wander_client.packages.publish import build_package

    current().output.note(f"building {folder.name}")
    with build_package(folder) as package:
        yield _Locked(owner, canonicalize_name(package.name), package.version, package.wheel.path)


@contextlib.contextmanager
def _lock_published(hub: HubApi, name: EnvironmentName) -> Iterator[_Locked]:
    from packaging.utils import canonicalize_name

    from wander_client.packages.install import exact_version, wheel_file
    from wander_client.packages.needs import fetch_file

    detail = exact_version(hub, name)
    wheel = fetch_file(hub, current().settings.cache_dir, canonicalize_name(detail.name), wheel_file(detail))
    yield _Locked(detail.owner, detail.name, detail.version, wheel.path)


def _answer(this: _Locked, made: ResolvedLock, out: Path | None, *, attached: bool) -> None:
    here = current()
    text = made.content.decode()
    data = {
        "environment": this.label,
        "sha256": made.sha256,
        "packages": made.packages,
        "everywhere": made.everywhere,
        "attached": attached,
        "path": str(out) if out is not None else None,
        "lock": text,
    }
    said = f"{made.packages} packages, sha256:{made.sha256}"
    if attached:
        here.output.answer(data, f"gave {this.label} its lock: {said}")
    elif out is not None:
        here.output.answer(data, f"wrote {out}: {said}")
    else:
        here.output.answer(data, text.rstrip("\n"))
        here.output.note(said)
