"""A local OpenID Connect provider with the code flow and PKCE; a test names the user to sign in."""

from __future__ import annotations

import base64
import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from token_issuer import Issuer

CLIENT, SECRET = "wander", "a secret of the client: 7/é"


@dataclass
class SignInProvider:
    """Signs users in over an issuer's HTTP server; a test may corrupt its tokens."""

    issuer: Issuer
    person: dict[str, Any] = field(default_factory=lambda: {"sub": "248289761001"})
    """Claims of who sits before the browser."""
    spoiled: dict[str, Any] = field(default_factory=dict)
    """Claims, or arguments of `Issuer.token`, that are wrong; `raw` is the whole token."""
    down: bool = False
    codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.issuer.trade = self.trade
        self.issuer.endpoints = {
            "authorization_endpoint": f"{self.issuer.url}/authorize?tenant=7",
            "token_endpoint": f"{self.issuer.url}/token",
        }

    def sign_in(self, address: str) -> str:
        """Act as the user's browser at the provider and return the redirect to the hub."""
        parts = urlsplit(address)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        assert address.startswith(f"{self.issuer.url}/authorize?")
        assert (asked["tenant"], asked["response_type"], asked["client_id"]) == ("7", "code", CLIENT)
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        code = secrets.token_urlsafe()
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def trade(self, authorization: str, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Answer at the token endpoint; a code works once, and only with the verifier and the secret."""
        if self.down:
            return 502, {}
        known = f"{CLIENT}:{quote(SECRET, safe='')}".encode()
        if authorization != f"Basic {base64.b64encode(known).decode()}":
            return 401, {"error": "invalid_client"}
        asked = self.codes.pop(form["code"], None)
        proof = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest())
        if (
            asked is None
            or form["grant_type"] != "authorization_code"
            or form["redirect_uri"] != asked["redirect_uri"]
            or proof.rstrip(b"=").decode() != asked["code_challenge"]
        ):
            return 400, {"error": "invalid_grant"}
        claims = {"aud": CLIENT, "jti": None, "nonce": asked["nonce"], **self.person, **self.spoiled}
        return 200, {
            "token_type": "Bearer",
            "id_token": claims.pop("raw", None) or self.issuer.token(**claims),
        }
