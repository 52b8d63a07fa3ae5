"""Who may import whom: all import the sdk, plugins also the client (entry points find them and compat)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

OURS = {"wander", "wander_client", "wander_compat", "wander_hub", "wander_integrations", "wander_ray"}
ALLOWED = {
    "sdk": {"wander"},
    "client": {"wander", "wander_client"},
    "hub": {"wander", "wander_hub"},
    "compat": {"wander", "wander_compat"},
    "plugins/wander-integrations": {"wander", "wander_integrations"},
    "plugins/wander-ray": {"wander", "wander_client", "wander_ray"},
    "environments": {"wander", "wander_integrations"},
    "migrations": {"wander_hub"},
}
NAMED_FOR_TYPE_CHECKERS = ("sdk/wander/__init__.py", "wander_client")
"""What wander-client brings the SDK finds at run time (`wander.lazy`); type checkers know it here."""
HUB_READS = {"wander.wire", "wander.types", "wander.errors", "wander.evals", "wander.sandbox", "wander.boxes"}
PARSERS = re.compile(r"\b(ast\.parse|ast\.literal_eval|griffe\.visit)\b(?!`)")
HUB_READS_TOO = {
    *("wander", "wander.__version__", "wander.system.python_parser", "wander.system.addresses"),
    *("wander.system.descriptors", "wander.system.plain_files"),
}
"""What the hub may take from the SDK: wire models, values, errors, the aggregates it recomputes, the reports
of replays, whether a sandbox can be had, and parts of the operating system."""


def imported(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """Yield the dotted module of every import, wherever in the file, with its line."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            if node.module in OURS:
                yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield node.module, node.lineno


def rooms(sources) -> Iterator[tuple[str, str, str, int]]:
    for source in sources:
        first, second, *_ = source.path.split("/")
        room = f"{first}/{second}" if first == "plugins" else first
        if room in ALLOWED and not source.is_test:
            for module, line in imported(source.nodes):
                yield room, source.path, module, line


def test_imports_between_distributions_follow_the_rules(sources):
    crossed = [
        f"{path}:{line} imports {module}"
        for room, path, module, line in rooms(sources)
        if module.split(".")[0] in OURS - ALLOWED[room]
        and (path, module.split(".")[0]) != NAMED_FOR_TYPE_CHECKERS
    ]
    assert crossed == []


def test_the_hub_imports_only_allowed_modules_of_the_sdk(sources):
    crossed = [
        f"{path}:{line} imports {module}"
        for room, path, module, line in rooms(sources)
        if room == "hub"
        and module.split(".")[0] == "wander"
        and module not in HUB_READS_TOO
        and ".".join(module.split(".")[:2]) not in HUB_READS
    ]
    assert crossed == []


def test_only_one_thread_parses_python_at_a_time(sources):
    """`repl_child` is a program with one thread."""
    loose = [
        f"{source.path}: {line.strip()}"
        for source in sources
        if source.path.split("/")[0] in {"sdk", "client", "hub", "compat"} and not source.is_test
        if not source.path.endswith("/repl_child.py")
        for line in source.text.splitlines()
        if PARSERS.search(line) and "parse_alone(" not in line
    ]
    assert loose == []


def test_an_environment_imports_no_other_environment(sources, members):
    names = {member.name.replace("-", "_"): member.folder.name for member in members if member.is_environment}
    crossed = [
        f"{path}:{line} imports {module}"
        for room, path, module, line in rooms(sources)
        if room == "environments"
        and module.split(".")[0] in names
        and names[module.split(".")[0]] != path.split("/")[1]
    ]
    assert crossed == []


def test_bare_folders_are_never_imported(sources):
    """From the root `import hub` works by accident: the folder is a namespace package."""
    bare = {"hub", "client", "sdk", "plugins", "environments", "migrations", "tests", "benchmarks", "scripts"}
    found = [
        f"{source.path}:{line} imports {module}"
        for source in sources
        for module, line in imported(source.nodes)
        if module.split(".")[0] in bare
    ]
    assert found == []


def test_the_arrow_check_sees_every_form_of_import():
    tree = ast.parse(
        "def f():\n    from wander_hub import models\nimport wander.evals.store.folder as s\nfrom . import x"
    )
    assert sorted(imported(ast.walk(tree))) == [("wander.evals.store.folder", 3), ("wander_hub.models", 2)]
