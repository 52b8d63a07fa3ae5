"""Other views of a rollout's state: the end of a recorded rollout, and the part that a player sees."""

from __future__ import annotations

from wander.clients.base import Transcript
from wander.types import State, copy_json, seen_by


def restore(state: State, transcript: Transcript) -> None:
    """Set a state to the end of a recorded rollout, as far as its record allows."""
    for name in ("prompt", "completion"):
        state[name] = copy_json(getattr(transcript, name))
    state["turns"] = list(transcript.turns)
    state["stop_reason"], state["truncated"] = transcript.stop_reason, transcript.truncated
    state["public"] = copy_json(transcript.info)


def as_seen_by(player: str, state: State) -> State:
    """Return a player's view of a finished rollout: its own turns, and the messages that it saw."""
    return State(
        {
            **state,
            "player": player,
            "prompt": seen_by(player, state.prompt),
            "completion": seen_by(player, state.completion),
            "turns": [turn for turn in state.turns if turn.player == player],
        }
    )
