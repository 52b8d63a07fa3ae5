"""How modules of environments and players are imported: a failure is a `LoadError` with the true cause.

And what a script says of itself.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from wander.adapters import adapters
from wander.errors import LoadError

_BLOCK = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")


class NoModule(LoadError):
    """There is no module of that name; one that exists and cannot be imported is another `LoadError`."""


def import_file(path: Path) -> ModuleType:
    """Import a Python file by its own name, with its folder on `sys.path`; raises `LoadError`."""
    return import_from(path.parent, path.stem)


def import_from(folder: Path, module: str) -> ModuleType:
    """Import a module from a folder; raises `LoadError` when one of that name came from elsewhere."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
    imported = import_module(module)
    origin = getattr(imported, "__file__", None)
    if origin is not None and folder not in Path(origin).resolve().parents:
        raise LoadError(
            f"`{module}` was found in `{origin}`, not in `{folder}`",
            hint="another module has the same name: rename this one, or load it in a process of its own",
        )
    return imported


def import_module(module: str) -> ModuleType:
    """Import a module, which may be written for the library of an adapter; raises `LoadError`."""
    for adapter in adapters():
        adapter.serve_imports()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise NoModule(f"there is no module `{module}` here") from error
        raise LoadError(
            f"`{module}` needs the module `{error.name}`, which is not installed",
            hint="add its package to `dependencies` in the environment's `pyproject.toml`; "
            "if it is there already, install the environment again",
        ) from error
    except (Exception, SystemExit) as error:
        raise LoadError(f"importing `{module}` raised `{type(error).__name__}: {error}`") from error


def script_blocks(source: str) -> Iterator[str]:
    """Yield the TOML of each block of script metadata in a source (PEP 723)."""
    for block in _BLOCK.finditer(source):
        yield "\n".join(line.removeprefix("#").removeprefix(" ") for line in block["content"].splitlines())
