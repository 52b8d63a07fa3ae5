"""Sign-in at an OpenID Connect provider: the redirect there, and the verification of its response.

This is the code flow with PKCE (RFC 7636). State, nonce and verifier are derived from a secret in the
browser's cookie, so the hub stores nothing in the meantime, and no address has a value that another browser
could use.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlencode

from wander_hub.http.outbound import SharedQuestions, ask_json
from wander_hub.http.problems import HubProblem
from wander_hub.names import acceptable_address
from wander_hub.publishers import identity_tokens
from wander_hub.settings import ProviderSettings

_SECRET_BYTES = 32
_DISCOVERED_SECONDS = 600
_COOL_DOWN_SECONDS = 10
"""Seconds during which requests fail immediately after the provider did not respond, instead of all
waiting for it."""
_LONGEST_SUBJECT = 255


@dataclass(frozen=True)
class SignInVisit:
    """A sign-in in progress, as the browser's cookie remembers it."""

    secret: str
    following: str
    """Path of the page that the visitor sees afterwards."""
    session: str = ""
    """Session cookie of the account to link, so that no other browser can complete the link; empty to sign
    in."""

    @classmethod
    def begin(cls, following: str, session: str = "") -> SignInVisit:
        """Return a new visit."""
        return cls(secrets.token_urlsafe(_SECRET_BYTES), following, session)

    @classmethod
    def of(cls, cookie: str, session: str) -> SignInVisit:
        """Return the visit that a cookie describes."""
        secret, _, rest = cookie.partition(".")
        linking, _, following = rest.partition(".")
        return cls(secret, unquote(following), session if linking == "link" else "")

    @property
    def cookie(self) -> str:
        """Cookie that the browser keeps during the sign-in."""
        return f"{self.secret}.{'link' if self.session else 'in'}.{quote(self.following, safe='')}"

    def derive(self, word: str) -> str:
        """Return a value that belongs to this visit; it reveals neither the secret nor other derived
        values."""
        return _digest(f"{word}|{self.secret}|{self.session}")


class Provider:
    """The configured provider; its addresses and keys are cached and refreshed."""

    def __init__(self, settings: ProviderSettings) -> None:
        self.settings = settings
        try:
            self._secret = settings.secret()
        except (OSError, KeyError) as error:
            hint = "the hub's operator can check `secret_file` and `secret_variable`"
            raise HubProblem(503, "no_secret", "the hub cannot read the client secret", hint=hint) from error
        self._tokens = identity_tokens.IdentityTokens([settings.issuer], settings.client_id, jti=False)
        self._document: dict[str, Any] = {}
        self._asked_at = self._silent_until = float("-inf")
        self._questions = SharedQuestions[None]()

    async def address(self, visit: SignInVisit, redirect_uri: str) -> str:
        """Return the address for redirecting the browser."""
        fields = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": self.settings.scopes,
            "state": visit.derive("state"),
            "nonce": visit.derive("nonce"),
            "code_challenge": _digest(visit.derive("verifier")),
            "code_challenge_method": "S256",
        }
        address = str((await self._discovered())["authorization_endpoint"])
        return f"{address}{'&' if '?' in address else '?'}{urlencode(fields)}"

    async def claims(
        self, visit: SignInVisit, answer: Mapping[str, str], redirect_uri: str
    ) -> dict[str, Any]:
        """Return the verified claims about a visitor who came back; raise a 403 problem if anything is
        wrong."""
        if not hmac.compare_digest(answer.get("state", "").encode(), visit.derive("state").encode()):
            raise refusal("wrong_state", "this response belongs to another browser's sign-in")
        if answer.get("iss", self.settings.issuer) != self.settings.issuer:  # RFC 9207
            raise refusal("wrong_issuer", "the response comes from another provider")
        if "code" not in answer:
            raise refusal("not_signed_in", f"the provider reported `{answer.get('error', 'nothing')[:80]}`")
        token = await self._trade(answer["code"], visit, redirect_uri)
        try:
            claims = await self._tokens.claims(token)
        except HubProblem as refused:
            if refused.status >= 500:
                raise
            raise refusal(refused.code, refused.detail) from refused
        if not hmac.compare_digest(str(claims.get("nonce")).encode(), visit.derive("nonce").encode()):
            raise refusal("wrong_nonce", "the identity token belongs to another sign-in")
        if not 0 < len(claims["sub"]) <= _LONGEST_SUBJECT:
            raise refusal("invalid_token", f"`sub` must have 1 to {_LONGEST_SUBJECT} characters")
        self._require_allowed(claims)
        return claims

    async def _trade(self, code: str, visit: SignInVisit, redirect_uri: str) -> str:
        """Exchange a code for the provider's identity token."""
        client, document = self.settings.client_id, await self._discovered()
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": visit.derive("verifier"),
        }
        credentials = None
        by_header = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        if self._secret is not None and "client_secret_basic" in by_header:
            credentials = quote(client, safe=""), quote(self._secret, safe="")
        else:
            fields |= {"client_id": client} | ({"client_secret": self._secret} if self._secret else {})
        with identity_tokens.answering(self.settings.issuer):
            status, answer = await ask_json(str(document["token_endpoint"]), fields, credentials)
        if status >= 400 or not isinstance(answer.get("id_token"), str):
            reason = str(answer.get("error", "no identity token"))[:80]
            raise refusal("code_refused", f"the provider rejected the code: `{reason}`")
        return str(answer["id_token"])

    async def _discovered(self) -> dict[str, Any]:
        if (
            self._questions.is_asked("configuration")
            or time.monotonic() - self._asked_at >= _DISCOVERED_SECONDS
        ):
            await self._questions.ask("configuration", self._discover)
        return self._document

    async def _discover(self) -> None:
        if time.monotonic() < self._silent_until:
            raise identity_tokens.unreachable(self.settings.issuer)
        try:
            with identity_tokens.answering(self.settings.issuer):
                document = await identity_tokens.discover(self.settings.issuer)
                for name in ("authorization_endpoint", "token_endpoint"):
                    if not acceptable_address(str(document[name])):
                        raise ValueError(f"its `{name}` is not an https address")
        except HubProblem:
            # Count from the end of the request, because the timeout of the request may be as long.
            self._silent_until = time.monotonic() + _COOL_DOWN_SECONDS
            raise
        self._document, self._asked_at = document, time.monotonic()

    def _require_allowed(self, claims: Mapping[str, Any]) -> None:
        domains, groups = self.settings.domains, self.settings.groups
        email, verified = str(claims.get("email", "")), claims.get("email_verified") is True
        if domains and not (verified and email.rpartition("@")[2].lower() in map(str.lower, domains)):
            raise refusal("not_allowed", "this hub only accepts verified email addresses of certain domains")
        claimed_groups = claims.get(self.settings.groups_claim)
        if groups and not set(groups) & set(claimed_groups if isinstance(claimed_groups, list) else []):
            raise refusal("not_allowed", "this hub only accepts members of certain groups")


def refusal(code: str, reason: str) -> HubProblem:
    """Return the 403 problem for a visitor who signed in with the provider but may not use this hub."""
    hint = "sign in again; if that does not help, ask the hub's operator"
    return HubProblem(403, code, reason, hint=hint)


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
