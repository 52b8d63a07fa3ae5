"""The gate for texts that strangers wrote: requests, run folders, packages, models, answers of other servers.

A few hundred bytes can describe millions of values, and a parser that is handed them stops a whole server.
So a text is counted before anything is built of it: its bytes, the values that its commas and brackets can
make, their depth, and the digits of its numbers. Counting costs some milliseconds per megabyte. Every kind of
text has its limits in `KINDS`, which docs/package-index.md lists.
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
"""Digits in a row. The largest double has 309 when it is written out."""
MOST_DEPTH = 64
_WINDOW = MIB
"""Bytes that are counted at a time: other threads run in between."""
_LARGE = MIB
"""Bytes above which one text is parsed at a time, so that many large ones do not fill the memory."""
_parsing_large = threading.Lock()
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_SHAPES = bytes.maketrans(b"123456789E", b"000000000e")
_LONG_NUMBER = b"0" * (MOST_DIGITS + 1)
_MAYBE_INFINITE = (b"e000", b"e+000", b"0" * 300)
"""What a text holds in which a number may be too large for a double; a 0 is any digit."""
_LONGEST_FAULT = 300
_MOST_FAULTS = 1000
"""Faults up to which the first is told: pydantic describes all of them, or none."""
_FREE_DOTS, _MOST_DOTTED = 32, 2_000_000
"""`tomllib` takes time and memory by the square of the parts of a dotted key. A line with up to 32 dots costs
nothing; the squares of the dots beyond that may add up to 2 million, which is a tenth of a second."""
_TOML_STRING = re.compile(rb"""(?:"(?:[^"\n\\]|\\.)*"|'[^'\n]*')""")
_MOST_KEY_DOTS = 20_000
"""Dots outside the strings of a TOML text. `tomllib` takes half a second for so many parts of keys."""


class Refused(ValueError):
    """A text that is not accepted: over a limit, malformed, or not what it should be."""

    def __init__(self, fault: str, *, place: str = "", too_large: bool = False) -> None:
        super().__init__(f"{place}: {fault}" if place else fault)
        self.fault = fault
        self.place = place
        """Path of the value that does not fit; empty for the whole text."""
        self.too_large = too_large
        """Whether the text is over a limit."""


@dataclass(frozen=True)
class TextKind:
    """A kind of text, and the most that one may hold."""

    name: str
    most_bytes: int
    most_values: int
    """Values of JSON, keys included, as its commas, colons and brackets count them."""
    most_nodes: int | None = None
    """Objects, lists and keys among them; None for as many as values. Each costs ten times the memory of a
    number, and a key that does not fit costs an error."""

    def check_size(self, size: int) -> None:
        """Raise `Refused` for a text of too many bytes."""
        if size > self.most_bytes:
            raise Refused(f"{self.name} has over {self.most_bytes:,} bytes", too_large=True)

    def check_json(self, text: bytes) -> bool:
        """Count a text of JSON; raise `Refused` for one that is over a limit.

        Returns whether a number in it may be too large for a double.
        """
        self.check_size(len(text))
        values, nodes, odd, open_brackets = 1, 0, False, b""
        most_nodes = self.most_values if self.most_nodes is None else self.most_nodes
        for piece in _outside_strings(text):
            brackets = piece.translate(None, _NOT_BRACKETS)
            # A colon follows each key. Any other value begins an object or a list, or follows a comma.
            nodes += brackets.count(b"[") + brackets.count(b"{") + piece.count(b":")
            values += piece.count(b",")
            if values + nodes > self.most_values:
                raise Refused(f"{self.name} has over {self.most_values:,} values", too_large=True)
            if nodes > most_nodes:
                fault = f"{self.name} has over {most_nodes:,} objects, lists and keys"
                raise Refused(fault, too_large=True)
            open_brackets = _close_pairs(open_brackets + brackets)
            if len(open_brackets) > MOST_DEPTH:
                fault = f"{self.name} nests objects and lists over {MOST_DEPTH} deep, or does not close them"
                raise Refused(fault, too_large=True)
            shapes = piece.translate(_SHAPES, b" \t\r\n")
            if _LONG_NUMBER in shapes:
                raise Refused(f"{self.name} has a number of over {MOST_DIGITS} digits", too_large=True)
            odd = odd or any(one in shapes for one in _MAYBE_INFINITE)
        return odd


def _outside_strings(text: bytes) -> Iterator[bytes]:
    """Yield what stands outside the strings of a JSON text, a window at a time."""
    inside, backslash = False, b""
    for start in range(0, len(text), _WINDOW):
        window = backslash + text[start : start + _WINDOW]
        whole = window.rstrip(b"\\")
        # Of a run of backslashes only an odd one says something about what follows it.
        backslash = b"\\" if (len(window) - len(whole)) % 2 else b""
        parts = whole.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b" ".join(parts[1::2] if inside else parts[::2])
        inside ^= len(parts) % 2 == 0


