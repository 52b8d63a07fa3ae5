"""Reads folders of Harbor tasks as validated values. A folder is untrusted: sizes and counts are bounded."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from wander.errors import DatasetError
from wander.system.plain_files import open_plain_file, read_plain_file, walk_plain

from wander_integrations.harbor.task_file import Step, TaskFile, parse_task_file

MOST_TASKS = 5_000
MOST_FILES = 5_000
MOST_TEXT = 1 << 20
"""Maximum bytes of `task.toml`, of an instruction and of a Dockerfile."""
MOST_BYTES = 128 << 20
"""Maximum bytes of all files of a task."""
MOST_FOLDERS = 100_000
"""Maximum number of folders that are searched for tasks."""
TASK_FILE = "task.toml"
INSTRUCTION = "instruction.md"
ENVIRONMENT, TESTS, SOLUTION, STEPS = "environment", "tests", "solution", "steps"
TEST_SCRIPT, SOLVE_SCRIPT = "test.sh", "solve.sh"
_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)
"""Lines at the start of an instruction that mark the text for filters of training data."""
_SKIPPED = frozenset({".git", "node_modules", ".venv", "__pycache__"})


@dataclass(frozen=True)
class TaskContent:
    """A file of a task."""

    content: bytes
    executable: bool


@dataclass(frozen=True)
class StepFolder:
    """A step of a task: its settings and instruction. A task without steps has a single one."""

    settings: Step
    instruction: str
    folder: Path


@dataclass(frozen=True)
class HarborTask:
    """A task folder whose parts exist and whose `task.toml` is valid."""

    folder: Path
    name: str
    """Name in `task.toml`, or the name of the folder."""
    settings: TaskFile
    instruction: str
    """Instruction without canary lines; empty if the task has steps."""
    sizes: dict[str, int]
    """Size of each file, by its path relative to the folder."""
    digest: str
    """SHA-256 of the paths and contents of all files."""
    steps: list[StepFolder] = field(default_factory=list)

    def has(self, *names: str) -> bool:
        """Return whether the task has a file of one of these names."""
        return any(name in self.sizes for name in names)

    def text(self, name: str) -> str | None:
        """Return the content of a text file, or None if it does not exist."""
        return _read_text(self.folder, name) if name in self.sizes else None

    def contents(self, part: str) -> dict[str, TaskContent]:
        """Return the files below a folder of the task, by their path relative to it; all files for ``."""
        prefix = f"{part}/" if part else ""
        found = {}
        for name, size in self.sizes.items():
            if name.startswith(prefix):
                path = self.folder / name
                content = read_plain_file(path, size, below=self.folder)
                # Wheels do not keep the mode of files.
                executable = bool(path.stat().st_mode & 0o111) or content.startswith((b"#!", b"\x7fELF"))
                found[name.removeprefix(prefix)] = TaskContent(content, executable)
        return found


def read_task(folder: Path) -> HarborTask:
    """Read and check a task folder. Raises `DatasetError` that names the file and a remedy."""
    folder = folder.expanduser().resolve()
    if not (folder / TASK_FILE).is_file():
        raise DatasetError(
            f"`{folder}` has no `{TASK_FILE}`", hint="name the folder of a Harbor task, or a folder of tasks"
        )
    try:
        settings = parse_task_file(
            read_plain_file(folder / TASK_FILE, MOST_TEXT), f"{folder.name}/{TASK_FILE}"
        )
        sizes, digest = _list_files(folder)
    except OSError as error:
        raise _unreadable(folder, error) from error
    name = settings.task.name if settings.task else folder.name
    steps = [_read_step(folder, step, sizes) for step in settings.steps]
    instruction = "" if steps else _instruction(folder, INSTRUCTION, sizes)
    if settings.environment.docker_image is None and not _below(sizes, ENVIRONMENT):
        raise _lacks(
            folder, f"{ENVIRONMENT}/Dockerfile", "add it, or set `docker_image` in the table `[environment]`"
        )
    if not steps and not _has_tests(settings, sizes, TESTS):
        raise _lacks(folder, f"{TESTS}/{TEST_SCRIPT}", "it runs the tests and writes the reward")
    for step in steps:
        if not _has_tests(settings, sizes, TESTS, f"{STEPS}/{step.settings.name}/{TESTS}"):
            raise _lacks(
                folder,
                f"{STEPS}/{step.settings.name}/{TESTS}/{TEST_SCRIPT}",
                f"add it, or `{TESTS}/{TEST_SCRIPT}` for all steps",
            )
    return HarborTask(folder, name, settings, instruction, sizes, digest, steps)


def read_tasks(folder: Path, invalid: dict[str, str] | None = None) -> list[HarborTask]:
    """Read a task folder, or all task folders below a folder, in the order of their paths.

    If `invalid` is given, the invalid tasks of a folder of tasks are left out, and it gets their paths with
    the reasons. Raises `DatasetError` for a folder without tasks, for an invalid task, and for two of the
    same name.
    """
    folder = folder.expanduser().resolve()
    if not folder.is_dir():
        raise DatasetError(f"`{folder}` is not a folder", hint="name the folder of a Harbor task")
    if (folder / TASK_FILE).is_file():
        return [read_task(folder)]
    folders = sorted(_task_folders(folder))
    if not folders:
        raise DatasetError(
            f"`{folder}` contains no Harbor tasks", hint=f"a task is a folder with the file `{TASK_FILE}`"
        )
    tasks = []
    for path in folders:
        try:
            tasks.append(read_task(path))
        except DatasetError as error:
            if invalid is None:
                raise
            invalid[path.relative_to(folder).as_posix()] = (
                f"{error}; {error.hint}" if error.hint else str(error)
            )
    names: dict[str, HarborTask] = {}
    for task in tasks:
        if other := names.get(task.name):
            raise DatasetError(
                f"`{other.folder}` and `{task.folder}` have the same name `{task.name}`",
                hint="give each task a name of its own in the table `[task]`",
            )
        names[task.name] = task
    return tasks


def _task_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders with a task file, without looking inside tasks and without following links."""
    waiting, visited, tasks = [folder], 0, 0
    while waiting:
        place = waiting.pop()
        visited += 1
        if visited > MOST_FOLDERS or tasks > MOST_TASKS:
            raise DatasetError(
                f"`{folder}` has too many folders or tasks",
                hint=f"import at most {MOST_TASKS:,} tasks at a time, from a folder that has only tasks",
            )
        if (place / TASK_FILE).is_file():
            tasks += 1
            yield place
            continue
        waiting += [
            path
            for path in place.iterdir()
            if path.is_dir() and not path.is_symlink() and path.name not in _SKIPPED
        ]


