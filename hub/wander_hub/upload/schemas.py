"""An upload, and what its checks read from the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, Literal

from wander.wire import UploadWarning

from wander_hub.http.problems import HubProblem
from wander_hub.upload_rules import OPTIONAL, RULES, Action

_SHOWN_FINDINGS = 3


@dataclass(frozen=True)
class Upload:
    """One file as it arrived, before anything is believed."""

    owner: str
    filename: str
    body: BinaryIO
    """Seekable."""
    size: int
    sha256: str
    fields: dict[str, str] = field(default_factory=dict)
    """First value of every text field of the form."""


@dataclass(frozen=True)
class FileName:
    """What a distribution's file name says."""

    kind: Literal["wheel", "sdist"]
    name: str
    """Normalised."""
    version: str
    stem: str
    """The `{name}-{version}` part as written, which names the folders inside."""
    build: str = ""
    tags: frozenset[str] = frozenset()
    """`python-abi-platform`, expanded; of wheels."""


@dataclass(frozen=True)
class Contents:
    """The result of one pass over an archive's members."""

    metadata: bytes
    """METADATA of a wheel, PKG-INFO of a source archive."""
    entry_point: str | None
    """`module:function` of the `wander.environments` group."""
    has_loader: bool
    """A top-level module defines `load_environment`."""
    license_files: frozenset[str] = frozenset()
    """Paths that `License-File` may name: relative to where this kind of archive keeps them."""
    modules: frozenset[str] = frozenset()
    """Top-level names that would become importable, of wheels."""
    code: tuple[tuple[str, bytes], ...] = ()
    """Path and SHA-256 of every file that Python runs; of a wheel the path below where it is installed."""
    tree_sha256: str | None = None
    """Digest of the source tree, of source archives."""
    generated: tuple[str, ...] = ()
    """Patterns of the files that a source archive declares as made by the build."""


@dataclass(frozen=True)
class Package:
    """A checked distribution file; everything in it was read from the file itself."""

    filename: str
    kind: Literal["wheel", "sdist"]
    size: int
    sha256: str
    name: str
    """Normalised."""
    version: str
    summary: str
    requires_python: str | None
    requires_dist: list[str]
    license: str | None
    tags: list[str]
    readme: str
    readme_type: str
    readme_html: str
    """The README rendered and sanitised, which takes too long for a transaction."""
    contents: Contents = field(repr=False)
    core_metadata: bytes | None
    """METADATA byte for byte, for wheels."""
    warnings: tuple[UploadWarning, ...] = ()
    """What the operator's policy flags and does not refuse."""


def refusal(code: str, detail: str, *, hint: str | None = None) -> HubProblem:
    """Return the refusal of a file under one of the `RULES`."""
    rule = RULES[code]
    return HubProblem(rule.status, code, printable(detail), hint=hint or rule.remedy)


def printable(text: str) -> str:
    """Return one line that a terminal may show, whatever a file's author wrote into it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class Findings:
    """Collects what optional rules find; raises where the operator's policy refuses it."""

    def __init__(self, policy: Mapping[str, Action] | None = None) -> None:
        self._policy = {**OPTIONAL, **(policy or {})}
        self._found: dict[str, list[str]] = {}

    def note(self, code: str, detail: str) -> None:
        """Take one finding down, or refuse the file because of it."""
        action = self._policy[code]
        if action == "refuse":
            raise refusal(code, detail)
        if action == "flag":
            self._found.setdefault(code, []).append(detail)

    def warnings(self) -> tuple[UploadWarning, ...]:
        """Return one warning a rule, in the order of their first finding."""
        found: list[UploadWarning] = []
        for code, details in self._found.items():
            shown = "; ".join(printable(detail[:300]) for detail in details[:_SHOWN_FINDINGS])
            if (more := len(details) - _SHOWN_FINDINGS) > 0:
                shown += f"; and {more:,} more"
            found.append(UploadWarning(code=code, detail=shown, hint=RULES[code].remedy))
        return tuple(found)
