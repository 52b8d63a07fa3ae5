"""Build the wheel and the source archive of a project folder.

A build runs the project's code, or the code of the tools that it names. So uv, which knows the passwords of
this machine's indexes, first installs the build requirements from wheels. Then the backend runs without these
passwords, in the sandbox. If the user allows it, the backend runs outside the sandbox with the user's
permissions.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from wander.system.child_environ import LOCALE, child_environ
from wander.system.plain_files import describe_kind
from wander.wire.untrusted_text import read_project

from wander_client.errors import ClientError
from wander_client.packages.building import backend
from wander_client.packages.building.leaks import list_ignored
from wander_client.packages.interpreters import Interpreter, choose_python
from wander_client.packages.needs import read_requirement
from wander_client.packages.uv import install_into, make_virtualenv
from wander_client.packages.virtualenvs import VirtualEnvironments, key_of

if TYPE_CHECKING:
    from wander.sandbox import SandboxPolicy

Kind = Literal["wheel", "sdist"]
_SECONDS = 900.0
LARGEST_SOURCE, MOST_FILES = 4 << 30, 100_000
"""Largest number of bytes, and of files and folders, in a project."""
_LARGEST = 1 << 30
"""Largest size of a built file, and of all files that it is built from."""
_REPOSITORIES = (".git", ".hg", ".svn")
_ROOM = {"tmp": 2 << 30, "file": _LARGEST}
"""Limits of the sandbox for a build, higher than for an environment."""
_COMPILERS = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "SOURCE_DATE_EPOCH")
_MOST_ROUNDS = 3
"""Number of times that a backend may request further packages."""


@dataclass(frozen=True)
class Builder:
    """Builds projects on this machine."""

    data_dir: Path
    policy: SandboxPolicy | None
    """Limits of the sandbox for backends. If None, they run with the user's permissions."""

    @contextlib.contextmanager
    def build(self, folder: Path, *, with_source: bool = True) -> Iterator[dict[Kind, Path]]:
        """Yield the wheel of a project, and the source archive that it was built from.

        Both files are deleted after the block. Raises `ClientError`.
        """
        require_plain_project(folder, with_ignored=self.policy is not None)
        system = read_build_system(folder)
        python = choose_python(_stated_python(folder), f"`{folder.name}`")
        with tempfile.TemporaryDirectory(prefix="wander-build-") as name:
            place = Path(name)
            made: dict[Kind, Path] = {}
            source = folder
            if with_source:
                made["sdist"] = self._build(source, "sdist", system, python, place)
                source = _unpack(made["sdist"], place / "source")
            made["wheel"] = self._build(source, "wheel", system, python, place)
            yield made

    def _build(self, source: Path, kind: Kind, system: list[str], python: Interpreter, place: Path) -> Path:
        doing = f"building `{source.name}`"
        requires = list(system)
        for _ in range(_MOST_ROUNDS):
            with self._environment(requires, python, doing) as virtualenv, tempfile.TemporaryFile() as out:
                head = self._run(virtualenv, source, kind, out, doing)
                if "file" in head:
                    return _keep(out, str(head["file"]), kind, place, doing)
                more = head.get("requires")
                if not isinstance(more, list):
                    break
                requires += [str(read_requirement(str(each), source.name)) for each in more[:50]]
        raise ClientError(f"{doing} failed: its backend returned no answer", code="build_failed")

    @contextlib.contextmanager
    def _environment(self, requires: Sequence[str], python: Interpreter, doing: str) -> Iterator[Path]:
        """Prepare a virtual environment with build requirements; equal requirements are installed once."""

        def fill(place: Path) -> None:
            make_virtualenv(place, python.path)
            wanted = place / "requirements.txt"
            wanted.write_text("".join(f"{each}\n" for each in requires), encoding="utf-8")
            options = ["install", "--quiet", "-r", str(wanted)]
            install_into(place, options, doing=f"{doing}: installing the build requirements")

        digest = hashlib.sha256("\n".join(["build", *sorted(requires)]).encode()).hexdigest()
        key = key_of(digest, python.version)
        with VirtualEnvironments(self.data_dir).hold(key, python, fill) as virtualenv:
            yield virtualenv

    def _run(self, virtualenv: Path, source: Path, kind: Kind, out: IO[bytes], doing: str) -> dict[str, Any]:
        """Run the backend and return the first line of its answer; the file's bytes follow in `out`."""
        from wander.worker.process.program import Confinement, run_program

        program, confinement = os.path.realpath(backend.__file__), None
        if self.policy is not None:
            from wander.sandbox.visible import choose_binds

            runtime = VirtualEnvironments(self.data_dir).runtime(virtualenv.name)
            sees = choose_binds(runtime, source, (*self.policy.read, program), self.policy.hide)
            confinement = Confinement(self.policy.model_copy(update=_ROOM), sees)
        path = f"{virtualenv / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
        end = run_program(
            virtualenv / "bin" / "python",
            [program, str(source), kind],
            [out.fileno()],
            seconds=_SECONDS,
            environ=child_environ(*LOCALE, *_COMPILERS, PATH=path),
            confinement=confinement,
        )
        if end.status is None:
            raise ClientError(f"{doing} took more than {_SECONDS:g} s", code="build_failed")
        out.seek(0)
        with contextlib.suppress(ValueError, RecursionError):
            head = json.loads(out.readline(1 << 16))
            if end.status == 0 and isinstance(head, dict):
                return head
        raise ClientError(
            f"{doing} failed",
            detail="\n".join(end.output.splitlines()[-25:]),
            hint=None
            if confinement is None
            else "`--no-sandbox` builds it with your rights, and its code runs",
            code="build_failed",
        )


