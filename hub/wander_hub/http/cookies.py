"""Cookies of browser sessions, and the check that a change comes from one of the hub's own pages.

A page of another site can make a browser send a form to the hub, but it cannot control the headers in which
the browser names the form's origin (`docs/decisions/forms.md`).
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from wander_hub.http.problems import HubProblem

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def read_cookie(request: Request, base_url: str, name: str = "session") -> str | None:
    """Return the value of the hub's cookie, or None if the browser sent none."""
    return request.cookies.get(_name(base_url, name))


def write_cookie(response: Response, base_url: str, value: str, seconds: int, name: str = "session") -> None:
    """Set a cookie that scripts cannot read; 0 seconds delete it."""
    secure = _is_secure(base_url)
    response.set_cookie(
        _name(base_url, name), value, max_age=seconds, path="/", secure=secure, httponly=True, samesite="lax"
    )


def require_own_page(request: Request, base_url: str) -> None:
    """Reject a browser's change unless the browser confirms that it comes from a page of this hub.

    Over https and from localhost, browsers send `Sec-Fetch-Site` with every request. Over plain http they
    send the page's `Origin`. A client that sends neither is not a browser and does not have a cookie.
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
    # Another host under the same domain cannot set a cookie with this prefix.
    return f"__Host-wander-{name}" if _is_secure(base_url) else f"wander-{name}"


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()
