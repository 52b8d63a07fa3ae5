"""The fields of Harbor's `task.toml`, in the schema versions 1.0 to 1.4 (harbor 0.26).

Names and defaults are those of Harbor's format. Fields that Wander does not honor are listed by
`wander_integrations.harbor.support`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, field_validator, model_validator
from wander.errors import DatasetError, did_you_mean
from wander.types import Record

SCHEMA_VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4")
NAME = r"[a-zA-Z0-9][a-zA-Z0-9._-]*"
STEP_NAME = r"""^[^<>:"/\\|?*\x00-\x1f\x7f]*[^<>:"/\\|?*\x00-\x20\x7f.]$"""
"""Portable folder names, without a dot or space at the end."""
MEGABYTES = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}
MAIN_SERVICE = "main"
Seconds = Annotated[float, Field(gt=0, le=7 * 24 * 3600)]
User = str | int | None
Variables = dict[str, str]
NetworkMode = Literal["no-network", "public", "allowlist"]


class Author(Record):
    """An author of a task or of a data set."""

    name: str
    email: str | None = None


class TaskInfo(Record):
    """The table `[task]`: the identity of a task in a registry."""

    name: str = Field(pattern=rf"^{NAME}/{NAME}$")
    version: str | None = Field(default=None, min_length=1)
    description: str = ""
    authors: list[Author] = Field(default_factory=list)
    keywords: list[str] = Field(default_factory=list)


class _Network(Record):
    """The network policy of a container or of a phase."""

    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None

    @model_validator(mode="after")
    def _check_hosts(self) -> Self:
        if self.allowed_hosts and self.network_mode != "allowlist":
            raise ValueError('`allowed_hosts` needs `network_mode = "allowlist"`')
        return self


class Healthcheck(Record):
    """A command that is repeated after the start until it succeeds."""

    command: str = Field(min_length=1)
    interval_sec: float = Field(default=5.0, ge=0)
    timeout_sec: Seconds = 30.0
    start_period_sec: float = Field(default=0.0, ge=0)
    start_interval_sec: float = Field(default=5.0, ge=0)
    retries: int = Field(default=3, ge=1, le=1000)


class Tpu(Record):
    """A TPU slice."""

    type: str = Field(min_length=1)
    topology: str = Field(pattern=r"^[1-9]\d*(x[1-9]\d*)+$")


class McpServer(Record):
    """An MCP server for the agent."""

    name: str
    transport: Literal["stdio", "sse", "streamable-http", "http"] = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = Field(default_factory=list)
    headers: Variables = Field(default_factory=dict)


class Environment(_Network):
    """The table `[environment]`: the container and its resources."""

    build_timeout_sec: Seconds = 600.0
    docker_image: str | None = Field(default=None, min_length=1, max_length=500)
    os: Annotated[Literal["linux", "windows"], BeforeValidator(lambda v: str(v).lower())] = "linux"
    cpus: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    memory_mb: int | None = Field(default=None, gt=0)
    storage_mb: int | None = Field(default=None, gt=0)
    gpus: int | None = Field(default=None, ge=0)
    gpu_types: list[str] | None = None
    tpu: Tpu | None = None
    mcp_servers: list[McpServer] = Field(default_factory=list)
    env: Variables = Field(default_factory=dict)
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = Field(default=None, pattern=r"^/", max_length=1024)

    @model_validator(mode="before")
    @classmethod
    def _read_old_fields(cls, data: Any) -> Any:
        """Translate `memory`, `storage` and `allow_internet` of older tasks."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for old in ("memory", "storage"):
            if old in data:
                megabytes = _megabytes(old, data.pop(old))
                if data.setdefault(f"{old}_mb", megabytes) != megabytes:
                    raise ValueError(f"`{old}` and `{old}_mb` contradict each other")
        allowed = data.pop("allow_internet", None)
        if allowed is not None:
            data.setdefault("network_mode", "public" if allowed else "no-network")
        return data


def _megabytes(name: str, text: Any) -> int:
    unit = str(text).strip().upper()[-1:]
    try:
        return int(float(str(text).strip()[:-1]) * MEGABYTES[unit])
    except (ValueError, KeyError, OverflowError):
        raise ValueError(f"`{name}` must be a size such as `2G` or `512M`, got `{text}`") from None


class CollectCommand(Record):
    """An entry of `[[verifier.collect]]`: a command that runs when the agent has ended."""

    command: str = Field(min_length=1)
    service: str = MAIN_SERVICE
    timeout_sec: Seconds = 60.0
    user: User = None


class Verifier(_Network):
    """The table `[verifier]`."""

    timeout_sec: Seconds = 600.0
    env: Variables = Field(default_factory=dict)
    user: User = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: list[CollectCommand] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError('`environment_mode = "shared"` contradicts the table `[verifier.environment]`')
        return self

    @property
    def mode(self) -> Literal["shared", "separate"] | None:
        """The mode that these fields state or imply."""
        return self.environment_mode or ("separate" if self.environment is not None else None)


class Agent(_Network):
    """The table `[agent]`."""

    timeout_sec: Seconds | None = None
    user: User = None


