"""From a name, a module or a path to an environment.

An environment package names its factory in the entry point group `wander.environments`; a module with a
`load_environment` function works without one. Every failure is a `LoadError` that gives the true cause.
"""

from __future__ import annotations

import difflib
import inspect
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from wander.adapters import adapters
from wander.arguments import cause, require_fitting
from wander.environment import Environment
from wander.errors import ArgumentsRefused, ConfigError, LoadError
from wander.modules import NoModule, import_file, import_from, import_module

GROUP = "wander.environments"


def load_environment(name: str, **arguments: Any) -> Environment:
    """Load an installed environment by its name or its module's name and call its `load_environment`.

    The name may carry the owner and the version (`alice/wordle@1.2.0`): the owner is not looked at, and a
    version that is not the installed one is refused. A name that is a path (`./wordle`, `wordle.py`) goes
    to `load_path`. Raises `LoadError`.
    """
    return find_factory(name).made(arguments)


def load_path(path: str | Path, **arguments: Any) -> Environment:
    """Load an environment from a project folder or a `.py` file; its folder is put on `sys.path`.

    Raises `LoadError`.
    """
    return find_path_factory(path).made(arguments)


@dataclass(frozen=True)
class Factory:
    """A function that makes an environment, imported and not called yet."""

    name: str
    """The environment's name."""
    function: Callable[..., Any]

    def made(self, arguments: dict[str, Any]) -> Environment:
        """Call the function and name the environment it returns; raises `LoadError`."""
        return _make_environment(self.name, self.function, arguments)


def find_factory(name: str) -> Factory:
    """Import the module of an installed environment, or of a path; takes names as `load_environment` does."""
    if name.startswith((".", "/", "~")) or name.endswith(".py"):
        return find_path_factory(name)
    wanted, _, version = name.rpartition("/")[2].partition("@")
    entry = _entry_point(wanted)
    if entry is None:
        return Factory(wanted, _factory(_import(_module_name(wanted), wanted), "load_environment"))
    if version and entry.dist is not None and entry.dist.version != version:
        raise LoadError(
            f"`{wanted}` {entry.dist.version} is installed, not {version}",
            hint=f"run `wander install {name}`",
        )
    module, _, attribute = entry.value.partition(":")
    return Factory(wanted, _factory(_import(module, wanted), attribute or "load_environment"))


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
            hint=f"write `{module}.py` with a `load_environment` function, or name yours in "
            f'`[project.entry-points."{GROUP}"]` of pyproject.toml',
        )
    return Factory(name, _factory(import_from(source, module), attribute or "load_environment"))


def installed_environments() -> list[str]:
    """Return the names of all installed environments that have an entry point, sorted."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def _entry_point(name: str) -> EntryPoint | None:
    """Return the entry point of that name; `-`, `_`, `.` and case do not matter, as on a package index."""
    found = [entry for entry in entry_points(group=GROUP) if _normal(entry.name) == _normal(name)]
    owners = {entry.value for entry in found}
    if len(owners) > 1:
        raise LoadError(
            f"several installed packages call their environment `{name}`: {', '.join(sorted(owners))}",
            hint="load one of them by its module's name",
        )
    return found[0] if found else None


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _module_name(name: str) -> str:
    return name.replace("-", "_")


def _import(module: str, name: str) -> ModuleType:
    """Import the module of an installed environment."""
    try:
        return import_module(module)
    except NoModule as error:
        raise LoadError(f"there is no environment `{name}` here", hint=_near(name)) from error


def _near(name: str) -> str:
    known = installed_environments()
    near = difflib.get_close_matches(name, known, n=3)
    if near:
        return f"did you mean {', '.join(f'`{each}`' for each in near)}?"
    installed = ", ".join(f"`{each}`" for each in known) or "none"
    return f"run `wander install OWNER/{name}`, or check the spelling (installed: {installed})"


def _project_target(folder: Path) -> tuple[str, str]:
    """Return (environment name, `module:function`) of a project folder."""
    settings = folder / "pyproject.toml"
    if not settings.is_file():
        return folder.name, _module_name(folder.name)
    try:
        project = tomllib.loads(settings.read_text(encoding="utf-8")).get("project", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LoadError(f"`{settings}` is not valid TOML: {error}") from error
    declared: dict[str, str] = project.get("entry-points", {}).get(GROUP, {})
    if len(declared) > 1:
        raise LoadError(f"`{settings}` declares {len(declared)} environments; one package holds one")
    if declared:
        return next(iter(declared.items()))
    name = str(project.get("name", folder.name))
    return name, _module_name(name)


def _holds(folder: Path, module: str) -> bool:
    base = folder.joinpath(*module.split("."))
    return base.with_suffix(".py").is_file() or base.is_dir()


def _factory(module: ModuleType, attribute: str) -> Callable[..., Any]:
    factory = getattr(module, attribute, None)
    if factory is None or isinstance(factory, type):
        found = (adapter.find_factory(module, factory) for adapter in adapters())
        factory = next(filter(None, found), factory)
    if not callable(factory):
        raise LoadError(
            f"`{module.__name__}` has no function `{attribute}`",
            hint=f"write `def {attribute}(**arguments) -> wander.Environment:` in it",
        )
    return factory


def _make_environment(name: str, factory: Callable[..., Any], arguments: dict[str, Any]) -> Environment:
    """Call the factory and name the environment it returns."""
    require_fitting(name, factory, arguments)
    try:
        env = factory(**arguments)
    except (Exception, SystemExit) as error:
        hint = getattr(error, "hint", None)
        kind = ArgumentsRefused if isinstance(error, ConfigError) else LoadError
        raise kind(f"`load_environment` of `{name}` raised `{cause(error)}`", hint=hint) from error
    if inspect.iscoroutine(env):
        env.close()
    adapted = (adapter.adapt(env) for adapter in adapters())
    env = next((each for each in adapted if each is not None), env)
    if not isinstance(env, Environment):
        raise LoadError(
            f"`load_environment` of `{name}` returned a `{type(env).__name__}`, not an environment",
            hint="return an instance of `wander.SingleTurnEnv`, `wander.MultiTurnEnv` or another "
            "environment, from an ordinary (not async) function",
        )
    env.name = env.name or name
    env.arguments = dict(arguments)
    return env
