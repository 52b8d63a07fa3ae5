"""What a list shows of a rollout's messages."""

from __future__ import annotations

from wander.types import Rollout

_PREVIEW = 160


def preview_of(rollout: Rollout) -> str:
    """Return the beginning of the last assistant message, on one line and without control characters."""
    for message in reversed(rollout.completion):
        if message.get("role") == "assistant":
            return one_line(message_text(message))
    return ""


def one_line(text: str) -> str:
    """Return the beginning of a text on one line and without control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:1000]).split())[:_PREVIEW]


def message_text(message: dict[str, object]) -> str:
    """Return a message's text; of content parts, the text ones."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
