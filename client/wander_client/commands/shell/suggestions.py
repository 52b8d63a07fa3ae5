"""Values of parameters for a shell's completion: the environments, runs and models of this machine."""

from __future__ import annotations

import re
from collections.abc import Callable

from wander.system.plain_files import is_plain_file

from wander_client.settings import Settings, load_settings

_WORD = re.compile(r"[\w@%+=:,./-]+")


def suggest(parameter: str) -> list[str]:
    """Return what a parameter may name; empty if that is not known."""
    find = _NAMES.get(parameter)
    names = find(load_settings(None)) if find else []
    # A shell puts these words into a line unchanged: a folder that somebody sent may have any name.
    return [name for name in dict.fromkeys(names) if _WORD.fullmatch(name)]


def _environments(settings: Settings) -> list[str]:
    folders = sorted((settings.data_dir / "environments").glob("*/*/*"))
    return [f"{folder.parent.name}/{folder.name}" for folder in folders if not folder.name.startswith(".")]


def _runs(settings: Settings) -> list[str]:
    """Return the folders of runs, the newest first; those of a suite lie in its folder."""
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
        *(f"hub:{place.parent.name}/{place.name}" for place in pulled),
        *(str(file.parent) for file in files),
    ]


_NAMES: dict[str, Callable[[Settings], list[str]]] = {
    **dict.fromkeys(("environment", "environments", "target"), _environments),
    **dict.fromkeys(("run", "runs", "before", "after", "resume", "started_from", "verify"), _runs),
    **dict.fromkeys(("model", "against", "hints"), _models),
}
"""The source of a parameter's values, by the name of the parameter."""
