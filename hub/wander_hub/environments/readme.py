"""Renders a README to HTML that is safe to show: markdown, then an allow-list of tags and attributes.

Remote images are turned into links: showing them would tell their server who reads the page.
"""

from __future__ import annotations

import html
import re

_REMOVED = {"img", "map", "area", "article", "aside", "footer", "header", "nav", "style"}
_ATTRIBUTES = {
    "a": {"href", "title"},
    "th": {"align", "scope", "colspan", "rowspan"},
    "td": {"align", "colspan", "rowspan"},
    "ol": {"start"},
    "code": {"class"},
    "details": {"open"},
}
_DECEIVING = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and those that change the direction of text."""
_ALIGNED = re.compile(r'style="text-align:\s*(left|right|center);?"')
_IMAGE = re.compile(r"<img\b[^>]*>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"""\b(src|alt)\s*=\s*("[^"]*"|'[^']*')""", re.IGNORECASE)


def render(text: str, content_type: str) -> str:
    """Return safe HTML; what is not markdown is shown as it was written."""
    from markdown_it import MarkdownIt

    text = _DECEIVING.sub("\ufffd", text)
    if content_type != "text/markdown":
        return f"<pre>{html.escape(text)}</pre>" if text.strip() else ""
    markdown = MarkdownIt("js-default", {"html": True, "linkify": False, "typographer": False})
    raw = _ALIGNED.sub(r'align="\1"', markdown.render(text))
    return clean(_IMAGE.sub(_image_link, raw))


def clean(text: str) -> str:
    """Return the part of HTML that is safe to show; what `render` gave stays as it is."""
    import nh3

    return nh3.clean(
        text,
        tags=(nh3.ALLOWED_TAGS - _REMOVED) | {"details", "summary"},
        attributes=_ATTRIBUTES,
        url_schemes={"http", "https", "mailto"},
        link_rel="nofollow noopener noreferrer",
    )


def _image_link(image: re.Match[str]) -> str:
    found = {key.lower(): value[1:-1] for key, value in _ATTRIBUTE.findall(image.group())}
    label, address = found.get("alt") or "image", found.get("src", "")
    if not address.startswith(("http://", "https://")):
        return f"<em>[{label}]</em>"
    return f'<a href="{address}">[{label}]</a>'
