"""Loading of environments by name, module or path.

An environment package registers its factory in the entry point group `wander.environments`. A module with a
`load_environment` function works without an entry point. Every failure is a `LoadError` with the real cause.
"""

from __future__ import annotations

import inspect
import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from wander.adapters import adapters
from wander.environment import Environment
from wander.errors import ArgumentsRefused, ArgumentsUnfit, ConfigError, LoadError, did_you_mean
from wander.modules import NoModule, import_file, import_from, import_module, missing_resource
from wander.types import canonical_json, first_fault

GROUP = "wander.environments"
_LONGEST_DEFAULT = 1000
"""Maximum length of a recorded default value, in characters of JSON."""


def load_environment(name: str, **arguments: Any) -> Environment:
    """Load an installed environment by its name or its module's name and call its `load_environment`.

    The name may contain owner and version (`alice/wordle@1.2.0`). The owner is ignored, and a version other
    than the installed one is an error. A name that is a path (`./wordle`, `wordle.py`) is loaded by
    `load_path`. Raises `LoadError`.
    """
    return find_factory(name).build(arguments)


def load_path(path: str | Path, **arguments: Any) -> Environment:
    """Load an environment from a project folder or a `.py` file, and add its folder to `sys.path`.

    Raises `LoadError`.
    """
    return find_path_factory(path).build(arguments)


@dataclass(frozen=True)
class Factory:
    """An imported function that creates an environment and has not been called yet."""

    name: str
    """Name of the environment."""
    function: Callable[..., Any]

    def build(self, arguments: dict[str, Any]) -> Environment:
        """Call the function and name the environment that it returns; raises `LoadError`."""
        require_fitting(self.name, self.function, arguments)
        try:
            env = self.function(**arguments)
        except (Exception, SystemExit) as error:
            kind, hint = missing_resource(error) or (LoadError, None)
            kind = ArgumentsRefused if isinstance(error, ConfigError) else kind
            message = f"`load_environment` of `{self.name}` raised `{cause(error)}`"
            raise kind(message, hint=getattr(error, "hint", None) or hint) from error
        if inspect.iscoroutine(env):
            env.close()
        adapted = (adapter.adapt(env) for adapter in adapters())
        env = next((result for result in adapted if result is not None), env)
        if not isinstance(env, Environment):
            raise LoadError(
                f"`load_environment` of `{self.name}` returned a `{type(env).__name__}`, not an environment",
                hint="return an instance of `wander.SingleTurnEnv`, `wander.MultiTurnEnv` or another "
                "environment, from an ordinary (not async) function",
            )
        env.name = env.name or self.name
        env.arguments = dict(arguments)
        env.argument_defaults = _defaults(self.function)
        return env


def find_factory(name: str) -> Factory:
    """Import the module of an installed environment or a path; accepts the names that `load_environment`
    does."""
    if name.startswith((".", "/", "~")) or name.endswith(".py"):
        return find_path_factory(name)
    wanted, _, version = name.rpartition("/")[2].partition("@")
    entry = _entry_point(wanted)
    if entry is None:
        return Factory(wanted, _factory(_import(_module_name(wanted), wanted, name), "load_environment"))
    if version and entry.dist is not None and entry.dist.version != version:
        raise LoadError(
            f"`{wanted}` {entry.dist.version} is installed, not {version}",
            hint=f"run `wander install {name}`",
        )
    module, _, attribute = entry.value.partition(":")
    return Factory(wanted, _factory(_import(module, wanted, name), attribute or "load_environment"))


