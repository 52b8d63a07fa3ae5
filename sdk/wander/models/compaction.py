"""Compaction of long conversations: above `compact_at` tokens, the model no longer sees the oldest turns.

The opening (everything before the first turn) and the last turn stay. A line with the number of omitted turns
replaces the other turns. The remaining conversation has about half as many tokens, so it can grow from the
same beginning for a while. A turn is an answer with all messages that follow it, so a tool call is never
separated from its result. The environment's own conversation stays complete.
"""

from __future__ import annotations

from bisect import bisect_left

from wander.clients.base import ModelRequest
from wander.errors import ContextOverflow, ModelError
from wander.models.chat import ChatFormat, Conversation, content_text
from wander.types import Message


def update_conversation(
    form: ChatFormat, conversation: Conversation | None, request: ModelRequest, room: int
) -> tuple[Conversation, bool]:
    """Update a conversation for a request; return it, and whether it was started again.

    `room` is the maximum number of tokens of the next turn. Raises `ContextOverflow` if the messages that
    must stay leave no room, and `ModelError` if these are only the opening.
    """
    messages, tools, limit = request.messages, request.tools, request.sampling.compact_at
    if limit is None:
        return form.continue_conversation(conversation, messages, tools)
    opening = _opening_of(conversation, request)
    answers = [place for place in range(opening, len(messages)) if messages[place]["role"] == "assistant"]
    gap = conversation.left_out if conversation is not None else None
    if gap is not None and (gap[0] != opening or gap[1] not in answers):
        gap = None  # the environment removed messages
    current, restarted = form.continue_conversation(conversation, drop_messages(messages, gap), tools)
    current.left_out, current.opening = gap, opening
    if len(current.ids) + min(room, limit // 4) <= limit:
        return current, restarted
    ends = [place for place in answers[1:] if gap is None or place > gap[1]]
    if ends:

        def is_short(end: int) -> bool:
            text = form.render(drop_messages(messages, (opening, end)), tools=tools)
            return len(form.encode(text)) <= limit // 2

        gap = opening, ends[min(bisect_left(ends, True, key=is_short), len(ends) - 1)]
        current, restarted = form.start(drop_messages(messages, gap), tools), True
        current.left_out, current.opening = gap, opening
    if len(current.ids) < limit:
        return current, restarted
    size = f"{len(current.ids)} tokens, and `compact_at` is {limit}"
    if not answers:
        raise ModelError(
            f"the conversation begins with {size}", hint="raise `compact_at`: there is no turn to leave out"
        )
    raise ContextOverflow(f"the beginning of the conversation and its last turn have {size}")


def _opening_of(conversation: Conversation | None, request: ModelRequest) -> int:
    """Return the number of messages before the first turn.

    A request counts the turns of all players. For a player, the opening is therefore the messages of the
    player's first request.
    """
    if request.player is None:
        return count_opening_messages(request.messages, request.turn)
    count = len(request.messages)
    return count if conversation is None else min(conversation.opening, count)


def count_opening_messages(messages: list[Message], turn: int) -> int:
    """Return the number of messages before the first of `turn` turns; worked examples in a prompt are not
    turns."""
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    examples = max(0, len(answers) - turn)
    return answers[examples] if examples < len(answers) else len(messages)


def drop_messages(messages: list[Message], gap: tuple[int, int] | None) -> list[Message]:
    """Return the messages without those from `gap[0]` to `gap[1] - 1`, with a line about the omission.

    The line is added to the previous message, because many chat templates require alternating roles.
    """
    if gap is None:
        return messages
    start, end = gap
    turns = sum(message["role"] == "assistant" for message in messages[start:end])
    line = f"[{turns} earlier turn{'s are' if turns > 1 else ' is'} left out here.]"
    before = messages[start - 1] if start else {"role": "user", "content": ""}
    text = f"{content_text(before.get('content'))}\n\n{line}".lstrip()
    return [*messages[: max(0, start - 1)], {**before, "content": text}, *messages[end:]]
