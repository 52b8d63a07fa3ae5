"""Signatures of Standard Webhooks (standardwebhooks.com): HMAC-SHA256 of id, time and body.

The library `standardwebhooks` is not used, because it signs datetimes outside of UTC incorrectly and does not
support a second secret. Tests check these signatures with its verifier.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence

PREFIX = "whsec_"
_SECRET_BYTES = 32


def new_secret() -> str:
    """Return a new random secret."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def new_message_id() -> str:
    """Return a new message ID, which lets receivers recognize repeated messages."""
    return f"msg_{secrets.token_hex(14)}"


def signed_headers(message_id: str, moment: int, body: bytes, signers: Sequence[str]) -> dict[str, str]:
    """Return the headers of a message, signed at `moment` (in seconds) with each secret."""
    content = f"{message_id}.{moment}.".encode() + body
    signatures = []
    for secret in signers:
        key = base64.b64decode(secret.removeprefix(PREFIX))
        signatures.append("v1," + base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode())
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(moment),
        "webhook-signature": " ".join(signatures),
    }
