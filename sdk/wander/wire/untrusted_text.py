"""Limits for untrusted text: requests, run folders, packages, models, and answers of other servers.

A small text can describe millions of values, and parsing it could stall a whole server. The functions here
therefore count before they parse: the bytes of a text, the values that its commas and brackets can make,
their depth, and the digits of its numbers. Counting takes a few milliseconds per megabyte. `KINDS` lists
every kind of text with its limits, and docs/package-index.md shows them as a table.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pydantic_core
from pydantic import BaseModel, ValidationError

from wander.system.plain_files import open_file

Model = TypeVar("Model", bound=BaseModel)

KIB, MIB = 1024, 1024 * 1024
MOST_DIGITS = 400
"""Maximum number of consecutive digits. The largest double has 309 digits when written in full."""
MOST_DEPTH = 64
_WINDOW = MIB
"""Bytes that are counted before other threads may run."""
_LARGE = MIB
"""Texts with more bytes are parsed one after the other, so that many of them do not fill the memory."""
_parsing_large = threading.Lock()
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_SHAPES = bytes.maketrans(b"123456789E", b"000000000e")
_LONG_NUMBER = b"0" * (MOST_DIGITS + 1)
_MAYBE_INFINITE = (b"e000", b"e+000", b"0" * 300)
"""Patterns that occur in every text with a number too large for a double; 0 stands for any digit."""
_LONGEST_FAULT = 300
_MOST_FAULTS = 1000
"""Number of validation errors above which none is described, because pydantic can only describe all of
them."""
_FREE_DOTS, _MOST_DOTTED = 32, 2_000_000
"""Limit of dotted keys: the time and memory of `tomllib` grow with the square of a key's parts. Up to 32 dots
in a line are free. The squares of the dots beyond 32 may add up to 2 million, which takes 0.1 seconds."""
_TOML_STRING = re.compile(rb"""(?:"(?:[^"\n\\]|\\.)*"|'[^'\n]*')""")
_MOST_KEY_DOTS = 20_000
"""Maximum number of dots outside the strings of a TOML text. `tomllib` takes 0.5 seconds for that number."""


class RefusedText(ValueError):
    """Raised for text that exceeds a limit, is malformed, or does not have the expected content."""

    def __init__(self, fault: str, *, place: str = "", too_large: bool = False) -> None:
        super().__init__(f"{place}: {fault}" if place else fault)
        self.fault = fault
        self.place = place
        """Path of the invalid value; empty if the whole text is meant."""
        self.too_large = too_large
        """Whether the text exceeds a limit."""


@dataclass(frozen=True)
class TextKind:
    """A kind of text and its limits."""

    name: str
    most_bytes: int
    most_values: int
    """Maximum number of JSON values, keys included, as counted from commas, colons and brackets."""
    most_nodes: int | None = None
    """Maximum number of objects, lists and keys among the values; None means `most_values`. Each of them
    needs ten times the memory of a number, and each unknown key produces an error."""

    def check_size(self, size: int) -> None:
        """Raise `RefusedText` if the text has too many bytes."""
        if size > self.most_bytes:
            raise RefusedText(f"{self.name} has over {self.most_bytes:,} bytes", too_large=True)

    def check_json(self, text: bytes) -> bool:
        """Check a JSON text against the limits; raises `RefusedText` if it exceeds one of them.

        Returns whether the text may contain a number that is too large for a double.
        """
        self.check_size(len(text))
        values, nodes, odd, open_brackets = 1, 0, False, b""
        most_nodes = self.most_values if self.most_nodes is None else self.most_nodes
        for piece in _outside_strings(text):
            brackets = piece.translate(None, _NOT_BRACKETS)
            # A colon follows each key. Every other value starts an object or a list, or follows a comma.
            nodes += brackets.count(b"[") + brackets.count(b"{") + piece.count(b":")
            values += piece.count(b",")
            if values + nodes > self.most_values:
                raise RefusedText(f"{self.name} has over {self.most_values:,} values", too_large=True)
            if nodes > most_nodes:
                fault = f"{self.name} has over {most_nodes:,} objects, lists and keys"
                raise RefusedText(fault, too_large=True)
            open_brackets = _close_pairs(open_brackets + brackets)
            if len(open_brackets) > MOST_DEPTH:
                fault = f"{self.name} nests objects and lists over {MOST_DEPTH} deep, or does not close them"
                raise RefusedText(fault, too_large=True)
            shapes = piece.translate(_SHAPES, b" \t\r\n")
            if _LONG_NUMBER in shapes:
                raise RefusedText(f"{self.name} has a number of over {MOST_DIGITS} digits", too_large=True)
            odd = odd or any(pattern in shapes for pattern in _MAYBE_INFINITE)
        return odd


def _outside_strings(text: bytes) -> Iterator[bytes]:
    """Yield the parts of a JSON text that are outside its strings, one window at a time."""
    inside, backslash = False, b""
    for start in range(0, len(text), _WINDOW):
        window = backslash + text[start : start + _WINDOW]
        whole = window.rstrip(b"\\")
        # A backslash at the end escapes the next character only if it follows an even number of backslashes.
        backslash = b"\\" if (len(window) - len(whole)) % 2 else b""
        parts = whole.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b" ".join(parts[1::2] if inside else parts[::2])
        inside ^= len(parts) % 2 == 0


