"""Formats values for pages: escapes users' text, makes hidden characters visible, and rounds numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from markupsafe import Markup, escape
from wander.types import describe_fault

from wander_hub.environments.browse import COUNTED

_HIDDEN_CHARACTER = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\ufff0-\ufffb\ud800-\udfff]"
)
_HIDDEN, _HIDDEN_SPAN = re.compile(_HIDDEN_CHARACTER), re.compile(rf"({_HIDDEN_CHARACTER})\1*")
"""Characters that are invisible or reorder their neighbors. Tab, line feed and the joiners of emoji stay."""

_MOST_CODES = 1000
"""Maximum number of hidden characters in a text that are written as codes."""
_SEAM = re.compile(r"(?<=[:./@_])(?=[^\W_])")

_LAST_YEAR = 9999
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def visible(text: str) -> Markup:
    """Escape text for HTML and write every hidden character as its code, so that no text can deceive readers.

    A code is fifty times as long as its character. So a repeated character is written once with its count,
    and after the first thousand codes, characters become `U+FFFD`.
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
    """Return a sentence like `visible`, with the text between backticks as code."""
    parts = text.split("`")
    if not len(parts) % 2:
        return visible(text)
    code = Markup("<code>{}</code>")
    return Markup("").join(
        code.format(visible(one)) if at % 2 else visible(one) for at, one in enumerate(parts)
    )


def breakable(text: str) -> Markup:
    """Return a name like `visible`, with places where a line may break after separators."""
    parts = _SEAM.split(text)
    return visible(text) if len(parts) == 1 else Markup("<wbr>").join(map(visible, parts))


def plain(text: str) -> str:
    """Return text on one line without hidden characters, for places that cannot hold markup."""
    return " ".join(_HIDDEN.sub("", text).split())


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with this many decimals, or a dash for None, infinity or NaN."""
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:.{digits}f}"
    return text.replace("-", "−") if float(text) != 0 else f"{0:.{digits}f}"


def compact(value: float) -> str:
    """Return a number of any magnitude with three significant digits."""
    return f"{value:.3g}".replace("-", "−")


def score_digits(low: float | None, high: float | None) -> int:
    """Return the number of decimals for a mean: one more than the half-width of its interval resolves."""
    if low is None or high is None or high <= low or not math.isfinite(high - low):
        return 3
    return min(max(1 - math.floor(math.log10((high - low) / 2)), 1), 4)


def count(value: float | None) -> str:
    """Return a whole number with thin spaces as separators, or a dash for None."""
    return "–" if value is None else f"{value:,.0f}".replace(",", "\u2009")


def bounded(value: int) -> str:
    """Return a count that stops at a thousand, as `1 000+` if there are more."""
    return count(value) if value <= COUNTED else f"{count(COUNTED)}+"


def size(value: int) -> str:
    """Return a number of bytes with a unit."""
    amount, unit = float(value), "B"
    for larger in ("kB", "MB", "GB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def moment(value: datetime) -> Markup:
    """Return a `<time>` element that shows the date, with the full timestamp as its title."""
    return _time(value, "%Y-%m-%d")


def minute(value: datetime) -> Markup:
    """Return a `<time>` element that shows the date and the minute, with the full timestamp as its title."""
    return _time(value, "%Y-%m-%d %H:%M UTC")


@lru_cache(4096)
def _time(value: datetime, shown: str) -> Markup:
    # A run may report any date. The first and the last year cannot be converted to another time zone.
    stamp = value.astimezone(UTC) if 1 < value.year < _LAST_YEAR else value.replace(tzinfo=UTC)
    exact = f'datetime="{stamp.isoformat(timespec="seconds")}" title="{stamp:%Y-%m-%d %H:%M:%S} UTC"'
    return Markup(f"<time {exact}>{stamp.strftime(shown)}</time>")  # noqa: S704 - only digits and our words


def duration(seconds: float | None) -> str:
    """Return a duration with a unit."""
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
    """Return details as `key: value`, without empty values and with long values shortened."""
    labeled = {
        name.replace("_", " "): value for name, value in detail.items() if value not in (None, "", [], {})
    }
    return "; ".join(f"{name}: {shorten(_as_words(value), longest)}" for name, value in labeled.items())


def fault_words(error: Mapping[str, Any]) -> str:
    """Return a message for an invalid field of a form: the name of the field, and the requirement."""
    # An empty field of a form arrives as null.
    requirement = "is missing" if error["type"] == "string_type" else describe_fault(error)
    return f"{fault_field(error).replace('_', ' ')} {requirement}".strip()


def fault_field(error: Mapping[str, Any]) -> str:
    """Return the name of the invalid field, or an empty string if the error concerns the whole form."""
    names = [str(part) for part in error["loc"][1:]]
    return next((name for name in reversed(names) if not name.isdigit()), "")


def _as_words(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_as_words(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(_as_words, value))
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def qr(text: str) -> str:
    """Return a QR code as a data URI. It is always dark on white, because phones cannot read other colors."""
    import segno

    code = segno.make(text, error="m", micro=False)
    return code.svg_data_uri(border=4, dark="#000", light="#fff", omitsize=True)


def shorten(text: str, length: int = 60) -> str:
    """Shorten a long text by replacing its middle with an ellipsis."""
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"
