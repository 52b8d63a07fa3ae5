"""The cookie that says which browser asks, and from where it may change something.

A page elsewhere can have a browser send a form here, but not choose what the browser itself says of where the
form came from (`docs/decisions/forms.md`).
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from wander_hub.http.problems import HubProblem

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def read_cookie(request: Request, base_url: str, name: str = "session") -> str | None:
    """Return the value of the hub's cookie, None when the browser sent none."""
    return request.cookies.get(_name(base_url, name))


def write_cookie(response: Response, base_url: str, value: str, seconds: int, name: str = "session") -> None:
    """Have the browser keep a value, out of reach of scripts; 0 seconds make it forget it."""
    secure = _is_secure(base_url)
    response.set_cookie(
        _name(base_url, name), value, max_age=seconds, path="/", secure=secure, httponly=True, samesite="lax"
    )


def require_own_page(request: Request, base_url: str) -> None:
    """Refuse a change that a browser does not say to come from a page of this very hub.

    Browsers tell with every request over https, and from localhost, how its page is related to the hub;
    over plain http they tell the page's origin. Who tells neither is no browser, and has no cookie to send.
    """
    if request.method in SAFE_METHODS:
        return
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    own = {_origin(base_url), _origin(str(request.base_url))}
    if site == "same-origin" or (site is None and origin is not None and _origin(origin) in own):
        return
    hint = "send it from a page of the hub, or with an API token"
    raise HubProblem(403, "other_site", "the request does not come from a page of this hub", hint=hint)


def _is_secure(base_url: str) -> bool:
    return base_url.startswith("https:")


def _name(base_url: str, name: str) -> str:
    # A neighbour under the same domain cannot set a cookie of this prefix.
    return f"__Host-wander-{name}" if _is_secure(base_url) else f"wander-{name}"


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()
