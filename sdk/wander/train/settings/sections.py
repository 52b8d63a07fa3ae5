"""The sections of settings for environments, players, the algorithm, a teacher, and stopping."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


class Section(BaseModel):
    """Base of every section; unknown names are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


MOST_WORKERS = 256
"""Maximum number of workers. Each worker is a process, so a larger number is almost always a typing error."""


def _check_workers(value: Any) -> Any:
    number = isinstance(value, int) and 1 <= value <= MOST_WORKERS
    if number or (isinstance(value, list) and value and all(isinstance(address, str) for address in value)):
        return value
    raise ValueError(f'write a number from 1 to {MOST_WORKERS}, or addresses such as `["tcp://HOST:7100"]`')


Workers = Annotated[int | list[str], BeforeValidator(_check_workers)]


class EnvironmentSection(Section):
    """The training environment."""

    arguments: dict[str, Any] = Field(default_factory=dict)
    """Arguments of `load_environment`."""
    run_seed: int | None = None
    """Seed of the environment; None means `schedule.seed`."""
    workers: Workers = 1
    """Number of local processes that play it, or addresses of `wander worker` on other machines, each for one
    process (`["tcp://HOST:7100", "tcp://HOST:7100"]`), or of a Ray cluster (`["ray://HOST:6379/8"]`). They do
    not influence the weights."""
    worker_token_file: str | None = None
    """File with the token of those addresses."""
    rollout_timeout: float | None = Field(default=None, gt=0)
    """Seconds after which a rollout fails; None means never. It applies to each of several environments."""
    rollouts_at_once: int | None = Field(default=None, gt=0)
    """Maximum number of rollouts that play at the same time. The remaining rollouts of a step wait in order.
    None means all rollouts of a step."""


class MixedEnvironmentSection(Section):
    """An environment of a training with several environments: `[[environments]]`."""

    name: str | None = None
    """`owner/name[@version]` or a folder. None means the environment that the command names."""
    label: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name in the metrics. None means the environment's own name."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Arguments of its `load_environment`."""
    weight: float = Field(default=1.0, gt=0)
    """Share of the groups of every step, relative to the weights of the other environments."""
    workers: Workers | None = None
    """Workers, as in `environment`. None means the same number, or the same addresses if it has no `name`."""


SELF, FROZEN, EARLIER = "self", "frozen", "earlier"
"""Models in `[players]` that exist only in training."""
SCRIPTED = "scripted:"


class PlayerSection(Section):
    """The model of a player of the environment: `[players.NAME]`, or `NAME = "MODEL"`."""

    model: str = SELF
    """Model: `self` for the policy, which also learns as this player; `frozen` for the initial model;
    `earlier` for the policy of some steps ago. Otherwise a checkpoint or a script, as for `wander eval
    --player`."""
    refresh_every: int = Field(default=20, gt=0)
    """earlier: number of steps after which it becomes the current policy."""


def _read_player(value: Any) -> Any:
    return {"model": value} if isinstance(value, str) else value


Player = Annotated[PlayerSection, BeforeValidator(_read_player)]
"""A player's section, or only its model."""


