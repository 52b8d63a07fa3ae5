"""Pushes models to Hugging Face and pulls them: a model and its card are what a push to a hub sends."""

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
"""What the card of a model that was pushed from here says of its weights."""


class StoredModel(Record):
    """A model on Hugging Face, as it was pushed or pulled."""

    name: str
    """`owner/name`."""
    revision: str
    """The commit."""
    weights_sha256: str
    folder: str
    """Where its files are here."""
    url: str


def push_to_hugging_face(
    context: Invocation, word: str, target: str, *, private: bool | None = None
) -> StoredModel:
    """Push a checkpoint, or a training run's model, to `hf:owner/name`; makes the repository if it is absent.

    Raises `ClientError` for what is no checkpoint, `WanderError` for what Hugging Face refuses.
    """
    name, revision = _parse(target)
    if revision is not None:
        raise UsageError(f"`{target}` names a revision", hint=f"write `{HF_SCHEME}{name}`: a commit is made")
    require_writer(name)  # before anything is read
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
            f"`{changed[0]}` was changed while it was sent",
            hint="push again once nothing writes to the folder any more",
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
    """Fetch the model of a repository `hf:owner/name[@revision]` into the cache of Hugging Face.

    Every file is held against its digest, and the weights against those of the card.
    """
    name, revision = _parse(target)
    context.output.note(f"fetching {name} from Hugging Face")
    commit, folder, changed = fetch_files(name, revision)
    for file in changed:
        context.output.warn(f"`{file}` had been changed in the cache, and was fetched again")
    weights, card = pack_model(folder, links=True).weights_sha256, folder / CARD
    listed = _WEIGHTS_LINE.search(card.read_text(encoding="utf-8")) if card.is_file() else None
    if listed is not None and listed[1] != weights:
        raise ClientError(
            f"the weights of `{name}` are not those of its card: "
            f"`{weights[:12]}`, and not `{listed[1][:12]}`",
            hint="they were changed after they were pushed; ask for the commit that the card is of",
            code="digest_mismatch",
        )
    return StoredModel(
        name=name, revision=commit.revision, weights_sha256=weights, folder=str(folder), url=commit.url
    )


def _parse(target: str) -> tuple[str, str | None]:
    """Return the repository and the revision that a word names."""
    name, _, revision = target.removeprefix(HF_SCHEME).partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UsageError(f"`{target}` names no repository", hint=f"write `{HF_SCHEME}OWNER/NAME`")
    return name, revision or None
