"""Renders a README to HTML that is safe to show: Markdown or reStructuredText, then an allow-list of tags.

Remote images are turned into links: showing them would tell their server who reads the page. Images that the
package ships are shown, from the hub.
"""

from __future__ import annotations

import html
import itertools
import posixpath
import re
import sys
import threading
import time
from collections import Counter
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit
from xml.etree import ElementTree

from markupsafe import Markup

_REMOVED = {"map", "area", "article", "aside", "footer", "header", "nav", "style"}
_MATH = {
    *("math", "mi", "mn", "mo", "mtext", "mspace", "mrow", "mfrac", "msqrt", "mroot", "mstyle", "mpadded"),
    *("mphantom", "msub", "msup", "msubsup", "munder", "mover", "munderover", "mtable", "mtr", "mtd"),
}
_NAMED = {*["h1", "h2", "h3", "h4", "h5", "h6", "li", "div"]}
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
    "span": {"id"},
    **{tag: {"id"} for tag in _NAMED},
}
PREFIX = "readme-"
"""Of every id, so that none is one of the page's own."""
_SHIPPED = "image?file="
"""With what the address of an image of the package begins; `place` says where it is."""
_DECEIVING = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and those that change the direction of text."""
_ALIGNED = re.compile(r'style="text-align: (left|right|center)"')
_IMAGE = re.compile(r"<img\b[^<>]*>", re.IGNORECASE)
_REMOTE = re.compile(r'<img(?! src="image\?file=)[^>]*>')
"""An image in cleaned HTML that is not the hub's, of which the cleaner leaves the tag."""
_ATTRIBUTE = re.compile(r"""\b(src|alt)\s*=\s*("[^"]*"|'[^']*')""", re.IGNORECASE)
_PICTURE = re.compile(r"\.(png|jpe?g|gif|webp)$", re.IGNORECASE)
_TASK = re.compile(r'<input disabled="" type="checkbox"( checked="")?/>\s*')
_FORMULA = re.compile(r'<span class="math math-(inline|display)">([^<]*)</span>')
_HEADING = re.compile(r'<h([23]) id="(readme-[^"]+)">(.*?)</h\1>', re.DOTALL)
_BARE_HEADING = re.compile(r"<(h[1-6])>(.*?)</\1>", re.DOTALL)
_NOT_IN_ANCHOR = re.compile(r"[^\w -]")
_PLACED = re.compile(r'<img src="image\?file=[^"]*" alt="([^"]*)"[^>]*>')
_TAG = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9]*)")
_NEVER_NEST = frozenset(
    "area base br col embed hr img input link meta source track wbr p li td th tr dt dd option".split()  # noqa: SIM905
)
"""Tags that have no end, or end where another of their kind begins."""
_MOST_RENDERED, _MOST_HTML = 256 * 1024, 4 * 1024 * 1024
"""Characters of a text that is rendered, and of what it becomes. Longer ones are shown as they were written.
So is HTML that nests deeper than `_DEEPEST`: the cleaner takes time by the depth of every tag."""
_DEEPEST = 100
_LONGEST_ANCHOR = 100
_MOST_HEADINGS = 200
"""Headings of a README in its table of contents."""
_LONG_TEXT = re.compile(r"(?<=>)[^<>]{2001,}")
_PIECE = re.compile(r"[^<>]{2000}(?:[^<>&;\s]{0,40};)?")
_LONGEST_FORMULA = 2000
_LINK = re.compile(r'(<a\b[^<>]*?\bhref=)"([^"]*)"')
_ADDRESS = re.compile(
    r"""(?P<kept><(a|pre|code|math)\b.*?</\2>|<[^<>]*>)|\bhttps?://[A-Za-z0-9\[](?:[^\s<>"'&]|&amp;)*""",
    re.DOTALL,
)
"""An address in the text of cleaned HTML; or a tag, or what keeps its text as it is."""
_AFTER_ADDRESS = re.compile(r"[?!.,:;*_~]+$")
"""What ends a sentence and not the address in it."""
_SECTION = re.compile(r'<section id="([^"]*)">\s*<(h[1-6])>')
_RST_CODE = re.compile(r'<pre class="code (\w+) literal-block"><code>')
_MOST_RST = 64 * 1024
"""Characters of reStructuredText that is rendered: docutils takes a second for 100,000."""
_RST_SECONDS = 0.5
"""Processor time of docutils for one text; some texts take it time by their square."""
_RST_CALLS = 64
_RST = {
    "file_insertion_enabled": False,
    "raw_enabled": False,
    "_disable_config": True,
    "doctitle_xform": False,
    "docinfo_xform": False,
    "initial_header_level": 1,
    "line_length_limit": 10_000,
    "math_output": "MathML",
    "syntax_highlight": "none",
    "strip_comments": True,
    "report_level": 5,
    "halt_level": 2,
    "warning_stream": False,
    "traceback": True,
}
_DOCUTILS = threading.Lock()
"""docutils keeps the roles that a text defines in a table of the process."""
_MOST_MATH, _OF_FORMULA = 100_000, 50
"""Characters of the formulas of one README that become MathML, which is far longer, and what each costs."""


