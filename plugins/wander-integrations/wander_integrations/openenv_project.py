"""Reads `openenv.yaml` and writes the project of its environment, for `wander env import openenv`.

The command line also finds the manifest, the server and the report here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from wander.errors import DatasetError, require_extra
from wander.system.plain_files import open_plain_file
from wander.types import first_fault, portable_json

from wander_integrations.exported_packages import server_files
from wander_integrations.openenv_report import openenv_manifest, openenv_report
from wander_integrations.written_project import WrittenProject, pyproject_text

__all__ = ["openenv_manifest", "openenv_report", "read_manifest", "server_files", "write_project"]

FILE = "openenv.yaml"
_MOST_BYTES = 1024 * 1024
_MODULE = '''\
"""An OpenEnv environment, played on a running server."""

from typing import Any

from wander_integrations import OpenEnvEnv


def load_environment(url: str = "http://localhost:{port}", **options: Any) -> OpenEnvEnv:
    """Return the environment of the server at `url`. The options are those of `OpenEnvEnv`."""
    options = {{"reward_bounds": {bounds}, "timeout_seconds": {seconds}, **options}}
    return OpenEnvEnv(url, name={name}, summary={summary}, **options)
'''
_README = """\
# {name}

{summary}

Start the server of the OpenEnv folder first, for example with `uvicorn {app} --port {port}` in it. Then:

```
wander eval ./{name} -m MODEL
wander eval ./{name} -m MODEL -a url=http://other-host:{port} -a text_field=message
```

Without `text_field`, the model writes an action as a JSON object. With it, its text becomes that field of the
action. The sandbox has no network, so the environment cannot be played in it.
"""


class _Declared(BaseModel):
    """Fields of a declaration that Wander reads. It ignores all others."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class _Reward(_Declared):
    range: tuple[float, float] = (0.0, 1.0)


class _Resources(_Declared):
    episode_timeout_s: float | None = Field(default=None, gt=0)


class _Types(_Declared):
    tags: tuple[Annotated[str, Field(min_length=1)], ...] = ()


class _Validation(_Declared):
    reward: _Reward | None = None
    resources: _Resources = _Resources()
    types: _Types = _Types()


class OpenEnvFile(_Declared):
    """Fields of an `openenv.yaml` that Wander reads."""

    name: str = Field(pattern=r"^[^\x00-\x1f\x7f`]{1,200}$")
    app: str = Field(default="server.app:app", pattern=r"^[\w.:/-]{1,200}$")
    port: int = Field(default=8000, ge=1, le=65535)
    validation: _Validation = _Validation()


def read_manifest(folder: Path) -> OpenEnvFile:
    """Read the `openenv.yaml` of a folder. Raises `DatasetError` if it is missing or invalid."""
    with require_extra("openenv", needed_for="reading `openenv.yaml`", of="wander-integrations"):
        import yaml
    try:
        with open_plain_file(folder / FILE, below=folder) as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise DatasetError(f"`{FILE}` has over {_MOST_BYTES:,} bytes")
        content: Any = yaml.safe_load(text)
        return OpenEnvFile.model_validate(content)
    except OSError as error:
        raise DatasetError(f"`{folder}` has no `{FILE}` that can be read: {error}") from error
    except ValidationError as error:
        field, fault = first_fault(error)
        raise DatasetError(f"`{FILE}`: {field or 'the file'}: {fault}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # such as an impossible date, or deep lists
        raise DatasetError(f"`{FILE}` is not valid YAML: {error}") from error


def write_project(source: Path, out: Path, *, name: str) -> WrittenProject:
    """Write the project of an environment that plays on the server of an OpenEnv folder."""
    declared = read_manifest(source)
    module = name.replace("-", "_")
    summary = f"The OpenEnv environment `{declared.name}`, played on its server."
    validation = declared.validation
    bounds = None if validation.reward is None else validation.reward.range
    keywords = (*validation.types.tags, "openenv", "eval")
    (out / module).mkdir()
    (out / "pyproject.toml").write_text(
        pyproject_text(name, summary, keywords, "wander-integrations[openenv]"), encoding="utf-8"
    )
    (out / module / "__init__.py").write_text(
        _MODULE.format(
            name=portable_json(name),
            summary=portable_json(summary),
            port=declared.port,
            bounds=bounds,
            seconds=validation.resources.episode_timeout_s,
        ),
        encoding="utf-8",
    )
    readme = _README.format(name=name, summary=summary, app=declared.app, port=declared.port)
    (out / "README.md").write_text(readme, encoding="utf-8")
    return WrittenProject(name, [declared.name])
