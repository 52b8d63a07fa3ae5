"""Renders READMEs to safe HTML: Markdown or reStructuredText, then an allow-list of tags.

Remote images become links, because loading them would reveal readers to another server. Images of the package
are served by the hub.
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
"""Tags that links within the README may point to."""
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
"""Prefix of every id, so that none collides with an id of the page."""
_SHIPPED = "image?file="
"""Start of the address of a package's image. `place` completes the address."""
_DECEIVING = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters, including marks that change the direction of text."""
_ALIGNED = re.compile(r'style="text-align: (left|right|center)"')
_IMAGE = re.compile(r"<img\b[^<>]*>", re.IGNORECASE)
_REMOTE = re.compile(r'<img(?! src="image\?file=)[^>]*>')
"""Image in cleaned HTML that does not come from the hub. The cleaner leaves its tag without an address."""
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
"""Tags without an end tag, and tags that another tag of the same kind closes implicitly."""
_MOST_RENDERED, _MOST_HTML = 256 * 1024, 4 * 1024 * 1024
"""Maximum number of characters of a rendered text, and of the resulting HTML. Longer texts are shown
unrendered, and so is HTML that is nested deeper than `_DEEPEST`, because the cleaner's time depends on the
depth of every tag."""
_DEEPEST = 100
_LONGEST_ANCHOR = 100
_MOST_HEADINGS = 200
"""Maximum number of headings in the table of contents."""
_LONG_TEXT = re.compile(r"(?<=>)[^<>]{2001,}")
_PIECE = re.compile(r"[^<>]{2000}(?:[^<>&;\s]{0,40};)?")
_LONGEST_FORMULA = 2000
_LINK = re.compile(r'(<a\b[^<>]*?\bhref=)"([^"]*)"')
_ADDRESS = re.compile(
    r"""(?P<kept><(a|pre|code|math)\b.*?</\2>|<[^<>]*>)|\bhttps?://[A-Za-z0-9\[](?:[^\s<>"'&]|&amp;)*""",
    re.DOTALL,
)
"""Pattern of an address in the text of cleaned HTML, or of a tag or element whose text is left unchanged."""
_AFTER_ADDRESS = re.compile(r"[?!.,:;*_~]+$")
"""Punctuation that ends a sentence after an address."""
_SECTION = re.compile(r'<section id="([^"]*)">\s*<(h[1-6])>')
_RST_CODE = re.compile(r'<pre class="code (\w+) literal-block"><code>')
_MOST_RST = 64 * 1024
"""Maximum number of characters of reStructuredText to render; docutils takes a second for 100,000."""
_RST_SECONDS = 0.5
"""Maximum CPU seconds of docutils for one text, because some texts take quadratic time."""
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
"""Lock for docutils, which stores the roles that a text defines in a global table."""
_MOST_MATH, _OF_FORMULA = 100_000, 50
"""Maximum number of characters in the formulas of a README that are converted to MathML, which is much longer
than its source. Each formula counts as `_OF_FORMULA` characters plus its length."""


class Heading(NamedTuple):
    """A heading of a README, for its table of contents."""

    level: int
    name: str
    """Id of the heading."""
    text: str


