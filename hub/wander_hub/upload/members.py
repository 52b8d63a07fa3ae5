"""Checks on the members of an archive that wheels and source archives share."""

from __future__ import annotations

import ast
import re
import threading
import unicodedata
from configparser import ConfigParser
from configparser import Error as ConfigParserError

from wander_hub.upload.schemas import refused

ENTRY_POINT_GROUP = "wander.environments"
LOADER = "load_environment"
MODULE_BYTES = 4 * 1024 * 1024
"""Larger modules are not searched for `load_environment`."""

_PARSING = threading.Lock()
"""CPython 3.11 counts the depth of all threads' parses together and fails when they meet (gh-106905)."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")
_OBJECT = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?")


def check_path(path: str) -> None:
    """The path stays inside the archive, on every system."""
    parts = path.rstrip("/").split("/")
    absolute = path.startswith("/") or re.match(r"[A-Za-z]:", path)
    if absolute or _CONTROL.search(path) or any(part in ("", ".", "..") for part in parts):
        raise refused("unsafe_path", f"the member `{path[:200]!r}` has an unsafe path")


class MemberNames:
    """Remembers the names seen; refuses one that some file system would take for an earlier one."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def add(self, path: str) -> None:
        """Check one more member."""
        check_path(path)
        folded = unicodedata.normalize("NFC", path).casefold()
        if folded in self._seen:
            earlier = self._seen[folded]
            raise refused("duplicate_member", f"the members `{earlier}` and `{path}` are one file")
        self._seen[folded] = path


def entry_point(text: str) -> str | None:
    """Return the object of the first entry point of our group in an `entry_points.txt`."""
    parser = ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[method-assign, assignment]
    try:
        parser.read_string(text)
    except ConfigParserError as error:
        raise refused("bad_entry_points", f"entry_points.txt cannot be read: {error}") from error
    if not parser.has_section(ENTRY_POINT_GROUP):
        return None
    for name, value in parser.items(ENTRY_POINT_GROUP):
        return checked_entry_point(name, value)
    return None


def checked_entry_point(name: str, value: str) -> str:
    """Return `module:function` for an entry point; a bare module means its `load_environment`."""
    target = value.split("[")[0].strip()
    if not _OBJECT.fullmatch(target):
        raise refused("bad_entry_points", f"the entry point `{name} = {value[:100]}` names no object")
    return target if ":" in target else f"{target}:{LOADER}"


def defines_loader(source: bytes) -> bool:
    """Tell whether a module binds `load_environment` at its top level; it is parsed, never run."""
    if LOADER.encode() not in source:
        return False
    try:
        with _PARSING:
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(LOADER in _bound_names(statement) for statement in tree.body)


def _bound_names(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return {statement.name}
    if isinstance(statement, ast.ImportFrom):
        return {alias.asname or alias.name for alias in statement.names}
    if isinstance(statement, ast.Assign):
        return {one.id for one in statement.targets if isinstance(one, ast.Name)}
    return set()
