"""How modules of environments and players are imported: a failure is a `LoadError` with the true cause.

And what a script says of itself, and what an environment wants of outside: a key or a download.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from wander.adapters import adapters
from wander.errors import LoadError, NeedsDownload, NeedsKey, NeedsOutside, WanderError

_BLOCK = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")

_KEY = re.compile(r"\b[A-Z][A-Z0-9_]*_(?:API_KEY|KEY|TOKEN|SECRET)\b")
_UNREACHED = {
    *("gaierror", "URLError", "ConnectionError", "ConnectError", "ConnectTimeout", "MaxRetryError"),
    *("NameResolutionError", "ClientConnectorError", "ClientConnectorDNSError", "LocalEntryNotFoundError"),
    *("OfflineModeIsEnabled", "ConnectionRefusedError"),
}
_OF_CODE = (AttributeError, ImportError, KeyError, NameError, SyntaxError, TypeError)
"""Their messages quote names of the code, which may look like those of variables."""


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
        kind, hint = outside_need(error) or (LoadError, None)
        raise kind(f"importing `{module}` raised `{type(error).__name__}: {error}`", hint=hint) from error


def script_blocks(source: str) -> Iterator[str]:
    """Yield the TOML of each block of script metadata in a source (PEP 723)."""
    for block in _BLOCK.finditer(source):
        yield "\n".join(line.removeprefix("#").removeprefix(" ") for line in block["content"].splitlines())


def outside_need(error: BaseException) -> tuple[type[NeedsOutside], str] | None:
    """Return what an exception of an author's code says is missing, as our class and a hint; else None.

    An exception is read with those that it came from: libraries wrap what broke.
    """
    if isinstance(error, WanderError):
        return None
    for each in _chain(error):
        frames = traceback.extract_tb(each.__traceback__)
        if isinstance(each, KeyError) and frames and frames[-1].filename in ("<frozen os>", os.__file__):
            return NeedsKey, f"set the variable and add `--pass-env {each.args[0]}`"
    for each in _chain(error):
        if type(each).__name__ in _UNREACHED:
            return NeedsDownload, "load it once where its network is reached; what it keeps is found again"
        key = None if isinstance(each, _OF_CODE) else _KEY.search(str(each))
        if key:
            return NeedsKey, f"set the variable and add `--pass-env {key[0]}`"
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that it came from, each once."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
