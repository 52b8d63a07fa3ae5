"""Checks identity tokens against the keys that their issuers publish.

JSON Web Tokens are RFC 7519, where the keys lie is told by OpenID Connect Discovery 1.0.
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

from wander.wire.gate import CLAIMS, Refused, read_json

from wander_hub.http.outbound import SharedQuestions, ask_json
from wander_hub.http.problems import HubProblem

if TYPE_CHECKING:  # imported with the first token: few processes see one
    import jwt

logger = logging.getLogger("wander_hub")

LEEWAY_SECONDS = 30
"""How far clocks may differ."""
_LONGEST_SECONDS = 24 * 3600
"""Identity tokens live for minutes; what lives longer was not made for this."""
_COOL_DOWN_SECONDS = 60
_KEPT_SECONDS = 3600
"""After this time keys are asked for again: an issuer may have taken one back."""
_ALGORITHMS = ["RS256", "ES256", "EdDSA"]


@dataclass
class _Keys:
    found: dict[str, jwt.PyJWK] = field(default_factory=dict)
    asked_at: float = float("-inf")


class IdentityTokens:
    """Verifies identity tokens of the issuers it knows; keeps their keys.

    Those of workflows have a `jti`, by which each is used once; those of people need none.
    """

    def __init__(self, issuers: Iterable[str], audience: str, *, jti: bool = True) -> None:
        self._audience = audience
        self._keys = {issuer: _Keys() for issuer in issuers}
        self._questions = SharedQuestions[None]()
        self._required = ["iss", "aud", "sub", "iat", "exp", *(["jti"] if jti else [])]

    async def claims(self, token: str) -> dict[str, Any]:
        """Return what a token claims; raise a 422 unless it is genuine, current and made for this hub."""
        import jwt

        header, stated = (_read_part(token, place) for place in (0, 1))
        issuer = stated.get("iss")
        if not isinstance(issuer, str) or issuer not in self._keys:
            raise refusal("unknown_issuer", f"its issuer `{str(issuer)[:200]}` is none that this hub trusts")
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
            said = str(error)
            raise refusal("invalid_token", said[:1].lower() + said[1:200]) from error
        if claims["aud"] not in (self._audience, [self._audience]):
            raise refusal("invalid_token", "it is made for others, too")
        if claims["exp"] - claims["iat"] > _LONGEST_SECONDS:
            raise refusal("invalid_token", "it is valid for more than a day")
        return claims

    async def _key(self, issuer: str, kid: str) -> jwt.PyJWK:
        """Return a key by its id; one that is not known yet is asked for, at most once a minute."""
        keys = self._keys[issuer]
        old = _KEPT_SECONDS if kid in keys.found else _COOL_DOWN_SECONDS
        if self._questions.is_asked(issuer) or time.monotonic() - keys.asked_at >= old:
            await self._questions.ask(issuer, lambda: self._refresh(issuer))
        if kid not in keys.found:
            raise refusal("unknown_key", f"`{issuer}` has no key `{kid[:80]}`")
        return keys.found[kid]

    async def _refresh(self, issuer: str) -> None:
        self._keys[issuer].asked_at = time.monotonic()
        self._keys[issuer].found = await _fetch(issuer)


def _read_part(token: str, place: int) -> dict[str, Any]:
    """Return header or claims of a token, unverified; raise a 422 for what is no token."""
    parts = token.split(".")
    try:
        text = base64.urlsafe_b64decode(parts[place] + "=" * (-len(parts[place]) % 4))
        found = read_json(text, CLAIMS)
    except (Refused, IndexError, ValueError, binascii.Error) as error:
        raise refusal("invalid_token", "it is not a JSON Web Token") from error
    if len(parts) != 3 or not isinstance(found, dict):
        raise refusal("invalid_token", "it is not a JSON Web Token")
    return found


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


async def discover(issuer: str) -> dict[str, Any]:
    """Return what an issuer says of itself."""
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
