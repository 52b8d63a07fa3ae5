"""The `pyproject.toml` of an environment that a test writes: one module with the environment's name."""

from __future__ import annotations


def pyproject(name: str) -> str:
    """Return the project file of an environment whose module has a `load_environment`."""
    return f"""
[project]
name = "{name}"
version = "0.1.0"
description = "An environment of a test."
readme = "README.md"
license = "MIT"
requires-python = ">=3.11"
dependencies = ["wander-sdk"]

[project.entry-points."wander.environments"]
{name} = "{name.replace("-", "_")}:load_environment"

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
"""
