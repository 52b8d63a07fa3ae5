"""Models on a hub: which files make one, the digests that name them, and what passes between client and hub.

A revision is named by the digest of its files, so it never changes and is the same on every hub. Files are
weights in safetensors form, JSON and text: reading them runs no code. Whoever sends a checkpoint and whoever
takes it in look at it with the same `read_checkpoint`, which reads headers and settings and no weights.
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
from wander.wire.gate import MODEL_CONFIG, TOKENIZER_TEXT, WEIGHTS_HEADER, Refused, read_json, read_part
from wander.wire.postings import listing_digest

CONFIG, TOKENIZER, NAMED_TOKENS, SHARDS, CARD = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors.index.json",
    "README.md",
)
WEIGHTS = ".safetensors"
SUFFIXES = (WEIGHTS, ".json", ".txt", ".jinja", ".md", ".model")
"""What a model's files may end in; `.model` is the vocabulary of SentencePiece."""
MOST_FILES = 200
MOST_PLAIN_BYTES = 64 * 1024 * 1024
"""Limit of a file that holds no weights, which is read whole."""
_MOST_DIMENSIONS, _LARGEST = 32, 2**63
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,98}")
_EMBEDDINGS = re.compile(r"(^|\.)(embed_tokens|wte|word_embeddings|embed_in|tok_embeddings)\.weight$")
_SHA256 = r"^[0-9a-f]{64}$"

SCHEME = "hub:"
"""Goes before the name of a hub's model where other models may be meant."""
_OWNER = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,37}[a-z0-9])?")
_MODEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,198}[a-z0-9])?")
_REVISION = re.compile(r"[0-9a-f]{6,64}")

Read = Callable[[str, int, int], bytes]
"""Returns so many bytes of a file, given by name, from an offset."""


@dataclass(frozen=True)
class HubModel:
    """A model on a hub."""

    owner: str
    name: str
    """In the normal form of environments' names: lower case, dashes."""
    revision: str | None = None
    """The beginning of its digest; None means the newest."""

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
            f"`{word}` names no model of a hub",
            hint="write `owner/name`, or `owner/name@REVISION` with 6 characters of the revision or more",
        )
    return HubModel(owner, name, revision or None)


class ModelFile(Body):
    """A file of a model that is going to be sent."""

    filename: str = Field(min_length=1, max_length=100)
    size: int = Field(ge=1, lt=2**40)
    """In bytes."""
    sha256: str = Field(pattern=_SHA256)


class NewModel(Body):
    """All files of a revision that is going to be sent."""

    owner: str = Field(min_length=1, max_length=39)
    name: str = Field(min_length=1, max_length=200)
    files: list[ModelFile] = Field(min_length=1, max_length=MOST_FILES)
    private: bool | None = None
    """Of a model that is new; None leaves it to the owner's settings."""
    internal: bool = Field(default=False, exclude_if=lambda internal: not internal)
    """Of a model that is new: for everybody who is signed in."""


class ModelFileInfo(Record):
    """A file of a revision."""

    filename: FileName
    size: Count
    sha256: Sha256
    url: Address


class ModelRevision(Record):
    """One state of a model, which never changes."""

    owner: OwnerName
    name: ProjectName
    revision: Sha256
    """SHA-256 over the digests and names of its files (`revision_of`)."""
    weights_sha256: Sha256
    """As `model.weights_sha256` of a run of these weights says."""
    architecture: Text
    parameters: Count
    size: Count
    """Of all files, in bytes."""
    files: list[ModelFileInfo]
    """Empty for a deleted one."""
    private: bool
    internal: bool = Field(default=False, exclude_if=lambda internal: not internal)
    """As of an environment."""
    yanked: bool
    yanked_reason: Text | None = None
    deleted: bool = False
    pushed_by: Line
    pushed_at: datetime
    url: Address
    """Its page."""

    def __str__(self) -> str:
        return f"{self.owner}/{self.name}@{self.revision[:12]}"


class ModelRevisions(Record):
    """A model with its revisions, the newest first."""

    owner: OwnerName
    name: ProjectName
    private: bool
    internal: bool = Field(default=False, exclude_if=lambda internal: not internal)
    """As of an environment."""
    latest: Sha256 | None
    """The revision that is meant where none is named; None where all are deleted."""
    revisions: list[ModelRevision]


