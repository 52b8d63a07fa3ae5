"""Task folders of other formats as environments. Plugins know the formats.

    [project.entry-points."wander.task_formats"]
    harbor = "wander_integrations.harbor.project"

The entry point names a module with `write_project`, and what else the format has:

    write_project(folder, out, *, name, **options) -> WrittenProject
                       write the project of an environment that plays the tasks; the options are the format's
    openenv_manifest, openenv_report, server_files
                       describe an environment and the results of its checks for OpenEnv, and return the files
                       of a server of the environment
    EXPORT_MODULE      name of the module that writes an environment's examples as tasks. It runs as a program
                       in the environment's virtual environment (`wander_client.environments.task_export`)
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from wander.lazy import load_plugin

from wander_client.packages.needs import INTEGRATIONS
from wander_client.packages.origins.git import clone_folder
from wander_client.packages.origins.source import PackageOrigin, folder_digest
from wander_client.packages.scaffold import package_name, require_free
from wander_client.settings import load_settings

GROUP = "wander.task_formats"


def load_format(name: str) -> Any:
    """Return the module of a task format. Raises `MissingPlugin` if it is not installed."""
    return load_plugin(GROUP, name, f"the task format `{name}`", INTEGRATIONS, load_settings().hub)


def import_tasks(format_name: str, source: str, out: Path, **options: Any) -> tuple[Any, PackageOrigin]:
    """Write the project of an environment from a folder or a git repository with tasks.

    Returns the plugin's `WrittenProject` and the origin, which is also noted in the README. Nothing is left
    behind if it fails.
    """
    task_format = load_format(format_name)
    name = package_name(out.name)
    require_free(out, "choose another folder")
    with tempfile.TemporaryDirectory(prefix="wander-import-") as work:
        folder = Path(source).expanduser()
        if folder.is_dir():
            folder = folder.resolve()
            origin = PackageOrigin(folder.name, sha256=folder_digest(folder))
        else:
            folder, origin = clone_folder(source, Path(work) / "clone")
        made = Path(work) / name
        made.mkdir()
        written = task_format.write_project(folder, made, name=name, **options)
        with (made / "README.md").open("a", encoding="utf-8") as readme:
            readme.write(f"\n---\n\n{origin.note}\n")
        _move(made, out)
    return written, origin


def _move(made: Path, out: Path) -> None:
    """Move a finished folder to its place, which may be on another disk."""
    import shutil

    out.parent.mkdir(parents=True, exist_ok=True)
    if out.exists():
        out.rmdir()
    shutil.move(made, out)
