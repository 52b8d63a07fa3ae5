"""The sections of settings that say what is played, by whom beside the policy, and how it is learnt from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


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
    """On which examples."""

    arguments: dict[str, Any] = Field(default_factory=dict)
    """Passed to `load_environment`."""
    run_seed: int | None = None
    """Seeds the environment; None means `schedule.seed`."""
    workers: Workers = 1
    """Processes that play it: how many here, or the addresses of `wander worker` elsewhere, each a process
    (`["tcp://HOST:7100", "tcp://HOST:7100"]`), or of a Ray cluster (`["ray://HOST:6379/8"]`). The weights are
    the same with any of them."""
    worker_token_file: str | None = None
    """Holds the token of those addresses."""
    rollout_timeout: float | None = Field(default=None, gt=0)
    """Seconds after which a rollout fails; None means never. Of several environments, it holds for each."""
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


class AlgorithmSection(Section):
    """How rewards become gradients."""

    loss: Literal["dapo", "grpo", "dr_grpo", "bnpo", "cispo", "gspo", "sapo", "rloo", "distill"] = "dapo"
    """`rloo` weighs whole rollouts, each against the others of its group; `distill` learns from a teacher."""
    scale_rewards: Literal["none", "group", "batch"] = "none"
    """What the advantage (reward minus the group's mean) is divided by."""
    baseline: Literal["group", "role"] = "group"
    """What a reward is compared with: the mean of its group, or a moving mean of what the policy earned
    before as the same player of the same environment (for self-play where players do not earn alike)."""
    clip_high: float | None = Field(default=None, gt=0)
    """Upper bound of the policy ratio: 0.2 above 1, or, for cispo, 5 itself. TRL's default for cispo is 0.2,
    which multiplies every on-policy gradient by 0.2."""
    clip_low: float = Field(default=0.2, gt=0)
    """Lower bound of the policy ratio: so much below 1. Bounds act only where the ratio is not 1: with vLLM,
    `batch.max_staleness` or `num_iterations`."""
    num_iterations: int = Field(default=1, ge=1)
    """Steps that learn from the same rollouts, one after the other; `schedule.steps` counts each."""
    top_entropy_quantile: float = Field(default=1.0, ge=0, le=1)
    """Learn from this share of the sampled tokens of a backward pass alone: those where the policy was least
    certain."""
    off_policy_mask_threshold: float | None = Field(default=None, gt=0)
    """Leave out rollouts that earned less than their group where the policy has already moved away from them:
    by more than this, in nats a token."""
    kl: float = Field(default=0.0, ge=0)
    """Weight of the divergence from the starting policy; above 0 that policy is kept in memory."""
    entropy_bonus: float = Field(default=0.0, ge=0)
    """Weight of the policy's entropy in what is maximised: it keeps exploring."""
    average_steps: int = Field(default=0, ge=0)
    """The final policy is the mean of the weights after each of the last so many steps; 0: the last alone."""
    mask_truncated_completions: bool = False
    """Leave the tokens of rollouts that a limit cut short out of the loss; their reward still counts in the
    group's mean."""


class TeacherSection(Section):
    """Whom the policy learns from where `algorithm.loss` is `distill`."""

    path: str | None = None
    """A model of the same vocabulary, named as `model.path`."""
    divergence: float = Field(default=1.0, ge=0, le=1)
    """1 minimises the reverse divergence, 0 the forward one, what lies between a mixture of both."""
    weights_sha256: str | None = None
    """Pins the teacher's weights; a run writes it into its record."""


_GRPO_ALONE = tuple(
    f"algorithm.{name}"
    for name in ("entropy_bonus", "top_entropy_quantile", "off_policy_mask_threshold", "baseline")
)
NOT_READ: dict[str, Sequence[str]] = {
    "rloo": (*_GRPO_ALONE, "batch.max_staleness"),
    "distill": (
        *_GRPO_ALONE,
        *(f"algorithm.{name}" for name in ("kl", "clip_low", "clip_high", "scale_rewards", "num_iterations")),
        *("data.refill_rounds", "parallel.policy"),
    ),
}
"""Settings that a loss does not read, or cannot be had with."""


def require_effect(settings: Any) -> None:
    """Raise `ValueError` for settings of a run that its loss does not read."""
    loss = settings.algorithm.loss
    for name in NOT_READ.get(loss, ()):
        section, _, field = name.partition(".")
        value = getattr(settings, section)
        if getattr(value, field) != type(value).model_fields[field].default:
            raise ValueError(f"the loss `{loss}` does not go with `{name}`: leave it out")
    if settings.algorithm.baseline == "role" and settings.algorithm.scale_rewards != "none":
        raise ValueError('`algorithm.baseline = "role"` compares no group: leave `scale_rewards` out')
    if settings.algorithm.baseline == "role" and settings.data.refill_rounds:
        raise ValueError(
            '`algorithm.baseline = "role"` learns from every group: leave `data.refill_rounds` out'
        )
    if loss == "rloo" and settings.algorithm.scale_rewards == "group":
        raise ValueError("the loss `rloo` divides by the deviation of the batch, or by nothing")
    if loss == "distill" and settings.teacher.path is None:
        raise ValueError("the loss `distill` needs `teacher.path`")
    if loss != "distill" and settings.teacher.path is not None:
        raise ValueError("`teacher.path` is only for the loss `distill`")