def find_path_factory(path: str | Path) -> Factory:
    """Import the module of a project folder or a `.py` file, as `load_path` does."""
    place = Path(path).expanduser().resolve()
    if place.is_file() and place.suffix == ".py":
        return Factory(place.stem, _factory(import_file(place), "load_environment"))
    if not place.is_dir():
        raise LoadError(f"`{path}` is neither a folder nor a Python file")
    name, target = _project_target(place)
    module, _, attribute = target.partition(":")
    source = next((folder for folder in (place, place / "src") if _holds(folder, module)), None)
    if source is None:
        raise LoadError(
            f"`{path}` has no module `{module}`",
            hint=f"write `{module}.py` with a `load_environment` function, or name your function in "
            f'`[project.entry-points."{GROUP}"]` of pyproject.toml',
        )
    return Factory(name, _factory(import_from(source, module), attribute or "load_environment"))


def module_of(name: str, *, is_path: bool) -> str:
    """Return the module name of an installed environment or a path, without importing it."""
    if is_path:
        place = Path(name)
        return place.stem if place.is_file() else _project_target(place)[1].partition(":")[0]
    wanted = name.rpartition("/")[2].partition("@")[0]
    entry = _entry_point(wanted)
    return _module_name(wanted) if entry is None else entry.value.partition(":")[0]


def installed_environments() -> list[str]:
    """Return the names of all installed environments with an entry point, sorted."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def _entry_point(name: str) -> EntryPoint | None:
    """Return the entry point with this name; as on a package index, `-`, `_`, `.` and case are equivalent."""
    entries = [entry for entry in entry_points(group=GROUP) if normal_name(entry.name) == normal_name(name)]
    owners = {entry.value for entry in entries}
    if len(owners) > 1:
        raise LoadError(
            f"several installed packages call their environment `{name}`: {', '.join(sorted(owners))}",
            hint="load the environment by its module's name",
        )
    return entries[0] if entries else None


def normal_name(name: str) -> str:
    """Return the form of a name that package indexes compare."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _module_name(name: str) -> str:
    return name.replace("-", "_")


def _import(module: str, name: str, spec: str) -> ModuleType:
    """Import the module of an installed environment; `spec` is the name that the caller used."""
    whole = spec if "/" in spec else f"OWNER/{name}"
    try:
        imported = import_module(module)
    except NoModule as error:
        known = installed_environments()
        hint = did_you_mean(name, known) if "/" not in spec else None
        if hint is None:
            installed = ", ".join(f"`{environment}`" for environment in known) or "no environments"
            hint = (
                f'`wander.load("{whole}")` loads it from a hub, or from the folder of `wander install`; '
                f"this Python has {installed}"
            )
        raise LoadError(f"there is no environment `{name}` here", hint=hint) from error
    if hasattr(imported, "__path__") and getattr(imported, "__file__", None) is None:
        raise LoadError(
            f"`{module}` is a folder here, not an installed environment",
            hint=f'write `./{module}` for that folder, or load one from a hub: `wander.load("{whole}")`',
        )
    return imported


