"""Writes the project of an environment that contains Harbor tasks, for `wander env import harbor`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from wander.errors import DatasetError
from wander.system.plain_files import open_plain_file
from wander.types import portable_json

from wander_integrations.harbor.environment import StartFrom
from wander_integrations.harbor.folder import HarborTask, read_tasks
from wander_integrations.harbor.support import unsupported
from wander_integrations.written_project import WrittenProject, pyproject_text

EXPORT_MODULE = "wander_integrations.harbor.export"
TASKS = "tasks"
_NOT_PACKED = frozenset(
    (".git", ".hg", ".hatch", ".nox", ".pixi", ".tox", ".venv", "__pycache__", ".DS_Store")
) | {".mypy_cache", ".pytest_cache", ".ruff_cache"}
"""Names of files and folders that the build backend leaves out of wheels."""
_MOST_LISTED = 200
_MODULE = '''\
"""{summary}"""

from pathlib import Path
from typing import Any

from wander_integrations import HarborEnv


def load_environment(start_from: str = "{start_from}", **options: Any) -> HarborEnv:
    """Return the environment. The options are those of `HarborEnv`."""
    return HarborEnv(
        Path(__file__).parent / "{tasks}",
        start_from=start_from,
        name="{name}",
        summary={summary_literal},
        **options,
    )
'''
_README = """\
# {name}

{summary}

The model gets the instruction of a task and the tool `bash` in a box. When it answers without a call, the
task's tests score the files that it left, in a new box that it never used. `wander check` plays the reference
solutions, which must pass, and known ways to get a reward without solving the task, which must fail.

```
wander eval {name} -m MODEL
wander eval {name} -m MODEL -a start_from=host
```

Boxes start from the image of the task, which needs Podman or Docker. With `start_from=host`, tasks whose
Dockerfile only copies files are played over the system of your machine.

| task | difficulty | time limit |
|---|---|---|
{rows}
{limits}"""


def write_project(source: Path, out: Path, *, name: str, start_from: StartFrom = "task") -> WrittenProject:
    """Write a project with the tasks of a folder into a new or empty folder.

    Invalid tasks of a folder of tasks are left out. Raises `DatasetError` if no task can be played.
    """
    invalid: dict[str, str] = {}
    tasks = read_tasks(source, invalid)
    left_out = {path: [reason] for path, reason in invalid.items()}
    limits: dict[str, None] = {}
    for task in tasks:
        found = unsupported(task)
        blocking = [str(fault) for fault in found if fault.blocks] + _unpackable(task)
        if blocking:
            left_out[task.name] = blocking
        else:
            limits.update(dict.fromkeys(str(fault) for fault in found if not fault.blocks))
    kept = [task for task in tasks if task.name not in left_out]
    if not kept:
        first, reasons = next(iter(left_out.items()))
        raise DatasetError(f"no task can be played; `{first}`: {'; '.join(reasons)}")
    module = name.replace("-", "_")
    base = source.expanduser().resolve()
    if tasks[0].folder == base:
        base = base.parent
    for task in kept:
        _copy(task, out / module / TASKS / task.folder.relative_to(base))
    count = f"{len(kept)} tasks" if len(kept) > 1 else "A task"
    summary = f"{count} in Harbor's format, solved with a shell and scored by tests."
    keywords = ("shell", "harbor", "train", "eval")
    (out / "pyproject.toml").write_text(pyproject_text(name, summary, keywords), encoding="utf-8")
    (out / module / "__init__.py").write_text(
        _MODULE.format(
            name=name,
            tasks=TASKS,
            start_from=start_from,
            summary=summary,
            summary_literal=portable_json(summary),
        ),
        encoding="utf-8",
    )
    (out / "README.md").write_text(_readme(name, summary, kept, list(limits)), encoding="utf-8")
    return WrittenProject(name, [task.name for task in kept], left_out, list(limits))


def _unpackable(task: HarborTask) -> list[str]:
    """Return the reason if a wheel would not contain all files of a task."""
    for path in task.sizes:
        if _NOT_PACKED & set(PurePosixPath(path).parts):
            return [f"`{path}`: wheels do not contain such files; copy it from an archive in its Dockerfile"]
    return []


def _copy(task: HarborTask, target: Path) -> None:
    for name in task.sizes:
        copied = target / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        with open_plain_file(task.folder / name, below=task.folder) as file, copied.open("xb") as out:
            shutil.copyfileobj(file, out)
        copied.chmod(0o755 if (task.folder / name).stat().st_mode & 0o111 else 0o644)


def _readme(name: str, summary: str, tasks: Sequence[HarborTask], limits: Sequence[str]) -> str:
    rows = []
    for task in tasks[:_MOST_LISTED]:
        difficulty = str(task.settings.metadata.get("difficulty", "")).replace("|", " ")
        seconds = task.settings.agent.timeout_sec
        rows.append(f"| {task.name} | {difficulty:.40} | {'' if seconds is None else f'{seconds:g} s'} |")
    if len(tasks) > _MOST_LISTED:
        rows.append(f"| {len(tasks) - _MOST_LISTED} more | | |")
    text = ""
    if limits:
        text = "\nWander does not honor these fields of the tasks:\n\n" + "".join(
            f"- {limit}\n" for limit in limits
        )
    return _README.format(name=name, summary=summary, rows="\n".join(rows), limits=text)