def _close_pairs(brackets: bytes) -> bytes:
    """Return the brackets that are still open, or more than `MOST_DEPTH` brackets if they nest deeper."""
    for _ in range(MOST_DEPTH + 1):
        unmatched = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(unmatched) == len(brackets):
            return brackets
        brackets = unmatched
    return b"[" * (MOST_DEPTH + 1)


def read_json(text: bytes | str, kind: TextKind, *, finite: bool = True) -> Any:
    """Return the value of a JSON text; raises `RefusedText` if the text exceeds a limit or is malformed.

    NaN and infinity, which Python writes although the JSON standard forbids them, are accepted only if
    `finite` is False.
    """
    text = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    odd = kind.check_json(text)
    try:
        with _turn(text):
            value = pydantic_core.from_json(text, allow_inf_nan=not finite)
    except ValueError as error:
        raise RefusedText(f"not JSON: {str(error)[:_LONGEST_FAULT]}") from error
    if finite and odd and not is_finite(value):
        raise RefusedText("it contains a number that is too large")
    return value


def read_record(model: type[Model], text: bytes | str, kind: TextKind) -> Model:
    """Parse a JSON text as a record. Raises `RefusedText` if the text exceeds a limit or does not fit.

    The text is parsed before it is validated. If pydantic parsed it, each validation error would hold a copy
    of the value that it describes.
    """
    try:
        return model.model_validate(read_json(text, kind))
    except ValidationError as error:
        raise refusal_of(error) from None


def read_part(model: type[Model], text: bytes, kind: TextKind) -> Model:
    """Parse only those fields of a long JSON text that the model has; other values are not built.

    Use it only for models with few fields, because each error of pydantic's parser holds a copy of the value
    that it describes.
    """
    kind.check_json(text)
    try:
        with _turn(text):
            return model.model_validate_json(text)
    except ValidationError as error:
        raise refusal_of(error) from None


def read_toml(text: bytes, kind: TextKind) -> dict[str, Any]:
    """Return the table of a TOML text; raises `RefusedText` if the text exceeds a limit or is malformed."""
    kind.check_size(len(text))
    lines = text.split(b"\n") if text.count(b"\n") <= kind.most_values else None
    if lines is None or text.count(b",") + text.count(b"=") > kind.most_values:
        raise RefusedText(f"{kind.name} has over {kind.most_values:,} values", too_large=True)
    dotted = (line.count(b".") for line in lines)
    if sum((dots - _FREE_DOTS) ** 2 for dots in dotted if dots > _FREE_DOTS) > _MOST_DOTTED:
        raise RefusedText(f"{kind.name} has keys with too many parts", too_large=True)
    if text.count(b".") > _MOST_KEY_DOTS and _TOML_STRING.sub(b"", text).count(b".") > _MOST_KEY_DOTS:
        raise RefusedText(f"{kind.name} has over {_MOST_KEY_DOTS:,} key parts", too_large=True)
    if _LONG_NUMBER in text.translate(_SHAPES, b"_"):
        raise RefusedText(f"{kind.name} has a number of over {MOST_DIGITS} digits", too_large=True)
    if b"\\u0000" in text or b"\\U00000000" in text:
        raise RefusedText(f"{kind.name} contains the null character, which is not allowed in paths and names")
    import tomllib  # imported late, because few callers read TOML

    try:
        table = tomllib.loads(text.decode())
        is_deep = _is_deep(table, MOST_DEPTH)
    except (ValueError, RecursionError) as error:
        raise RefusedText(f"not valid TOML: {str(error)[:_LONGEST_FAULT]}") from error
    if is_deep:
        raise RefusedText(f"{kind.name} nests tables and lists over {MOST_DEPTH} deep", too_large=True)
    return table