@dataclass(frozen=True)
class CheckpointFacts:
    """What the files of a checkpoint say."""

    architecture: str
    parameters: int


def may_be_sent(filename: str) -> bool:
    """Tell whether a model may have a file of this name."""
    return _NAME.fullmatch(filename) is not None and filename.endswith(SUFFIXES) and not is_device(filename)


def revision_of(files: Mapping[str, str]) -> str:
    """Return the digest that names a revision, from the SHA-256 of its files by their names."""
    return listing_digest(files)


def weights_of(files: Mapping[str, str]) -> str | None:
    """Return the digest of the weights among files, given as for `revision_of`; None where there are none."""
    weights = sorted(name for name in files if name.endswith(WEIGHTS))
    whole = hashlib.sha256()
    for name in weights:
        whole.update(name.encode() + b"\0" + bytes.fromhex(files[name]))
    return whole.hexdigest() if weights else None


def read_checkpoint(sizes: Mapping[str, int], read: Read) -> CheckpointFacts:
    """Return what a checkpoint is, from the sizes of its files and a way to read them.

    Raises `ConfigError` for files that are no model, need code, or do not fit together.
    """
    _check_names(sizes)
    for name in sizes:
        if name.endswith(CONFIG):  # `tokenizer_config.json` may name code as well
            _require_no_code(name, _read_object(name, sizes, read))
    config = _read_object(CONFIG, sizes, read)
    architecture = _architecture(config)
    tensors: dict[str, str] = {}
    embeddings = None
    for name in sorted(one for one in sizes if one.endswith(WEIGHTS)):
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
    """Return how many parameters the files of weights have; raises `ConfigError` for others."""
    parameters = 0
    for name in (one for one in sizes if one.endswith(WEIGHTS)):
        parameters += sum(math.prod(shape) for shape in _read_shapes(name, sizes[name], read).values())
        if parameters >= _LARGEST:
            raise ConfigError(f"`{name}` has more parameters than a model can have")
    return parameters


def _check_names(sizes: Mapping[str, int]) -> None:
    hint = "a model has weights as safetensors, JSON and text; nothing that runs code (pickle, Python)"
    for name, size in sizes.items():
        if not may_be_sent(name):
            raise ConfigError(f"`{name[:120]}` is no file of a model", hint=hint)
        if size > MOST_PLAIN_BYTES and not name.endswith(WEIGHTS):
            raise ConfigError(f"`{name}` has {size:,} bytes; a file without weights has at most 64 MiB")
    if len({name.lower() for name in sizes}) != len(sizes):
        raise ConfigError("two files have names that differ in case alone")
    if CONFIG not in sizes:
        raise ConfigError(f"there is no `{CONFIG}`", hint="give the folder that holds it beside the weights")
    if not any(name.endswith(WEIGHTS) for name in sizes):
        hint = "save the weights as safetensors: `model.save_pretrained(folder)` of transformers does"
        raise ConfigError("there are no weights: no file ends in `.safetensors`", hint=hint)


def _require_no_code(name: str, config: Mapping[str, Any]) -> None:
    if "auto_map" in config:
        hint = "only models whose code is in the transformers library can be taken"
        raise ConfigError(f"`{name}` names code of its own (`auto_map`)", hint=hint)


def _architecture(config: Mapping[str, Any]) -> str:
    """Return the name of a model's class."""
    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and named else config.get("model_type")
    if not isinstance(name, str) or not name.isascii() or not name.isprintable() or not 0 < len(name) <= 100:
        raise ConfigError(f"`{CONFIG}` names neither `architectures` nor a `model_type`")
    return name


