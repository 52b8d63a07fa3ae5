"""The public names of our packages with their signatures, read from the sources.

Nothing is imported, so this needs no torch and takes half a second. `make names` writes the committed list.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests/house/public_names.txt"
NAMESPACES = (
    *(
        "wander",
        "wander.boxes",
        "wander.checks",
        "wander.clients",
        "wander.data_sources",
        "wander.envs",
        "wander.errors",
    ),
    *("wander.evals", "wander.handle", "wander.learning", "wander.models", "wander.parsers"),
    *("wander.rubrics", "wander.sandbox", "wander.seeding", "wander.train", "wander.types"),
    *("wander.wire", "wander.wire.postings", "wander.worker", "wander_client", "wander_integrations"),
)
"""Whatever docs name; `docs/api` shows them to readers."""
HOMES = {
    "wander": ROOT / "sdk",
    "wander_client": ROOT / "client",
    "wander_integrations": ROOT / "plugins/wander-integrations",
}
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.AnnAssign | ast.Assign


@cache
def parsed(module: str) -> ast.Module:
    """Return the syntax tree of a module or of a package's `__init__`."""
    path = HOMES[module.split(".")[0]] / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(), str(file))


def exported(module: str) -> list[str]:
    """Return the `__all__` of a module; fail if it is missing."""
    for node in parsed(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    raise AssertionError(f"`{module}` has no `__all__`")


def definition(module: str, name: str) -> Definition:
    """Return the definition of a name, following imports."""
    body = parsed(module).body
    guarded = [inner for node in body if isinstance(node, ast.If) for inner in node.body]
    for node in (*body, *guarded):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef() if node.name == name:
                return node
            case ast.AnnAssign() if ast.unparse(node.target) == name:
                return node
            case ast.Assign() if ast.unparse(node.targets[0]) == name:
                return node
            case ast.ImportFrom() if node.module and name in [
                alias.asname or alias.name for alias in node.names
            ]:
                return definition(node.module, name)
    raise AssertionError(f"`{module}.{name}` is nowhere defined")


def lines(place: str, node: Definition) -> Iterator[str]:
    """Yield a name with its signature, and for a class its public members."""
    match node:
        case ast.ClassDef():
            bases = ", ".join(ast.unparse(base) for base in node.bases)
            yield f"class {place}({bases})"
            for member in node.body:
                if isinstance(member, Definition) and (name := public(member)):
                    yield from lines(f"{place}.{name}", member)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            marks = "".join(f"@{ast.unparse(mark)} " for mark in node.decorator_list)
            kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
            returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            yield f"{marks}{kind} {place}({ast.unparse(node.args)}){returned}"
        case ast.AnnAssign():
            value = f" = {ast.unparse(node.value)}" if node.value else ""
            yield f"{place}: {ast.unparse(node.annotation)}{value}"
        case ast.Assign():
            yield place


def public(member: Definition) -> str | None:
    """Return the name of a class's member if it is public."""
    match member:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            name = member.name
        case ast.AnnAssign():
            name = ast.unparse(member.target)
        case ast.Assign():
            name = ast.unparse(member.targets[0])
    return None if name.startswith("_") and name != "__init__" else name


def listing() -> str:
    """Return all public names, a block for each namespace; a repeated name appears without its definition."""
    blocks = []
    first: dict[Definition, str] = {}
    for module in NAMESPACES:
        rows = [f"# {module}"]
        for name in sorted(exported(module)):
            node, place = definition(module, name), f"{module}.{name}"
            known = first.setdefault(node, place)
            rows += lines(place, node) if known == place else [f"{place} is {known}"]
        blocks.append("\n".join(rows))
    return "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    RECORD.write_text(listing())
