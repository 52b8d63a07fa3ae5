"""Prints statistics of the source: lines, modules, modules with one importer, functions.

    .venv/bin/python scripts/measure_house.py [ROOT]

ROOT is another checkout to compare with (`git worktree add ../before COMMIT`). Late and type-only imports
also count.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import grimp

PACKAGES = {
    "wander": "sdk",
    "wander_compat": "compat",
    "wander_client": "client",
    "wander_hub": "hub",
    "wander_integrations": "plugins/wander-integrations",
    "wander_ray": "plugins/wander-ray",
}
"""Import packages, with the folders of their distributions. Plugins are counted separately."""
ONE_IMPORTER_LINES = 110
"""Maximum number of lines of a module with a single importer that is counted as mergeable."""
FOLDER_MODULES = 15


def main() -> None:
    """Print one row per package, then wide folders and modules with one importer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    root: Path = parser.parse_args().root
    packages = {name: root / folder for name, folder in PACKAGES.items() if (root / folder / name).is_dir()}
    sys.path[:0] = [str(folder) for folder in packages.values()]
    graph = grimp.build_graph(*packages, cache_dir=None)
    print(f"{'package':<16}{'lines':>8}{'modules':>9}{'alone':>7}{'functions':>11}{'median':>8}")
    totals = [[0] * 4, [0] * 4]
    for name, folder in packages.items():
        files = list((folder / name).rglob("*.py"))
        lengths = [length for file in files for length in function_lengths(file)]
        row = [
            sum(count_lines(file) for file in files),
            len(files),
            len(single_importer_modules(graph, name, folder)),
            len(lengths),
        ]
        kind = folder.relative_to(root).parts[0] == "plugins"
        totals[kind] = [total + value for total, value in zip(totals[kind], row, strict=True)]
        print(f"{name:<16}{row[0]:>8,}{row[1]:>9}{row[2]:>7}{row[3]:>11,}{median(lengths):>8.0f}")
    for what, total in zip(("in all", "plugins"), totals, strict=True):
        print(f"{what:<16}{total[0]:>8,}{total[1]:>9}{total[2]:>7}{total[3]:>11,}")
    for name, folder in packages.items():
        for place, count in wide_folders(folder / name):
            print(f"wide: {place.relative_to(root)} holds {count} modules")


def count_lines(file: Path) -> int:
    """Return the number of lines of a file."""
    return len(file.read_text(encoding="utf-8").splitlines())


def function_lengths(file: Path) -> Iterator[int]:
    """Yield the number of lines of each function, without decorators."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            yield node.end_lineno - node.lineno + 1


def wide_folders(package: Path) -> Iterator[tuple[Path, int]]:
    """Yield the folders with more modules than the house allows, not counting `__init__`."""
    for folder in [package, *(path for path in package.rglob("*") if path.is_dir())]:
        count = sum(file.name != "__init__.py" for file in folder.glob("*.py"))
        if count > FOLDER_MODULES:
            yield folder, count


def single_importer_modules(graph: grimp.ImportGraph, package: str, folder: Path) -> list[str]:
    """Return the short modules that only one other module imports."""
    alone = []
    for module in graph.modules:
        file = folder.joinpath(*module.split(".")).with_suffix(".py")
        if module.split(".")[0] != package or ".commands." in module or not file.is_file():
            continue
        if (
            len(graph.find_modules_that_directly_import(module)) == 1
            and count_lines(file) <= ONE_IMPORTER_LINES
        ):
            alone.append(module)
    return sorted(alone)


if __name__ == "__main__":
    main()