def _project_target(folder: Path) -> tuple[str, str]:
    """Return (environment name, `module:function`) of a project folder."""
    settings = folder / "pyproject.toml"
    if not settings.is_file():
        return folder.name, _module_name(folder.name)
    from wander.wire.untrusted_text import (
        read_project,  # imported here, because most environments are packages
    )

    try:
        project = read_project(folder).get("project", {})
    except OSError as error:
        raise LoadError(f"`{settings}` cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise LoadError(f"cannot read `{settings}`: {error}") from error
    declared: dict[str, str] = project.get("entry-points", {}).get(GROUP, {})
    if len(declared) > 1:
        raise LoadError(f"`{settings}` declares {len(declared)} environments; a package may declare only one")
    if declared:
        return next(iter(declared.items()))
    name = str(project.get("name", folder.name))
    return name, _module_name(name)


def _holds(folder: Path, module: str) -> bool:
    base = folder.joinpath(*module.split("."))
    return base.with_suffix(".py").is_file() or base.is_dir()


def _factory(module: ModuleType, attribute: str) -> Callable[..., Any]:
    factory = getattr(module, attribute, None)
    adapted = (adapter.find_factory(module, factory) for adapter in adapters())
    factory = next(filter(None, adapted), factory)
    if not callable(factory):
        raise LoadError(
            f"`{module.__name__}` has no function `{attribute}`",
            hint=f"write `def {attribute}(**arguments) -> wander.Environment:` in it",
        )
    return factory


def require_fitting(name: str, factory: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raise `ArgumentsUnfit` for arguments that the factory does not accept, or whose value has the wrong
    type.

    Values are checked against annotations as strict JSON: `2` fits a float and `[1]` a tuple, but `"2"` is
    not an int. Null fits if it is the default. Any value fits a parameter without an annotation, or with an
    annotation that JSON cannot express.
    """
    signature = inspect.signature(factory)
    shown = ", ".join(f"`{_show_parameter(parameter)}`" for parameter in signature.parameters.values())
    taken = (
        f"it accepts {shown}" if shown else "it accepts no arguments"
    )  # it accepts `size: int = 3`, `level`
    try:
        signature.bind(**arguments)
    except TypeError as error:
        # List the unknown names with similar known names, or else the missing arguments.
        faults = []
        for key in (key for key in arguments if key not in signature.parameters):
            near = did_you_mean(key, signature.parameters)
            faults.append(f"has no argument `{key}`" + (f" ({near})" if near else ""))
        why = " and ".join(faults) or f"cannot be loaded: {error}"
        raise ArgumentsUnfit(f"environment `{name}` {why}", hint=taken) from error
    try:
        hints = get_type_hints(factory, include_extras=True)
    except Exception:  # noqa: BLE001 - an annotation may use names that exist only for type checkers
        return
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    for key, parameter in signature.parameters.items():
        if key not in arguments or key not in hints or parameter.kind in variable:
            continue
        problem = None
        if arguments[key] is not None or parameter.default is not None:
            problem = _misfit(hints[key], arguments[key])
        if problem is not None:
            kind, given = _write_annotation(parameter), json.dumps(arguments[key], ensure_ascii=False)
            if _misfit(hints[key], given) is None:
                text = json.dumps(given)
                taken += f"; as text, write `{text}`, in a shell `{shlex.quote(text)}`"
            raise ArgumentsUnfit(
                f"environment `{name}`: `{key}` must be `{kind}`, not `{given}` ({problem})", hint=taken
            )


def _defaults(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the default values of a factory's parameters that JSON can express, except long values."""
    defaults = {}
    for name, parameter in inspect.signature(factory).parameters.items():
        value = list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
        try:
            if len(canonical_json(value)) <= _LONGEST_DEFAULT:
                defaults[name] = value
        except (TypeError, ValueError):  # also for a parameter without a default
            continue
    return defaults


def cause(error: BaseException) -> str:
    """Return an exception's type and message on a single line; for a failed validation, its first problem."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        return f"{error.title}: {f'`{place}`: ' if place else ''}{first['msg']}"
    return f"{type(error).__name__}: {error}"


def _misfit(annotation: Any, value: Any) -> str | None:
    """Return the reason why a value does not fit an annotation, or None."""
    try:
        adapter = TypeAdapter(annotation)
        adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        return first_fault(error)[1]
    except (PydanticUserError, TypeError, ValueError, NameError):
        return None  # a custom class, or a value that is not JSON, which the factory must check
    return None


def _show_parameter(parameter: inspect.Parameter) -> str:
    name = str(parameter.replace(annotation=inspect.Parameter.empty, default=inspect.Parameter.empty))
    kind = _write_annotation(parameter)
    default = "" if parameter.default is inspect.Parameter.empty else repr(parameter.default)
    if kind:
        return f"{name}: {kind}" + (f" = {default}" if default else "")
    return f"{name}={default}" if default else name


def _write_annotation(parameter: inspect.Parameter) -> str:
    """Return an annotation as the author wrote it; postponed annotations are already text."""
    if parameter.annotation is inspect.Parameter.empty:
        return ""
    if isinstance(parameter.annotation, str):
        return parameter.annotation
    return inspect.formatannotation(parameter.annotation)
