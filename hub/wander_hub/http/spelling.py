"""Canonical addresses: other spellings of a path redirect to the hub's own spelling.

Capital letters, missing, doubled or trailing slashes, and spellings of a project that are equal by PEP 503
all lead to the same address. Paths of this module never start with `//`, so a redirect cannot lead to another
host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import compile_path

from wander_hub.names import (
    RESERVED_ENVIRONMENTS,
    RESERVED_OWNERS,
    normalize_environment,
    normalize_owner,
)
from wander_hub.security import without_secrets

_SPELLINGS = {
    **dict.fromkeys(("owner", "user", "organization", "part", "path"), normalize_owner),
    **dict.fromkeys(("name", "project", "namespace"), normalize_environment),
}
"""Normalizers of path parameters. All other parameters are kept, and so is the `name` of a file."""
_SAFE = frozenset({"GET", "HEAD"})


@dataclass(frozen=True)
class _Pattern:
    matches: re.Pattern[str]
    """Case-insensitive pattern of a route's path without a trailing slash."""
    format: str
    methods: frozenset[str]


def _patterns_of(app: FastAPI) -> list[_Pattern]:
    known: list[_Pattern] | None = getattr(app.state, "patterns", None)
    if known is not None:
        return known
    patterns = []
    for context in iter_route_contexts(app.routes):
        path = context.path or "/"
        pattern = compile_path(path.rstrip("/"))[0].pattern
        methods = frozenset(getattr(context.original_route, "methods", None) or ())
        patterns.append(_Pattern(re.compile(pattern, re.IGNORECASE), compile_path(path)[1], methods))
    app.state.patterns = patterns
    return patterns


def may_be_misspelled(request: Request) -> bool:
    """Return whether the matched path may be a non-canonical spelling of another path."""
    path, params = request.scope["path"], request.path_params
    return (
        (params.get("owner") or params.get("project")) in RESERVED_OWNERS
        or params.get("name") in RESERVED_ENVIRONMENTS
        or _write(params) != params
        or "//" in path
        or ("path" in params and path.endswith("/"))
    )


def redirect_misspelled(request: Request) -> RedirectResponse | None:
    """Return the redirect to the canonical spelling of a path; None if the path is canonical or unknown."""
    given = request.scope["path"]
    path = re.sub("/+", "/", given).rstrip("/")
    for pattern in _patterns_of(request.app):
        match = pattern.matches.fullmatch(path)
        if match is None or request.method not in pattern.methods:
            continue
        right = pattern.format.format(**_write(match.groupdict()))
        if right == given:
            return None
        asked = f"{given} {request.url.query}"
        if without_secrets(asked) != asked:
            return None  # a response must not repeat a token that was sent in place of a name
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(quote(right, safe="/@+!:,~") + query, 301 if request.method in _SAFE else 308)
    return None


def _write(params: dict[str, str]) -> dict[str, str]:
    return {
        name: value if name == "name" and "owner" not in params else _SPELLINGS.get(name, str)(value)
        for name, value in params.items()
    }