class Heading(NamedTuple):
    """A heading of a README, for its table of contents."""

    level: int
    name: str
    """Its id."""
    text: str


def render(text: str, content_type: str) -> str:
    """Return safe HTML, in a bounded time.

    Plain text, and a text that cannot be rendered or takes too long, is shown as it was written.
    """
    text = _DECEIVING.sub("\ufffd", text)
    plain = f"<pre>{html.escape(text)}</pre>" if text.strip() else ""
    draw = {"text/markdown": _draw_markdown, "text/x-rst": _draw_rst}.get(content_type)
    raw = draw(text) if draw is not None and len(text) <= _MOST_RENDERED else None
    if raw is None or len(raw) > _MOST_HTML or _is_deep(raw):
        return plain
    cleaned = _REMOTE.sub("", clean(_IMAGE.sub(_image, raw)))
    return _add_anchors(_ADDRESS.sub(_link_address, cleaned))


def _draw_markdown(text: str) -> str:
    import pyromark

    options = pyromark.Options
    raw = pyromark.html(
        text,
        options=options.ENABLE_TABLES
        | options.ENABLE_FOOTNOTES
        | options.ENABLE_STRIKETHROUGH
        | options.ENABLE_TASKLISTS
        | options.ENABLE_MATH,
    )
    if len(raw) > _MOST_HTML:
        return raw
    raw = _TASK.sub(lambda box: "☑ " if box[1] else "☐ ", _ALIGNED.sub(r'align="\1"', raw))
    return _FORMULA.sub(_Formulas().draw, raw)


class _TooSlow(BaseException):
    """Raised inside docutils, which catches every `Exception` of some directives."""


def _draw_rst(text: str) -> str | None:
    """Return HTML of reStructuredText; None for a text with errors, and for one that takes too long."""
    from docutils.core import publish_parts
    from docutils.parsers.rst import roles

    if len(text) > _MOST_RST:
        return None
    ends, calls = time.thread_time() + _RST_SECONDS, 0

    def watch(*_event: Any) -> None:
        nonlocal calls
        calls += 1
        if calls % _RST_CALLS == 0 and time.thread_time() > ends:
            raise _TooSlow

    with _DOCUTILS:
        before = sys.getprofile()
        sys.setprofile(watch)
        try:
            raw: str = publish_parts(text, writer="html5", settings_overrides=_RST)["body"]
        except (Exception, _TooSlow):  # noqa: BLE001 - hostile text finds faults of many kinds
            return None
        finally:
            sys.setprofile(before)
            roles._roles.clear()
    raw = raw.replace("<aside", "<div").replace("</aside>", "</div>")  # footnotes
    raw = _RST_CODE.sub(r'<pre><code class="language-\1">', raw)
    return _SECTION.sub(r'<\2 id="\1">', raw)


def _link_address(found: re.Match[str]) -> str:
    """Return a link to an address that stands in the text of a README."""
    if found["kept"]:
        return found[0]
    address = _AFTER_ADDRESS.sub("", found[0])
    surplus = address.count(")") - address.count("(")  # `(see https://example.org)`
    if surplus > 0:
        closing = len(address) - len(address.rstrip(")"))
        address = address[: len(address) - min(surplus, closing)]
    return f'<a href="{address}" rel="nofollow noopener noreferrer">{address}</a>{found[0][len(address) :]}'


