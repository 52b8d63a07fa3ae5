"""Imports of modules of environments and players, whose failures become `LoadError` with the real cause.

Also reads script metadata, and detects that an environment lacks a key or a download.
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
"""Errors whose messages quote names in code, which may look like names of environment variables."""


class NoModule(LoadError):
    """Raised if no module has the name. If a module exists but cannot be imported, another `LoadError` is
    raised."""


def import_file(path: Path) -> ModuleType:
    """Import a Python file under its own name, with its folder on `sys.path`; raises `LoadError`."""
    return import_from(path.parent, path.stem)


def import_from(folder: Path, module: str) -> ModuleType:
    """Import a module from a folder; raises `LoadError` if a module of that name was imported from
    elsewhere."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
    imported = import_module(module)
    origin = getattr(imported, "__file__", None)
    if origin is not None and folder not in Path(origin).resolve().parents:
        raise LoadError(
            f"`{module}` was found in `{origin}`, not in `{folder}`",
            hint="another module has the same name: rename this module, or load it in a separate process",
        )
    return imported


def import_module(module: str) -> ModuleType:
    """Import a module, which may use the library of an adapter; raises `LoadError`."""
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
            "if it is already there, install the environment again",
        ) from error
    except (Exception, SystemExit) as error:
        kind, hint = missing_resource(error) or (LoadError, None)
        raise kind(f"importing `{module}` raised `{type(error).__name__}: {error}`", hint=hint) from error


def script_blocks(source: str) -> Iterator[str]:
    """Yield the TOML of each block of script metadata in the source (PEP 723)."""
    for block in _BLOCK.finditer(source):
        yield "\n".join(line.removeprefix("#").removeprefix(" ") for line in block["content"].splitlines())


def missing_resource(error: BaseException) -> tuple[type[NeedsOutside], str] | None:
    """Return the error class and hint for an external resource that an author's code lacks; None if there is
    none.

    Also checks the causes of the exception, because libraries wrap the original error.
    """
    if isinstance(error, WanderError):
        return None
    for link in _chain(error):
        frames = traceback.extract_tb(link.__traceback__)
        if isinstance(link, KeyError) and frames and frames[-1].filename in ("<frozen os>", os.__file__):
            return NeedsKey, f"set the variable and add `--pass-env {link.args[0]}`"
    for link in _chain(error):
        if type(link).__name__ in _UNREACHED:
            return NeedsDownload, "load it once with access to the network, so that its download is cached"
        key = None if isinstance(link, _OF_CODE) else _KEY.search(str(link))
        if key:
            return NeedsKey, f"set the variable and add `--pass-env {key[0]}`"
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and its causes, each of them once."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