def read_build_system(folder: Path) -> list[str]:
    """Return a project's build requirements; raises `ClientError` for requirements that are not allowed."""
    try:
        requires = read_project(folder).get("build-system", {}).get("requires")
    except FileNotFoundError:
        requires = None
    except (OSError, ValueError) as error:
        raise ClientError(
            f"`{folder / 'pyproject.toml'}` cannot be read", detail=str(error), code="bad_pyproject"
        ) from error
    listed = backend.DEFAULT["requires"] if requires is None else requires
    if not isinstance(listed, list):
        raise ClientError("`requires` of `[build-system]` is not a list", code="bad_pyproject")
    found = [read_requirement(str(each), f"the build of {folder.name}") for each in listed]
    if any(each.url is not None for each in found):
        raise ClientError(
            f"the build of `{folder.name}` requires a package from an address",
            hint="require a release of it in `[build-system]`",
            code="unsafe_requirement",
        )
    return [str(each) for each in found]


def _stated_python(folder: Path) -> str | None:
    with contextlib.suppress(OSError, ValueError):
        stated = read_project(folder).get("project", {}).get("requires-python")
        return None if stated is None else str(stated)
    return None


@dataclass
class _FolderContents:
    """Contents of a project's folder, by relative path."""

    sizes: dict[str, int] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    """Reasons why files cannot be included in a build."""


def require_plain_project(folder: Path, *, with_ignored: bool = True) -> None:
    """Raise `ClientError` for a folder that cannot be built: special files, links out of it, too many bytes.

    Repositories, caches and virtual environments are not checked. `with_ignored` chooses whether to check
    files that git ignores: build backends leave these files out, but the sandbox copies the whole folder.
    """
    contents = _list_contents(folder)
    total = sum(contents.sizes.values())
    if not contents.faults and total <= _LARGEST:
        return
    names = [*contents.faults, *contents.sizes]
    ignored = set() if with_ignored else set(list_ignored(folder, names))
    for name in sorted(contents.faults.keys() - ignored):
        raise ClientError(
            f"`{name}` in `{folder.name}` {contents.faults[name]}",
            hint="remove it, or put a plain file in its place",
            code="unsafe_file",
        )
    sizes = {name: size for name, size in contents.sizes.items() if name not in ignored}
    if sum(sizes.values()) > _LARGEST:
        largest = max(sizes, key=lambda name: sizes[name])
        raise ClientError(
            f"`{folder.name}` has more than {_LARGEST >> 20:,} MiB, "
            f"and `{largest}` has {sizes[largest] >> 20:,} MiB of them",
            hint="move files that are not part of the package out of the folder",
            code="unsafe_package",
        )


