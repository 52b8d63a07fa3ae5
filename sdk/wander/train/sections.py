"""The sections of settings for environments, players, the algorithm, a teacher, and stopping."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


class Section(BaseModel):
    """Base of every section: a name that is not a field is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


MOST_WORKERS = 256
"""Each worker is a process. A larger number is almost always a typing error."""


def _check_workers(value: Any) -> Any:
    number = isinstance(value, int) and 1 <= value <= MOST_WORKERS
    if number or (isinstance(value, list) and value and all(isinstance(address, str) for address in value)):
        return value
    raise ValueError(f'write how many, 1 to {MOST_WORKERS}, or addresses such as `["tcp://HOST:7100"]`')


Workers = Annotated[int | list[str], BeforeValidator(_check_workers)]


class EnvironmentSection(Section):
    """The environment of a training."""

    arguments: dict[str, Any] = Field(default_factory=dict)
    """Passed to `load_environment`."""
    run_seed: int | None = None
    """Seeds the environment; None means `schedule.seed`."""
    workers: Workers = 1
    """Number of processes that play it here, or addresses of `wander worker` on other machines, each for one
    process (`["tcp://HOST:7100", "tcp://HOST:7100"]`), or of a Ray cluster (`["ray://HOST:6379/8"]`). They do
    not influence the weights."""
    worker_token_file: str | None = None
    """File with the token of those addresses."""
    rollout_timeout: float | None = Field(default=None, gt=0)
    """Seconds after which a rollout fails; None means never. It holds for each of several environments."""
    rollouts_at_once: int | None = Field(default=None, gt=0)
    """Maximum number of rollouts that play at the same time. The other rollouts of a step wait in their
    order. None means all rollouts of a step."""


class MixedEnvironmentSection(Section):
    """One of several environments of a training: `[[environments]]`."""

    name: str | None = None
    """`owner/name[@version]` or a folder. None means the environment that the command names."""
    label: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name in the metrics. None means the environment's own name."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Passed to its `load_environment`."""
    weight: float = Field(default=1.0, gt=0)
    """Its share of the groups of every step, relative to the weights of the others."""
    workers: Workers | None = None
    """As in `environment`. None means the same number, or the same addresses if it has no `name`."""


SELF, FROZEN, EARLIER = "self", "frozen", "earlier"
"""Models of `[players]` that only a training has."""
SCRIPTED = "scripted:"


class PlayerSection(Section):
    """The model of one of the environment's players: `[players.NAME]`, or `NAME = "MODEL"`."""

    model: str = SELF
    """`self`: the policy, which also learns as this player. `frozen`: the model that training begins with.
    `earlier`: the policy of some steps ago. Otherwise a checkpoint or a script, as for `wander eval
    --player`."""
    refresh_every: int = Field(default=20, gt=0)
    """earlier: steps after which it becomes the current policy."""


def _read_player(value: Any) -> Any:
    return {"model": value} if isinstance(value, str) else value


Player = Annotated[PlayerSection, BeforeValidator(_read_player)]
"""The section, or the model alone."""


class AlgorithmSection(Section):
    """How rewards become a gradient."""

    loss: Literal["dapo", "grpo", "dr_grpo", "bnpo", "cispo", "gspo", "sapo", "rloo", "distill"] = "dapo"
    """`rloo` compares each whole rollout with the others of its group; `distill` learns from a teacher."""
    scale_rewards: Literal["none", "group", "batch"] = "none"
    """Standard deviation by which the advantage (reward minus the group's mean) is divided."""
    clip_high: float | None = Field(default=None, gt=0)
    """Upper bound of the policy ratio: 0.2 above 1, or, for cispo, 5 itself. TRL's default for cispo is 0.2,
    which multiplies every on-policy gradient by 0.2."""
    clip_low: float = Field(default=0.2, gt=0)
    """Lower bound of the policy ratio, as the distance from 1. Bounds have an effect only if the ratio is not
    1: with vLLM, `batch.max_staleness` or `num_iterations`."""
    num_iterations: int = Field(default=1, ge=1)
    """Consecutive steps that learn from the same rollouts; `schedule.steps` counts each."""
    top_entropy_quantile: float = Field(default=1.0, ge=0, le=1)
    """Share of the sampled tokens of a backward pass to learn from: those where the policy was least
    certain."""
    off_policy_mask_threshold: float | None = Field(default=None, gt=0)
    """Leave out rollouts that earned less than their group if the policy has moved away from them by more
    than this, in nats per token."""
    kl: float = Field(default=0.0, ge=0)
    """Weight of the divergence from the starting policy. Above 0, memory holds that policy too."""
    entropy_bonus: float = Field(default=0.0, ge=0)
    """Weight of the policy's entropy in the objective, so that it keeps exploring."""
    mask_truncated_completions: bool = False
    """Leave the tokens of truncated rollouts out of the loss. Their reward still counts in the group's
    mean."""


class TeacherSection(Section):
    """The teacher of the policy if `algorithm.loss` is `distill`."""

    path: str | None = None
    """A model of the same vocabulary, named as `model.path`."""
    divergence: float = Field(default=1.0, ge=0, le=1)
    """1 minimizes the reverse divergence, 0 the forward one, and values in between a mixture of both."""
    weights_sha256: str | None = None
    """Digest of the teacher's weights, which a run writes into its record."""


class StoppingSection(Section):
    """When a run ends before its last step: it collapsed, or it reached its target."""

    collapse: bool = True
    """Stop when the alert `collapse` is raised."""
    target: dict[str, float | str] = Field(default_factory=dict)
    """Stop when one evaluation meets all of these: `CELL/METRIC` with its smallest value, or with a bound as
    text (`"<=0"`)."""

    @model_validator(mode="after")
    def _bounds(self) -> StoppingSection:
        for name, bound in self.target.items():
            if isinstance(bound, str) and not re.fullmatch(r"(>=|<=|==|>|<)\s*-?\d+(\.\d+)?", bound):
                raise ValueError(f"the target of `{name}` is no bound: write a number, or text such as `<=0`")
        return self


_GRPO_ALONE = tuple(
    f"algorithm.{name}" for name in ("entropy_bonus", "top_entropy_quantile", "off_policy_mask_threshold")
)
NOT_READ: dict[str, Sequence[str]] = {
    "rloo": (*_GRPO_ALONE, "batch.max_staleness"),
    "distill": (
        *_GRPO_ALONE,
        *(f"algorithm.{name}" for name in ("kl", "clip_low", "clip_high", "scale_rewards", "num_iterations")),
        *("data.refill_rounds", "parallel.policy"),
    ),
}
"""Settings that a loss does not read, or does not work with."""


def require_effect(settings: Any) -> None:
    """Raise `ValueError` for settings of a run that its loss does not read."""
    loss = settings.algorithm.loss
    for name in NOT_READ.get(loss, ()):
        section, _, field = name.partition(".")
        value = getattr(settings, section)
        if getattr(value, field) != type(value).model_fields[field].default:
            raise ValueError(f"the loss `{loss}` does not go with `{name}`: leave it out")
    if loss == "rloo" and settings.algorithm.scale_rewards == "group":
        raise ValueError("the loss `rloo` divides by the deviation of the batch, or by nothing")
    if loss == "distill" and settings.teacher.path is None:
        raise ValueError("the loss `distill` needs `teacher.path`")
    if loss != "distill" and settings.teacher.path is not None:
        raise ValueError("`teacher.path` is only for the loss `distill`")
