"""Generates parts of the documentation from code: the Python API, commands, settings and HTTP routes.

The Python API is parsed, not imported, because a hub does not have its extras (torch, mcp, ...).
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticUndefined
from wander.system.python_parser import parse_alone

from wander_hub.settings import Settings

if TYPE_CHECKING:
    import griffe

_MODULE = re.compile(r"(?m)^::: (\S+)$")
_LONGEST_LINE = 90
_COMMAND_SECONDS = 60


def fill(path: str, text: str, openapi: Callable[[], dict[str, Any]]) -> str:
    """Return a page's Markdown with its generated parts."""
    if path == "api/http":
        return text + list_operations(openapi())
    if path == "api/commands":
        return text + list_commands()
    if path == "self-hosting":
        return text + list_settings()
    return _MODULE.sub(lambda line: describe_module(line[1]), text)


def list_settings() -> str:
    """Return a table of every setting of a hub."""
    file = Path(inspect.getfile(Settings))
    settings = _read(Settings.__module__, file)["Settings"]
    rows = []
    for name, field in Settings.model_fields.items():
        member = settings.members[name]
        known = field.default is not PydanticUndefined and field.default is not None
        meaning = member.docstring.value if member.docstring else ""
        default = f"`{str(field.default) or 'empty'}`" if known else ""
        cells = (f"`WANDER_HUB_{name.upper()}`", f"`{member.annotation}`", default, " ".join(meaning.split()))
        rows.append(f"| {' | '.join(_cell(one) for one in cells)} |")
    head = ["", "## Every setting", "", "| variable | type | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def list_operations(document: dict[str, Any]) -> str:
    """Return a table of the HTTP routes of each tag, from the OpenAPI document."""
    rows: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            description = operation.get("description") or operation["summary"]
            purpose = _cell(description.split("\n\n")[0].replace("\n", " "))
            asked = [f"`{one['name']}`" for one in operation.get("parameters", ()) if one["in"] == "query"]
            line = f"| `{method.upper()} {path}` | {purpose} | {', '.join(asked)} |"
            rows.setdefault(operation.get("tags", ["other"])[0], []).append(line)
    head = ["", "| request | what it does | query parameters |", "|---|---|---|"]
    parts = (line for tag in sorted(rows) for line in ("", f"## {tag.capitalize()}", *head, *rows[tag], ""))
    return "\n".join(parts)


@cache
def list_commands() -> str:
    """Return the help of every command, from the `wander` program itself."""
    if find_spec("wander_client") is None:
        return "\nThe `wander` command is not installed on this hub's machine.\n"
    line = [sys.executable, "-P", "-m", "wander_client", "help", "reference", "--plain"]
    done = subprocess.run(  # noqa: S603 - this interpreter with fixed arguments
        line, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=True
    )
    return f"\n{done.stdout}"


@cache
def describe_module(name: str) -> str:
    """Return the public names of a module with their signatures and docstrings."""
    package = name.partition(".")[0]
    if find_spec(package) is None:
        return f"`{package}` is not installed on this hub's machine."
    module = _read_module(name)
    members = ((str(one), module.members.get(str(one))) for one in module.exports or ()) if module else ()
    return "\n\n".join(part for one, found in members if found is not None for part in _describe(one, found))


@cache
def _read_module(name: str) -> griffe.Module | None:
    """Parse one module, or return None without source code. A whole package takes five times as long."""
    package, *rest = name.split(".")
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    place = Path(spec.submodule_search_locations[0]).joinpath(*rest)
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return _read(name, file) if file.is_file() else None


def _read(name: str, file: Path) -> griffe.Module:
    import griffe  # imported late, to start the hub faster

    return parse_alone(lambda: griffe.visit(name, filepath=file, code=file.read_text()))


def _find(path: str) -> griffe.Object | None:
    """Return the object of a dotted name, following imports."""
    import griffe

    place, _, name = path.rpartition(".")
    module = _read_module(place) if place else None
    found = module.members.get(name) if module else None
    return _find(found.target_path) if isinstance(found, griffe.Alias) else found


def _describe(name: str, member: griffe.Object | griffe.Alias) -> Iterator[str]:
    """Yield the paragraphs of one name."""
    import griffe

    yield f"### {name}"
    elsewhere = member.target_path if isinstance(member, griffe.Alias) else ""
    found = _find(elsewhere) if elsewhere else member
    if found is None:
        yield f"From `{elsewhere}`."
        return
    if isinstance(found, griffe.Function):
        yield _fence(found.signature(name=name))
    elif isinstance(found, griffe.Class):
        bases = ", ".join(str(one) for one in found.bases)
        yield _fence(f"class {name}({bases})" if bases else f"class {name}")
    elif isinstance(found, griffe.Attribute) and len(str(found.value or "")) in range(1, _LONGEST_LINE):
        yield _fence(f"{name} = {found.value}")
    if found.docstring:
        yield found.docstring.value
    if isinstance(found, griffe.Class):
        yield from _members(found)


def _members(found: griffe.Class) -> Iterator[str]:
    """Yield the paragraphs of a class's public members that have a docstring."""
    import griffe

    public = [one for name, one in found.members.items() if not name.startswith("_") and one.docstring]
    fields = [_field(one) for one in public if isinstance(one, griffe.Attribute)]
    if fields:
        yield "\n".join(fields)
    for one in public:
        if isinstance(one, griffe.Function) and one.docstring:
            yield f"**`{found.name}.{one.name}`**"
            yield _fence(one.signature(name=one.name))
            yield one.docstring.value


def _field(one: griffe.Attribute) -> str:
    kind = f": {one.annotation}" if one.annotation is not None else ""
    value = f" = {one.value}" if one.value is not None and len(str(one.value)) < _LONGEST_LINE else ""
    meaning = textwrap.indent(one.docstring.value if one.docstring else "", "  ").strip()
    return f"- `{one.name}{kind}{value}`: {meaning}"


def _fence(signature: str) -> str:
    if len(signature) > _LONGEST_LINE and "(" in signature:
        head, _, rest = signature.partition("(")
        inner, _, tail = rest.rpartition(")")
        lines = textwrap.wrap(inner, _LONGEST_LINE, break_long_words=False)
        signature = f"{head}(\n" + "\n".join(f"    {line}" for line in lines) + f"\n){tail}"
    return f"```python\n{signature}\n```"
