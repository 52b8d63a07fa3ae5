"""Long conversations: once one outgrows `compact_at` tokens, its oldest turns are shown to the model no more.

The opening stays (everything before the first turn), and so does the last turn. In the place of the others
stands one line that says how many they were. What is left then has about half the tokens, so that the
conversation grows from the same beginning for a while. A turn is an answer with all that followed it: a call
of a tool is never parted from its result. The environment's own conversation stays whole.
"""

from __future__ import annotations

from bisect import bisect_left

from wander.clients.base import ModelRequest
from wander.errors import ContextOverflow, ModelError
from wander.models.chat import ChatFormat, Conversation, content_text
from wander.types import Message


def go_on(
    form: ChatFormat, conversation: Conversation | None, request: ModelRequest, room: int
) -> tuple[Conversation, bool]:
    """Bring a conversation up to a request; return it, and whether it is another than before.

    `room` is how many tokens the next turn may want. Raises `ContextOverflow` where what has to stay leaves
    no room at all, and `ModelError` where that is the opening alone.
    """
    messages, tools, limit = request.messages, request.tools, request.sampling.compact_at
    if limit is None:
        return form.go_on(conversation, messages, tools)
    opening = _opening_of(conversation, request)
    answers = [place for place in range(opening, len(messages)) if messages[place]["role"] == "assistant"]
    gap = conversation.left_out if conversation is not None else None
    if gap is not None and (gap[0] != opening or gap[1] not in answers):
        gap = None  # the environment took messages back
    current, anew = form.go_on(conversation, leave_out(messages, gap), tools)
    current.left_out, current.opening = gap, opening
    if len(current.ids) + min(room, limit // 4) <= limit:
        return current, anew
    ends = [place for place in answers[1:] if gap is None or place > gap[1]]
    if ends:

        def is_short(end: int) -> bool:
            text = form.render(leave_out(messages, (opening, end)), tools=tools)
            return len(form.encode(text)) <= limit // 2

        gap = opening, ends[min(bisect_left(ends, True, key=is_short), len(ends) - 1)]
        current, anew = form.start(leave_out(messages, gap), tools), True
        current.left_out, current.opening = gap, opening
    if len(current.ids) < limit:
        return current, anew
    what = f"{len(current.ids)} tokens, and `compact_at` is {limit}"
    if not answers:
        raise ModelError(
            f"the conversation begins with {what}", hint="raise `compact_at`: nothing can be left out yet"
        )
    raise ContextOverflow(f"the beginning of the conversation and its last turn have {what}")


def _opening_of(conversation: Conversation | None, request: ModelRequest) -> int:
    """Return how many messages come before the first turn.

    A player's own turns are not counted by the request, which counts everybody's: what it was first asked
    with is its opening.
    """
    if request.player is None:
        return count_opening(request.messages, request.turn)
    count = len(request.messages)
    return count if conversation is None else min(conversation.opening, count)


def count_opening(messages: list[Message], turn: int) -> int:
    """Return how many messages come before the first of so many turns; examples in a prompt are none."""
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    examples = max(0, len(answers) - turn)
    return answers[examples] if examples < len(answers) else len(messages)


def leave_out(messages: list[Message], gap: tuple[int, int] | None) -> list[Message]:
    """Return the messages without those from the first place on to the second, and say so in their stead.

    The line is added to the message before, since many chat templates want the roles to alternate.
    """
    if gap is None:
        return messages
    start, end = gap
    turns = sum(message["role"] == "assistant" for message in messages[start:end])
    line = f"[{turns} earlier turn{'s are' if turns > 1 else ' is'} left out here.]"
    before = messages[start - 1] if start else {"role": "user", "content": ""}
    text = f"{content_text(before.get('content'))}\n\n{line}".lstrip()
    return [*messages[: max(0, start - 1)], {**before, "content": text}, *messages[end:]]
