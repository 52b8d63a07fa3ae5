"""Models on a hub: the files of a model, the digests that identify them, and the hub's requests and answers.

A revision is named by the digest of its files, so it never changes and has the same name on every hub. Files
are weights in safetensors format, JSON and text, so reading them never runs code. The client before it sends
a checkpoint, and the hub when it receives one, both check it with `read_checkpoint`, which reads headers and
settings but no weights.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from wander.errors import ConfigError
from wander.types import Record
from wander.wire.changes import Body
from wander.wire.fields import Address, Count, FileName, Line, OwnerName, ProjectName, Sha256, Text, is_device
from wander.wire.postings import listing_digest
from wander.wire.untrusted_text import (
    MODEL_CONFIG,
    TOKENIZER_TEXT,
    WEIGHTS_HEADER,
    RefusedText,
    read_json,
    read_part,
)

CONFIG, TOKENIZER, NAMED_TOKENS, SHARDS, CARD = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors.index.json",
    "README.md",
)
WEIGHTS = ".safetensors"
SUFFIXES = (WEIGHTS, ".json", ".txt", ".jinja", ".md", ".model")
"""Allowed suffixes of a model's files; `.model` is a SentencePiece vocabulary."""
MOST_FILES = 200
MOST_PLAIN_BYTES = 64 * 1024 * 1024
"""Maximum size of a file without weights, because such a file is loaded into memory as a whole."""
_MOST_DIMENSIONS, _LARGEST = 32, 2**63
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,98}")
_EMBEDDINGS = re.compile(r"(^|\.)(embed_tokens|wte|word_embeddings|embed_in|tok_embeddings)\.weight$")
_SHA256 = r"^[0-9a-f]{64}$"

SCHEME = "hub:"
"""Prefix that marks a model name as one on a hub, where other models are possible."""
_OWNER = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,37}[a-z0-9])?")
_MODEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,198}[a-z0-9])?")
_REVISION = re.compile(r"[0-9a-f]{6,64}")

Read = Callable[[str, int, int], bytes]
"""Function `(name, offset, size)` that returns `size` bytes of the named file from `offset`."""


@dataclass(frozen=True)
class HubModel:
    """A model on a hub."""

    owner: str
    name: str
    """Name in normal form, as for environments: lower case with dashes."""
    revision: str | None = None
    """First characters of the revision's digest; None means the newest revision."""

    def __str__(self) -> str:
        return f"{self.owner}/{self.name}" + (f"@{self.revision}" if self.revision else "")


def parse_model(word: str) -> HubModel:
    """Parse `owner/name[@revision]`, with or without `hub:`; raises `ConfigError` for anything else."""
    whole, at, revision = word.strip().removeprefix(SCHEME).partition("@")
    owner, _, name = whole.lower().partition("/")
    name = re.sub(r"[-_.]+", "-", name)
    is_name = whole.isascii() and _OWNER.fullmatch(owner) and _MODEL.fullmatch(name)
    if not is_name or (at and not _REVISION.fullmatch(revision)):
        raise ConfigError(
            f"`{word}` is not the name of a model on a hub",
            hint="write `owner/name`, or `owner/name@REVISION` with at least 6 characters of the revision",
        )
    return HubModel(owner, name, revision or None)


class ModelFile(Body):
    """A file of a model that the client is about to send."""

    filename: str = Field(min_length=1, max_length=100)
    size: int = Field(ge=1, lt=2**40)
    """Size in bytes."""
    sha256: str = Field(pattern=_SHA256)


class NewModel(Body):
    """The announcement of all files of a revision."""

    owner: str = Field(min_length=1, max_length=39)
    name: str = Field(min_length=1, max_length=200)
    files: list[ModelFile] = Field(min_length=1, max_length=MOST_FILES)
    private: bool | None = None
    """Whether a new model is private; None uses the owner's default."""
    internal: bool = Field(default=False, exclude_if=lambda internal: not internal)
    """Whether every signed-in user sees a new model."""


class ModelFileInfo(Record):
    """A file of a revision."""

    filename: FileName
    size: Count
    sha256: Sha256
    url: Address


class ModelRevision(Record):
    """An immutable revision of a model."""

    owner: OwnerName
    name: ProjectName
    revision: Sha256
    """SHA-256 of the names and digests of its files (`revision_of`)."""
    weights_sha256: Sha256
    """Digest of the weights, equal to `model.weights_sha256` of a run of these weights."""
    architecture: Text
    parameters: Count
    size: Count
    """Total size of all files in bytes."""
    files: list[ModelFileInfo]
    """Files of the revision; empty if it was deleted."""
    private: bool
    internal: bool = Field(default=False, exclude_if=lambda internal: not internal)
    """Whether every signed-in user sees the model; `private` is then also true."""
    yanked: bool
    yanked_reason: Text | None = None
    deleted: bool = False
    pushed_by: Line
    pushed_at: datetime
    url: Address
    """Address of the revision's page."""

    def __str__(self) -> str:
        return f"{self.owner}/{self.name}@{self.revision[:12]}"