def _close_pairs(brackets: bytes) -> bytes:
    """Return the brackets that are still open, or more than `MOST_DEPTH` where they nest deeper."""
    for _ in range(MOST_DEPTH + 1):
        left = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(left) == len(brackets):
            return brackets
        brackets = left
    return b"[" * (MOST_DEPTH + 1)


def read_json(text: bytes | str, kind: TextKind, *, finite: bool = True) -> Any:
    """Return the value of a JSON text; raise `Refused` for one that is over a limit or malformed.

    NaN and infinity, which Python writes and no standard knows, are only read if not `finite`.
    """
    text = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    odd = kind.check_json(text)
    try:
        with _turn(text):
            found = pydantic_core.from_json(text, allow_inf_nan=not finite)
    except ValueError as error:
        raise Refused(f"not JSON: {str(error)[:_LONGEST_FAULT]}") from error
    if finite and odd and not is_finite(found):
        raise Refused("it holds a number that is too large")
    return found


def read_record(model: type[Model], text: bytes | str, kind: TextKind) -> Model:
    """Return the record of a JSON text; raise `Refused` for one that is over a limit or does not fit.

    The values are built before they are validated: where pydantic parses by itself, each of its errors holds
    a copy of what it is about.
    """
    try:
        return model.model_validate(read_json(text, kind))
    except ValidationError as error:
        raise refusal_of(error) from None


def read_part(model: type[Model], text: bytes, kind: TextKind) -> Model:
    """Return the part of a long JSON text that a model asks for; the rest is not built.

    For models of few fields alone: an error of pydantic's own parser holds a copy of what it is about.
    """
    kind.check_json(text)
    try:
        with _turn(text):
            return model.model_validate_json(text)
    except ValidationError as error:
        raise refusal_of(error) from None


def read_toml(text: bytes, kind: TextKind) -> dict[str, Any]:
    """Return the table of a TOML text; raise `Refused` for one that is over a limit or malformed."""
    kind.check_size(len(text))
    lines = text.split(b"\n") if text.count(b"\n") <= kind.most_values else None
    if lines is None or text.count(b",") + text.count(b"=") > kind.most_values:
        raise Refused(f"{kind.name} has over {kind.most_values:,} values", too_large=True)
    dotted = (line.count(b".") for line in lines)
    if sum((dots - _FREE_DOTS) ** 2 for dots in dotted if dots > _FREE_DOTS) > _MOST_DOTTED:
        raise Refused(f"{kind.name} has keys of too many parts", too_large=True)
    if text.count(b".") > _MOST_KEY_DOTS and _TOML_STRING.sub(b"", text).count(b".") > _MOST_KEY_DOTS:
        raise Refused(f"{kind.name} has over {_MOST_KEY_DOTS:,} parts of keys", too_large=True)
    if _LONG_NUMBER in text.translate(_SHAPES, b"_"):
        raise Refused(f"{kind.name} has a number of over {MOST_DIGITS} digits", too_large=True)
    if b"\\u0000" in text or b"\\U00000000" in text:
        raise Refused(f"{kind.name} holds the character of code 0, which no path or name has")
    import tomllib  # late: most programs that check a text read no TOML

    try:
        found = tomllib.loads(text.decode())
        is_deep = _is_deep(found, MOST_DEPTH)
    except (ValueError, RecursionError) as error:
        raise Refused(f"not TOML: {str(error)[:_LONGEST_FAULT]}") from error
    if is_deep:
        raise Refused(f"{kind.name} nests tables and lists over {MOST_DEPTH} deep", too_large=True)
    return found


