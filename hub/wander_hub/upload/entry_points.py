"""Entry points: the environment's own, and the commands that an installer would make."""

from __future__ import annotations

import re
from collections.abc import Iterable
from configparser import ConfigParser
from configparser import Error as ConfigParserError

from wander_hub.upload.members import shown
from wander_hub.upload.schemas import refused

GROUP = "wander.environments"
LOADER = "load_environment"
_SCRIPT_GROUPS = ("console_scripts", "gui_scripts")
_OBJECT = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?")
_SCRIPT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def read(text: bytes, scripts: Iterable[str] = ()) -> str | None:
    """Check an `entry_points.txt` and return the environment's object; `scripts` are those of the wheel."""
    parser = ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign, assignment]
    try:
        parser.read_string(text.decode(), "entry_points.txt")
    except (ConfigParserError, UnicodeDecodeError) as error:
        raise refused("bad_entry_points", f"entry_points.txt cannot be read: {error!s:.300}") from error
    taken = {name.casefold() for name in scripts}
    for group in _SCRIPT_GROUPS:
        for name in parser[group] if parser.has_section(group) else ():
            if not _SCRIPT.fullmatch(name) or name.endswith("."):
                raise refused("unsafe_script", f"`{shown(name)}` in `{group}` is no name for a script")
            if name.casefold() in taken:
                raise refused("unsafe_script", f"the script `{name}` is there twice")
            taken.add(name.casefold())
    if not parser.has_section(GROUP):
        return None
    name, value = next(iter(parser.items(GROUP)), (None, ""))
    return checked(name, value) if name is not None else None


def checked(name: str, value: str) -> str:
    """Return `module:function` for an entry point; a bare module means its `load_environment`."""
    target = value.split("[")[0].strip()
    if not _OBJECT.fullmatch(target):
        raise refused("bad_entry_points", f"the entry point `{name[:100]} = {value[:100]}` names no object")
    return target if ":" in target else f"{target}:{LOADER}"