def _list_contents(folder: Path) -> _FolderContents:
    """Return the contents of a folder, following links. Raises `ClientError` for too many files."""
    contents, count = _FolderContents(), 0
    root = os.path.realpath(folder)
    above: set[str] = set()
    seen: set[str] = set()
    waiting = [(root, "", False)]
    while waiting:
        place, name, is_left = waiting.pop()
        if is_left:
            above.remove(place)
        elif place in above:
            contents.faults[name] = "is a link to a folder that contains it"
        elif place not in seen:
            seen.add(place)
            above.add(place)
            waiting.append((place, name, True))
            try:
                with os.scandir(place) as entries:
                    found = [entry.name for entry in islice(entries, MOST_FILES + 1)]
            except OSError as error:
                contents.faults[name or "."] = f"cannot be read: {error.strerror}"
                continue
            count += len(found)
            if count > MOST_FILES:
                raise ClientError(
                    f"`{folder.name}` contains more than {MOST_FILES:,} files",
                    hint="move files that are not part of the package out of the folder",
                    code="unsafe_package",
                )
            for each in found:
                if not any(fnmatchcase(each, left) for left in (*backend.LEFT_OUT, *_REPOSITORIES)):
                    inner = f"{name}/{each}" if name else each
                    if (to := _look_at(os.path.join(place, each), inner, root, contents)) is not None:
                        waiting.append((to, inner, False))
    return contents


def _look_at(path: str, name: str, root: str, contents: _FolderContents) -> str | None:
    """Record the file at a path; return the folder that it leads to, or None for anything else."""
    try:
        real = os.path.realpath(path, strict=True) if os.path.islink(path) else path
        status = os.stat(real)
    except OSError as error:
        contents.faults[name] = f"is a broken link: {error.strerror}"
        return None
    if os.path.commonpath([root, real]) != root:
        contents.faults[name] = "is a link to a path outside the folder"
    elif stat.S_ISDIR(status.st_mode):
        return real
    elif not stat.S_ISREG(status.st_mode):
        contents.faults[name] = f"is {describe_kind(status.st_mode)}, not a plain file"
    elif not os.access(real, os.R_OK):
        contents.faults[name] = "cannot be read: permission denied"
    else:
        contents.sizes[name] = status.st_size
    return None


def _keep(out: IO[bytes], name: str, kind: Kind, place: Path, doing: str) -> Path:
    """Write a built file under the name that the backend gave it."""
    from wander_client.paths import path_below

    ends = ".whl" if kind == "wheel" else ".tar.gz"
    if not name.endswith(ends):
        raise ClientError(f"{doing} returned `{name[:100]}`, which is not a {kind}", code="build_failed")
    made = path_below(place, kind, name)
    with made.open("wb") as file:
        while piece := out.read(1 << 20):
            if file.tell() > _LARGEST:
                raise ClientError(f"{doing} returned more than {_LARGEST >> 20} MiB", code="build_failed")
            file.write(piece)
    return made


def too_large(name: str, file: str) -> ClientError:
    """Return the error for a package with too many bytes; `file` exceeds the limit."""
    message = (
        f"`{name}` has more than {LARGEST_SOURCE >> 20:,} MiB or {MOST_FILES:,} files; "
        f"`{file}` exceeds the limit"
    )
    return ClientError(
        message, hint="leave out files that are not part of the package", code="unsafe_package"
    )


def extract_bounded(path: Path, work: Path) -> None:
    """Unpack a tar archive of plain files. Raises `ClientError` if it has too many bytes or files."""
    room, files = LARGEST_SOURCE, MOST_FILES

    def count(member: tarfile.TarInfo, place: str) -> tarfile.TarInfo | None:
        nonlocal room, files
        room, files = room - member.size, files - 1
        if room < 0 or files < 0:
            raise too_large(path.name, member.name)
        return tarfile.data_filter(member, place)

    with tarfile.open(path) as archive:
        for member in archive:  # one by one: a list of all of them may be long
            archive.extract(member, work, filter=count)


def _unpack(archive: Path, place: Path) -> Path:
    """Unpack a source archive that was just built, and return its folder."""
    try:
        extract_bounded(archive, place)
        (folder,) = place.iterdir()
    except (tarfile.TarError, OSError, ValueError) as error:
        raise ClientError(
            f"`{archive.name}` is not a source archive", detail=str(error), code="build_failed"
        ) from error
    return folder