class Solution(Record):
    """The table `[solution]`."""

    env: Variables = Field(default_factory=dict)


class Artifact(Record):
    """A file or folder that a separate verifier gets."""

    source: str = Field(min_length=1, max_length=1024)
    destination: str | None = None
    exclude: list[str] = Field(default_factory=list)
    service: str | None = None

    @field_validator("source", "destination")
    @classmethod
    def _check_path(cls, path: str | None) -> str | None:
        if path is not None and ".." in PurePosixPath(path).parts:
            raise ValueError("the path of an artifact must not contain `..`")
        return path

    @model_validator(mode="after")
    def _check_service(self) -> Self:
        if self.service not in (None, MAIN_SERVICE) and not self.source.startswith("/"):
            raise ValueError("the path of another service's artifact must be absolute")
        return self


Artifacts = Annotated[
    list[Artifact],
    BeforeValidator(
        lambda entries: (
            [{"source": entry} if isinstance(entry, str) else entry for entry in entries]
            if isinstance(entries, list)
            else entries
        )
    ),
]


class Step(Record):
    """An entry of `[[steps]]`."""

    name: str = Field(max_length=200, pattern=STEP_NAME)
    agent: Agent = Field(default_factory=Agent)
    verifier: Verifier = Field(default_factory=Verifier)
    min_reward: float | dict[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: Artifacts = Field(default_factory=list)


class WanderSettings(Record):
    """The table `[metadata.wander]`, which Harbor ignores."""

    state_paths: list[Annotated[str, Field(pattern=r"^/.", max_length=1024)]] = Field(default_factory=list)
    """Folders whose changes are scored, if the working folder is not enough."""
    reward_key: str | None = None
    """Key of `reward.json` that is the reward, if it is not `reward`."""


class TaskFile(Record):
    """A whole `task.toml`."""

    schema_version: str = SCHEMA_VERSIONS[-1]
    task: TaskInfo | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    verifier: Verifier = Field(default_factory=Verifier)
    agent: Agent = Field(default_factory=Agent)
    environment: Environment = Field(default_factory=Environment)
    solution: Solution = Field(default_factory=Solution)
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: list[Step] = Field(default_factory=list, max_length=100)
    artifacts: Artifacts = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _read_old_version(cls, data: Any) -> Any:
        if isinstance(data, dict) and "version" in data:
            data = dict(data)
            data.setdefault("schema_version", data.pop("version"))
        return data

    @field_validator("schema_version")
    @classmethod
    def _check_version(cls, version: str) -> str:
        if version not in SCHEMA_VERSIONS:
            raise ValueError(f"the versions {SCHEMA_VERSIONS[0]} to {SCHEMA_VERSIONS[-1]} can be read")
        return version

    @field_validator("steps")
    @classmethod
    def _check_steps(cls, steps: list[Step]) -> list[Step]:
        if len({step.name.casefold() for step in steps}) < len(steps):
            raise ValueError("the names of steps must be unique, also if case is ignored")
        return steps

    @property
    def is_separate(self) -> bool:
        """Whether the verifier has a container of its own, which gets only the artifacts."""
        return self.verifier.mode == "separate"

    @property
    def wander(self) -> WanderSettings:
        """The settings for Wander."""
        return WanderSettings.model_validate(self.metadata.get("wander", {}))


def parse_task_file(content: bytes, where: str) -> TaskFile:
    """Parse a `task.toml`. Raises `DatasetError` with the file's name and a hint."""
    try:
        data = tomllib.loads(content.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise DatasetError(
            f"`{where}` is not a TOML file: {error}", hint="TOML is described at https://toml.io"
        ) from error
    try:
        parsed = TaskFile.model_validate(data)
        _ = parsed.wander
    except ValidationError as error:
        raise _describe(error, where) from error
    return parsed


def _describe(error: ValidationError, where: str) -> DatasetError:
    """Return an error about the first fault, with the field that was probably meant."""
    fault = error.errors(include_url=False, include_context=False)[0]
    model: type[Record] = TaskFile
    if error.title == WanderSettings.__name__:
        fault["loc"], model = ("metadata", "wander", *fault["loc"]), WanderSettings
    path = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        hint = did_you_mean(str(fault["loc"][-1]), _field_names(model))
        return DatasetError(
            f"`{where}` has the unknown field `{path}`",
            hint=hint or "remove it, or move your own fields into the table `[metadata]`",
        )
    if fault["type"] == "missing":
        return DatasetError(f"`{where}` lacks the field `{path}`", hint=f"add `{fault['loc'][-1]} = ...`")
    message = fault["msg"].removeprefix("Value error, ")
    return DatasetError(
        f"`{where}` has an invalid `{path}`: {message}" if path else f"`{where}` is invalid: {message}",
        hint="correct the field; Harbor's documentation describes `task.toml`",
    )


def _field_names(model: type[BaseModel]) -> Iterator[str]:
    """Yield the names of all fields of a record and of the records inside it."""
    for name, field in model.model_fields.items():
        yield name
        for inner in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from _field_names(inner)