def render(text: str, content_type: str) -> str:
    """Return safe HTML, in limited time.

    Plain text, and text that cannot be rendered or takes too long, is shown unrendered.
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
    """The time limit was reached. A `BaseException`, because some docutils directives catch every
    `Exception`."""


def _draw_rst(text: str) -> str | None:
    """Return HTML of reStructuredText; None if it has errors or takes too long."""
    from docutils.core import publish_parts
    from docutils.parsers.rst import roles
    from docutils.readers.standalone import Reader
    from docutils.writers.html5_polyglot import Writer

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
            raw: str = publish_parts(text, reader=Reader(), writer=Writer(), settings_overrides=_RST)["body"]
        except (Exception, _TooSlow):  # noqa: BLE001 - hostile text can raise any error
            return None
        finally:
            sys.setprofile(before)
            roles._roles.clear()
    raw = raw.replace("<aside", "<div").replace("</aside>", "</div>")  # footnotes
    raw = _RST_CODE.sub(r'<pre><code class="language-\1">', raw)
    return _SECTION.sub(r'<\2 id="\1">', raw)


def _link_address(found: re.Match[str]) -> str:
    """Return a link for an address in the text of a README."""
    if found["kept"]:
        return found[0]
    address = _AFTER_ADDRESS.sub("", found[0])
    surplus = address.count(")") - address.count("(")  # `(see https://example.org)`
    if surplus > 0:
        closing = len(address) - len(address.rstrip(")"))
        address = address[: len(address) - min(surplus, closing)]
    return f'<a href="{address}" rel="nofollow noopener noreferrer">{address}</a>{found[0][len(address) :]}'


def _is_deep(raw: str) -> bool:
    """Return whether more than `_DEEPEST` tags are open at some position of HTML."""
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
    """Return HTML with a unique ID for every heading."""
    taken = Counter[str]()

    def add(heading: re.Match[str]) -> str:
        tag, inner = heading.groups()
        words = html.unescape(Markup(inner).striptags()).strip().lower()  # noqa: S704 - the tags are removed
        anchor = _NOT_IN_ANCHOR.sub("", words).replace(" ", "-")[:_LONGEST_ANCHOR] or "section"
        taken[anchor] += 1
        number = f"-{taken[anchor] - 1}" if taken[anchor] > 1 else ""
        return f'<{tag} id="{PREFIX}{anchor}{number}">{inner}</{tag}>'

    return _BARE_HEADING.sub(add, cleaned)


def clean(text: str) -> str:
    """Return the safe part of HTML; the result of `render` is unchanged."""
    import nh3

    # The cleaner takes quadratic time for a text with many entities. A comment, which it removes, splits the
    # text.
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
    """Return a rendered README for a page, with scrolling tables and with images and links below an address.

    `base` ends with `/`. Without it, images are replaced by their names, and relative links are removed.
    """
    rendered = _LINK.sub(lambda link: _place_link(link, base), rendered)
    if base is None:
        rendered = _PLACED.sub(r"<em>[\1]</em>", rendered)
    else:
        rendered = rendered.replace(f'<img src="{_SHIPPED}', f'<img src="{html.escape(base)}{_SHIPPED}')
    numbers = itertools.count(1)  # every region needs a unique label

    def wrap(_table: re.Match[str]) -> str:
        name = f"table {next(numbers)}"
        return f'<div class="scroll" tabindex="0" role="region" aria-label="{name}"><table>'

    return re.sub("<table>", wrap, rendered).replace("</table>", "</table></div>")


def _place_link(link: re.Match[str], base: str | None) -> str:
    """Point a relative link to the source page of the package's file."""
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
        Heading(int(match[1]), match[2], html.unescape(Markup(match[3]).striptags()))  # noqa: S704 - tags removed
        for match in islice(_HEADING.finditer(rendered), _MOST_HEADINGS)
    ]


def _allowed(tag: str, attribute: str, value: str) -> str | None:
    """Return the allowed value of an attribute: ids and links to ids get the prefix, images must come from
    the hub."""
    if attribute == "id":
        return value if value.startswith(PREFIX) else f"{PREFIX}{value}"
    if attribute == "href" and value.startswith("#") and not value.startswith(f"#{PREFIX}"):
        return f"#{PREFIX}{value[1:]}"
    if attribute == "src" and not value.startswith(_SHIPPED):
        return None
    return value


class _Formulas:
    """Formulas of one README, up to the limit of a page."""

    def __init__(self) -> None:
        self._left = _MOST_MATH

    def draw(self, formula: re.Match[str]) -> str:
        """Return a formula as MathML, or unrendered if the library cannot parse it."""
        from latex2mathml.converter import convert

        source = html.unescape(formula[2])
        around = (
            formula.string[formula.start() - 1 : formula.start()],
            formula.string[formula.end() : formula.end() + 1],
        )
        if formula[1] == "inline" and any(neighbor.isdigit() for neighbor in around):  # prices: `$5,$6`
            return f"${formula[2]}$"
        self._left -= len(source) + _OF_FORMULA
        display = "block" if formula[1] == "display" else "inline"
        if len(source) > _LONGEST_FORMULA or self._left < 0:
            return f"<code>{html.escape(source)}</code>"
        try:
            drawn = str(convert(source, display=display))
            ElementTree.fromstring(drawn)  # noqa: S314 - rejects unbalanced tags from the formula's text
            return drawn
        except Exception:  # noqa: BLE001 - the library has no base exception, and hostile TeX can raise others
            return f"<code>{html.escape(source)}</code>"


def _image(image: re.Match[str]) -> str:
    attributes = {key.lower(): value[1:-1] for key, value in _ATTRIBUTE.findall(image.group())}
    label, address = attributes.get("alt") or "image", attributes.get("src", "")
    if address.startswith(("http://", "https://")):
        return f'<a href="{address}">[{label}]</a>'
    path = posixpath.normpath(unquote(html.unescape(address)))
    if not _PICTURE.search(path) or ":" in path or path.startswith(("/", "..")):
        return f"<em>[{label}]</em>"
    return f'<img src="{_SHIPPED}{quote(path)}" alt="{label}" loading="lazy">'
