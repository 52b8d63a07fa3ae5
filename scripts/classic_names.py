"""Measures how many of the `verifiers` names used by packages are offered here, without running the packages.

    python scripts/classic_names.py FOLDER... [--json FILE] [--each]

A package is a folder with a `pyproject.toml` whose sources import `verifiers` and load an environment.
Identical copies count once. Every imported name, and every name used as an attribute, is looked up in
`wander_compat`. Names whose import error is caught, or that are imported only for type checkers, are not
needed.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import importlib
import json
import platform
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from wander_client.packages.library_use import defines_loader, library_of, parse_source, tasksets_of
from wander_compat.alias import RENTED_NAMES, need_of, serve_imports

ROOT_NAME = "verifiers"
SKIPPED = {
    "tests",
    "test",
    "build",
    "dist",
    "node_modules",
    "site-packages",
    "outputs",
    "venv",
    "__pycache__",
}
CAUGHT = {"ImportError", "ModuleNotFoundError", "AttributeError", "Exception", "BaseException"}


@dataclass
class Package:
    """A folder, and the names of the library that it uses."""

    name: str
    folder: str
    digest: str
    """First 16 digits of the sha256 of its sources."""
    library: str
    """`verifiers`, or `verifiers.v1`, whose names upstream's own library provides."""
    other_python: str = ""
    """Its `requires-python`, if this Python does not meet it."""
    missing: list[str] = field(default_factory=list)
    """Names that are not offered. The package cannot be imported, or fails where it uses them."""
    refused: list[str] = field(default_factory=list)
    """Classes that can be imported, but not instantiated here."""

    @property
    def resolved(self) -> bool:
        """Whether every name exists and can be used."""
        return not self.missing and not self.refused


def find_packages(roots: list[Path]) -> list[Package]:
    """Return the packages in some folders. Packages with identical sources are returned once."""
    packages: dict[tuple[str, str], Package] = {}
    for root in roots:
        for path in sorted(root.rglob("pyproject.toml")):
            if not _is_skipped(path.parent.relative_to(root)):
                package = read_package(path.parent)
                if package is not None:
                    packages.setdefault((package.name, package.digest), package)
    return list(packages.values())


def read_package(folder: Path) -> Package | None:
    """Return a package's use of the library, or None if it is not an environment for it."""
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return None
    name = str(project.get("name", folder.name))
    if name == ROOT_NAME:
        return None
    texts = [path.read_bytes() for path in _sources(folder)]
    trees = [parse_source(text) for text in texts]
    used = set().union(*(names_used(tree) for tree in trees))
    if not used or not (tasksets_of(trees) or any(map(defines_loader, trees))):
        return None
    library = library_of(trees)
    package = Package(
        name,
        folder.as_posix(),
        hashlib.sha256(b"\0".join(sorted(texts))).hexdigest()[:16],
        "verifiers.v1" if library == "verifiers.v1" else ROOT_NAME,
        _other_python(str(project.get("requires-python", ""))),
    )
    if package.library == ROOT_NAME:
        for used_name in sorted(used):
            state = look_up(used_name)
            if state != "offered":
                (package.missing if state == "missing" else package.refused).append(used_name)
    return package


