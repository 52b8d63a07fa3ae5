"""Completion of parameters: the environments, runs and models of this machine."""

from __future__ import annotations

import re
from collections.abc import Callable

from wander.system.plain_files import is_plain_file

from wander_client.settings import Settings, load_settings

_WORD = re.compile(r"[\w@%+=:,./-]+")


def suggest(parameter: str) -> list[str]:
    """Return completions for a parameter, or an empty list if it has no known values."""
    find = _NAMES.get(parameter)
    names = find(load_settings(None)) if find else []
    # The shell inserts these words unchanged, and a folder from somebody else may have any name.
    return [name for name in dict.fromkeys(names) if _WORD.fullmatch(name)]


def _environments(settings: Settings) -> list[str]:
    folders = sorted((settings.data_dir / "environments").glob("*/*/*"))
    return [f"{folder.parent.name}/{folder.name}" for folder in folders if not folder.name.startswith(".")]


def _runs(settings: Settings) -> list[str]:
    """Return the folders of runs, including the runs of suites, the newest first."""
    folder = settings.runs_dir
    files = [
        file for file in (*folder.glob("*/run.json"), *folder.glob("*/*/run.json")) if is_plain_file(file)
    ]
    files.sort(key=lambda file: file.lstat().st_mtime, reverse=True)
    return [str(file.parent) for file in files]


def _models(settings: Settings) -> list[str]:
    folder = settings.cache_dir / "models"
    pulled = [file.parent for file in sorted(folder.glob("hub/*/*/latest"))]
    files = [*sorted(settings.runs_dir.glob("*/model/config.json")), *sorted(folder.glob("*/config.json"))]
    return [
        "smollm2",
        *(f"hub:{link.parent.name}/{link.name}" for link in pulled),
        *(str(file.parent) for file in files),
    ]


_NAMES: dict[str, Callable[[Settings], list[str]]] = {
    **dict.fromkeys(("environment", "environments", "target"), _environments),
    **dict.fromkeys(("run", "runs", "before", "after", "resume", "started_from", "verify"), _runs),
    **dict.fromkeys(("model", "against", "hints"), _models),
}
"""The function that lists the values of each parameter."""
