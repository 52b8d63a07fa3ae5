"""How much of what one run says another run says too, rollout by rollout of the same example.

Only letters and digits count, so that spaces, signs and upper case make no other text of it. A text is
compared by its pieces: the `_LENGTH` bytes from each of some bytes on, so that a changed word changes the few
pieces that it touches, and an added text changes none. What prompt, answer or environment say, nobody owns.

- A rollout *repeats* another one when it has `_MOSTLY` of the pieces that no other example of that run has,
  or when both are the same, letter by letter, and not short.
- A run is a *copy* when `COPIED` of the rollouts repeat those of one run, or `PIECED` those of several, and
  what they say is `TELLING` letters.

To find the few runs that are worth comparing, each keeps a sketch: the smallest of its pieces' keyed hashes
(Broder 1997, doi:10.1109/SEQUEN.1997.666900). Who does not know the key cannot crowd them out.
"""

from __future__ import annotations

import hashlib
import heapq
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from wander.types import Rollout

TELLING = 1000
"""Letters and digits in distinct completions below which equal ones may well be a coincidence."""
COPIED = 1 / 3
"""Share of repeated rollouts that makes a run a copy."""
PIECED = 1 / 2
"""Share of rollouts that repeat one of several runs which makes a run a copy, put together from them."""
SHARED = 1 / 10
"""Share of repeated rollouts from which on a run is no independent one."""
SKETCH = 128
"""Hashes that a run keeps."""
_LENGTH = 12
_MOSTLY = 0.6
_FEWEST = 20
"""Pieces of its own without which a rollout cannot be told from another one's."""
_SHORT = 100
"""Letters of its own below which equal rollouts may well be a coincidence."""
_STARTS = b"".join(re.escape(bytes([each])) for each in range(5, 256, 8))
_PIECE = re.compile(rb"(?=([%b].{%d}))" % (_STARTS, _LENGTH - 1), re.DOTALL)
"""From about one byte in six, chosen by its value, so that the same text has the same pieces anywhere."""
_OTHER = re.compile(r"[\W_\u02b0-\u02ff\u115f\u1160\u3164\uffa0]+")
"""All but letters and digits, and the letters that are small marks or nothing to the eye."""
_SAME = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0455\u0458\u04bb\u0501\u051b"
    "\u051d\u043a\u043c\u043d\u0442\u0432\u0433\u043f\u04cf\u044c\u0475\u03b1\u03bf"
    "\u03bd\u03c1\u03c5\u03c4\u03b9\u03ba\u03b5\u03b7\u03c7\u03b3\u03c9",
    "aeopcyxisjhdqwkmhtbrnlbvaovputikenxyw",
)
"""Cyrillic and Greek letters that look like Latin ones, after the confusables of Unicode's UTS 39."""


class Spoken(NamedTuple):
    """What the policy said in one rollout."""

    letters: str
    pieces: set[bytes]
    """Without those of prompt, answer and environment."""
    own: float
    """Letters and digits that no prompt, answer or environment gave."""


@dataclass
class Likeness:
    """What comparing a run with an earlier one, or with several, came to."""

    keys: set[tuple[str, int]] = field(default_factory=set)
    """The rollouts of examples that both have: each its example, and which of that it is."""
    texts: dict[tuple[str, int], str] = field(default_factory=dict)
    """The letters of those that repeat another one."""
    telling: int = 0
    """Rollouts that say enough of their own, here and there, to be told from repetitions."""

    @property
    def compared(self) -> int:
        """How many rollouts were compared."""
        return len(self.keys)

    @property
    def repeated(self) -> int:
        """How many of them repeat another one."""
        return len(self.texts)

    @property
    def copied(self) -> bool:
        """Whether this is a copy of the run that it was compared with."""
        return self._repeats(COPIED)

    @property
    def pieced(self) -> bool:
        """Whether this was put together from the runs that it was compared with."""
        return self._repeats(PIECED)

    def _repeats(self, share: float) -> bool:
        letters = sum(map(len, set(self.texts.values())))
        return letters >= TELLING and self.repeated >= share * self.compared

    def join(self, other: Likeness) -> None:
        """Add what comparing the same run with another one came to."""
        self.keys |= other.keys
        self.texts |= other.texts

    @property
    def dependent(self) -> str:
        """Why this is no evidence that is independent of the earlier run; empty when it may be."""
        if self.repeated > SHARED * self.compared:
            return (
                f"{self.repeated:,} of {self.compared:,} completions repeat those of the run that it repeats"
            )
        return ""

    @property
    def terse(self) -> bool:
        """Whether no text can tell a repetition from a copy: only who posted it can."""
        return self.telling < COPIED * self.compared or not self.telling


