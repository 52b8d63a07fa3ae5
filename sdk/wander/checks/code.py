"""Finds problems in an environment's source that its rollouts may not show during a check.

The source is read and not run, so a condition cannot hide anything. But reading cannot show whether a finding
ever matters, so these findings are only warnings.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from wander.system.plain_files import read_plain_file
from wander.system.python_parser import parse_alone

Kind = Literal["process", "sets", "eval", "shared"]

_CALLS: dict[str, Kind] = {
    **dict.fromkeys(("hash", "id"), "process"),
    **dict.fromkeys(("eval", "exec"), "eval"),
}
_OWNERS = {
    "getpid": "os", "getppid": "os", "gethostname": "socket", "getfqdn": "socket", "uname": "os platform",
    "getlogin": "os", "getuser": "getpass", "getmtime": "path", "getctime": "path", "getatime": "path",
    "getnode": "uuid", "node": "platform",
}  # fmt: skip
"""Owners of these functions."""
_FILE_TIMES = ("st_mtime", "st_ctime", "st_atime", "st_birthtime", "st_mtime_ns", "st_ctime_ns", "st_ino")
_ORDERLESS = {"sorted", "len", "sum", "min", "max", "any", "all", "set", "frozenset", "isinstance", "bool"}
"""Functions whose result does not depend on the order of a set."""
_ORDERED = {"list", "tuple", "iter", "enumerate", "next", "zip", "map", "filter", "reversed", "str", "repr"}
_DRAWN = {"join", "choice", "choices", "shuffle", "sample"}
_COMBINE = {"union", "intersection", "difference", "symmetric_difference", "copy"}
_GROWS = {"append", "extend", "insert", "pop", "popleft", "appendleft", "remove"}
_LASTING = ("Env", "Environment", "Rubric", "Parser", "Group")
"""Endings of the names of classes whose instances outlive a rollout."""
_LEFT_OUT = {"tests", "test", "build", "dist", "venv", "node_modules", "site-packages", "__pycache__"}
_MOST_FILES, _LARGEST_SOURCE = 500, 2_000_000


class CodeUse(NamedTuple):
    """One finding in the source."""

    kind: Kind
    name: str
    where: str


def find_code_uses(source_path: str) -> list[CodeUse]:
    """Return the findings in the sources under a path (a folder or a file).

    Files that are not Python are ignored.
    """
    root = Path(source_path)
    files = sorted(root.rglob("*.py"))[:_MOST_FILES] if root.is_dir() else [root]
    uses: list[CodeUse] = []
    for file in files:
        inside = file.relative_to(root).parts[:-1] if root.is_dir() else ()
        if any(part in _LEFT_OUT or part.startswith(".") for part in inside):
            continue
        if root.is_dir() and (file.name.startswith("test_") or file.name == "conftest.py"):
            continue
        try:
            source = read_plain_file(file, _LARGEST_SOURCE)
            tree = parse_alone(partial(ast.parse, source))
            reader = _CodeReader(file.name, tree)
            reader.visit(tree)
        except (OSError, SyntaxError, ValueError):  # loading the environment reports it
            continue
        except (RecursionError, MemoryError):  # nested too deeply to be parsed
            continue
        uses += reader.uses
    return list(dict.fromkeys(uses))


class _CodeReader(ast.NodeVisitor):
    """Collects the findings in one module."""

    def __init__(self, file: str, tree: ast.Module) -> None:
        self.file = file
        self.uses: list[CodeUse] = []
        self.functions: list[str] = []
        self.sets: list[set[str]] = [_set_names(tree)]
        """Names that hold a set, by scope."""
        self.classes: list[bool] = []
        """Whether the instances of each enclosing class outlive a rollout."""
        self.globals: list[set[str]] = []
        """Names that each enclosing function declares as global or nonlocal."""
        self.module = _assigned(tree)
        self.locals: list[set[str]] = []
        self.harmless: set[ast.AST] = set()
        """Expressions whose order has no effect."""

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.classes.append(any(_last_name(base).endswith(_LASTING) for base in node.bases))
        self.generic_visit(node)
        self.classes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        declared = [
            statement for statement in _own_nodes(node) if isinstance(statement, ast.Global | ast.Nonlocal)
        ]
        self.globals.append({name for statement in declared for name in statement.names})
        parameters = [part for part in ast.walk(node.args) if isinstance(part, ast.arg)]
        self.locals.append(_assigned(node) | {parameter.arg for parameter in parameters})
        self.functions.append(node.name)
        self.sets.append(_set_names(node))
        self.generic_visit(node)
        for stack in (self.globals, self.locals, self.functions, self.sets):
            stack.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = _last_name(node.func.value) if isinstance(node.func, ast.Attribute) else None
        if (
            name in _OWNERS
            and (owner is None or owner in _OWNERS[name].split())
            and (owner or name != "node")
        ):
            self._add("process", f"{owner}.{name}" if owner else name, node)
        elif owner is None and name in _CALLS and not self._is_hook(name, node):
            self._add(_CALLS[name], name, node)
        if owner is None and name in _ORDERLESS:
            self.harmless.update(node.args)
        elif (owner is None and name in _ORDERED) or name in _DRAWN:
            for argument in node.args:
                self._check_iteration(argument, f"{name}(...)")
        elif owner is not None and name == "pop" and not node.args and self._is_set(node.func.value):  # type: ignore[attr-defined]
            self._add("sets", "set.pop()", node)
        if self.functions and isinstance(node.func, ast.Attribute) and name in _GROWS:
            self._check_change(node.func.value, node)
        if self.functions and owner is None and name == "next" and node.args:
            self._check_change(node.args[0], node)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self._check_iteration(node.iter, "for")
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> None:
        if node not in self.harmless:
            for part in node.generators:
                self._check_iteration(part.iter, "for")
        self.generic_visit(node)

    visit_GeneratorExp = visit_DictComp = visit_ListComp

    def visit_Starred(self, node: ast.Starred) -> None:
        self._check_iteration(node.value, "*")
        self.generic_visit(node)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> None:
        self._check_iteration(node.value, "f-string")
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in _FILE_TIMES:
            self._add("process", node.attr, node)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if self.functions:
            self._check_change(node.target, node)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if self.functions and isinstance(target, ast.Subscript) and _mentions(node.value, target):
                self._check_change(target.value, node)
        self.generic_visit(node)

    def _check_change(self, target: ast.expr, node: ast.AST) -> None:
        """Record a change of something that outlives a rollout: an outer variable, or an environment's
        attribute.
        """
        while isinstance(target, ast.Subscript):
            target = target.value
        if isinstance(target, ast.Name):
            name = target.id if self._outlives(target.id) else None
        else:
            lasting = self.classes and self.classes[-1] and self.functions[-1] not in ("__init__", "__new__")
            owner = _last_name(target.value) if isinstance(target, ast.Attribute) else None
            name = f"{owner}.{_last_name(target)}" if lasting and owner in ("self", "cls") else None
        if name is not None:
            self._add("shared", name, node)

    def _outlives(self, name: str) -> bool:
        """Return whether a variable belongs to the module or an enclosing `load_environment`, not to a
        rollout.
        """
        if name in self.globals[-1]:
            return True
        if name in self.locals[-1]:
            return False
        if self.functions[0] == "load_environment" and len(self.functions) > 1 and name in self.locals[0]:
            return True
        return name in self.module and not any(name in scope for scope in self.locals)

    def _check_iteration(self, iterated: ast.expr, construct: str) -> None:
        if self._is_set(iterated):
            self._add("sets", f"{construct} over a set", iterated)

    def _is_set(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            scopes = [
                sets for sets, names in zip(self.sets[1:], self.locals, strict=True) if node.id in names
            ]
            return node.id in (scopes[-1] if scopes else self.sets[0])
        return _makes_set(node, self.sets)

    def _is_hook(self, name: str, node: ast.Call) -> bool:
        """Return whether a call is harmless: a hash inside `__hash__`, or code that is a constant."""
        if name == "hash":
            return bool(self.functions) and self.functions[-1] == "__hash__"
        return name in ("eval", "exec") and bool(node.args) and isinstance(node.args[0], ast.Constant)

    def _add(self, kind: Kind, name: str, node: Any) -> None:
        inside = self.functions[-1] if self.functions else "the module"
        self.uses.append(CodeUse(kind, name, f"{self.file}:{node.lineno} {inside}"))


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, without those of the functions and classes inside."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _own_nodes(child)


def _assigned(scope: ast.AST) -> set[str]:
    nodes = (node for node in _own_nodes(scope) if isinstance(node, ast.Name))
    return {node.id for node in nodes if isinstance(node.ctx, ast.Store)}


def _set_names(scope: ast.AST) -> set[str]:
    """Return the names whose assigned values in a scope are all sets."""
    bound: dict[str, bool] = {}
    for node in _own_nodes(scope):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    bound[target.id] = bound.get(target.id, True) and _makes_set(node.value, [])
    return {name for name, is_set in bound.items() if is_set}


def _makes_set(node: ast.AST, scopes: list[set[str]]) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Name):
        return any(node.id in scope for scope in scopes)
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name):
            return node.func.id in ("set", "frozenset")
        return isinstance(node.func, ast.Attribute) and (
            node.func.attr in _COMBINE and _makes_set(node.func.value, scopes)
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
        return _makes_set(node.left, scopes) or _makes_set(node.right, scopes)
    return False


def _mentions(value: ast.expr, target: ast.Subscript) -> bool:
    """Return whether the stored value depends on the previous one, as in a counter but not in a cache."""
    wanted = ast.dump(target.value)
    return any(
        isinstance(part, ast.Attribute | ast.Name) and ast.dump(part) == wanted for part in ast.walk(value)
    )
