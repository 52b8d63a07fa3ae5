"""Renders a README to HTML that is safe to show: markdown, then an allow-list of tags and attributes.

Remote images are turned into links: showing them would tell their server who reads the page. Images that the
package ships are shown, from the hub.
"""

from __future__ import annotations

import html
import itertools
import posixpath
import re
from typing import NamedTuple
from urllib.parse import quote, unquote
from xml.etree import ElementTree

from markupsafe import Markup

_REMOVED = {"map", "area", "article", "aside", "footer", "header", "nav", "style"}
_MATH = {
    *("math", "mi", "mn", "mo", "mtext", "mspace", "mrow", "mfrac", "msqrt", "mroot", "mstyle", "mpadded"),
    *("mphantom", "msub", "msup", "msubsup", "munder", "mover", "munderover", "mtable", "mtr", "mtd"),
}
_NAMED = {*["h1", "h2", "h3", "h4", "h5", "h6", "li"]}
"""What a link within the README may lead to."""
_ATTRIBUTES = {
    "a": {"href", "title", "id"},
    "img": {"src", "alt", "loading"},
    "th": {"align", "scope", "colspan", "rowspan"},
    "td": {"align", "colspan", "rowspan"},
    "ol": {"start"},
    "code": {"class"},
    "details": {"open"},
    "math": {"display"},
    "mo": {"stretchy", "fence", "form", "separator", "movablelimits", "largeop"},
    "mi": {"mathvariant"},
    "mstyle": {"displaystyle", "scriptlevel"},
    "mspace": {"width", "linebreak"},
    "mover": {"accent"},
    "mfrac": {"linethickness"},
    "mtable": {"columnalign", "rowspacing", "columnspacing"},
    **{tag: {"id"} for tag in _NAMED},
}
PREFIX = "readme-"
"""Of every id, so that none is one of the page's own."""
_SHIPPED = "image?file="
"""With what the address of an image of the package begins; `place` says where it is."""
_DECEIVING = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and those that change the direction of text."""
_ALIGNED = re.compile(r'style="text-align:\s*(left|right|center);?"')
_IMAGE = re.compile(r"<img\b[^>]*>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"""\b(src|alt)\s*=\s*("[^"]*"|'[^']*')""", re.IGNORECASE)
_PICTURE = re.compile(r"\.(png|jpe?g|gif|webp)$", re.IGNORECASE)
_TASK = re.compile(r'<input class="task-list-item-checkbox"( checked="checked")?[^>]*>')
_HEADING = re.compile(r'<h([23]) id="(readme-[^"]+)">(.*?)</h\1>', re.DOTALL)
_PLACED = re.compile(r'<img src="image\?file=[^"]*" alt="([^"]*)"[^>]*>')
_BARE = re.compile(r"(<h[1-6])>")
_LONGEST_FORMULA = 2000
_MOST_MATH, _OF_FORMULA = 100_000, 50
"""Characters of the formulas of one README that become MathML, which is far longer, and what each costs."""


class Heading(NamedTuple):
    """A heading of a README, for its table of contents."""

    level: int
    name: str
    """Its id."""
    text: str


def render(text: str, content_type: str) -> str:
    """Return safe HTML; what is not markdown is shown as it was written."""
    from markdown_it import MarkdownIt
    from mdit_py_plugins.anchors import anchors_plugin
    from mdit_py_plugins.dollarmath import dollarmath_plugin
    from mdit_py_plugins.footnote import footnote_plugin
    from mdit_py_plugins.tasklists import tasklists_plugin

    text = _DECEIVING.sub("\ufffd", text)
    if content_type != "text/markdown":
        return f"<pre>{html.escape(text)}</pre>" if text.strip() else ""
    markdown = MarkdownIt("js-default", {"html": True, "linkify": False, "typographer": False})
    markdown.use(anchors_plugin, max_level=6).use(footnote_plugin).use(tasklists_plugin)
    markdown.use(dollarmath_plugin, allow_digits=False, renderer=_Formulas().draw)
    raw = _ALIGNED.sub(r'align="\1"', markdown.render(text))
    raw = _TASK.sub(lambda box: "☑" if box[1] else "☐", raw)
    numbers = itertools.count(1)
    # Headings that were written in HTML get anchors too, for the table of contents.
    return _BARE.sub(
        lambda tag: f'{tag[1]} id="{PREFIX}html-{next(numbers)}">', clean(_IMAGE.sub(_image, raw))
    )


