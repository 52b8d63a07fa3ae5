"""Entry points: the environment's own, and the commands that an installer would create.

Packages without an entry point traditionally define `load_environment` in a module; the search here finds it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from configparser import ConfigParser
from configparser import Error as ConfigParserError

from wander.system.python_parser import parse_alone
from wander.wire.transfers import RESERVED_COMMAND

from wander_hub.upload.archives.members import clip
from wander_hub.upload.findings import refusal

GROUP = "wander.environments"
LOADER = "load_environment"
_SCRIPT_GROUPS = ("console_scripts", "gui_scripts")
_OBJECT = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?")
_SCRIPT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_MODULE_BYTES = 512 * 1024
_ALL_BYTES = 2 * 1024 * 1024
"""A syntax tree takes a hundred times the memory of its source, so the source parsed per file is limited."""


def read(text: bytes, scripts: Iterable[str] = ()) -> str | None:
    """Check an `entry_points.txt` and return the environment's object; `scripts` are the wheel's own
    scripts."""
    parser = ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign, assignment]
    try:
        parser.read_string(text.decode(), "entry_points.txt")
    except (ConfigParserError, UnicodeDecodeError) as error:
        raise refusal("bad_entry_points", f"entry_points.txt cannot be read: {error!s:.300}") from error
    made = [name for group in _SCRIPT_GROUPS if parser.has_section(group) for name in parser[group]]
    check_scripts([*scripts, *made])
    if not parser.has_section(GROUP):
        return None
    name, value = next(iter(parser.items(GROUP)), (None, ""))
    return check(name, value) if name is not None else None


def check_scripts(names: Iterable[str]) -> None:
    """Require that every command has a plain, unique name that does not occur in every virtual
    environment."""
    seen: set[str] = set()
    for name in names:
        folded = name.casefold()
        if not _SCRIPT.fullmatch(name) or name.endswith("."):
            raise refusal("unsafe_script", f"`{clip(name)}` is not a valid name for a script")
        if RESERVED_COMMAND.fullmatch(name):
            raise refusal("unsafe_script", f"the script `{clip(name)}` would replace the interpreter's own")
        if folded in seen:
            raise refusal("unsafe_script", f"the archive has two scripts named `{clip(name)}`")
        seen.add(folded)


def check(name: str, value: str) -> str:
    """Return `module:function` for an entry point; a bare module stands for its `load_environment`."""
    target = value.split("[")[0].strip()
    if not _OBJECT.fullmatch(target):
        raise refusal(
            "bad_entry_points", f"the entry point `{name[:100]} = {value[:100]}` does not name an object"
        )
    return target if ":" in target else f"{target}:{LOADER}"


class LoaderSearch:
    """Searches an archive's top-level modules until a module defines `load_environment`."""

    def __init__(self) -> None:
        self.found = False
        self._left = _ALL_BYTES

    def wants(self, path: str, size: int) -> bool:
        """Return whether a file is a top-level module that is small enough to search."""
        top, _, below = path.partition("/")
        is_module = below == "__init__.py" or (not below and top.endswith(".py"))
        return is_module and not self.found and size <= min(_MODULE_BYTES, self._left)

    def look(self, source: bytes) -> None:
        """Search one module."""
        if LOADER.encode() in source:
            self._left -= len(source)
            self.found = defines_loader(source)


def defines_loader(source: bytes) -> bool:
    """Return whether a module defines `load_environment` at the top level; the module is parsed, never
    run."""
    try:
        tree = parse_alone(lambda: ast.parse(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(LOADER in _bound_names(statement) for statement in tree.body)


def _bound_names(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return {statement.name}
    if isinstance(statement, ast.ImportFrom):
        return {alias.asname or alias.name for alias in statement.names}
    if isinstance(statement, ast.Assign):
        return {target.id for target in statement.targets if isinstance(target, ast.Name)}
    return set()
