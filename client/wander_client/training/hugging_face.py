"""Push models to Hugging Face and pull them. The files and the card are the same as for a hub."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from wander.models.hugging_face import fetch_files, require_writer, send_files
from wander.types import Record
from wander.wire.models import CARD

from wander_client.errors import ClientError, UsageError
from wander_client.models.reference import HF_SCHEME
from wander_client.training.pushing import pack_for, pack_model

if TYPE_CHECKING:
    from pathlib import Path

    from wander_client.context import Invocation

_WEIGHTS_LINE = re.compile(r"^Weights: `([0-9a-f]{64})`$", re.MULTILINE)
"""Line with the digest of the weights in a card that Wander wrote."""


class StoredModel(Record):
    """A model on Hugging Face that was pushed or pulled."""

    name: str
    """`owner/name`."""
    revision: str
    """Commit of the repository."""
    weights_sha256: str
    folder: str
    """Local folder of its files."""
    url: str


def push_to_hugging_face(
    context: Invocation, word: str, target: str, *, private: bool | None = None
) -> StoredModel:
    """Push a checkpoint or a training run's model to `hf:owner/name`. Creates the repository if necessary.

    Raises `ClientError` for a folder that is not a checkpoint, and `WanderError` if Hugging Face rejects the
    push.
    """
    name, revision = _parse(target)
    if revision is not None:
        raise UsageError(
            f"`{target}` names a revision", hint=f"pass `{HF_SCHEME}{name}`: every push creates a commit"
        )
    require_writer(name)  # fail before the weights are read
    packed = pack_for(context, word, name)
    files: dict[str, Path | bytes] = {file: packed.folder / file for file in sorted(packed.digests)}
    if packed.card is not None:
        files[CARD] = packed.card
    context.output.note(f"pushing {packed.folder} to Hugging Face as {name}")
    commit = send_files(name, files, f"Push {packed.weights_sha256[:12]}", private=private)
    if changed := [
        file for file, sha256 in commit.digests.items() if packed.digests.get(file, sha256) != sha256
    ]:
        raise ClientError(
            f"`{changed[0]}` changed during the upload",
            hint="push again when no other program writes to the folder",
            code="digest_mismatch",
        )
    return StoredModel(
        name=name,
        revision=commit.revision,
        weights_sha256=packed.weights_sha256,
        folder=str(packed.folder),
        url=commit.url,
    )


def pull_from_hugging_face(context: Invocation, target: str) -> StoredModel:
    """Download the model of a repository `hf:owner/name[@revision]` into the Hugging Face cache.

    Every file is checked against its digest, and the weights against the digest in the card.
    """
    name, revision = _parse(target)
    context.output.note(f"downloading {name} from Hugging Face")
    commit, folder, changed = fetch_files(name, revision)
    for file in changed:
        context.output.warn(f"`{file}` was damaged in the cache, and was downloaded again")
    weights, card = pack_model(folder, links=True).weights_sha256, folder / CARD
    listed = _WEIGHTS_LINE.search(card.read_text(encoding="utf-8")) if card.is_file() else None
    if listed is not None and listed[1] != weights:
        raise ClientError(
            f"the weights of `{name}` do not match its card: the digest is `{weights[:12]}` "
            f"instead of `{listed[1][:12]}`",
            hint="they were changed after the push; pull the commit of the card",
            code="digest_mismatch",
        )
    return StoredModel(
        name=name, revision=commit.revision, weights_sha256=weights, folder=str(folder), url=commit.url
    )


def _parse(target: str) -> tuple[str, str | None]:
    """Return the repository and the revision in a word."""
    name, _, revision = target.removeprefix(HF_SCHEME).partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UsageError(f"`{target}` is not a repository", hint=f"pass `{HF_SCHEME}OWNER/NAME`")
    return name, revision or None
