"""The template environment, the style sheet, and answers made from them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from wander.types import canonical_json
from wander.wire.levels import LEVEL_FACTS

from wander_hub import __version__
from wander_hub.http.answers import REVALIDATE, not_modified
from wander_hub.http.boundary import base_url_of
from wander_hub.security import without_secrets
from wander_hub.web import charts, text

_HERE = Path(__file__).parent
STYLE_SHEET = (_HERE / "static" / "wander.css").read_bytes()
SOURCE_SCRIPT = (_HERE / "static" / "source.js").read_bytes()
STYLE_DIGEST = hashlib.sha256(STYLE_SHEET).hexdigest()[:12]

_templates = Environment(
    loader=FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters |= {
    "bounded": text.bounded,
    "canonical": canonical_json,
    "compact": text.compact,
    "count": text.count,
    "duration": text.duration,
    "moment": text.moment,
    "number": text.number,
    "plain": text.plain,
    "shortened": text.shorten,
    "size": text.size,
    "visible": text.visible,
}
_templates.globals |= {
    "days": charts.days,
    "histogram": charts.histogram,
    "hub_version": __version__,
    "level_facts": LEVEL_FACTS,
    "interval_bar": charts.interval_bar,
    "outcome_bar": charts.outcome_bar,
    "score_digits": text.score_digits,
    "style_digest": STYLE_DIGEST,
}


def render(template: str, **values: Any) -> bytes:
    """Fill a template."""
    return _templates.get_template(template).render(**values).encode("utf-8", "replace")


def page(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Render a page; a browser that holds the same one gets a 304."""
    base_url = base_url_of(request)
    viewer = getattr(request.state, "identity", None)
    values |= {"base_url": base_url, "path": without_secrets(request.url.path), "viewer": viewer}
    body = render(template, **values)
    headers = {"ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"', "Cache-Control": REVALIDATE}
    if status == 200 and (same := not_modified(request, headers["ETag"], headers)) is not None:
        return same
    return HTMLResponse(body, status, headers=headers)