class ModelRevisions(Record):
    """A model with its revisions, newest first."""

    owner: OwnerName
    name: ProjectName
    private: bool
    internal: bool = Field(default=False, exclude_if=lambda internal: not internal)
    """Whether every signed-in user sees the model; `private` is then also true."""
    latest: Sha256 | None
    """Revision to use if no revision is named; None if all revisions are deleted."""
    revisions: list[ModelRevision]


@dataclass(frozen=True)
class CheckpointFacts:
    """Facts about a checkpoint, read from its files."""

    architecture: str
    parameters: int


def is_model_file_name(filename: str) -> bool:
    """Return whether a model may have a file of this name."""
    return _NAME.fullmatch(filename) is not None and filename.endswith(SUFFIXES) and not is_device(filename)


def revision_of(files: Mapping[str, str]) -> str:
    """Return the digest that names a revision, given the SHA-256 of its files by name."""
    return listing_digest(files)


def weights_of(files: Mapping[str, str]) -> str | None:
    """Return the digest of the weights, given the SHA-256 of files by name; None if no file holds weights."""
    weights = sorted(name for name in files if name.endswith(WEIGHTS))
    whole = hashlib.sha256()
    for name in weights:
        whole.update(name.encode() + b"\0" + bytes.fromhex(files[name]))
    return whole.hexdigest() if weights else None


def read_checkpoint(sizes: Mapping[str, int], read: Read) -> CheckpointFacts:
    """Check the files of a checkpoint and return its architecture and number of parameters.

    `sizes` are the sizes of its files by name, and `read` reads them. Raises `ConfigError` if the files are
    not a model, need their own code, or do not fit together.
    """
    _check_names(sizes)
    for name in sizes:
        if name.endswith(CONFIG):  # includes `tokenizer_config.json`, which may name code, too
            _require_no_code(name, _read_object(name, sizes, read))
    config = _read_object(CONFIG, sizes, read)
    architecture = _architecture(config)
    tensors: dict[str, str] = {}
    embeddings = None
    for name in sorted(filename for filename in sizes if filename.endswith(WEIGHTS)):
        for tensor, shape in _read_shapes(name, sizes[name], read).items():
            if tensor in tensors:
                raise ConfigError(f"`{tensor}` is in both `{tensors[tensor]}` and `{name}`")
            tensors[tensor] = name
            if _EMBEDDINGS.search(tensor) and len(shape) == 2:
                embeddings = shape[0]
    if SHARDS in sizes:
        _check_shards(_read_object(SHARDS, sizes, read), tensors)
    if TOKENIZER in sizes:
        named = _read_object(NAMED_TOKENS, sizes, read) if NAMED_TOKENS in sizes else {}
        _check_tokens(_read_tokenizer(sizes, read), named, config, embeddings)
    return CheckpointFacts(architecture, count_parameters(sizes, read))


def count_parameters(sizes: Mapping[str, int], read: Read) -> int:
    """Return the number of parameters in the weights; raises `ConfigError` if a file is malformed."""
    parameters = 0
    for name in (filename for filename in sizes if filename.endswith(WEIGHTS)):
        parameters += sum(math.prod(shape) for shape in _read_shapes(name, sizes[name], read).values())
        if parameters >= _LARGEST:
            raise ConfigError(f"`{name}` has more parameters than a model can have")
    return parameters


def _check_names(sizes: Mapping[str, int]) -> None:
    hint = "a model may have safetensors weights, JSON and text, but no files that run code (pickle, Python)"
    for name, size in sizes.items():
        if not is_model_file_name(name):
            raise ConfigError(f"`{name[:120]}` is not allowed as a file of a model", hint=hint)
        if size > MOST_PLAIN_BYTES and not name.endswith(WEIGHTS):
            raise ConfigError(f"`{name}` has {size:,} bytes; a file without weights has at most 64 MiB")
    if len({name.lower() for name in sizes}) != len(sizes):
        raise ConfigError("two files have names that differ only in case")
    if CONFIG not in sizes:
        raise ConfigError(f"there is no `{CONFIG}`", hint="pass the folder that contains it and the weights")
    if not any(name.endswith(WEIGHTS) for name in sizes):
        hint = "save the weights as safetensors, for example with `save_pretrained(folder)` of transformers"
        raise ConfigError("there are no weights: no file ends in `.safetensors`", hint=hint)


def _require_no_code(name: str, config: Mapping[str, Any]) -> None:
    if "auto_map" in config:
        hint = "use a model whose code is part of the transformers library"
        raise ConfigError(f"`{name}` requires custom code (`auto_map`)", hint=hint)


def _architecture(config: Mapping[str, Any]) -> str:
    """Return the name of the model's class."""
    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and named else config.get("model_type")
    if not isinstance(name, str) or not name.isascii() or not name.isprintable() or not 0 < len(name) <= 100:
        raise ConfigError(f"`{CONFIG}` names neither `architectures` nor a `model_type`")
    return name