def _read_object(name: str, sizes: Mapping[str, int], read: Read) -> dict[str, Any]:
    """Return the object in a JSON file."""
    try:
        MODEL_CONFIG.check_size(sizes[name])
        found = read_json(read(name, 0, sizes[name]), MODEL_CONFIG)
    except Refused as error:
        raise ConfigError(f"`{name}`: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"`{name}` is no JSON object")
    return found


class _Vocabulary(BaseModel):
    """What numbers the tokens of a tokenizer; its merges and rules are passed over."""

    model_config = ConfigDict(extra="ignore", strict=True)

    vocab: Any = None


class TokenizerParts(BaseModel):
    """The parts of a `tokenizer.json` that number tokens, and how their names are made texts."""

    model_config = ConfigDict(extra="ignore")

    model: _Vocabulary | None = None
    added_tokens: Any = None
    decoder: Any = None


def _read_tokenizer(sizes: Mapping[str, int], read: Read) -> dict[str, Any]:
    """Return the parts of `tokenizer.json` that number tokens.

    The whole is 33 MB for Gemma 3, mostly merges, and would take ten times as much once it is read.
    """
    try:
        TOKENIZER_TEXT.check_size(sizes[TOKENIZER])
        text = read(TOKENIZER, 0, sizes[TOKENIZER])
        return read_part(TokenizerParts, text, TOKENIZER_TEXT).model_dump()
    except Refused as error:
        raise ConfigError(f"`{TOKENIZER}`: {error}") from error


def _read_shapes(name: str, size: int, read: Read) -> dict[str, list[int]]:
    """Return the shapes of the tensors in a file of weights, whose header must account for every byte."""
    bad = ConfigError(f"`{name}` is not in safetensors form, or was cut off")
    (length,) = struct.unpack("<Q", read(name, 0, 8)) if size > 8 else (size,)
    if length > size - 8:
        raise bad
    try:
        WEIGHTS_HEADER.check_size(length)
        header = read_json(read(name, 8, length), WEIGHTS_HEADER)
        header.pop("__metadata__", None)
        parts = sorted([int(each) for each in one["data_offsets"]] for one in header.values())
        shapes = {key: [int(each) for each in one["shape"]] for key, one in header.items()}
    except Refused as error:
        raise ConfigError(f"`{name}`: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise bad from error
    borders = [0, *(each for part in parts for each in part), size - 8 - length]
    if any(len(part) != 2 for part in parts) or borders[::2] != borders[1::2] or sorted(borders) != borders:
        raise bad
    for key, shape in shapes.items():
        if len(shape) > _MOST_DIMENSIONS or any(not 0 <= each < _LARGEST for each in shape):
            raise ConfigError(f"`{name}` gives `{key[:100]}` a shape that no tensor has")
    return shapes


def _check_shards(index: Mapping[str, Any], tensors: Mapping[str, str]) -> None:
    """Hold the list of shards against the shards."""
    listed = index.get("weight_map")
    if not isinstance(listed, dict):
        raise ConfigError(f"`{SHARDS}` has no `weight_map`")
    for tensor, name in listed.items():
        if tensors.get(tensor) != name:
            raise ConfigError(f"`{SHARDS}` says that `{tensor}` is in `{name}`, which is not so")


def _check_tokens(
    tokenizer: Mapping[str, Any],
    named: Mapping[str, Any],
    config: Mapping[str, Any],
    embeddings: int | None,
) -> None:
    """Refuse a tokenizer of whose tokens one may come up that the weights have no place for.

    A special token that no text becomes may lie beyond them, as where a model is loaded: Gemma 3 has one for
    images. `named` tells which special tokens come up all the same.
    """
    rows = embeddings if embeddings is not None else config.get("vocab_size")
    highest = max(_token_ids(tokenizer, named), default=-1)
    if isinstance(rows, int) and highest >= rows:
        raise ConfigError(
            f"weights and tokenizer do not fit: a token has number {highest}, of {rows} rows of the weights",
            hint="push the tokenizer that the model was trained with",
        )


def _token_ids(tokenizer: Mapping[str, Any], named: Mapping[str, Any]) -> Iterable[int]:
    """Yield the numbers of a tokenizer's tokens, without those of special ones that have no use in text."""
    model, added = tokenizer.get("model"), tokenizer.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    tokens = [one for one in added if isinstance(one, dict)] if isinstance(added, list) else []
    words = (named.get(f"{use}_token") for use in ("pad", "eos", "bos", "unk"))
    used = {word.get("content") if isinstance(word, dict) else word for word in words}
    special = {one.get("id") for one in tokens if one.get("special") and one.get("content") not in used}
    numbers: Iterable[Any] = [*(vocabulary.values() if isinstance(vocabulary, dict) else ())]
    if isinstance(vocabulary, list):
        numbers = range(len(vocabulary))
    for number in (*numbers, *(one.get("id") for one in tokens)):
        if isinstance(number, int) and number not in special:
            yield number
