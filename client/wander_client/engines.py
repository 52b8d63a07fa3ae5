"""Engines play evaluations, suites and workers on a cluster. They are plugins, found by entry point.

    [project.entry-points."wander.engines"]
    ray = "wander_ray.engine"

The entry point names a module with four functions:

    evaluate(context, settings, out, address, ended) -> Merged             play one evaluation
    evaluate_suite(context, suite, out, address) -> list[Merged]           play a suite
    resume(context, out, address, options, ended) -> Suite | None, list[Merged]
                                                                           resume either of them
    place_workers(location, cluster, count) -> context manager             yield the workers' addresses
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wander_client.errors import UsageError
from wander_client.settings import load_settings
from wander_client.terminal.suggestions import choose

GROUP = "wander.engines"
PLUGINS = {"ray": "wander-ray"}
"""Distributions of known engines, for the hint if one of them is not installed."""


@dataclass(frozen=True)
class EngineAddress:
    """A cluster and its number of shards or workers: `ray`, `ray://HOST:PORT` or `ray://HOST:PORT/8`."""

    engine: str
    cluster: str = ""
    """Address of the cluster. If empty, the engine chooses."""
    count: int | None = None

    @classmethod
    def parse(cls, word: str) -> EngineAddress:
        """Parse an address. Raises `UsageError` if the count is not a number."""
        engine, _, rest = word.partition("://")
        cluster, slash, count = rest.partition("/")
        if slash and not (count.isdecimal() and int(count)):
            raise UsageError(
                f"`{word}` does not end with a number", hint=f"for example: `{engine}://{cluster}/8`"
            )
        return cls(engine, cluster, int(count) if count else None)

    def __str__(self) -> str:
        return f"{self.engine}://{self.cluster}"


def names_engine(word: str) -> bool:
    """Return whether the address of a worker is that of a cluster."""
    return word.partition("://")[0] in PLUGINS


def load_engine(name: str) -> Any:
    """Return the module of an engine. Raises `UsageError` if it is unknown, and `MissingPlugin` if it is not
    installed.
    """
    from wander.errors import MissingPlugin  # late, because most commands do not use an engine
    from wander.lazy import find_plugin

    engine = find_plugin(GROUP, name)
    if engine is None:
        choose("--engine", name, PLUGINS)
        raise MissingPlugin(f"the engine `{name}`", PLUGINS[name], load_settings().hub)
    return engine
