"""API tokens: `wnd_`, 40 random characters and 6 characters of checksum. The hub stores only their SHA-256.

The checksum distinguishes a mistyped or truncated token from an unknown token without a database query, and
lets secret scanners recognize real tokens. A fast hash is sufficient, because the secret is 238 random bits
and not a password.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import string
import zlib

PREFIX = "wnd_"
_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_RANDOM_LENGTH = 40
_CHECK_LENGTH = 6
TOKEN_LENGTH = len(PREFIX) + _RANDOM_LENGTH + _CHECK_LENGTH
SHOWN_LENGTH = len(PREFIX) + 6
"""Number of characters of a token that may be shown to distinguish tokens."""
_PERCENT = "%(?:25)*"  # an address inside an address is percent-encoded again
_BEGINNING = "".join(f"(?:{letter}|{_PERCENT}(?i:{ord(letter):02x}))" for letter in PREFIX)
_CHARACTER = f"(?:[0-9A-Za-z]|{_PERCENT}[0-9A-Fa-f]{{2}})"
_SECRET = re.compile(f"({_BEGINNING}{_CHARACTER}{{6}}){_CHARACTER}{{8,}}")
_SIGNER = re.compile(r"(whsec_)[0-9A-Za-z+/=]{8,}")
"""Signing secret of a webhook."""
_RETURN = re.compile(r"(/login/oidc/callback\?)\S+")
"""Query of the sign-in provider's redirect, which holds a one-time code."""
_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")


def new_token() -> str:
    """Return a new random token."""
    body = "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM_LENGTH))
    return PREFIX + body + _checksum(body)


def well_formed(token: str) -> bool:
    """Return whether a string has the format of a token and a valid checksum."""
    if len(token) != TOKEN_LENGTH or not token.startswith(PREFIX) or not token.isascii():
        return False
    body, check = token[len(PREFIX) : -_CHECK_LENGTH], token[-_CHECK_LENGTH:]
    return hmac.compare_digest(_checksum(body), check)


def token_hash(token: str) -> str:
    """Return the hash of a token that the database stores."""
    return hashlib.sha256(token.encode()).hexdigest()


def token_from_header(authorization: str | None) -> str | None:
    """Return the token of `Bearer TOKEN` or of Basic authentication, or None without credentials.

    Basic authentication accepts any user name, because a company's netrc file may have the same user for all
    hosts. The token is the password, or the user name if the password is not a token.

    Raises `ValueError` for a malformed header, and for Basic authentication with an empty password.
    """
    if not authorization:
        return None
    scheme, _, value = authorization.strip().partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() != "basic":
        raise ValueError(f"the `Authorization` scheme `{scheme[:40]}` is neither `Bearer` nor `Basic`")
    try:
        user, colon, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError("`Authorization: Basic` is not followed by base64 of `USER:TOKEN`") from error
    if well_formed(user) and not well_formed(password):
        return user
    if not colon or not password:
        raise ValueError("the password of Basic authentication is empty; it must be an API token")
    return password


def without_secrets(text: str) -> str:
    """Return a text with tokens and secrets truncated and passwords removed from addresses."""
    text = _RETURN.sub(r"\1...", text)
    return _PASSWORD.sub(r"\1...@", _SIGNER.sub(r"\1...", _SECRET.sub(r"\1...", text)))


def _checksum(body: str) -> str:
    number, digits = zlib.crc32(body.encode()), ""
    for _ in range(_CHECK_LENGTH):
        number, rest = divmod(number, len(_ALPHABET))
        digits = _ALPHABET[rest] + digits
    return digits
