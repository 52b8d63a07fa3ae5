"""The key that this machine signs runs with: Ed25519, in the config folder with mode 0600."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from wander.wire.postings import RunSignature, key_fingerprint, signed_text

from wander_client.errors import ClientError, NotFound

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FILE_NAME = "signing-key.pem"


class SigningKey:
    """A private key with its public key and fingerprint."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public_key = base64.b64encode(private.public_key().public_bytes_raw()).decode()
        self.fingerprint = key_fingerprint(self.public_key)

    def sign(self, run_sha256: str) -> RunSignature:
        """Sign a run's digest."""
        signature = base64.b64encode(self._private.sign(signed_text(run_sha256))).decode()
        return RunSignature(fingerprint=self.fingerprint, signature=signature)


def key_file(config_dir: Path) -> Path:
    """Return the path of this machine's key."""
    return config_dir / FILE_NAME


def read_key(config_dir: Path) -> SigningKey:
    """Read this machine's key. Raises `NotFound` if it does not exist."""
    with _explain_missing_library():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    try:
        text = key_file(config_dir).read_bytes()
    except FileNotFoundError:
        raise NotFound(
            "this machine has no signing key", hint="create one with `wander auth key new`", code="no_key"
        ) from None
    private = load_pem_private_key(text, password=None)
    assert isinstance(private, Ed25519PrivateKey)
    return SigningKey(private)


def make_key(config_dir: Path) -> SigningKey:
    """Create a key that only this user can read."""
    with _explain_missing_library():
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    private = Ed25519PrivateKey.generate()
    text = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = key_file(config_dir)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(text)
    return SigningKey(private)


@contextmanager
def _explain_missing_library() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ClientError(
            "signing requires packages that are not installed",
            hint="run `pip install 'wander-client[signing]'`",
            code="missing_extra",
        ) from error
