"""Write the adapter package that lets another trainer use an environment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    if location.installed is not None:
        name = location.installed.record.name
        requirement = f"{name}=={location.installed.record.version}"
    else:
        assert location.folder is not None
        if not (location.folder / "pyproject.toml").is_file():
            raise ClientError(
                f"`{location.folder}` has no `pyproject.toml`: a trainer cannot install it",
                hint="run `wander new NAME` to create a package",
                code="no_package",
            )
        name = requirement = require_project(location.folder)["name"]
    kind = to.replace("-", "_")
    module = f"{name.replace('-', '_')}_{kind}"
    words = {
        "use": trainer.use,
        "label": location.label,
        "name": name,
        "module": module,
        "package": module.replace("_", "-"),
        "dependencies": json.dumps(["wander-sdk", "wander-integrations", requirement, *trainer.requirements]),
        "trainer": trainer.name,
        "index": index,
        # JSON in a Python string literal, because Python does not know `true` and `null`.
        "arguments": repr(json.dumps(arguments)),
    }
    templates = files("wander_client") / "templates" / "export"
    content = {
        "pyproject.toml": templates / "pyproject.toml.txt",
        "README.md": templates / "README.md.txt",
        f"{module}.py": templates / f"{kind}.py.txt",
    }
    return fill_templates(out, content, words)
