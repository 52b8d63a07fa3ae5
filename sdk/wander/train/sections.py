"""The sections of settings that say what is played: environments, and who plays beside the policy."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Section(BaseModel):
    """Base of every section: a name that is not a field is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


def _check_workers(value: Any) -> Any:
    number = isinstance(value, int) and value >= 1
    if number or (isinstance(value, list) and value and all(isinstance(each, str) for each in value)):
        return value
    raise ValueError('write how many, from 1 on, or addresses such as `["tcp://HOST:7100"]`')


Workers = Annotated[int | list[str], BeforeValidator(_check_workers)]


class EnvironmentSection(Section):
    """On which examples."""

    arguments: dict[str, Any] = Field(default_factory=dict)
    """Passed to `load_environment`."""
    run_seed: int | None = None
    """Seeds the environment; None means `schedule.seed`."""
    workers: Workers = 1
    """Processes that play it: how many here, or the addresses of `wander worker` elsewhere, each a process
    (`["tcp://HOST:7100", "tcp://HOST:7100"]`). The weights are the same with any of them."""
    worker_token_file: str | None = None
    """Holds the token of those addresses."""
    rollouts_at_once: int | None = Field(default=None, gt=0)
    """Most rollouts that play at the same time, for environments that bear no more; those of a step that
    remain wait in their order. None means all of a step."""


class MixedEnvironmentSection(Section):
    """One of several environments that are trained on together: `[[environments]]`."""

    name: str | None = None
    """`owner/name[@version]` or a folder; without it, the environment that the command names."""
    label: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """What it is called in the metrics; None means the environment's own name."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Passed to its `load_environment`."""
    weight: float = Field(default=1.0, gt=0)
    """Its share of the groups of every step, beside the weights of the others."""
    workers: Workers | None = None
    """As in `environment`; None means the same number, or addresses, where it has no other `name`."""


SELF, FROZEN, EARLIER = "self", "frozen", "earlier"
"""Who may play in `[players]` beside what has a name elsewhere."""
SCRIPTED = "scripted:"


class PlayerSection(Section):
    """Who plays one of the environment's players: `[players.NAME]`, or `NAME = "MODEL"` for `model` alone."""

    model: str = SELF
    """`self`: the policy, which learns as this player too. `frozen`: the model that training begins with.
    `earlier`: the policy as it was some steps ago. Otherwise a checkpoint or a script, as `wander eval
    --player` takes them."""
    refresh_every: int = Field(default=20, gt=0)
    """earlier: steps after which it becomes the policy as that is then."""
    refresh_lead: float | None = None
    """earlier: it does so only where the policy's players earned so much more than it did, on average over
    the rollouts of those steps; otherwise after as many more. None asks for no lead."""


def _read_player(value: Any) -> Any:
    return {"model": value} if isinstance(value, str) else value


Player = Annotated[PlayerSection, BeforeValidator(_read_player)]
"""The section, or the model alone."""
