"""Token counts of a run's texts, if the operator provides the tokenizer of the model that the run names.

A model may sample another tokenization than the tokenizer's, templates add tokens, and endpoints hide some.
All of this makes the stated number larger than the count, so only a stated number that is clearly smaller
proves anything.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from secrets import SystemRandom
from typing import TYPE_CHECKING, Any

from wander.types import Rollout
from wander.wire.verification import TokenCheck

from wander_hub.runs.chunks import message_text
from wander_hub.runs.completions import texts_in

if TYPE_CHECKING:
    from tokenizers import Tokenizer

logger = logging.getLogger("wander_hub")

MOST_LETTERS = 8 * 1024 * 1024
"""Approximate number of characters that are counted. Of a longer run, random rollouts are counted."""
_SHARE = 0.8
"""Share of the count that must be stated. It is below 1, because a tokenizer can need more tokens than were
sampled: 1.07 times for random ids of a 16,000-token vocabulary, as from an untrained model, and 1.002 times
for ids of ordinary text."""
_SLACK = 4
"""Tokens per message that may be missing."""
_PIECE = 4096
"""Characters that are encoded at a time, so that superlinear tokenizers stay fast and cancellation is
quick."""
_ANYTHING = "\x00 a\u00e9\u4f60\U0001f642"
"""Text that only a tokenizer of arbitrary text can encode."""


def find_tokenizer(folder: Path | None, model: str) -> Path | None:
    """Return the tokenizer file whose folder equals the whole name of a model, or None.

    The folder is listed instead of building a path from the name, because strangers choose the name.
    """
    if folder is None:
        return None
    files = (*folder.glob("*/tokenizer.json"), *folder.glob("*/*/tokenizer.json"))
    return next((file for file in files if file.parent.relative_to(folder).as_posix() == model), None)


@lru_cache(maxsize=4)
def _load(path: Path, _: int) -> tuple[Tokenizer, str]:
    from tokenizers import Tokenizer

    text = path.read_bytes()
    tokenizer = Tokenizer.from_buffer(text)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer, hashlib.sha256(text).hexdigest()


def written(rollout: Rollout) -> list[str]:
    """Return the texts that the policy wrote in a rollout, one for each message.

    Turns contain the endpoint's answers, and the completion contains the scored texts. If the two differ, the
    longer text is returned. If an environment adds messages to the completion, only the turns show which
    messages are the policy's.
    """
    turns = [_text(turn.message) for turn in rollout.turns]
    scored = [_text(message) for message in rollout.completion if message.get("role") == "assistant"]
    if turns and len(turns) != len(scored):
        return turns
    return [max(pair, key=len) for pair in zip(turns or scored, scored, strict=True)]


def _text(message: dict[str, Any]) -> str:
    parts = [message.get("reasoning_content"), message_text(message)]
    parts += [_values(text) for text in texts_in(message.get("tool_calls"))]
    text = " ".join(part for part in parts if isinstance(part, str))
    # U+FFFD replaces bytes that were one token, but it may itself be encoded as three.
    return text.replace("\ufffd", "").encode(errors="ignore").decode()


def _values(text: str) -> str:
    """Return only the values of arguments, because endpoints rewrite the JSON around them."""
    try:
        return " ".join(texts_in(json.loads(text)))
    except (ValueError, RecursionError):
        return text


def count_tokens(
    path: Path, model: str, rollouts: Iterable[Rollout], letters: int, check: Callable[[], None]
) -> TokenCheck | None:
    """Compare the stated tokens of rollouts, which have `letters` characters, with the count of the
    tokenizer.

    Returns None if the tokenizer cannot be used. `check` is called often and raises an exception to stop.
    """
    share, draw = MOST_LETTERS / max(1, letters), SystemRandom().random
    counted = stated = messages = drawn = 0
    try:
        tokenizer, sha256 = _load(path, path.stat().st_mtime_ns)
        tokenizer.encode(_ANYTHING)
    except Exception as error:  # noqa: BLE001 - the library raises no specific exception
        logger.error("cannot count tokens with %s: %s", path, error)
        return None
    for rollout in rollouts:
        if rollout.failure is not None or draw() >= share:
            continue
        texts = written(rollout)
        drawn += 1
        messages += len(texts)
        stated += rollout.usage.completion_tokens
        for text in texts:
            for start in range(0, len(text), _PIECE):
                check()
                counted += len(tokenizer.encode(text[start : start + _PIECE], add_special_tokens=False))
    least = max(0, int(_SHARE * counted) - _SLACK * messages)
    return TokenCheck(
        model=model, tokenizer_sha256=sha256, rollouts=drawn, stated=stated, counted=counted, least=least
    )
