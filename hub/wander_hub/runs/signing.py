"""Signing keys of users, and signatures of runs. A signature covers the digest of a run, and so everything in
it."""

from __future__ import annotations

import base64
import binascii

from sqlalchemy import select
from sqlalchemy.orm import Session
from wander.wire.postings import (
    KeyInfo,
    KeyList,
    NewKey,
    RunSignature,
    SignatureInfo,
    key_fingerprint,
    signed_text,
)

from wander_hub import audit
from wander_hub.database import fill, now
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.rights import rights
from wander_hub.runs.models import Run, SigningKey

_KEY_BYTES, _SIGNATURE_BYTES = 32, 64
_MOST_KEYS = 50


def add_key(session: Session, wanted: NewKey, caller: Identity) -> tuple[KeyInfo, bool]:
    """Register a public key of the caller; return it and whether it is new."""
    rights.require_whole_token(caller)
    _decode(wanted.public_key, _KEY_BYTES, "the public key")
    fingerprint = key_fingerprint(wanted.public_key)
    known = session.scalar(select(SigningKey).where(SigningKey.fingerprint == fingerprint))
    if known is not None:
        if known.user_id != caller.user_id or known.revoked_at is not None:
            hint = "create another key with `wander auth key new`"
            raise HubProblem(409, "key_taken", "this key was revoked, or belongs to another user", hint=hint)
        audit.nothing_done(session)
        return fill(KeyInfo, known), False
    if len(keys_of(session, caller.user_id).data) >= _MOST_KEYS:
        raise HubProblem(409, "too_many_keys", f"a user may have at most {_MOST_KEYS} keys")
    key = SigningKey(
        user_id=caller.user_id,
        fingerprint=fingerprint,
        name=wanted.name,
        public_key=wanted.public_key,
        created_at=now(),
    )
    session.add(key)
    session.flush()
    audit.about(session, target=fingerprint, name=wanted.name)
    return fill(KeyInfo, key), True


def keys_of(session: Session, user_id: int) -> KeyList:
    """Return a user's keys, including revoked ones, oldest first."""
    keys = session.scalars(select(SigningKey).where(SigningKey.user_id == user_id).order_by(SigningKey.id))
    return KeyList(data=[fill(KeyInfo, key) for key in keys])


def revoke_key(session: Session, fingerprint: str, caller: Identity) -> KeyInfo:
    """Revoke a key. It can no longer sign runs, and earlier runs show that their key was revoked."""
    rights.require_whole_token(caller)
    audit.about(session, target=fingerprint)
    matches = session.scalars(
        select(SigningKey).where(
            SigningKey.user_id == caller.user_id,
            SigningKey.fingerprint.startswith(fingerprint, autoescape=True),
        )
    ).all()
    if len(matches) != 1:
        fault = f"{'several' if matches else 'none'} of your keys start with `{fingerprint}`"
        raise HubProblem(404, "key_not_found", fault, hint="`wander auth key list` lists your keys")
    matches[0].revoked_at = matches[0].revoked_at or now()
    session.flush()
    return fill(KeyInfo, matches[0])


def verify_signature(session: Session, caller: Identity, given: RunSignature, run_sha256: str) -> SigningKey:
    """Return the caller's key that signed a run's digest; raise a problem if the signature is not valid."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    key = session.scalar(
        select(SigningKey).where(
            SigningKey.user_id == caller.user_id, SigningKey.fingerprint == given.fingerprint
        )
    )
    if key is None or key.revoked_at is not None:
        fault = "is not one of your keys" if key is None else "was revoked"
        hint = "`wander auth key new` creates a key and registers it here"
        raise HubProblem(422, "unknown_key", f"`{given.fingerprint}` {fault} on this hub", hint=hint)
    signature = _decode(given.signature, _SIGNATURE_BYTES, "the signature")
    try:
        public = Ed25519PublicKey.from_public_bytes(base64.b64decode(key.public_key))
        public.verify(signature, signed_text(run_sha256))
    except (InvalidSignature, ValueError) as error:
        raise HubProblem(422, "bad_signature", "the signature does not match the run's digest") from error
    return key


def signature_of(run: Run) -> SignatureInfo | None:
    """Return a run's signature with everything needed to verify it, or None."""
    key = run.signing_key
    if key is None or run.signature is None:
        return None
    return fill(
        SignatureInfo,
        key,
        signature=run.signature,
        signed_by=key.user.name,
        key_revoked_at=key.revoked_at,
    )


def _decode(text: str, size: int, what: str) -> bytes:
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        decoded = b""
    if len(decoded) != size:
        raise HubProblem(422, "bad_key", f"{what} must be {size} bytes in base64")
    return decoded