def _list_files(folder: Path) -> tuple[dict[str, int], str]:
    """Return the sizes of a task's files, and the digest of their paths and contents."""
    sizes: dict[str, int] = {}
    total = 0
    for file in walk_plain(folder):
        sizes[file.name] = file.size
        total += file.size
        if len(sizes) > MOST_FILES or total > MOST_BYTES:
            raise DatasetError(
                f"`{folder.name}` has more than {MOST_FILES:,} files or {MOST_BYTES >> 20} MiB",
                hint="remove what does not belong to the task; large data belongs into its container image",
            )
    digest = hashlib.sha256()
    for name in sorted(sizes):
        with open_plain_file(folder / name, below=folder) as opened:
            content = hashlib.file_digest(opened, "sha256").hexdigest()
        digest.update(f"{name}\n{content}\n".encode())
    return dict(sorted(sizes.items())), digest.hexdigest()


def _read_step(folder: Path, step: Step, sizes: dict[str, int]) -> StepFolder:
    inside = f"{STEPS}/{step.name}"
    if not _below(sizes, inside):
        raise _lacks(folder, inside, "each entry of `[[steps]]` has a folder of its name")
    return StepFolder(step, _instruction(folder, f"{inside}/{INSTRUCTION}", sizes), folder / inside)


def _instruction(folder: Path, name: str, sizes: dict[str, int]) -> str:
    if name not in sizes:
        raise _lacks(folder, name, "it is the text that the model gets")
    lines = _read_text(folder, name).split("\n")
    start = 0
    while start < len(lines) and _CANARY.fullmatch(lines[start].strip()):
        start += 1
    while start < len(lines) and not lines[start].strip():
        start += 1
    text = "\n".join(lines[start:]).rstrip()
    if not text:
        raise DatasetError(f"`{folder.name}/{name}` is empty", hint="write what the model should do")
    return text


def _read_text(folder: Path, name: str) -> str:
    try:
        return read_plain_file(folder / name, MOST_TEXT, below=folder).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DatasetError(f"`{folder.name}/{name}` is not UTF-8 text", hint="save it as UTF-8") from error
    except OSError as error:
        raise _unreadable(folder, error) from error


def _has_tests(settings: TaskFile, sizes: dict[str, int], *parts: str) -> bool:
    """Return whether there is a test script, or the image of a separate verifier that has its own."""
    own_image = settings.is_separate and (
        (settings.verifier.environment is not None and settings.verifier.environment.docker_image)
        or any(f"{part}/Dockerfile" in sizes for part in parts)
    )
    return bool(own_image) or any(f"{part}/{TEST_SCRIPT}" in sizes for part in parts)


def _below(sizes: dict[str, int], part: str) -> bool:
    return any(name.startswith(f"{part}/") for name in sizes)


def _lacks(folder: Path, name: str, hint: str) -> DatasetError:
    return DatasetError(f"the task `{folder.name}` has no `{name}`", hint=hint)


def _unreadable(folder: Path, error: OSError) -> DatasetError:
    return DatasetError(
        f"the task `{folder.name}` cannot be read: `{error.filename}`: {error.strerror}",
        hint="put plain files in place of links and devices",
    )
