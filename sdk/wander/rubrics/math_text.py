"""Cleans mathematical answers of people and models so that math-verify can read them."""

from __future__ import annotations

import re

_SPACES = dict.fromkeys([0x00A0, *range(0x2000, 0x200B), 0x202F], "~")
"""Spaces that are non-breaking or thin."""
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_FRACTIONS = {
    **{"½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4"},
    **{"⅕": "1/5", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8"},
}
_SEPARATOR = r"(?:,?\\[,;:! ]|\{,\}|~|\\thinspace ?)"
"""LaTeX separators between the thousands of a number, except for a plain comma, which math-verify can
read."""
_THOUSANDS = re.compile(rf"(?<![\d.])\d{{1,3}}(?:{_SEPARATOR}\d{{3}})+(?!\d)")
_SPACED = re.compile(r"[+-]?\d{1,3}(?: \d{3})+(?:\.\d+)?")
"""A number with plain spaces as separators. Only a whole answer is read this way, because spaces also
separate numbers."""
_CURRENCY = re.compile(
    r"\\?\$|\\text(?:rm)?\{ ?\\?\$ ?\}|\\(?:euro|pounds|yen)\b|[€£¥₹₩₽₺฿]"
    r"|(?<=\d)\s*(?:\\text(?:rm)?\{\s*)?(?:USD|EUR|GBP|JPY|CNY|INR|dollars?|euros?|bucks)\b\s*\}?"
    r"|\b(?:USD|EUR|GBP|JPY|CNY|INR)\s*(?=\d)",
    re.IGNORECASE,
)
_MIXED = re.compile(r"(?<![\w./])(\d+)(?:\s+and\s+|(?:[\s~]|\\[ ,;:])+)(\d+)\s*/\s*(\d+)(?![\d/])")
_EXPONENT = re.compile(r"(?<![\w.])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?\d+)(?![\w.])")
_POWER_OF_TEN = re.compile(r"(?<=\d)\s*[x×✕∙·*]\s*10\s*(?:\^|\*\*)\s*\{?\s*([+-]?\d+)\s*\}?")
_SUPERSCRIPT = re.compile(r"(?<=\d)[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_END = re.compile(r"(?:[\s.,;:~]|\\[,;:!]?(?![a-zA-Z{}()\[\]|%$]))+\Z")
_START = re.compile(r"\A(?:\s|~|\\[,;:! ])+")


def clean_math(text: str) -> str:
    """Remove everything that is not mathematics from an answer: final punctuation, currencies, thin spaces.

    Mixed numbers and powers of ten are written as LaTeX. Cleaning a cleaned text changes nothing.
    """
    text = text.translate(_SPACES)
    for character, fraction in _FRACTIONS.items():
        if character in text:
            text = re.sub(rf"(?<=\d)\s*{character}", f" {fraction}", text).replace(character, fraction)
    text = _SUPERSCRIPT.sub(lambda match: f"^{{{match[0].translate(_SUPERSCRIPTS)}}}", text)
    text = _CURRENCY.sub("", text)
    text = _START.sub("", text)
    if not text.rstrip().endswith(".."):  # an ellipsis after more digits
        text = _END.sub("", text)
    if _SPACED.fullmatch(text):
        text = text.replace(" ", "")
    text = _THOUSANDS.sub(lambda match: re.sub(_SEPARATOR, "", match[0]), text)
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", text)
    text = _POWER_OF_TEN.sub(r" \\times 10^{\1}", text)
    return _EXPONENT.sub(r"\1 \\times 10^{\2}", text).replace("~", " ").strip()