def _is_deep(value: Any, most: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return most < 0 or any(_is_deep(child, most - 1) for child in inner)


def read_toml_file(path: Path, kind: TextKind) -> dict[str, Any]:
    """Return the table of a TOML file.

    Raises `RefusedText` like `read_toml`, and `OSError` if the path is not a file.
    """
    with open_file(path) as file:
        return read_toml(file.read(kind.most_bytes + 1), kind)


def read_project(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's `pyproject.toml` after checking the types of the values that Wander
    reads.

    Raises `OSError` if the path is not a file, and `RefusedText` if the content is not valid.
    """
    document = read_toml_file(folder / "pyproject.toml", PROJECT)
    project = _table(document, "project")
    _table(document, "build-system")
    for names in (("uv", "sources"), ("hatch", "build", "targets", "wheel"), ("poetry",), ("setuptools",)):
        inner = _table(document, "tool")
        for name in names:
            inner = _table(inner, name)
    for name in ("description", "version"):
        if not isinstance(project.get(name, ""), str):
            raise RefusedText("it is not a string", place=f"project.{name}")
    points = _table(project, "entry-points")
    for group in points:
        if not all(isinstance(target, str) for target in _table(points, group).values()):
            raise RefusedText("an entry point is not a string", place="project.entry-points")
    for name in ("dependencies", "dynamic"):
        listed = project.get(name, [])
        if not (isinstance(listed, list) and all(isinstance(item, str) for item in listed)):
            raise RefusedText("it is not a list of strings", place=f"project.{name}")
    return document


def _table(outer: dict[str, Any], name: str) -> dict[str, Any]:
    table = outer.get(name, {})
    if not isinstance(table, dict):
        raise RefusedText("it is not a table", place=name)
    return table


def is_finite(value: Any) -> bool:
    """Return whether a parsed value contains neither NaN nor infinity, which `1e999` is read as.

    Python reads and writes both. Other JSON readers reject them, and NaN is not equal to itself.
    """
    if isinstance(value, float):
        return value - value == 0
    if isinstance(value, BaseModel):
        value = dict(value)
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    return not isinstance(value, list | tuple) or all(map(is_finite, value))


def refusal_of(error: ValidationError) -> RefusedText:
    """Return the first error of a validation, or only the number of errors if there are over 1,000."""
    if (count := error.error_count()) > _MOST_FAULTS:
        return RefusedText(f"{count:,} of its values are not valid")
    fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part)[:80] for part in fault["loc"])
    return RefusedText(
        fault["msg"].removeprefix("Value error, ")[:_LONGEST_FAULT], place=place[:_LONGEST_FAULT]
    )


def _turn(text: bytes) -> Any:
    """Return the lock under which this text is parsed. Only large texts have to wait for each other."""
    return _parsing_large if len(text) > _LARGE else nullcontext()


CONTROL = TextKind("the body", 64 * KIB, 2_000)
"""Body of a request that changes settings, tokens, roles or similar objects."""
ANNOUNCEMENT = TextKind("the announcement", 2 * MIB, 50_000)
"""Announcement of the files of a version or a model, with their attestations."""
CHECK_REPORT = TextKind("the report of `wander check`", 64 * KIB, 4_000)
ATTESTATIONS = TextKind("the attestations", 256 * KIB, 10_000)
MANIFEST = TextKind("run.json", 32 * MIB, 2_200_000, most_nodes=20_000)
"""Manifest of a run. A run with a million examples has an id and a stratum for each of them."""
RUN_ANNOUNCEMENT = TextKind("the announcement of a run", 48 * MIB, 2_210_000, most_nodes=25_000)
"""Announcement of a run: `run.json` as a JSON string, with the names and digests of the run's files."""
MANIFEST_HEAD = TextKind("run.json without its examples", 64 * KIB, 10_000)
ROLLOUT = TextKind("a rollout", 16 * MIB, 1_000_000, most_nodes=100_000)
"""Line of `rollouts.jsonl`. Most of its values are token ids and log-probabilities."""
CHECKPOINT = TextKind("a line of `checkpoints.jsonl`", 4 * KIB, 20)
METRICS = TextKind("a line of metrics", 64 * KIB, 2_000)
"""Line of `metrics.jsonl`, `alerts.jsonl` or `evaluations.jsonl` of a training run."""
TOOL_ARGUMENTS = TextKind("the arguments of a call", 16 * KIB, 1_000)
LOCK = TextKind("the lock", MIB, 100_000)
PROJECT = TextKind("`pyproject.toml`", 256 * KIB, 100_000)
SETTINGS = TextKind("the file", MIB, 100_000)
"""Suite or training settings. A hub never reads them."""
WEIGHTS_HEADER = TextKind("the header of a file of weights", 4 * MIB, 400_000)
MODEL_CONFIG = TextKind("a settings file of a model", 4 * MIB, 300_000)
TOKENIZER_TEXT = TextKind("`tokenizer.json`", 48 * MIB, 4_000_000, most_nodes=1_200_000)
CLAIMS = TextKind("a part of the identity token", 16 * KIB, 1_000)
PROVIDER_ANSWER = TextKind("the identity provider's response", 512 * KIB, 10_000)
"""Response of a sign-in provider or an issuer of identity tokens."""
UPSTREAM_PAGE = TextKind("a page of the upstream index", 32 * MIB, 1_500_000)
"""Page of the package index behind a hub."""
SEALED_SET = TextKind("the sealed set", 8 * MIB, 1_000_000)
"""File of a sealed task set."""
KINDS = (
    *(CONTROL, ANNOUNCEMENT, CHECK_REPORT, ATTESTATIONS, MANIFEST, RUN_ANNOUNCEMENT, MANIFEST_HEAD),
    *(
        ROLLOUT,
        CHECKPOINT,
        METRICS,
        TOOL_ARGUMENTS,
        LOCK,
        PROJECT,
        WEIGHTS_HEADER,
        MODEL_CONFIG,
        TOKENIZER_TEXT,
    ),
    *(CLAIMS, PROVIDER_ANSWER, UPSTREAM_PAGE, SEALED_SET),
)
"""Every kind of text that a hub reads, for the table in docs/package-index.md."""