def clean(text: str) -> str:
    """Return the part of HTML that is safe to show; what `render` gave stays as it is."""
    import nh3

    return nh3.clean(
        text,
        tags=(nh3.ALLOWED_TAGS - _REMOVED) | _MATH | {"details", "summary", "img"},
        attributes=_ATTRIBUTES,
        attribute_filter=_allowed,
        url_schemes={"http", "https", "mailto"},
        link_rel="nofollow noopener noreferrer",
    )


def place(rendered: str, base: str | None) -> str:
    """Return a rendered README for a page: wide tables scroll, and its images are under an address.

    That ends with `/`; without one their names stand for them.
    """
    if base is None:
        rendered = _PLACED.sub(r"<em>[\1]</em>", rendered)
    else:
        rendered = rendered.replace(f'<img src="{_SHIPPED}', f'<img src="{html.escape(base)}{_SHIPPED}')
    region = '<div class="scroll" tabindex="0" role="region" aria-label="table">'
    return rendered.replace("<table>", f"{region}<table>").replace("</table>", "</table></div>")


def list_headings(rendered: str) -> list[Heading]:
    """Return the headings of the second and third level of a rendered README."""
    return [
        Heading(int(level), name, html.unescape(Markup(inner).striptags()))  # noqa: S704 - tags are taken off
        for level, name, inner in _HEADING.findall(rendered)
    ]


def _allowed(tag: str, attribute: str, value: str) -> str | None:
    """Return what an attribute may be: ids have the prefix, links to them too, and images are the hub's."""
    if attribute == "id":
        return value if value.startswith(PREFIX) else f"{PREFIX}{value}"
    if attribute == "href" and value.startswith("#") and not value.startswith(f"#{PREFIX}"):
        return f"#{PREFIX}{value[1:]}"
    if attribute == "src" and not value.startswith(_SHIPPED):
        return None
    return value


class _Formulas:
    """The formulas of one README, as many as a page can have."""

    def __init__(self) -> None:
        self._left = _MOST_MATH

    def draw(self, source: str, options: dict[str, bool]) -> str:
        """Return a formula as MathML; as it was written where it is no TeX that the library reads."""
        from latex2mathml.converter import convert

        self._left -= len(source) + _OF_FORMULA
        display = "block" if options.get("display_mode") else "inline"
        if len(source) > _LONGEST_FORMULA or self._left < 0:
            return f"<code>{html.escape(source)}</code>"
        try:
            drawn = str(convert(source, display=display))
            ElementTree.fromstring(drawn)  # noqa: S314 - a tag in its text that stays open takes what follows
            return drawn
        except Exception:  # noqa: BLE001 - it has no base of its errors, and hostile TeX finds others
            return f"<code>{html.escape(source)}</code>"


def _image(image: re.Match[str]) -> str:
    found = {key.lower(): value[1:-1] for key, value in _ATTRIBUTE.findall(image.group())}
    label, address = found.get("alt") or "image", found.get("src", "")
    if address.startswith(("http://", "https://")):
        return f'<a href="{address}">[{label}]</a>'
    path = posixpath.normpath(unquote(html.unescape(address)))
    if not _PICTURE.search(path) or ":" in path or path.startswith(("/", "..")):
        return f"<em>[{label}]</em>"
    return f'<img src="{_SHIPPED}{quote(path)}" alt="{label}" loading="lazy">'
