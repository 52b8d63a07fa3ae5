"""Content negotiation of the simple API (PEP 691, RFC 9110), q-values and parameters included."""

from __future__ import annotations

from functools import lru_cache

JSON_V1 = "application/vnd.pypi.simple.v1+json"
HTML_V1 = "application/vnd.pypi.simple.v1+html"
PLAIN_HTML = "text/html"

_OFFERS = {
    JSON_V1: JSON_V1,
    "application/vnd.pypi.simple.latest+json": JSON_V1,
    HTML_V1: HTML_V1,
    "application/vnd.pypi.simple.latest+html": HTML_V1,
    PLAIN_HTML: PLAIN_HTML,
}
"""Media types that a client may request, each with the media type of the response. If several are equally
acceptable, the plainest wins."""

_PREFERENCE = (PLAIN_HTML, HTML_V1, JSON_V1)
ENCODINGS = ("zstd", "gzip")
"""Encodings of stored pages, in addition to the plain bytes, smallest first."""
_REMEMBERED = 256
"""Number of headers whose result is cached. Installers send only a few different headers. The limit keeps
invented headers from filling the memory."""


@lru_cache(_REMEMBERED)
def negotiate(accept: str | None, wanted: str | None = None) -> str | None:
    """Return the media type of the response, or None for a 406; `?format=` overrides the header."""
    if wanted is not None:
        return _OFFERS.get(wanted.replace(" ", "+").strip().lower())
    ranges = _ranges(accept or "*/*")
    wishes = {offer: 0.0 for offer in _PREFERENCE}
    for name, offer in _OFFERS.items():
        wishes[offer] = max(wishes[offer], _quality(name, ranges))
    best = max(wishes, key=wishes.__getitem__)  # the first of equals
    return best if wishes[best] > 0 else None


@lru_cache(_REMEMBERED)
def choose_encoding(accept_encoding: str | None) -> str | None:
    """Return the stored encoding that a client prefers, or None for the plain bytes.

    Without the header the response is plain, though RFC 9110 would allow any encoding: old clients send no
    header.
    """
    codings = _ranges(accept_encoding or "")
    wishes = {encoding: codings.get(encoding, codings.get("*", 0.0)) for encoding in ENCODINGS}
    best = max(wishes, key=wishes.__getitem__)
    return best if wishes[best] > 0 and wishes[best] >= codings.get("identity", 0.0) else None


def accepts(accept: str | None, *offers: str) -> bool:
    """Return whether a client accepts one of these media types."""
    ranges = _ranges(accept or "*/*")
    return any(_quality(offer, ranges) > 0 for offer in offers)


def _ranges(accept: str) -> dict[str, float]:
    ranges: dict[str, float] = {}
    for part in accept.split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        if name:
            ranges[name.lower()] = _q(parameters)
    return ranges


def _q(parameters: list[str]) -> float:
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip().lower() == "q":
            try:
                return min(max(float(value), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0


def _quality(name: str, ranges: dict[str, float]) -> float:
    """The most specific range that covers a type decides, so that `q=0` really forbids it."""
    for pattern in (name, f"{name.split('/')[0]}/*", "*/*"):
        if pattern in ranges:
            return ranges[pattern]
    return 0.0