def _is_deep(value: Any, most: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return most < 0 or any(_is_deep(one, most - 1) for one in inner)


def read_toml_file(path: Path, kind: TextKind) -> dict[str, Any]:
    """Return the table of a TOML file; raise `Refused` as `read_toml`, or `OSError` if it is not a file."""
    with open_file(path) as file:
        return read_toml(file.read(kind.most_bytes + 1), kind)


def read_project(folder: Path) -> dict[str, Any]:
    """Return the `pyproject.toml` of a folder, in which every table that is read here is a table.

    Raises `OSError` for anything but a file, and `Refused`.
    """
    found = read_toml_file(folder / "pyproject.toml", PROJECT)
    project = _table(found, "project")
    _table(found, "build-system")
    for names in (("uv", "sources"), ("hatch", "build", "targets", "wheel"), ("poetry",), ("setuptools",)):
        inner = _table(found, "tool")
        for name in names:
            inner = _table(inner, name)
    for name in ("description", "version"):
        if not isinstance(project.get(name, ""), str):
            raise Refused("it is not a string", place=f"project.{name}")
    points = _table(project, "entry-points")
    for group in points:
        if not all(isinstance(target, str) for target in _table(points, group).values()):
            raise Refused("an entry point is not a string", place="project.entry-points")
    for name in ("dependencies", "dynamic"):
        listed = project.get(name, [])
        if not (isinstance(listed, list) and all(isinstance(one, str) for one in listed)):
            raise Refused("it is not a list of strings", place=f"project.{name}")
    return found


def _table(outer: dict[str, Any], name: str) -> dict[str, Any]:
    table = outer.get(name, {})
    if not isinstance(table, dict):
        raise Refused("it is not a table", place=name)
    return table


def is_finite(value: Any) -> bool:
    """Return whether no number of a parsed value is NaN or infinite, as `NaN` and `1e999` are.

    Python reads and writes these. Other readers refuse what holds them, and NaN equals nothing.
    """
    if isinstance(value, float):
        return value - value == 0
    if isinstance(value, BaseModel):
        value = dict(value)
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    return not isinstance(value, list | tuple) or all(map(is_finite, value))


def refusal_of(error: ValidationError) -> Refused:
    """Return the first fault that a validation found; of very many faults their number."""
    if (count := error.error_count()) > _MOST_FAULTS:
        return Refused(f"{count:,} of its values do not fit")
    fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part)[:80] for part in fault["loc"])
    return Refused(fault["msg"].removeprefix("Value error, ")[:_LONGEST_FAULT], place=place[:_LONGEST_FAULT])


def _turn(text: bytes) -> Any:
    """Return what a parser of this text waits for: long texts take turns."""
    return _parsing_large if len(text) > _LARGE else nullcontext()


CONTROL = TextKind("the body", 64 * KIB, 2_000)
"""Body of a request that changes settings, tokens, roles and the like."""
ANNOUNCEMENT = TextKind("the announcement", 2 * MIB, 50_000)
"""Files of a version or a model that are going to be sent, with their attestations."""
CHECK_REPORT = TextKind("the report of `wander check`", 64 * KIB, 4_000)
ATTESTATIONS = TextKind("the attestations", 256 * KIB, 10_000)
MANIFEST = TextKind("run.json", 32 * MIB, 2_200_000, most_nodes=20_000)
"""Of a run of a million examples: an id and a stratum of each."""
RUN_ANNOUNCEMENT = TextKind("the announcement of a run", 48 * MIB, 2_210_000, most_nodes=25_000)
"""`run.json` as a string of JSON, with the names and digests of the files that follow."""
MANIFEST_HEAD = TextKind("run.json without its examples", 64 * KIB, 10_000)
ROLLOUT = TextKind("a rollout", 16 * MIB, 1_000_000, most_nodes=100_000)
"""A line of `rollouts.jsonl`. Token ids and log-probabilities are most of its values."""
CHECKPOINT = TextKind("a line of `checkpoints.jsonl`", 4 * KIB, 20)
METRICS = TextKind("a line of metrics", 64 * KIB, 2_000)
"""Of `metrics.jsonl`, `alerts.jsonl` or `evaluations.jsonl` of a training run."""
TOOL_ARGUMENTS = TextKind("the arguments of a call", 16 * KIB, 1_000)
LOCK = TextKind("the lock", MIB, 100_000)
PROJECT = TextKind("`pyproject.toml`", 256 * KIB, 100_000)
SETTINGS = TextKind("the file", MIB, 100_000)
"""A suite or the settings of a training, which no hub reads."""
WEIGHTS_HEADER = TextKind("the header of a file of weights", 4 * MIB, 400_000)
MODEL_CONFIG = TextKind("a settings file of a model", 4 * MIB, 300_000)
TOKENIZER_TEXT = TextKind("`tokenizer.json`", 48 * MIB, 4_000_000, most_nodes=1_200_000)
CLAIMS = TextKind("a part of the identity token", 16 * KIB, 1_000)
PROVIDER_ANSWER = TextKind("the answer", 512 * KIB, 10_000)
"""Answer of a sign-in provider or an issuer of identity tokens."""
UPSTREAM_PAGE = TextKind("the page", 32 * MIB, 1_500_000)
"""Page of the package index behind a hub."""
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
    *(CLAIMS, PROVIDER_ANSWER, UPSTREAM_PAGE),
)
"""Every kind that a hub reads, for the table in docs/package-index.md."""