def _sources(folder: Path) -> Iterator[Path]:
    """Yield the sources of a package, without those of nested packages."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            if not (_is_skipped(Path(path.name)) or (path / "pyproject.toml").is_file()):
                yield from _sources(path)
        elif path.suffix == ".py" and not path.name.startswith(("test_", "conftest")) and path.is_file():
            yield path


def _is_skipped(path: Path) -> bool:
    return any(part in SKIPPED or part.startswith(".") for part in path.parts)


def _other_python(wanted: str) -> str:
    try:
        return "" if SpecifierSet(wanted).contains(platform.python_version(), prereleases=True) else wanted
    except InvalidSpecifier:
        return ""


def names_used(tree: ast.Module) -> set[str]:
    """Return the dotted names of the library that a source needs."""
    reader = _Reader()
    reader.visit(tree)
    return reader.used


class _Reader(ast.NodeVisitor):
    """Collects names in source order, so that an alias is known before it is used."""

    def __init__(self) -> None:
        self.used: set[str] = set()
        self._aliases: dict[str, str] = {}

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.partition(".")[0] == ROOT_NAME:
                self.used.add(alias.name)
                self._aliases[alias.asname or ROOT_NAME] = alias.name if alias.asname else ROOT_NAME

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level == 0 and module.partition(".")[0] == ROOT_NAME:
            for alias in node.names:
                self.used.add(module if alias.name == "*" else f"{module}.{alias.name}")
                self._aliases[alias.asname or alias.name] = f"{module}.{alias.name}"

    def visit_Attribute(self, node: ast.Attribute) -> None:
        dotted = ast.unparse(node) if _is_dotted(node) else ""
        first, _, rest = dotted.partition(".")
        # Only one level below a module. Attributes of objects are not checked.
        if rest and first in self._aliases and self._aliases[first] == ROOT_NAME:
            self.used.add(f"{ROOT_NAME}.{rest.partition('.')[0]}")
        self.generic_visit(node)

    def visit_Try(self, node: ast.Try) -> None:
        caught = {name.id for each in node.handlers for name in ast.walk(each.type or ast.Name("Exception"))
                  if isinstance(name, ast.Name)}  # fmt: skip
        needed = set(self.used)
        for each in node.body:
            self.visit(each)
        if caught & CAUGHT and any(isinstance(each, ast.Import | ast.ImportFrom) for each in node.body):
            self.used = needed
        for each in (*node.handlers, *node.orelse, *node.finalbody):
            self.visit(each)

    def visit_If(self, node: ast.If) -> None:
        needed = set(self.used)
        for each in node.body:
            self.visit(each)
        if "TYPE_CHECKING" in ast.unparse(node.test):
            self.used = needed
        for each in node.orelse:
            self.visit(each)


def _is_dotted(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_dotted(node.value))


@functools.cache
def look_up(name: str) -> str:
    """Return whether a dotted name of the library is `offered`, `refused` (needs a vendor) or `missing`."""
    module, _, attribute = name.rpartition(".")
    inner = name.removeprefix(f"{ROOT_NAME}.")
    if inner in RENTED_NAMES or need_of(inner) is not None:
        return "refused"
    try:
        importlib.import_module(name)
    except ImportError:
        try:
            getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError):
            return "missing"
    return "offered"


def main() -> int:
    """Print the shares, and the names behind them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every package with its missing names"
    )
    parser.add_argument("--each", action="store_true", help="list the packages with missing names")
    given = parser.parse_args()
    absent = [str(each) for each in given.folders if not each.is_dir()]
    if absent:
        parser.error(f"`{absent[0]}` is not a folder")
    serve_imports()
    packages = find_packages(given.folders)
    classic = [each for each in packages if each.library == ROOT_NAME]
    if not classic:
        print("found no package for the classic API", file=sys.stderr)
        return 1

    def show(what: str, some: list[Package]) -> None:
        print(f"{len(some):5}  {len(some) / len(classic):6.1%}  {what}")

    print(f"{len(packages):5}          packages, {len(packages) - len(classic)} of them for verifiers.v1")
    show("of the classic API", classic)
    show("use a name that is not offered", [each for each in classic if each.missing])
    show("name a class that cannot be made here", [each for each in classic if each.refused])
    show("have all of their names", [each for each in classic if each.resolved])
    show("need another Python than this one", [each for each in classic if each.other_python])
    for title, names in (
        ("not offered", Counter(name for each in classic for name in each.missing)),
        ("cannot be made here", Counter(name for each in classic for name in each.refused)),
    ):
        for name, count in names.most_common():
            print(f"{count:5}  {title}: {name}")
    for each in classic if given.each else ():
        if not each.resolved:
            print(f"{each.folder}: {', '.join(each.missing + each.refused)}")
    if given.json:
        given.json.write_text(json.dumps([asdict(each) for each in packages], indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
