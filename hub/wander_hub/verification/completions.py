"""What a run's completions are, so that the same ones under another name are noticed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from wander.types import Rollout, canonical_json

TELLING = 1000
"""Letters and digits in distinct completions below which equal ones may well be a coincidence."""


def completions_digest(rollouts: Iterable[Rollout]) -> str | None:
    """Return a digest of all completions of a run, None where they are too short to tell runs apart.

    Only letters and digits count, so that a space more or another case makes no other run of it. Neither
    model, rewards, times nor token counts do: those are what whoever copies a run changes.
    """
    whole = hashlib.sha256()
    seen: set[bytes] = set()
    telling = 0
    for rollout in rollouts:
        whole.update(canonical_json([rollout.example_id, rollout.index]).encode())
        for turn in rollout.turns:
            said = canonical_json([turn.message.get("content"), turn.message.get("tool_calls")])
            letters = "".join(each for each in said.casefold() if each.isalnum()).encode()
            digest = hashlib.sha256(letters).digest()
            whole.update(digest)
            if digest not in seen and telling < TELLING:
                seen.add(digest)
                telling += len(letters)
    return whole.hexdigest() if telling >= TELLING else None
