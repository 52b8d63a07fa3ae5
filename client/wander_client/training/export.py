"""Write the adapter package that lets another trainer use an environment, or serves it with OpenEnv."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander.types import portable_json

from wander_client.errors import ClientError
from wander_client.packages.built_package import require_project
from wander_client.packages.scaffold import fill_templates, require_free

if TYPE_CHECKING:
    from wander_client.environments.location import Location


@dataclass(frozen=True)
class Trainer:
    """A trainer that an environment can be exported to."""

    name: str
    requirements: tuple[str, ...]
    """Requirements for the trainer's interface."""
    use: str
    """Instructions for using the adapter, with `@module@` and `@name@` to fill in."""


TRAINERS = {
    "prime-rl": Trainer(
        "prime-rl",
        ("verifiers>=0.4", "wander-compat"),
        'Name the task set in the settings of the training: `id = "@module@"` in `[[orchestrator.env]]`,\n'
        "`uv run eval @module@` plays it.",
    ),
    "skyrl": Trainer(
        "SkyRL",
        ("skyrl-gym>=0.4",),
        "Import `@module@` in the entry point of the training (that registers `@name@`), make the rows with\n"
        "`python -m @module@ train 1000 > train.jsonl`, and set `environment.env_class=@name@`. A row's "
        "`extra_info` names its example.",
    ),
    "tinker": Trainer(
        "Tinker",
        ("tinker-cookbook>=0.6",),
        "Give `@module@.WanderDatasetBuilder(model_name=..., renderer_name=...)` to a recipe as its\n"
        "`dataset_builder`.",
    ),
}


def write_adapter(
    location: Location, arguments: dict[str, Any], to: str, out: Path, index: str
) -> list[Path]:
    """Write the adapter's package into a new or empty folder. Returns its files, relative to the folder."""
    require_free(out, "choose another folder")
    trainer = TRAINERS[to]
    words = {
        "use": trainer.use,  # first, because it contains words that are filled in after it
        "trainer": trainer.name,
        **_words(location, arguments, to, index, trainer.requirements),
    }
    templates = files("wander_client") / "templates" / "export"
    content = {
        "pyproject.toml": templates / "pyproject.toml.txt",
        "README.md": templates / "README.md.txt",
        f"{words['module']}.py": templates / f"{to.replace('-', '_')}.py.txt",
    }
    return fill_templates(out, content, words)


def write_server(
    location: Location,
    arguments: dict[str, Any],
    out: Path,
    index: str,
    manifest: dict[str, Any],
) -> list[Path]:
    """Write an OpenEnv server of an environment into a new or empty folder. Returns its files.

    `manifest` has the `name`, the `version` and the `validation` block of `openenv.yaml`.
    """
    require_free(out, "choose another folder")
    words = _words(location, arguments, "openenv", index, ("openenv>=0.10",))
    templates = files("wander_client") / "templates" / "export" / "openenv"
    content = {
        "pyproject.toml": templates / "pyproject.toml.txt",
        "README.md": templates / "README.md.txt",
        "server/__init__.py": templates / "init.py.txt",
        "server/app.py": templates / "app.py.txt",
        "server/Dockerfile": templates / "Dockerfile.txt",
    }
    served = {"type": "space", "runtime": "fastapi", "app": "server.app:app", "port": 8000}
    text = _yaml({"spec_version": 1, **manifest, **served})
    written = fill_templates(out, content, words)
    (out / "openenv.yaml").write_text(text + "\n", encoding="utf-8")
    return [Path("openenv.yaml"), *written]


def _words(
    location: Location, arguments: dict[str, Any], to: str, index: str, requirements: tuple[str, ...]
) -> dict[str, str]:
    """Return what the templates of every export fill in."""
    if location.installed is not None:
        name = location.installed.record.name
        requirement = f"{name}=={location.installed.record.version}"
    else:
        assert location.folder is not None
        if not (location.folder / "pyproject.toml").is_file():
            raise ClientError(
                f"`{location.folder}` has no `pyproject.toml`, so nothing can install it",
                hint="run `wander new NAME` to create a package",
                code="no_package",
            )
        name = requirement = require_project(location.folder)["name"]
    module = f"{name.replace('-', '_')}_{to.replace('-', '_')}"
    return {
        "label": location.label,
        "name": name,
        "module": module,
        "package": module.replace("_", "-"),
        "dependencies": portable_json(["wander-sdk", "wander-integrations", requirement, *requirements]),
        "index": index,
        # JSON in a Python string literal, because Python does not know `true` and `null`.
        "arguments": repr(json.dumps(arguments)),
    }


def _yaml(fields: dict[str, Any], indent: str = "") -> str:
    """Write mappings as YAML blocks, and everything else as JSON, which is YAML too."""
    return "\n".join(
        f"{indent}{name}:\n{_yaml(value, indent + '  ')}"
        if isinstance(value, dict) and value
        else f"{indent}{name}: {portable_json(value)}"
        for name, value in fields.items()
    )
