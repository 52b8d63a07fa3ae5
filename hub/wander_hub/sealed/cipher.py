"""Encryption of sealed sets and of their rollouts.

Each set has a data key. The hub's key encrypts the data keys, and is a file outside of the database, the
storage and every backup. All encryption is AES-256-GCM. What a ciphertext belongs to is authenticated with
it, so nobody can exchange the ciphertexts of two sets.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from pathlib import Path

import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from wander_hub.http.problems import HubProblem

_NONCE_BYTES = 12
_KEY_BYTES = 32
MOST_PLAIN_BYTES = 256 * 1024 * 1024
"""Maximum size of a content before it is encrypted."""


class WrongKey(Exception):
    """The file with the hub's key is missing, or contains another key than the one that was used."""


class SealKeeper:
    """Encrypts and decrypts with the hub's key."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def new_key(self, commitment: str, *, first: bool) -> tuple[bytes, bytes]:
        """Return a new data key, and the same key encrypted with the hub's key. Raises `WrongKey`.

        Only the `first` key creates the file. If the file is lost later, a new one would hide the loss until
        the older sets cannot be opened.
        """
        key = AESGCM.generate_key(8 * _KEY_BYTES)
        return key, _encrypt(self._hub_key(create=first), key, f"key {commitment}")

    def unwrap(self, wrapped: bytes, commitment: str) -> bytes:
        """Return a data key. Raises `WrongKey`."""
        return _decrypt(self._hub_key(create=False), wrapped, f"key {commitment}")

    def _hub_key(self, *, create: bool) -> bytes:
        try:
            if create and not self._path.exists():
                self._create()
            key = bytes.fromhex(self._path.read_text().strip())
        except (OSError, ValueError) as error:
            raise WrongKey("the file with the hub's key for sealed sets cannot be read") from error
        if len(key) != _KEY_BYTES:
            raise WrongKey("the file with the hub's key for sealed sets does not contain a key of 32 bytes")
        return key

    def _create(self) -> None:
        """Write the file with a new key, which exists as a whole or not at all."""
        with tempfile.NamedTemporaryFile("w", dir=self._path.parent, prefix=".seal-") as file:  # mode 600
            file.write(secrets.token_hex(_KEY_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):  # another process created it
                os.link(file.name, self._path)


def seal(key: bytes, content: bytes, what: str) -> bytes:
    """Compress and encrypt a content; `what` names it."""
    return _encrypt(key, zstandard.ZstdCompressor().compress(content), what)


def unseal(key: bytes, sealed: bytes, what: str) -> bytes:
    """Return the content of a ciphertext. Raises `WrongKey` if it was changed or is not `what`."""
    plain = _decrypt(key, sealed, what)
    return zstandard.ZstdDecompressor().decompress(plain, max_output_size=MOST_PLAIN_BYTES)


def sealing_off() -> HubProblem:
    """Return the problem of a hub that does not keep sealed sets."""
    hint = "its operator can turn them on with `WANDER_HUB_SEAL_KEY_FILE`"
    return HubProblem(404, "sealing_off", "this hub does not keep sealed sets", hint=hint)


def _encrypt(key: bytes, content: bytes, what: str) -> bytes:
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, content, what.encode())


def _decrypt(key: bytes, sealed: bytes, what: str) -> bytes:
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], what.encode())
    except InvalidTag as error:
        raise WrongKey("the hub's key for sealed sets is not the one that was used") from error
