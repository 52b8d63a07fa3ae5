"""The picture that other sites show beside a link to an environment: name, summary, and its best result."""

from __future__ import annotations

import io
import textwrap
import unicodedata
from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import ImageFont

_SIZE = (1200, 630)
_LEFT = 80
_GROUND, _TEXT, _MUTED, _MARK = "#14171a", "#e6e8ea", "#9aa4ae", "#4a9fd8"
_WIDE = 1040
_KEPT = 200
"""Cards of some 20 kB that a process keeps: to draw one takes 60 ms of a processor."""


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    from PIL import ImageFont

    return ImageFont.load_default(size)


@lru_cache(_KEPT)
def draw_card(name: str, summary: str, facts: tuple[str, ...], place: str) -> bytes:
    """Return the picture as PNG; letters that the font lacks are drawn without their accents."""
    from PIL import Image, ImageDraw  # a hub starts without: 50 ms

    image = Image.new("RGB", _SIZE, _GROUND)
    draw = ImageDraw.Draw(image)
    mark = [(80, 76), (96, 116), (112, 84), (128, 116), (144, 76)]
    draw.line(mark, fill=_MARK, width=8, joint="curve")
    draw.text((168, 74), "Wander", font=_font(36), fill=_MUTED)
    name = _plain(name)
    size = next((one for one in (84, 68, 54, 42) if _font(one).getlength(name) <= _WIDE), 32)
    draw.text((_LEFT, 176), name[:60], font=_font(size), fill=_TEXT)
    lines = textwrap.wrap(_plain(summary), 56, max_lines=3, placeholder=" …")
    draw.multiline_text((_LEFT, 300), "\n".join(lines), font=_font(36), fill=_MUTED, spacing=14)
    draw.text((_LEFT, 480), _plain("   ·   ".join(facts))[:70], font=_font(34), fill=_TEXT)
    draw.text((_LEFT, 548), _plain(place)[:70], font=_font(26), fill=_MUTED)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


def _plain(text: str) -> str:
    """Return the part of a text that the built-in font can draw: Latin letters and signs."""
    apart = unicodedata.normalize("NFKD", text)
    return "".join(one for one in apart if one in "·…–’" or " " <= one <= "~")
