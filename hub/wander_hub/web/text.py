"""Shows text that others wrote: control characters become visible, numbers get the decimals they deserve."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from markupsafe import Markup, escape

from wander_hub.environments.browse import COUNTED

_HIDDEN_CHARACTER = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\ufff0-\ufffb\ud800-\udfff]"
)
_HIDDEN, _HIDDEN_SPAN = re.compile(_HIDDEN_CHARACTER), re.compile(rf"({_HIDDEN_CHARACTER})\1*")
"""What has no picture or reorders its neighbours; tab, line feed and the joiners of emoji stay."""

_MOST_CODES = 1000
"""Of hidden characters in one text."""
_SEAM = re.compile(r"(?<=[:./@_])(?=[^\W_])")

_LAST_YEAR = 9999
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def visible(text: str) -> Markup:
    """Escape text for HTML and write every hidden character as its code, so that none can deceive.

    A code is fifty times as long as what it stands for, so one that is repeated is written once, and those
    that come after the first thousand are `U+FFFD`.
    """
    if not _HIDDEN.search(text):
        return escape(text)
    left = _MOST_CODES

    def show(hidden: re.Match[str]) -> str:
        nonlocal left
        left -= 1
        if left < 0:
            return "\ufffd"
        many = len(hidden[0])
        times = f" × {count(many)}" if many > 1 else ""
        return f'<span class="hidden-character">U+{ord(hidden[1]):04X}{times}</span>'

    return Markup(_HIDDEN_SPAN.sub(show, str(escape(text))))  # noqa: S704 - escaped before


def coded(text: str) -> Markup:
    """Return a sentence as `visible` does, with what stands between backticks set as code."""
    parts = text.split("`")
    if not len(parts) % 2:
        return visible(text)
    code = Markup("<code>{}</code>")
    return Markup("").join(
        code.format(visible(one)) if at % 2 else visible(one) for at, one in enumerate(parts)
    )


def breakable(text: str) -> Markup:
    """Return a name as `visible` does, in which a line may end behind what parts its words."""
    return Markup("<wbr>").join(visible(part) for part in _SEAM.split(text))


def plain(text: str) -> str:
    """Return text in one line, without hidden characters, for where no markup can stand."""
    return " ".join(_HIDDEN.sub("", text).split())


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with at most so many decimals; a dash for none."""
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:.{digits}f}"
    return text.replace("-", "−") if float(text) != 0 else f"{0:.{digits}f}"


def compact(value: float) -> str:
    """Return a number of any magnitude with three significant digits."""
    return f"{value:.3g}".replace("-", "−")


def score_digits(low: float | None, high: float | None) -> int:
    """Return how many decimals a mean deserves: one more than its half-width can tell."""
    if low is None or high is None or high <= low or not math.isfinite(high - low):
        return 3
    return min(max(1 - math.floor(math.log10((high - low) / 2)), 1), 4)


def count(value: float | None) -> str:
    """Return a whole number with thin separators; a dash for none."""
    return "–" if value is None else f"{value:,.0f}".replace(",", "\u2009")


def bounded(value: int) -> str:
    """Return a number that was counted no further than a thousand."""
    return count(value) if value <= COUNTED else f"{count(COUNTED)}+"


def size(value: int) -> str:
    """Return a number of bytes for people."""
    amount, unit = float(value), "B"
    for larger in ("kB", "MB", "GB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def moment(value: datetime) -> Markup:
    """Return a `<time>` with the full stamp behind a date."""
    return _time(value, "%Y-%m-%d")


def minute(value: datetime) -> Markup:
    """Return a `<time>` of the day and the minute, with the full stamp behind it."""
    return _time(value, "%Y-%m-%d %H:%M UTC")


@lru_cache(4096)
def _time(value: datetime, shown: str) -> Markup:
    # A run may state any date, and at the ends of what dates hold there is no other zone.
    stamp = value.astimezone(UTC) if 1 < value.year < _LAST_YEAR else value.replace(tzinfo=UTC)
    exact = f'datetime="{stamp.isoformat(timespec="seconds")}" title="{stamp:%Y-%m-%d %H:%M:%S} UTC"'
    return Markup(f"<time {exact}>{stamp.strftime(shown)}</time>")  # noqa: S704 - only digits and our words


def stamp(value: datetime | None) -> str:
    """Return a moment as feeds write it; the beginning of time for none."""
    return "1970-01-01T00:00:00Z" if value is None else value.isoformat(timespec="seconds")


def duration(seconds: float | None) -> str:
    """Return a time span for people."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.1f} min"
    return f"{seconds / _HOUR:.1f} h" if seconds < _DAY else f"{seconds / _DAY:.1f} d"


def words(detail: Mapping[str, object], longest: int = 80) -> str:
    """Return details as `key: value`, what is empty left out and each value cut."""
    told = {
        name.replace("_", " "): value for name, value in detail.items() if value not in (None, "", [], {})
    }
    return "; ".join(f"{name}: {shorten(_said(value), longest)}" for name, value in told.items())


_FAULTS = {
    "missing": "is missing",
    "string_type": "is missing",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "needs at least {min_length}",
    "too_long": "takes at most {max_length}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "value_error": "{error}",
}
"""Words for the types of pydantic's errors, which the values of their `ctx` fill."""


def fault_words(error: Mapping[str, Any]) -> str:
    """Return a fault of a form's field for people: the field, and what it has to be."""
    words = _FAULTS.get(error["type"], "is not written as this has to be")
    return f"{fault_field(error).replace('_', ' ')} {words.format_map(error.get('ctx', {}))}".strip()


def fault_field(error: Mapping[str, Any]) -> str:
    """Return the field that an error is about; nothing where it is about all of them."""
    names = [str(part) for part in error["loc"][1:]]
    return next((name for name in reversed(names) if not name.isdigit()), "")


def _said(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_said(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(_said, value))
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def qr(text: str) -> str:
    """Return a QR code as the address of an image: dark on white always, or phones could not read it."""
    import segno

    code = segno.make(text, error="m", micro=False)
    return code.svg_data_uri(border=4, dark="#000", light="#fff", omitsize=True)


def shorten(text: str, length: int = 60) -> str:
    """Cut the middle out of a long text."""
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"
