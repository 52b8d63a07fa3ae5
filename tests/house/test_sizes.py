"""The house rule: everybody's median, nobody's tail."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

FUNCTION_LINES = 80
MODULE_LINES = 600
TEST_MODULE_LINES = 800
MAX_COMPLEXITY = 12
EXPORTED_NAMES = 40
FOLDER_MODULES = 15


@pytest.fixture(scope="module")
def sources(sources):
    """Leave out the revisions of the schema, which Alembic writes as one list of tables and columns."""
    return [source for source in sources if not source.path.startswith("migrations/versions/")]


@pytest.fixture(scope="module")
def allowed() -> dict[str, list[dict]]:
    rows = tomllib.loads((Path(__file__).parent / "allowed.toml").read_text())
    assert set(rows) <= {"module", "function"}
    assert all(len(row["reason"].split()) >= 5 for kind in rows.values() for row in kind), (
        "a row needs a reason"
    )
    return {"module": rows.get("module", []), "function": rows.get("function", [])}


def judge(found: dict[tuple[str, ...], int], rows: dict[tuple[str, ...], int]) -> list[str]:
    """Return what breaks the rule: tails without a row, and rows without their tail."""
    tails = [
        f"{'::'.join(key)} has {lines} lines" for key, lines in found.items() if lines > rows.get(key, 0)
    ]
    unused = [f"{'::'.join(key)}: its row is not needed any more" for key in rows if key not in found]
    slack = [
        f"{'::'.join(key)}: lower its row to {found[key]}"
        for key, lines in rows.items()
        if key in found and found[key] < lines
    ]
    return tails + unused + slack


def test_no_module_is_too_long(sources, allowed):
    found = {
        (source.path,): source.lines
        for source in sources
        if source.lines > (TEST_MODULE_LINES if source.is_test else MODULE_LINES)
    }
    assert judge(found, {(row["path"],): row["lines"] for row in allowed["module"]}) == []


def test_no_folder_has_too_many_modules(sources):
    paths = [Path(source.path) for source in sources if not source.is_test]
    packages = [path for path in paths if "wander" in path.parts[1] and path.name != "__init__.py"]
    held = Counter(path.parent for path in packages)
    assert {folder: count for folder, count in held.items() if count > FOLDER_MODULES} == {}
    assert len(held) > 40


def test_no_function_is_too_long(sources, allowed):
    found = {}
    for source in sources:
        for node in source.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    found[source.path, node.name] = lines
    assert judge(found, {(row["path"], row["name"]): row["lines"] for row in allowed["function"]}) == []


def test_the_size_check_finds_violations_and_unused_exceptions():
    assert judge({("a",): 90}, {}) == ["a has 90 lines"]
    assert judge({("a",): 90}, {("a",): 90}) == []
    assert judge({("a",): 91}, {("a",): 90}) == ["a has 91 lines"]
    assert judge({}, {("a",): 90}) == ["a: its row is not needed any more"]
    assert judge({("a",): 85}, {("a",): 90}) == ["a: lower its row to 85"]


def test_complexity_is_linted_and_nobody_opts_out(sources, root):
    lint = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert lint["mccabe"]["max-complexity"] <= MAX_COMPLEXITY
    assert "C90" in lint["select"]
    assert not any(rule.startswith("C90") for rules in lint["per-file-ignores"].values() for rule in rules)
    opt_out = re.compile(r"#\s*(ruff:\s*)?noqa(?!:)|#\s*(ruff:\s*)?noqa:.*\b(C90|TID25)")
    assert [source.path for source in sources if opt_out.search(source.text)] == []


def test_no_namespace_exports_too_many_names(sources):
    found = {}
    for source in sources:
        for node in source.nodes[0].body:
            if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "__all__" for t in node.targets):
                assert isinstance(node.value, ast.List | ast.Tuple), f"{source.path}: write `__all__` out"
                found[source.path] = len(node.value.elts)
    assert {path: count for path, count in found.items() if count > EXPORTED_NAMES} == {}


def test_no_module_has_a_meaningless_name(sources):
    vague = {"utils.py", "util.py", "helpers.py", "helper.py", "common.py", "misc.py", "manager.py"}
    assert [source.path for source in sources if source.path.rsplit("/", 1)[-1] in vague] == []


def test_no_leftovers(sources):
    leftover = re.compile(r"#.*\b(TODO|FIXME|XXX)\b|raise NotImplementedError")
    assert [source.path for source in sources if leftover.search(source.text) and source.path != SELF] == []


SELF = "tests/house/test_sizes.py"