class AlgorithmSection(Section):
    """The calculation of gradients from rewards."""

    loss: Literal["dapo", "grpo", "dr_grpo", "bnpo", "cispo", "gspo", "sapo", "rloo", "distill"] = "dapo"
    """Loss. `rloo` compares each whole rollout with the others of its group; `distill` learns from a
    teacher."""
    scale_rewards: Literal["none", "group", "batch"] = "none"
    """Divisor of advantages (reward minus the group's mean): none, or the standard deviation of rewards in
    the group or in the step."""
    clip_high: float | None = Field(default=None, gt=0)
    """Upper bound of the policy ratio. By default it is 0.2 above 1, or 5 for cispo. TRL's default for cispo
    is 0.2, which multiplies every on-policy gradient by 0.2."""
    clip_low: float = Field(default=0.2, gt=0)
    """Lower bound of the policy ratio, as the distance from 1. Bounds have an effect only if the ratio is not
    1, as with vLLM, `batch.max_staleness` or `num_iterations`."""
    num_iterations: int = Field(default=1, ge=1)
    """Number of consecutive steps that learn from the same rollouts; `schedule.steps` counts each of them."""
    top_entropy_quantile: float = Field(default=1.0, ge=0, le=1)
    """Share of the sampled tokens of a backward pass to learn from, preferring tokens where the policy was
    least certain."""
    off_policy_mask_threshold: float | None = Field(default=None, gt=0)
    """Distance in nats per token. Rollouts that earned less than their group are left out if the policy has
    moved away from them by more than this."""
    kl: float = Field(default=0.0, ge=0)
    """Weight of the divergence from the initial policy. Above 0, that policy also stays in memory."""
    entropy_bonus: float = Field(default=0.0, ge=0)
    """Weight of the policy's entropy in the objective, so that it keeps exploring."""
    mask_truncated_completions: bool = False
    """Whether to leave the tokens of truncated rollouts out of the loss. Their reward still counts in the
    group's mean."""


class TeacherSection(Section):
    """The teacher of the policy, for `algorithm.loss = "distill"`."""

    path: str | None = None
    """Path of a model with the same vocabulary, named as in `model.path`."""
    divergence: float = Field(default=1.0, ge=0, le=1)
    """Kind of divergence: 1 minimizes the reverse divergence, 0 the forward divergence, and values in between
    a mixture of both."""
    weights_sha256: str | None = None
    """Digest of the teacher's weights, which a run writes into its record."""


class StoppingSection(Section):
    """Conditions that end a run before its last step, because it collapsed or reached its target."""

    collapse: bool = True
    """Whether to stop when the alert `collapse` is raised."""
    target: dict[str, float | str] = Field(default_factory=dict)
    """Bounds by `CELL/METRIC`, each as the smallest value or as text (`"<=0"`). The run stops when an
    evaluation meets all of them."""

    @model_validator(mode="after")
    def _bounds(self) -> StoppingSection:
        for name, bound in self.target.items():
            if isinstance(bound, str) and not re.fullmatch(r"(>=|<=|==|>|<)\s*-?\d+(\.\d+)?", bound):
                raise ValueError(
                    f"the target of `{name}` is not a bound: write a number, or text such as `<=0`"
                )
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
"""Settings that a loss does not read, or does not support."""


def require_effect(settings: Any) -> None:
    """Raise `ValueError` for settings of a run that its loss or its engine does not read."""
    loss = settings.algorithm.loss
    for name in NOT_READ.get(loss, ()):
        section, _, field = name.partition(".")
        value = getattr(settings, section)
        if getattr(value, field) != type(value).model_fields[field].default:
            raise ValueError(f"the loss `{loss}` does not support `{name}`: leave it out")
    if settings.inference.dtype is not None and settings.inference.engine != "transformers":
        raise ValueError("`inference.dtype` is only for the engine `transformers`: leave it out")
    if loss == "rloo" and settings.algorithm.scale_rewards == "group":
        raise ValueError('the loss `rloo` supports only `scale_rewards = "batch"` or `"none"`')
    if loss == "distill" and settings.teacher.path is None:
        raise ValueError("the loss `distill` needs `teacher.path`")
    if loss != "distill" and settings.teacher.path is not None:
        raise ValueError("`teacher.path` is only for the loss `distill`")


def require_no_copies(settings: Any) -> None:
    """Raise `ValueError` for settings that copy the policy's weights, if these have 4 bits."""
    if settings.model.quantization is None:
        return
    engine = settings.inference.engine
    copying = {
        f'`inference.engine = "{engine}"`': engine != "transformers",
        "`inference.dtype`": settings.inference.dtype is not None,
        "`batch.max_staleness`": settings.batch.max_staleness > 0,
        f"the player `{EARLIER}`": EARLIER in settings.other_players.values(),
    }
    for name, is_set in copying.items():
        if is_set:
            raise ValueError(f"{name} needs copies of the policy, which `model.quantization` excludes")