def read_spoken(rollout: Rollout) -> Spoken:
    """Return what the policy said in a rollout."""
    said = [one for one in rollout.completion if one.get("role") == "assistant"]
    heard = [one.get("content") for one in rollout.completion if one.get("role") != "assistant"]
    letters = _letters([[one.get("content"), one.get("tool_calls")] for one in said])
    pieces = set(_PIECE.findall(letters.encode()))
    given = _letters([[one.get("content") for one in rollout.prompt], rollout.answer, heard])
    own = pieces.difference(_PIECE.findall(given.encode()))
    return Spoken(letters, own, len(letters) * len(own) / max(1, len(pieces)))


def _letters(value: Any) -> str:
    text = unicodedata.normalize("NFKC", " ".join(texts_in(value))).casefold()
    return _OTHER.sub("", text if text.isascii() else text.translate(_SAME))


def texts_in(value: Any) -> Iterator[str]:
    """Yield what a message, or a part of one, says: its values, without ids and roles."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name not in ("id", "type", "role"):  # of a call or a part: no words of anybody's
                yield from texts_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts_in(each)
    elif value is not None:
        yield str(value)


class Digest:
    """Of a run whose rollouts are added one by one: digest of all completions, and sketch."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._whole = hashlib.sha256()
        self._seen: set[bytes] = set()
        self._telling = 0
        self._values: set[int] = set()

    def add(self, rollout: Rollout) -> None:
        """Add a rollout; they come in the order of the run."""
        spoken = read_spoken(rollout)
        digest = hashlib.sha256(spoken.letters.encode()).digest()
        self._whole.update(f"{rollout.example_id} {rollout.index} ".encode() + digest)
        if digest not in self._seen and self._telling < TELLING:
            self._seen.add(digest)
            self._telling += len(spoken.letters)
        salt = hashlib.blake2b(rollout.example_id.encode(), digest_size=16, key=self._key).digest()
        found = (hashlib.blake2b(piece, digest_size=7, key=salt).digest() for piece in spoken.pieces)
        self._values.update(heapq.nsmallest(SKETCH, (int.from_bytes(each) for each in found)))
        if len(self._values) > 64 * SKETCH:
            self._values = set(self.sketch())

    def hexdigest(self) -> str | None:
        """Return the digest of all completions, None where they are too short to tell runs apart."""
        return self._whole.hexdigest() if self._telling >= TELLING else None

    def sketch(self) -> list[int]:
        """Return the smallest hashes of the pieces."""
        return heapq.nsmallest(SKETCH, self._values)


def compare(earlier: Iterable[Rollout], later: Iterable[Rollout]) -> Likeness:
    """Tell how much of the earlier run the later one repeats."""
    first, second = _by_example(earlier), _by_example(later)
    rare, rare_here = _rare_pieces(first), _rare_pieces(second)
    found = Likeness()
    for example, rollouts in second.items():
        if example not in first:
            continue
        sources = first[example]
        whole = {one.letters for one in sources if one.own >= _SHORT}
        owned = [one.pieces & rare for one in sources]
        holders: defaultdict[bytes, list[int]] = defaultdict(list)
        for at, pieces in enumerate(owned):
            for piece in pieces:
                holders[piece].append(at)
        tell = any(len(pieces) >= _FEWEST for pieces in owned)
        for number, one in enumerate(rollouts):
            found.keys.add((example, number))
            found.telling += tell and len(one.pieces & rare_here) >= _FEWEST
            hits = Counter(chain.from_iterable(holders.get(piece, ()) for piece in one.pieces))
            near = any(
                len(owned[at]) >= _FEWEST and count >= _MOSTLY * len(owned[at]) for at, count in hits.items()
            )
            if near or one.letters in whole:
                found.texts[example, number] = one.letters
    return found


def _by_example(rollouts: Iterable[Rollout]) -> dict[str, list[Spoken]]:
    found: defaultdict[str, list[Spoken]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.failure is None:
            found[rollout.example_id].append(read_spoken(rollout))
    return found


def _rare_pieces(run: dict[str, list[Spoken]]) -> set[bytes]:
    """Return the pieces that one example alone has: no form that all of them fill in, no set phrase.

    Rollouts of one example may well agree: at temperature 0 they are the same.
    """
    counts = Counter(chain.from_iterable(set().union(*(one.pieces for one in each)) for each in run.values()))
    return {piece for piece, count in counts.items() if count == 1}
