"""What each verification level says, and what it leaves open: the facts that pages, API and docs tell."""

from __future__ import annotations

from typing import NamedTuple

from wander.wire.environments import VerificationLevel


class LevelFacts(NamedTuple):
    """One level."""

    did: str
    """What the hub did with a run of this level."""
    unproven: str
    """What follows from that for none of its rollouts."""


LEVEL_FACTS: dict[VerificationLevel, LevelFacts] = {
    "claimed": LevelFacts(
        "accepted the upload; rollouts are missing or failed, or came out differently in a replay",
        "anything",
    ),
    "unverifiable": LevelFacts(
        "found what `complete` asks, and could not play it again: its page says why",
        "that the rewards follow from the transcripts",
    ),
    "complete": LevelFacts(
        "found every expected rollout, and computed all aggregates from them",
        "that the rewards follow from the transcripts",
    ),
    "rescored": LevelFacts(
        "ran the pinned version's rubric on the stored transcripts: the same rewards",
        "that the environment and its tools answered so",
    ),
    "replayed": LevelFacts(
        "ran the whole environment with the recorded completions: "
        "the same messages, metrics and rewards, bit for bit",
        "that the environment is fair: its owner can write one that pays for a certain text, or knows a "
        "replay by the processor, the kernel or the true time",
    ),
}
"""Every level, the lowest first."""

STATED = (
    "which model wrote the completions, with which sampling and on which platform, and the tokens, seconds "
    "and cost that they took"
)
"""What no level proves: the submitter's word."""

STATED_BUT_COUNTED = STATED.replace("the tokens", "the prompt tokens")
"""The same of a run whose completion tokens agree with its texts (`TokenCheck`)."""
