"""Packages that let another trainer use an environment, or serve it with OpenEnv, for `wander env export`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from wander.types import portable_json


@dataclass(frozen=True)
class Trainer:
    """A trainer that an environment can be exported to. `wander env export` finds it by its entry point."""

    name: str
    template: str
    """Name of the template of the adapter, which is also the end of the names of module and package."""
    requirements: tuple[str, ...]
    """Requirements for the trainer's interface."""
    use: str
    """Instructions for using the adapter, with `@module@` and `@name@` to fill in."""

    def package_files(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the texts of the adapter's package by their paths.

        `environment` has the `name` of the environment's package, its `requirement`, the `label` for people,
        the `index` that it is installed from, and its `arguments` as JSON.
        """
        words = {
            "use": self.use,  # first, because it contains words that are filled in after it
            "trainer": self.name,
            **_words(environment, self.template, self.requirements),
        }
        templates = {
            "pyproject.toml": "pyproject.toml",
            "README.md": "README.md",
            f"{words['module']}.py": f"{self.template}.py",
        }
        return {path: _fill(template, words) for path, template in templates.items()}


PRIME_RL = Trainer(
    "prime-rl",
    "prime_rl",
    ("verifiers>=0.4", "wander-compat"),
    'Name the task set in the settings of the training: `id = "@module@"` in `[[orchestrator.env]]`,\n'
    "`uv run eval @module@` plays it.",
)
SKYRL = Trainer(
    "SkyRL",
    "skyrl",
    ("skyrl-gym>=0.4",),
    "Import `@module@` in the entry point of the training (that registers `@name@`), make the rows with\n"
    "`python -m @module@ train 1000 > train.jsonl`, and set `environment.env_class=@name@`. A row's "
    "`extra_info` names its example.",
)
TINKER = Trainer(
    "Tinker",
    "tinker",
    ("tinker-cookbook>=0.6",),
    "Give `@module@.WanderDatasetBuilder(model_name=..., renderer_name=...)` to a recipe as its\n"
    "`dataset_builder`.",
)


def server_files(environment: Mapping[str, str], manifest: dict[str, Any]) -> dict[str, str]:
    """Return the texts of an OpenEnv server by their paths.

    `environment` is that of `Trainer.package_files`. `manifest` is what `openenv_manifest` returns: the
    `name`, the `version` and the `validation` block of `openenv.yaml`.
    """
    words = _words(environment, "openenv", ("openenv>=0.10",))
    served = {"type": "space", "runtime": "fastapi", "app": "server.app:app", "port": 8000}
    templates = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        "server/__init__.py": "init.py",
        "server/app.py": "app.py",
        "server/Dockerfile": "Dockerfile",
    }
    return {
        "openenv.yaml": _yaml({"spec_version": 1, **manifest, **served}) + "\n",
        **{path: _fill(f"openenv/{template}", words) for path, template in templates.items()},
    }


def _words(environment: Mapping[str, str], suffix: str, requirements: tuple[str, ...]) -> dict[str, str]:
    """Return what the templates of every package fill in."""
    module = f"{environment['name'].replace('-', '_')}_{suffix}"
    wander = ["wander-sdk", "wander-integrations"]
    return {
        "label": environment["label"],
        "name": environment["name"],
        "module": module,
        "package": module.replace("_", "-"),
        "dependencies": portable_json([*wander, environment["requirement"], *requirements]),
        "index": environment["index"],
        # JSON in a Python string literal, because Python does not know `true` and `null`.
        "arguments": repr(environment["arguments"]),
    }


def _fill(template: str, words: Mapping[str, str]) -> str:
    """Return the text of a template with every `@word@` filled in."""
    text = (files("wander_integrations") / "templates" / f"{template}.txt").read_text(encoding="utf-8")
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text


def _yaml(fields: dict[str, Any], indent: str = "") -> str:
    """Write mappings as YAML blocks, and everything else as JSON, which is YAML too."""
    return "\n".join(
        f"{indent}{name}:\n{_yaml(value, indent + '  ')}"
        if isinstance(value, dict) and value
        else f"{indent}{name}: {portable_json(value)}"
        for name, value in fields.items()
    )
