"""Counts what a run's texts take in tokens, where the operator gave the tokenizer of the model that it names.

What was sampled need not be how a tokenizer writes the text, templates add tokens, and endpoints hide some.
All that makes the stated number larger than the count: only one that is clearly smaller proves anything.
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
"""About how many characters of a run are counted; of a longer one, rollouts drawn at random."""
_SHARE = 0.8
"""Of the count, how much must be stated. Not all: of ids drawn at random from 16,000, as by a model that
learnt nothing, the text takes 1.07 times as many, and of such ids as texts have 1.002 times."""
_SLACK = 4
"""Tokens a message that need not be."""
_PIECE = 4096
"""Characters that are encoded at once: what takes longer than its length cannot take long, and stops soon."""
_ANYTHING = "\x00 a\u00e9\u4f60\U0001f642"
"""What only a tokenizer of all texts takes."""


def find_tokenizer(folder: Path | None, model: str) -> Path | None:
    """Return the file of a model, compared by its whole name.

    The folder is listed, so that a name, which strangers choose, is never made a path.
    """
    if folder is None:
        return None
    found = (*folder.glob("*/tokenizer.json"), *folder.glob("*/*/tokenizer.json"))
    return next((one for one in found if one.parent.relative_to(folder).as_posix() == model), None)


@lru_cache(maxsize=4)
def _load(path: Path, _: int) -> tuple[Tokenizer, str]:
    from tokenizers import Tokenizer

    text = path.read_bytes()
    tokenizer = Tokenizer.from_buffer(text)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer, hashlib.sha256(text).hexdigest()


def written(rollout: Rollout) -> list[str]:
    """Return what the policy wrote in a rollout, a text a message.

    Turns hold what the endpoint answered, and the completion what was scored: the longer one counts. Where an
    environment adds messages of its own to the completion, turns alone tell whose they are.
    """
    turns = [_text(turn.message) for turn in rollout.turns]
    scored = [_text(one) for one in rollout.completion if one.get("role") == "assistant"]
    if turns and len(turns) != len(scored):
        return turns
    return [max(pair, key=len) for pair in zip(turns or scored, scored, strict=True)]


def _text(message: dict[str, Any]) -> str:
    parts = [message.get("reasoning_content"), message_text(message)]
    parts += [_values(one) for one in texts_in(message.get("tool_calls"))]
    text = " ".join(one for one in parts if isinstance(one, str))
    # U+FFFD stands for bytes that were one token, and may itself take three.
    return text.replace("\ufffd", "").encode(errors="ignore").decode()


def _values(text: str) -> str:
    """Return the values of arguments alone: endpoints write their JSON anew, with escapes of their own."""
    try:
        return " ".join(texts_in(json.loads(text)))
    except (ValueError, RecursionError):
        return text


def count_tokens(
    path: Path, model: str, rollouts: Iterable[Rollout], letters: int, check: Callable[[], None]
) -> TokenCheck | None:
    """Compare what rollouts of `letters` characters state with what their texts take.

    Returns None where the tokenizer cannot tell. `check` is called often, and raises to stop.
    """
    share, draw = MOST_LETTERS / max(1, letters), SystemRandom().random
    counted = stated = messages = drawn = 0
    try:
        tokenizer, sha256 = _load(path, path.stat().st_mtime_ns)
        tokenizer.encode(_ANYTHING)
    except Exception as error:  # noqa: BLE001 - the library raises nothing more particular
        logger.error("no tokens are counted with %s: %s", path, error)
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