def _read_object(name: str, sizes: Mapping[str, int], read: Read) -> dict[str, Any]:
    """Return the object in a JSON file."""
    try:
        MODEL_CONFIG.check_size(sizes[name])
        content = read_json(read(name, 0, sizes[name]), MODEL_CONFIG)
    except RefusedText as error:
        raise ConfigError(f"`{name}`: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"`{name}` is not a JSON object")
    return content


class _Vocabulary(BaseModel):
    """The token ids of a tokenizer's model; its merges and rules are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)

    vocab: Any = None


class TokenizerParts(BaseModel):
    """The token ids in a `tokenizer.json`, and the decoder that turns tokens into text."""

    model_config = ConfigDict(extra="ignore")

    model: _Vocabulary | None = None
    added_tokens: Any = None
    decoder: Any = None


def _read_tokenizer(sizes: Mapping[str, int], read: Read) -> dict[str, Any]:
    """Return the parts of `tokenizer.json` that assign ids to tokens.

    Parsing the whole file would need too much memory: it has 33 MB for Gemma 3, mostly merges, and would take
    ten times as much once it is parsed.
    """
    try:
        TOKENIZER_TEXT.check_size(sizes[TOKENIZER])
        text = read(TOKENIZER, 0, sizes[TOKENIZER])
        return read_part(TokenizerParts, text, TOKENIZER_TEXT).model_dump()
    except RefusedText as error:
        raise ConfigError(f"`{TOKENIZER}`: {error}") from error


def _read_shapes(name: str, size: int, read: Read) -> dict[str, list[int]]:
    """Return the shapes of the tensors in a file of weights, whose header must account for every byte."""
    bad = ConfigError(f"`{name}` is not a safetensors file, or is truncated")
    (length,) = struct.unpack("<Q", read(name, 0, 8)) if size > 8 else (size,)
    if length > size - 8:
        raise bad
    try:
        WEIGHTS_HEADER.check_size(length)
        header = read_json(read(name, 8, length), WEIGHTS_HEADER)
        header.pop("__metadata__", None)
        parts = sorted([int(offset) for offset in tensor["data_offsets"]] for tensor in header.values())
        shapes = {key: [int(length) for length in tensor["shape"]] for key, tensor in header.items()}
    except RefusedText as error:
        raise ConfigError(f"`{name}`: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise bad from error
    borders = [0, *(offset for part in parts for offset in part), size - 8 - length]
    if any(len(part) != 2 for part in parts) or borders[::2] != borders[1::2] or sorted(borders) != borders:
        raise bad
    for key, shape in shapes.items():
        if len(shape) > _MOST_DIMENSIONS or any(not 0 <= size < _LARGEST for size in shape):
            raise ConfigError(f"`{name}` gives the tensor `{key[:100]}` an impossible shape")
    return shapes


def _check_shards(index: Mapping[str, Any], tensors: Mapping[str, str]) -> None:
    """Check that the index of shards matches the tensors in the shards."""
    listed = index.get("weight_map")
    if not isinstance(listed, dict):
        raise ConfigError(f"`{SHARDS}` has no `weight_map`")
    for tensor, name in listed.items():
        if tensors.get(tensor) != name:
            raise ConfigError(f"`{SHARDS}` lists `{tensor}` in `{name}`, but that file does not contain it")


def _check_tokens(
    tokenizer: Mapping[str, Any],
    named: Mapping[str, Any],
    config: Mapping[str, Any],
    embeddings: int | None,
) -> None:
    """Raise `ConfigError` if the tokenizer can produce a token id that the embeddings have no row for.

    Special tokens that never result from text may have larger ids, as they may when a model is loaded. Gemma
    3 has such a token for images. `named` (`tokenizer_config.json`) lists the special tokens that are used.
    """
    rows = embeddings if embeddings is not None else config.get("vocab_size")
    highest = max(_token_ids(tokenizer, named), default=-1)
    if isinstance(rows, int) and highest >= rows:
        raise ConfigError(
            f"weights and tokenizer do not fit: a token has id {highest}, but the weights have {rows} rows",
            hint="push the tokenizer that the model was trained with",
        )


def _token_ids(tokenizer: Mapping[str, Any], named: Mapping[str, Any]) -> Iterable[int]:
    """Yield the ids of a tokenizer's tokens, except those of special tokens that never occur in text."""
    model, added = tokenizer.get("model"), tokenizer.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    tokens = [token for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    words = (named.get(f"{use}_token") for use in ("pad", "eos", "bos", "unk"))
    used = {word.get("content") if isinstance(word, dict) else word for word in words}
    special = {
        token.get("id") for token in tokens if token.get("special") and token.get("content") not in used
    }
    ids: Iterable[Any] = [*(vocabulary.values() if isinstance(vocabulary, dict) else ())]
    if isinstance(vocabulary, list):
        ids = range(len(vocabulary))
    for token_id in (*ids, *(token.get("id") for token in tokens)):
        if isinstance(token_id, int) and token_id not in special:
            yield token_id
