"""Verification of identity tokens with the keys that their issuers publish.

Identity tokens are JSON Web Tokens (RFC 7519). OpenID Connect Discovery 1.0 defines where an issuer publishes
its keys.
"""

from __future__ import annotations

import base64
import binascii
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wander.types import start_lower
from wander.wire.untrusted_text import CLAIMS, RefusedText, read_json

from wander_hub.http.outbound import SharedQuestions, ask_json
from wander_hub.http.problems import HubProblem

if TYPE_CHECKING:  # imported with the first token, which few processes receive
    import jwt

logger = logging.getLogger("wander_hub")

LEEWAY_SECONDS = 30
"""Tolerated difference of clocks."""
_LONGEST_SECONDS = 24 * 3600
"""Maximum lifetime. Genuine identity tokens live for minutes, so a longer lifetime indicates another
purpose."""
_COOL_DOWN_SECONDS = 60
_KEPT_SECONDS = 3600
"""Seconds after which keys are downloaded again, because an issuer may have revoked one."""
_ALGORITHMS = ["RS256", "ES256", "EdDSA"]


@dataclass
class _Keys:
    by_id: dict[str, jwt.PyJWK] = field(default_factory=dict)
    asked_at: float = float("-inf")


class IdentityTokens:
    """Verifies identity tokens of the trusted issuers and caches their keys.

    Tokens of workflows must have a `jti`, so that each can only be used once. Tokens of people do not need
    it.
    """

    def __init__(self, issuers: Iterable[str], audience: str, *, jti: bool = True) -> None:
        self._audience = audience
        self._keys = {issuer: _Keys() for issuer in issuers}
        self._questions = SharedQuestions[None]()
        self._required = ["iss", "aud", "sub", "iat", "exp", *(["jti"] if jti else [])]

    async def claims(self, token: str) -> dict[str, Any]:
        """Return the claims of a token; raise a 422 problem unless it is genuine, valid now and made for this
        hub."""
        import jwt

        header, stated = (_read_part(token, place) for place in (0, 1))
        issuer = stated.get("iss")
        if not isinstance(issuer, str) or issuer not in self._keys:
            raise refusal("unknown_issuer", f"this hub does not trust its issuer `{str(issuer)[:200]}`")
        key = await self._key(issuer, str(header.get("kid", "")))
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
            raise refusal("invalid_token", start_lower(str(error))[:200]) from error
        if claims["aud"] not in (self._audience, [self._audience]):
            raise refusal("invalid_token", "it has other audiences besides this hub")
        if claims["exp"] - claims["iat"] > _LONGEST_SECONDS:
            raise refusal("invalid_token", "it is valid for more than a day")
        return claims

    async def _key(self, issuer: str, kid: str) -> jwt.PyJWK:
        """Return a key by its id; unknown keys are looked up at most once a minute."""
        keys = self._keys[issuer]
        old = _KEPT_SECONDS if kid in keys.by_id else _COOL_DOWN_SECONDS
        if self._questions.is_asked(issuer) or time.monotonic() - keys.asked_at >= old:
            await self._questions.ask(issuer, lambda: self._refresh(issuer))
        if kid not in keys.by_id:
            raise refusal("unknown_key", f"`{issuer}` has no key `{kid[:80]}`")
        return keys.by_id[kid]

    async def _refresh(self, issuer: str) -> None:
        self._keys[issuer].asked_at = time.monotonic()
        self._keys[issuer].by_id = await _fetch(issuer)


def _read_part(token: str, place: int) -> dict[str, Any]:
    """Return the unverified header or claims of a token; raise a 422 problem if it is not a token."""
    parts = token.split(".")
    try:
        text = base64.urlsafe_b64decode(parts[place] + "=" * (-len(parts[place]) % 4))
        part = read_json(text, CLAIMS)
    except (RefusedText, IndexError, ValueError, binascii.Error) as error:
        raise refusal("invalid_token", "it is not a JSON Web Token") from error
    if len(parts) != 3 or not isinstance(part, dict):
        raise refusal("invalid_token", "it is not a JSON Web Token")
    return part


def refusal(code: str, reason: str) -> HubProblem:
    """Return the problem of a rejected identity token; twine and uv print the entries of `errors`."""
    hint = "the settings page of an owner lists its trusted publishers"
    errors = [{"code": code, "description": reason}]
    return HubProblem(422, code, f"the identity token was rejected: {reason}", hint=hint, errors=errors)


@contextmanager
def answering(issuer: str) -> Iterator[None]:
    """Raise a 503 problem if an issuer cannot be reached or its response is invalid."""
    import httpx
    import jwt

    try:
        yield
    except (httpx.HTTPError, jwt.PyJWTError, ValueError, KeyError, TypeError) as error:
        logger.warning("invalid response from %s: %s", issuer, error)
        raise unreachable(issuer) from error


def unreachable(issuer: str) -> HubProblem:
    """Return the 503 problem of an issuer that does not respond correctly."""
    detail = f"the hub gets no valid response from `{issuer}`"
    return HubProblem(503, "issuer_unreachable", detail, hint="try again in a minute")


async def discover(issuer: str) -> dict[str, Any]:
    """Return the configuration of an issuer."""
    _, document = await ask_json(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    if document.get("issuer") != issuer:
        raise ValueError("its configuration names another issuer")
    return document


async def _fetch(issuer: str) -> dict[str, jwt.PyJWK]:
    """Return the signing keys of an issuer by their id."""
    import jwt

    with answering(issuer):
        _, key_set = await ask_json(str((await discover(issuer))["jwks_uri"]))
        return {key.key_id: key for key in jwt.PyJWKSet.from_dict(key_set).keys if key.key_id}
