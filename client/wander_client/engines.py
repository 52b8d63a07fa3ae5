"""Engines play evaluations, suites and workers on a cluster; each is a plugin, found by its entry point.

    [project.entry-points."wander.engines"]
    ray = "wander_ray.engine"

The entry point names a module with four functions:

    evaluate(context, settings, out, address, ended) -> Merged             play one evaluation
    evaluate_suite(context, suite, out, address) -> list[Merged]           play a suite
    resume(context, out, address, said, ended) -> Suite | None, list[Merged]
                                                                           go on with either
    place_workers(location, cluster, count) -> context manager             yield where workers listen
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wander_client.errors import UsageError
from wander_client.settings import load_settings
from wander_client.terminal.suggestions import choose

GROUP = "wander.engines"
PLUGINS = {"ray": "wander-ray"}
"""The distributions of known engines, named when they are not installed."""


@dataclass(frozen=True)
class EngineAddress:
    """A cluster, and how many shards or workers it plays: `ray`, `ray://HOST:PORT` or `ray://HOST:PORT/8`."""

    engine: str
    cluster: str = ""
    """Empty leaves the choice to the engine."""
    count: int | None = None

    @classmethod
    def parse(cls, word: str) -> EngineAddress:
        """Read an address; raises `UsageError` for a count that is not a number."""
        engine, _, place = word.partition("://")
        cluster, slash, count = place.partition("/")
        if slash and not (count.isdecimal() and int(count)):
            raise UsageError(f"`{word}` does not end with a number", hint=f"write `{engine}://{cluster}/8`")
        return cls(engine, cluster, int(count) if count else None)

    def __str__(self) -> str:
        return f"{self.engine}://{self.cluster}"


def names_engine(word: str) -> bool:
    """Tell whether the address of a worker is that of an engine's cluster."""
    return word.partition("://")[0] in PLUGINS


def load_engine(name: str) -> Any:
    """Return the module of an engine; raises `UsageError` if it is unknown or not installed."""
    from importlib.metadata import entry_points  # here, since most commands use no engine

    from wander.errors import install_command

    if found := entry_points(group=GROUP, name=name):
        return next(iter(found)).load()
    choose("--engine", name, PLUGINS)
    raise UsageError(
        f"the engine `{name}` is not installed",
        hint=f"install it: `{install_command(PLUGINS[name], load_settings().hub)}`",
        code="missing_extra",
    )
