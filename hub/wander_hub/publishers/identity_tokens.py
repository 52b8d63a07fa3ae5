"""Checks identity tokens against the keys that their issuers publish.

JSON Web Tokens are RFC 7519, where the keys lie is told by OpenID Connect Discovery 1.0.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wander_hub.http.problems import HubProblem
from wander_hub.names import acceptable_address

if TYPE_CHECKING:  # imported with the first token: few processes see one
    import jwt

logger = logging.getLogger("wander_hub")

LEEWAY_SECONDS = 30
"""How far clocks may differ."""
_LONGEST_SECONDS = 24 * 3600
"""Identity tokens live for minutes; what lives longer was not made for this."""
_FETCH_SECONDS = 5
_FETCH_BYTES = 512 * 1024
_COOL_DOWN_SECONDS = 60
_KEPT_SECONDS = 3600
"""After this time keys are asked for again: an issuer may have taken one back."""
_ALGORITHMS = ["RS256", "ES256", "EdDSA"]


@dataclass
class _Keys:
    found: dict[str, jwt.PyJWK] = field(default_factory=dict)
    asked_at: float = float("-inf")
    lock: threading.Lock = field(default_factory=threading.Lock)


class IdentityTokens:
    """Verifies identity tokens of the issuers it knows; keeps their keys.

    Those of workflows have a `jti`, by which each is used once; those of people need none.
    """

    def __init__(self, issuers: Iterable[str], audience: str, *, jti: bool = True) -> None:
        self._audience = audience
        self._keys = {issuer: _Keys() for issuer in issuers}
        self._required = ["iss", "aud", "sub", "iat", "exp", *(["jti"] if jti else [])]

    def claims(self, token: str) -> dict[str, Any]:
        """Return what a token claims; raise a 422 unless it is genuine, current and made for this hub."""
        import jwt

        try:
            header = jwt.get_unverified_header(token)
            issuer = jwt.decode(token, options={"verify_signature": False}).get("iss")
        except jwt.PyJWTError as error:
            raise refusal("invalid_token", "it is no JSON Web Token") from error
        if not isinstance(issuer, str) or issuer not in self._keys:
            raise refusal("unknown_issuer", f"its issuer `{str(issuer)[:200]}` is none that this hub trusts")
        key = self._key(issuer, str(header.get("kid", "")))
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=_ALGORITHMS,
                audience=self._audience,
                issuer=issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": self._required},
            )
        except jwt.PyJWTError as error:
            said = str(error)
            raise refusal("invalid_token", said[:1].lower() + said[1:200]) from error
        if claims["aud"] not in (self._audience, [self._audience]):
            raise refusal("invalid_token", "it is made for others, too")
        if claims["exp"] - claims["iat"] > _LONGEST_SECONDS:
            raise refusal("invalid_token", "it is valid for more than a day")
        return claims

    def _key(self, issuer: str, kid: str) -> jwt.PyJWK:
        """Return a key by its id; one that is not known yet is asked for, at most once a minute."""
        keys = self._keys[issuer]
        with keys.lock:  # who comes meanwhile waits for the answer
            old = _KEPT_SECONDS if kid in keys.found else _COOL_DOWN_SECONDS
            if time.monotonic() - keys.asked_at >= old:
                keys.asked_at = time.monotonic()
                keys.found = _fetch(issuer)
        if kid not in keys.found:
            raise refusal("unknown_key", f"`{issuer}` has no key `{kid[:80]}`")
        return keys.found[kid]


def refusal(code: str, reason: str) -> HubProblem:
    """Return the refusal of an identity token; twine and uv print what stands under `errors`."""
    hint = "see `wander env publisher list` for what the hub trusts"
    errors = [{"code": code, "description": reason}]
    return HubProblem(422, code, f"the identity token is refused: {reason}", hint=hint, errors=errors)


@contextmanager
def answering(issuer: str) -> Iterator[None]:
    """Raise a 503 where an issuer cannot be asked, or answers with what is no answer."""
    import httpx
    import jwt

    try:
        yield
    except (httpx.HTTPError, jwt.PyJWTError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s does not answer as it should: %s", issuer, error)
        raise unreachable(issuer) from error


def unreachable(issuer: str) -> HubProblem:
    """Return the 503 of an issuer that does not answer as it should."""
    detail = f"the hub gets no answer of `{issuer}` that it can use"
    return HubProblem(503, "issuer_unreachable", detail, hint="try again in a minute")


def discover(issuer: str) -> dict[str, Any]:
    """Return what an issuer says of itself."""
    document = ask(f"{issuer.rstrip('/')}/.well-known/openid-configuration")[1]
    if document.get("issuer") != issuer:
        raise ValueError("its configuration names another issuer")
    return document


def ask(
    url: str, form: Mapping[str, str] | None = None, credentials: tuple[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    """Return the status and the object that an address answers with; a form's refusal is an answer, too."""
    if not acceptable_address(url):
        raise ValueError(f"`{url[:200]}` is not https")
    import httpx

    method = "GET" if form is None else "POST"
    with httpx.stream(method, url, data=form, auth=credentials, timeout=_FETCH_SECONDS) as answer:
        if form is None or not answer.is_client_error:
            answer.raise_for_status()
        body = b""
        for piece in answer.iter_bytes():
            body += piece
            if len(body) > _FETCH_BYTES:
                raise ValueError(f"`{url[:200]}` answers with more than {_FETCH_BYTES:,} bytes")
    found = httpx.Response(200, content=body).json()
    if not isinstance(found, dict):
        raise TypeError(f"`{url[:200]}` does not answer with an object")
    return answer.status_code, found


def _fetch(issuer: str) -> dict[str, jwt.PyJWK]:
    """Return the signing keys of an issuer by their id."""
    import jwt

    with answering(issuer):
        key_set = ask(str(discover(issuer)["jwks_uri"]))[1]
        return {key.key_id: key for key in jwt.PyJWKSet.from_dict(key_set).keys if key.key_id}