def _is_deep(raw: str) -> bool:
    """Return whether tags of HTML may nest deeper than `_DEEPEST`, since so many are open at one place."""
    depth, unclosed = 0, Counter[str]()
    for end, name in _TAG.findall(raw):
        tag = name.lower()
        if tag in _NEVER_NEST:
            continue
        if not end:
            unclosed[tag] += 1
            depth += 1
            if depth > _DEEPEST:
                return True
        elif unclosed[tag]:
            unclosed[tag] -= 1
            depth -= 1
    return False


def _add_anchors(cleaned: str) -> str:
    """Return HTML whose headings all have ids, each its own."""
    taken = Counter[str]()

    def add(heading: re.Match[str]) -> str:
        tag, inner = heading.groups()
        words = html.unescape(Markup(inner).striptags()).strip().lower()  # noqa: S704 - tags are taken off
        anchor = _NOT_IN_ANCHOR.sub("", words).replace(" ", "-")[:_LONGEST_ANCHOR] or "section"
        taken[anchor] += 1
        number = f"-{taken[anchor] - 1}" if taken[anchor] > 1 else ""
        return f'<{tag} id="{PREFIX}{anchor}{number}">{inner}</{tag}>'

    return _BARE_HEADING.sub(add, cleaned)


def clean(text: str) -> str:
    """Return the part of HTML that is safe to show; what `render` gave stays as it is."""
    import nh3

    # The cleaner takes time by the square of a text of many entities. A comment, which it drops, ends a text.
    text = _LONG_TEXT.sub(lambda long: _PIECE.sub(r"\g<0><!---->", long[0]), text)
    return nh3.clean(
        text,
        tags=(nh3.ALLOWED_TAGS - _REMOVED) | _MATH | {"details", "summary", "img"},
        attributes=_ATTRIBUTES,
        attribute_filter=_allowed,
        url_schemes={"http", "https", "mailto"},
        link_rel="nofollow noopener noreferrer",
    )


def place(rendered: str, base: str | None) -> str:
    """Return a rendered README for a page: wide tables scroll, and its images and files are under an address.

    That ends with `/`; without one the names of images stand for them, and relative links are no links.
    """
    rendered = _LINK.sub(lambda link: _place_link(link, base), rendered)
    if base is None:
        rendered = _PLACED.sub(r"<em>[\1]</em>", rendered)
    else:
        rendered = rendered.replace(f'<img src="{_SHIPPED}', f'<img src="{html.escape(base)}{_SHIPPED}')
    numbers = itertools.count(1)  # each region has a name of its own

    def wrap(_table: re.Match[str]) -> str:
        name = f"table {next(numbers)}"
        return f'<div class="scroll" tabindex="0" role="region" aria-label="{name}"><table>'

    return re.sub("<table>", wrap, rendered).replace("</table>", "</table></div>")


def _place_link(link: re.Match[str], base: str | None) -> str:
    """Lead a link to a file of the package to its source."""
    try:
        address = urlsplit(html.unescape(link[2]))
    except ValueError:
        return link[0]
    if address.scheme or address.netloc or not address.path or (base is None and address.path[0] == "/"):
        return link[0]
    path = posixpath.normpath("/" + unquote(address.path)).lstrip("/")
    if base is None or unquote(address.path).startswith("../"):
        return link[1].removesuffix(" href=")
    target = f"{base}source" + (f"?file={quote(path)}" if path else "")
    anchor = f"#{quote(address.fragment)}" if address.fragment else ""
    return f'{link[1]}"{html.escape(target + anchor)}"'


def list_headings(rendered: str) -> list[Heading]:
    """Return the first headings of the second and third level of a rendered README."""
    return [
        Heading(int(one[1]), one[2], html.unescape(Markup(one[3]).striptags()))  # noqa: S704 - tags are taken off
        for one in islice(_HEADING.finditer(rendered), _MOST_HEADINGS)
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

    def draw(self, formula: re.Match[str]) -> str:
        """Return a formula as MathML, or as it was written if the library cannot read it as TeX."""
        from latex2mathml.converter import convert

        source = html.unescape(formula[2])
        around = (
            formula.string[formula.start() - 1 : formula.start()],
            formula.string[formula.end() : formula.end() + 1],
        )
        if formula[1] == "inline" and any(one.isdigit() for one in around):  # prices: `$5,$6`
            return f"${formula[2]}$"
        self._left -= len(source) + _OF_FORMULA
        display = "block" if formula[1] == "display" else "inline"
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
