"""Rollouts of an environment for your own `GRPOTrainer`, through TRL's `rollout_func`.

    trainer = GRPOTrainer(
        model=model, args=config, train_dataset=training_prompts(examples),
        rollout_func=EnvironmentRollouts(open_environment), reward_funcs=reward,
    )

Each prompt carries the index of its example, because TRL passes only prompts to `rollout_func`. The trainer's
model is sampled in this process, with the temperature and length from its arguments. The trainer's own
sampling is not used. This works in a single process; `wander train` can share a step among several.

Such a trainer computes a row as a single sequence. If a rollout was sampled in several sequences because the
chat template rewrites history, the trainer gets one of them, drawn with the rollout's seed. `wander train`
learns from all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from wander.errors import ConfigError, require_extra
from wander.train.rollouts.environments import EnvironmentOpener
from wander.train.rollouts.rows import draw_one, lay_out, trl_columns
from wander.train.rollouts.source import Assignment, RolloutSource
from wander.types import Example, SamplingArgs

if TYPE_CHECKING:
    from datasets import Dataset

PLACE = "wander_position"
"""Key in a prompt's last message with the index of its example in the training order."""


def training_prompts(examples: Iterable[Example]) -> Dataset:
    """Return examples without faults as a dataset of prompts that `EnvironmentRollouts` recognizes."""
    with require_extra("train", needed_for="a `GRPOTrainer`"):
        from datasets import Dataset
    return Dataset.from_list(
        [
            {
                "prompt": [*example.prompt[:-1], {**example.prompt[-1], PLACE: example.index}],
                "example_id": example.example_id,
            }
            for example in examples
            if example.fault is None
        ]
    )


def reward(environment_reward: list[float | None], **unused: Any) -> list[float | None]:
    """Return the rewards that the environment gave to TRL; None for a failed rollout."""
    return environment_reward


class EnvironmentRollouts:
    """Plays the prompts that a trainer draws; use it as TRL's `rollout_func`.

    `max_tokens` limits a turn, by default to the trainer's `max_completion_length`. `max_rollout_tokens`
    limits the whole conversation, and `compact_at` leaves out its oldest turns above that number of tokens. A
    failed rollout is played up to `retries` more times; if it still fails, it has no reward.
    """

    def __init__(
        self,
        open_environment: EnvironmentOpener,
        *,
        max_tokens: int | None = None,
        max_rollout_tokens: int | None = None,
        compact_at: int | None = None,
        run_seed: int = 0,
        retries: int = 1,
    ) -> None:
        if max_rollout_tokens is not None and compact_at is not None:
            raise ConfigError(
                "`max_rollout_tokens` ends a conversation that `compact_at` would continue",
                hint="use only one of them",
            )
        self._open_environment = open_environment
        self._max_tokens = max_tokens
        self._max_rollout_tokens = max_rollout_tokens
        self._compact_at = compact_at
        self._run_seed = run_seed
        self._retries = retries
        self._source: RolloutSource | None = None
        self._played: Counter[int] = Counter()
        """Number of times that each example was drawn, so that it gets different random numbers each time."""

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Play a rollout for each prompt; rollouts of the same example are a group."""
        source = self._source = self._source or self._open(trainer)
        length = source.length() or 0
        asked: Counter[int] = Counter()
        assignments = []
        for place in map(_place, prompts):
            assignments.append(Assignment(place + self._played[place] * length, asked[place]))
            asked[place] += 1
        self._played.update(asked.keys())
        model = trainer.accelerator.unwrap_model(trainer.model)
        training = model.training
        model.eval()
        try:
            step = source.play(assignments)
        finally:
            model.train(training)
        rows = [draw_one(rollout) for rollout in step.rollouts]
        lines = [lay_out(row, trainer.processing_class.eos_token_id) for row in rows]
        return trl_columns(lines, [row.reward for row in rows])

    def close(self) -> None:
        """End the environment's process."""
        if self._source is not None:
            self._source.close()
            self._source = None

    def _open(self, trainer: Any) -> RolloutSource:
        from wander.models.policy import PolicyClient
        from wander.train.weights import turn_off_dropout

        if trainer.accelerator.num_processes > 1:
            raise ConfigError(
                "rollouts for your own trainer work only in a single process",
                hint="use `wander train`, which can share a step among several processes",
            )
        model = trainer.accelerator.unwrap_model(trainer.model)
        turn_off_dropout(model)  # it would train with other probabilities than it samples with
        client = PolicyClient(model, trainer.processing_class)
        client.limit_context(self._max_rollout_tokens)
        most = self._max_tokens or trainer.args.max_completion_length
        return RolloutSource(
            self._open_environment,
            client,
            sampling=SamplingArgs(
                temperature=trainer.args.temperature, max_tokens=most, compact_at=self._compact_at
            ),
            run_seed=self._run_seed,
            retries=self._retries,
        )


def _place(prompt: Any) -> int:
    place = prompt[-1].get(PLACE) if isinstance(prompt, list) else None
    if place is None:
        raise ConfigError(
            "a prompt does not come from the environment", hint="train on `train_dataset=env.train_dataset()`"
        )
    return int(place)
