"""Reads the texts of tokens from the tokenizer of a model on this hub, or from one of the hub's operator.

It reads only the names of tokens. It never runs the rules of a tokenizer, which are regular expressions of
strangers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session
from wander.wire.models import TOKENIZER, TokenizerParts
from wander.wire.untrusted_text import TOKENIZER_TEXT, RefusedText, read_part

from wander_hub.models.models import Revision, RevisionFile
from wander_hub.models.repository import visible_revisions
from wander_hub.runs.kept import KEPT
from wander_hub.runs.models import Run, RunCheckpoint

_PLAIN = [*range(33, 127), *range(161, 173), *range(174, 256)]
_BYTES = {chr(one): one for one in _PLAIN} | {
    chr(256 + place): one for place, one in enumerate(sorted(set(range(256)) - set(_PLAIN)))
}
"""The byte for each letter in the tokens of GPT-2 and of most later models."""
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_OF_TOKEN = 10
"""Size of a cached token text, in numbers."""


@dataclass(frozen=True)
class TokenTexts:
    """The texts of tokens by their IDs."""

    texts: Mapping[int, str]

    @property
    def numbers(self) -> int:
        """Size in the cache."""
        return _OF_TOKEN * len(self.texts)


def find_tokenizer_file(session: Session, run: Run) -> RevisionFile | None:
    """Return the `tokenizer.json` of a model on this hub whose weights the run used or produced."""
    made = select(RunCheckpoint.weights_sha256).where(RunCheckpoint.run_id == run.run_id)
    own = or_(Revision.weights_sha256 == run.weights_sha256, Revision.weights_sha256.in_(made))
    query = visible_revisions(session).where(own, Revision.deleted_at.is_(None))
    for revision in session.scalars(query.order_by(Revision.id).limit(1)):
        return next((one for one in revision.files if one.filename == TOKENIZER), None)
    return None


def read_texts(sha256: str, read: Callable[[], bytes]) -> TokenTexts:
    """Return the texts of a `tokenizer.json`, cached by its digest. Empty for a malformed file."""

    def find() -> TokenTexts:
        try:
            return TokenTexts(_texts(read_part(TokenizerParts, read(), TOKENIZER_TEXT)))
        except RefusedText:
            return TokenTexts({})

    kept: TokenTexts = KEPT.get((sha256, "token texts"), find)
    return kept


def _texts(parts: TokenizerParts) -> dict[int, str]:
    vocab = parts.model.vocab if parts.model is not None else None
    if isinstance(vocab, list):  # a list of pairs: a token and its score
        vocab = {one[0]: place for place, one in enumerate(vocab) if isinstance(one, list) and one}
    decode = _decode_bytes if "ByteLevel" in _kinds(parts.decoder) else _decode_words
    found = {
        number: decode(name)
        for name, number in (vocab.items() if isinstance(vocab, dict) else ())
        if isinstance(name, str) and type(number) is int
    }
    for one in parts.added_tokens if isinstance(parts.added_tokens, list) else ():
        if isinstance(one, dict) and type(one.get("id")) is int and isinstance(one.get("content"), str):
            found[one["id"]] = one["content"]
    return found


def _kinds(decoder: Any) -> set[str]:
    """Return the type of a decoder, and the types of its parts if it is a sequence."""
    inner = decoder.get("decoders") if isinstance(decoder, dict) else None
    every = [decoder, *(inner if isinstance(inner, list) else [])]
    return {str(one.get("type")) for one in every if isinstance(one, dict)}


def _decode_bytes(name: str) -> str:
    """Return the text of a byte-level token. Bytes of an incomplete letter appear as `\\xe4`."""
    if any(one not in _BYTES for one in name):
        return name
    return bytes(_BYTES[one] for one in name).decode(errors="backslashreplace")


def _decode_words(name: str) -> str:
    """Return the text of a SentencePiece token (`\u2581` is a space) or a WordPiece token."""
    if byte := _BYTE.fullmatch(name):
        return bytes.fromhex(byte[1]).decode(errors="backslashreplace")
    return name.removeprefix("##").replace("\u2581", " ")
