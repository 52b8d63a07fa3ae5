"""The template environment, the static files, and the responses that use them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from wander.types import canonical_json
from wander.wire.boards import BOARD_COLUMNS
from wander.wire.verification import LEVEL_FACTS

from wander_hub import __version__
from wander_hub.http.boundary import base_url_of, caller_of
from wander_hub.http.middleware import PAGE_CSP
from wander_hub.http.responses import REVALIDATE, SHARED, VARY, not_modified
from wander_hub.security import without_secrets
from wander_hub.web import addresses, charts, text
from wander_hub.web.refused_form import refused_form

_HERE = Path(__file__).parent
_STATIC = _HERE / "static"
_VIEWER = files("fastapi_offline") / "static"
"""Swagger UI from an installed distribution, so that the API page loads nothing from other servers."""


@dataclass(frozen=True)
class StaticFile:
    """A file that pages load from the hub. Its address changes with its content."""

    body: bytes
    media_type: str

    @cached_property
    def digest(self) -> str:
        """The first 12 hex digits of the SHA-256 of the content."""
        return hashlib.sha256(self.body).hexdigest()[:12]


STATIC = {
    "wander.css": StaticFile(
        b"".join(one.read_bytes() for one in sorted((_STATIC / "styles").glob("*.css"))), "text/css"
    ),
    **{one.name: StaticFile(one.read_bytes(), "text/javascript") for one in sorted(_STATIC.glob("*.js"))},
    "swagger-ui.css": StaticFile((_VIEWER / "swagger-ui.css").read_bytes(), "text/css"),
    "swagger-ui-bundle.js": StaticFile((_VIEWER / "swagger-ui-bundle.js").read_bytes(), "text/javascript"),
}
"""The style sheet (all files of `static/styles`, sorted by name), the scripts, and Swagger UI."""
_ADDRESSES = {name: f"/static/{name}?v={one.digest}" for name, one in STATIC.items()}

_templates = Environment(
    loader=FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters |= {
    "bounded": text.bounded,
    "breakable": text.breakable,
    "coded": text.coded,
    "canonical": canonical_json,
    "combined": lambda values, **more: values | more,
    "compact": text.compact,
    "count": text.count,
    "duration": text.duration,
    "fault_words": text.fault_words,
    "minute": text.minute,
    "moment": text.moment,
    "number": text.number,
    "plain": text.plain,
    "qr": text.qr,
    "shortened": text.shorten,
    "size": text.size,
    "visible": text.visible,
    "words": text.words,
}
_templates.globals |= {
    "about": addresses.about,
    "board_columns": BOARD_COLUMNS,
    "days": charts.days,
    "histogram": charts.histogram,
    "hub_version": __version__,
    "level_facts": LEVEL_FACTS,
    "interval_bar": charts.interval_bar,
    "page_of": addresses.page_of,
    "outcome_bar": charts.outcome_bar,
    "refused_form": refused_form,
    "score_digits": text.score_digits,
    "static": _ADDRESSES,
    "term": addresses.term,
    "term_address": addresses.address_of,
}


def render(template: str, **values: Any) -> bytes:
    """Fill a template."""
    return _templates.get_template(template).render(**values).encode("utf-8", "replace")


def page(
    request: Request,
    template: str,
    *,
    status: int = 200,
    scripts: Sequence[str] = (),
    shared: bool = False,
    **values: Any,
) -> Response:
    """Render a page, or return a 304 if the browser has the same page.

    `scripts` are the scripts of `static/` that the page may run, in addition to `wander.js`. A `shared` page
    is the same for all readers who are not signed in, so it may be cached for them.
    """
    base_url = base_url_of(request)
    values["scripts"] = ["wander.js", *scripts]
    values |= {"base_url": base_url, "path": without_secrets(request.url.path), "viewer": caller_of(request)}
    body = render(template, **values)
    headers = {
        "ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        "Cache-Control": SHARED if shared and values["viewer"] is None else REVALIDATE,
        "Vary": VARY,
        "Content-Security-Policy": f"{PAGE_CSP}; script-src {base_url}/static/; connect-src 'self'",
    }
    if status == 200 and (same := not_modified(request, headers["ETag"], headers)) is not None:
        return same
    return HTMLResponse(body, status, headers=headers)
