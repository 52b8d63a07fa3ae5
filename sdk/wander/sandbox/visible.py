"""Which files of the host a sandboxed environment can read, at the paths that they have outside."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from wander.errors import SandboxError

_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")
_LOADER_CACHE = "/etc/ld.so.cache"
"""Tells the loader where libraries outside of the usual folders lie."""
_OURS = ("/dev", "/proc", "/sys", "/tmp")  # noqa: S108 - mounts of the sandbox's own
INSIDE = Path(__file__).with_name("inside.py")


@dataclass(frozen=True)
class Visible:
    """What an interpreter and an environment need to see."""

    python: Path
    """The interpreter that runs the worker."""
    binds: tuple[str, ...]
    """Folders and files, none of them below another: nothing is mounted under what an environment brings."""
    links: tuple[tuple[str, str], ...]
    """Target and path of each symbolic link of the system."""
    import_path: tuple[str, ...]
    """Where the worker's packages lie; `.pth` files are not read."""


def visible(python: Path | None, source: Path | None, read: Iterable[str]) -> Visible:
    """Return what a worker sees; None as `python` is this interpreter, `source` what it loads.

    Raises `SandboxError` where something is not there.
    """
    interpreter = Path(python or sys.executable).absolute()
    if not interpreter.exists():
        raise SandboxError(f"there is no interpreter `{interpreter}`", hint="install the environment again")
    own = Path(sys.executable).absolute()
    if interpreter == own or (interpreter.parent.samefile(own.parent) and sys.prefix != sys.base_prefix):
        # Where this process imports packages from: site folders, and what they name (editable installs).
        # Only folders that this interpreter imports from already, and none that PYTHONPATH names.
        known = [path for path in sys.path if path and Path(path).is_dir()]
        sites = [path for path in known if Path(path).name in ("site-packages", "dist-packages")]
        named = {line.strip() for site in sites for file in Path(site).glob("*.pth") for line in _lines(file)}
        packages = [path for path in known if path in sites or path in named]
    else:  # the site folders alone: `.pth` files of a virtual environment may be anybody's
        root = interpreter.parent.parent
        found = (path for lib in ("lib", "lib64") for path in root.glob(f"{lib}/python3*/site-packages"))
        packages = sorted(map(str, found))
    binds, links = ["/usr"], []
    for folder in map(Path, _SYSTEM):
        if folder.is_symlink():
            links.append((os.readlink(folder), str(folder)))
        elif folder.is_dir():
            binds.append(str(folder))
    if Path(_LOADER_CACHE).exists():
        binds.append(_LOADER_CACHE)
    binds += [*_python_roots(interpreter), *packages, *read, str(INSIDE)]
    if source is not None:
        binds.append(str(source))
    refused = [path for path in binds if path in ("/", *_OURS)]
    if source is not None and source == Path.home():
        refused.append(str(source))
    if refused:
        raise SandboxError(
            f"`{refused[0]}` cannot be shown to an environment in the sandbox",
            hint="move the environment into a folder of its own",
        )
    return Visible(interpreter, outermost(binds), tuple(links), tuple(packages))


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths without those that lie below another of them, in order."""
    ordered: list[str] = []
    for path in sorted(set(paths)):
        if not any(Path(path).is_relative_to(kept) for kept in ordered):
            ordered.append(path)
    return tuple(ordered)


def _python_roots(interpreter: Path) -> list[str]:
    """Return the virtual environment and every place through which its interpreter is found."""
    hops = [interpreter]
    while hops[-1].is_symlink() and len(hops) < 16:
        hops.append(Path(os.path.normpath(hops[-1].parent / os.readlink(hops[-1]))))
    hops.append(interpreter.resolve())
    config = interpreter.parent.parent / "pyvenv.cfg"
    home = [line.partition("=")[2].strip() for line in _lines(config) if line.split("=")[0].strip() == "home"]
    roots = [hop.parent.parent for hop in hops] + [Path(path).parent for path in home]
    # A wheel can bring a `pyvenv.cfg` that names any folder: only where a Python lies is shown.
    shown = [root for root in roots if any(root.glob("lib/python3*/os.py"))]
    own = [config.parent] if config.exists() else []
    return [str(root) for root in (*own, *shown) if root != Path("/")]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
