"""Ask judges again whose answers are on record.

A run that is scored again takes what judges said from its record, so that is the submitter's word. Who has
the same judge asks it again about some rollouts, drawn at random: what it answers now takes the place of the
record, the rubric runs on that, and the rewards are compared. The environment still reaches no network.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from random import SystemRandom
from typing import Any

from wander.clients.base import Client, ModelRequest
from wander.clients.replay import TranscriptClient
from wander.errors import ModelError
from wander.handle import EnvironmentHandle, RolloutRequest
from wander.parsers import message_text
from wander.rollout.outside_calls import JUDGE_ANSWERS
from wander.seeding import derived_seed
from wander.types import Example, Rollout, SamplingArgs, canonical_json
from wander.wire import RunManifest
from wander.wire.verification import JudgeCheck

TOLERANCE = 0.1
"""Share of the range of rewards by which a reward may differ: judges waver even at temperature 0."""
MOST_QUESTIONS, MOST_CHARACTERS = 64, 200_000
"""What judges are asked at most about one rollout: a record may hold any number of questions of any length,
and who has the judge pays for its answers."""
_USUAL: dict[str, Any] = {"temperature": 0.0}
"""Sampling of judges in records of before it was kept."""


class JudgePanel:
    """The judges that can be asked, by their models' names, and what asking them came to."""

    def __init__(self, judges: Mapping[str, Client], sample: int) -> None:
        """Ask about some `sample` rollouts of a run, or about all where it has no more."""
        self._judges = judges
        self._sample = sample
        self._draw = SystemRandom()
        self._before = self._after = 0.0
        self.check = JudgeCheck(models=sorted(judges))

    async def look(
        self,
        environment: EnvironmentHandle,
        manifest: RunManifest,
        example: Example,
        recorded: Sequence[Rollout],
    ) -> None:
        """Ask about these rollouts, which are scored together, if they are drawn and have a judge."""
        judged = any(each.info.get(JUDGE_ANSWERS) for each in recorded)
        if not judged or self._draw.random() >= self._sample / max(1, manifest.expected_rollouts):
            return
        low, high = environment.info.reward_range or (0.0, 1.0)
        check = self.check
        check.tolerance = TOLERANCE * (high - low)
        try:
            renewed = [await self._renew(each) for each in recorded]
        except (ModelError, LookupError, TypeError, ValueError):
            check.unasked += len(recorded)
            return
        again = await environment.play_request(
            RolloutRequest.of(
                TranscriptClient(renewed),
                example,
                [each.index for each in recorded],
                run_seed=manifest.seed,
                sampling=manifest.sampling,
                together=environment.info.group_rewards,
            )
        )
        for one, other in zip(recorded, again, strict=True):
            if one.reward is None or other.reward is None:
                check.unasked += 1  # it gave no verdict that the rubric can read
                continue
            check.asked += 1
            check.agreed += abs(one.reward - other.reward) <= check.tolerance
            self._before += one.reward
            self._after += other.reward
            check.before, check.after = self._before / check.asked, self._after / check.asked

    async def _renew(self, rollout: Rollout) -> Rollout:
        """Return a rollout with what its judges answer now.

        Raises `LookupError` where it has another one, and `ValueError` where it has too many questions.
        """
        kept = rollout.info.get(JUDGE_ANSWERS, [])
        if len(kept) > MOST_QUESTIONS or len(canonical_json(kept)) > MOST_CHARACTERS:
            raise ValueError("the record has more questions for judges than are asked")
        answers = [{**each, "answer": await self._ask(each)} for each in kept]
        return rollout.model_copy(update={"info": {**rollout.info, JUDGE_ANSWERS: answers}})

    async def _ask(self, kept: Mapping[str, Any]) -> str:
        """Put a question of the record again, if it is the one that the rubric put."""
        model, messages = kept["model"], kept["messages"]
        sampling = kept.get("sampling", _USUAL)
        key = {"model": model, "messages": messages, "sampling": sampling}
        digest = hashlib.sha256(canonical_json(key).encode()).hexdigest()
        if digest != kept["digest"]:
            raise LookupError("the record does not hold what the judge was asked")
        request = ModelRequest(
            rollout_id=f"judge/{digest[:16]}",
            turn=0,
            messages=messages,
            sampling=SamplingArgs.model_validate(sampling),
            seed=derived_seed("judge", digest),
        )
        return message_text((await self._judges[model].complete(request)).message)
