"""Write the adapter by which another trainer plays an environment."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander_client.errors import ClientError

if TYPE_CHECKING:
    from wander_client.environments.location import Location


@dataclass(frozen=True)
class Trainer:
    """A trainer that an environment can be exported to."""

    name: str
    requirements: tuple[str, ...]
    """What brings its interface."""
    use: str
    """How its users take the adapter up; `@module@` and `@name@` are filled in."""


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
    """Write the adapter's package into a new or empty folder; return its files, relative to it."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ClientError(
            f"`{out}` exists and is not empty", hint="choose another folder", code="folder_not_empty"
        )
    trainer = TRAINERS[to]
    name, requirement = _name_requirement(location)
    kind = to.replace("-", "_")
    module = f"{name.replace('-', '_')}_{kind}"
    words = {
        "use": trainer.use,
        "label": location.label,
        "name": name,
        "module": module,
        "package": module.replace("_", "-"),
        "dependencies": json.dumps(["wander-sdk", requirement, *trainer.requirements]),
        "trainer": trainer.name,
        "index": index,
        # A literal of Python that holds JSON: true and null are none of Python's.
        "arguments": repr(json.dumps(arguments)),
    }
    templates = files("wander_client") / "templates" / "export"
    written = {
        "pyproject.toml": "pyproject.toml.txt",
        "README.md": "README.md.txt",
        f"{module}.py": f"{kind}.py.txt",
    }
    out.mkdir(parents=True, exist_ok=True)
    for file, template in written.items():
        text = (templates / template).read_text(encoding="utf-8")
        for key, value in words.items():
            text = text.replace(f"@{key}@", value)
        (out / file).write_text(text, encoding="utf-8")
    return [Path(file) for file in written]


def _name_requirement(location: Location) -> tuple[str, str]:
    """Return the environment's name and the requirement that installs it."""
    if location.installed is not None:
        record = location.installed.record
        return record.name, f"{record.name}=={record.version}"
    assert location.folder is not None
    project = location.folder / "pyproject.toml"
    if not project.is_file():
        raise ClientError(
            f"`{location.folder}` has no `pyproject.toml`: a trainer could not install it",
            hint="`wander new NAME` makes a package",
            code="no_package",
        )
    name = str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["name"])
    return name, name
