"""Reads Dockerfiles: the working folder, and whether the file can be played without building an image.

A container runtime builds every Dockerfile. Without one, a Dockerfile that only copies files and sets
variables can be played over another system.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from wander.errors import DatasetError

IGNORED = frozenset({"LABEL", "EXPOSE", "CMD", "ENTRYPOINT", "MAINTAINER", "STOPSIGNAL", "SHELL"})
"""Instructions without an effect on a box, which starts commands one by one."""
_VARIABLE = re.compile(r"(?<!\\)\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True)
class Instruction:
    """One instruction of a Dockerfile."""

    line: int
    name: str
    arguments: str


@dataclass
class PlainImage:
    """The effect of a Dockerfile without builds: variables and copied files over a base image."""

    base: str
    """Name of the base image. Boxes do not use it: they run on the system of their backend."""
    working_folder: str = "/"
    variables: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """Path in the image of each copied file, and its path relative to the Dockerfile's folder."""


def read_instructions(text: str) -> list[Instruction]:
    """Return the instructions of a Dockerfile, with continued lines joined."""
    instructions: list[Instruction] = []
    waiting, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("#") or (not stripped and waiting):
            continue
        start = start if waiting else number
        waiting += stripped
        if waiting.endswith("\\"):
            waiting = f"{waiting[:-1]} "
            continue
        if waiting:
            name, _, arguments = waiting.partition(" ")
            instructions.append(Instruction(start, name.upper(), arguments.strip()))
        waiting = ""
    return instructions


def working_folder(text: str) -> str | None:
    """Return the working folder that the last stage sets, or None if it keeps that of its base image."""
    folder: str | None = None
    for instruction in read_instructions(text):
        if instruction.name == "FROM":
            folder = None
        elif instruction.name == "WORKDIR":
            path = _expand(instruction.arguments, {})
            if "$" in path:
                return None
            folder = posixpath.normpath(posixpath.join(folder or "/", path))
    return folder


def plain_image(text: str, context: Mapping[str, object], where: str) -> PlainImage:
    """Return the effect of a Dockerfile that builds nothing.

    `context` has the paths of the files in its folder. Raises `DatasetError` with the line that needs a
    container runtime.
    """
    image: PlainImage | None = None
    for instruction in read_instructions(text):
        place = f"`{where}`, line {instruction.line}"
        arguments = _expand(instruction.arguments, image.variables if image else {})
        if instruction.name == "FROM" and image is None:
            image = PlainImage(base=arguments.split()[0] if arguments else "")
        elif image is None or instruction.name == "FROM":
            raise _needs_build(place, "several stages" if image else instruction.name)
        elif instruction.name == "WORKDIR":
            image.working_folder = posixpath.normpath(posixpath.join(image.working_folder, arguments))
        elif instruction.name == "ENV":
            image.variables.update(_variables(arguments, place))
        elif instruction.name == "COPY":
            image.files.update(_copies(arguments, image.working_folder, context, place))
        elif instruction.name == "USER" and arguments in ("root", "0"):
            continue
        elif instruction.name not in IGNORED:
            raise _needs_build(place, instruction.name)
    if image is None:
        raise DatasetError(f"`{where}` has no instruction `FROM`", hint="add `FROM IMAGE` as its first line")
    return image


def _needs_build(place: str, what: str) -> DatasetError:
    return DatasetError(
        f"{place}: `{what}` needs an image build",
        hint="install Podman or Docker, and play the task without `start_from='host'`",
    )


def _expand(text: str, variables: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda match: variables.get(match[1] or match[2], match[0]), text.strip())


def _variables(arguments: str, place: str) -> dict[str, str]:
    try:
        words = shlex.split(arguments)
    except ValueError as error:
        raise DatasetError(
            f"{place}: `ENV` cannot be read: {error}", hint="write `ENV NAME=value`"
        ) from error
    if words and "=" not in words[0]:  # the older form `ENV NAME value`
        name, _, value = arguments.partition(" ")
        return {name: value.strip()}
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _copies(
    arguments: str, folder: str, context: Mapping[str, object], place: str
) -> Iterator[tuple[str, str]]:
    """Yield the target and the source of every file that a `COPY` copies."""
    words = arguments.split()
    while words and words[0].startswith("--"):
        option = words.pop(0)
        if not option.startswith(("--chmod=", "--chown=root", "--chown=0")):
            raise _needs_build(place, f"COPY {option}")
    if words and words[0].startswith("["):
        try:
            words = list(map(str, json.loads(" ".join(words))))
        except ValueError as error:
            raise DatasetError(f"{place}: `COPY` cannot be read: {error}") from error
    if len(words) < 2:
        raise DatasetError(f"{place}: `COPY` needs a source and a target")
    *sources, target = words
    into = target.endswith("/") or target in (".", "..") or len(sources) > 1
    target = posixpath.normpath(posixpath.join(folder, target))
    for source in sources:
        if set(source) & set("*?["):
            raise _needs_build(place, f"COPY {source}")
        path = posixpath.normpath(source.lstrip("/") or ".")
        if path in context:
            yield posixpath.join(target, posixpath.basename(path)) if into else target, path
            continue
        prefix = "" if path == "." else f"{path}/"
        inside = [name for name in context if name.startswith(prefix)]
        if not inside:
            raise DatasetError(
                f"{place}: `COPY` names `{source}`, which does not exist",
                hint="its sources are relative to the folder `environment`",
            )
        for name in inside:
            yield posixpath.join(target, name.removeprefix(prefix)), name
