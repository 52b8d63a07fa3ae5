"""Lists what Wander does not support of a Harbor task: what prevents playing it, and what its verifier does
not notice."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass

from wander_integrations.harbor.dockerfile import working_folder
from wander_integrations.harbor.folder import ENVIRONMENT, TESTS, HarborTask
from wander_integrations.harbor.task_file import MAIN_SERVICE, Environment, User, Verifier

ARTIFACTS_FOLDER = "/logs/artifacts"
"""Folder that a separate verifier always gets."""
VERIFIER_FOLDERS = ("/tests", "/solution", "/logs/verifier")
"""Folders that never come from the played box."""
COMPOSE_FILES = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")


@dataclass(frozen=True)
class Unsupported:
    """A field or file of a task that Wander does not honor."""

    field: str
    reason: str
    blocks: bool
    """Whether the task cannot be played. Otherwise, it is played without the field."""

    def __str__(self) -> str:
        return f"`{self.field}`: {self.reason}"


def unsupported(task: HarborTask) -> list[Unsupported]:
    """Return what is not honored of a task."""
    return [*_of_environment("environment", task.settings.environment), *_of_task(task)]


def box_folder(task: HarborTask) -> str | None:
    """Return the working folder of a task's box, or None if it cannot be known without its image."""
    if task.settings.environment.workdir is not None:
        return posixpath.normpath(task.settings.environment.workdir)
    text = task.text(f"{ENVIRONMENT}/Dockerfile")
    return working_folder(text) if text is not None else None


def state_paths(task: HarborTask) -> list[str]:
    """Return the folders whose changes are scored."""
    settings = task.settings
    paths = [box_folder(task) or "/", *settings.wander.state_paths]
    if settings.is_separate:
        paths += [ARTIFACTS_FOLDER, *(artifact.source for artifact in settings.artifacts)]
    paths = [posixpath.normpath(posixpath.join(paths[0], path)) for path in paths]
    return [path for path in dict.fromkeys(paths) if not any(_is_inside(path, other) for other in paths)]


def _is_inside(path: str, other: str) -> bool:
    return path != other and path.startswith(f"{other.rstrip('/')}/")


def _of_task(task: HarborTask) -> Iterator[Unsupported]:
    settings = task.settings
    if settings.steps:
        yield _blocks("steps", "tasks of several steps cannot be played")
    yield from _of_files(task)
    yield from _of_user("agent.user", settings.agent.user)
    yield from _of_network(task)
    yield from _of_verifier(settings.verifier)
    for number, artifact in enumerate(settings.artifacts):
        if artifact.service not in (None, MAIN_SERVICE):
            yield _blocks(f"artifacts[{number}].service", "a box is a single container without services")
        if artifact.exclude:
            yield _notes(f"artifacts[{number}].exclude", "the verifier also gets the excluded files")
    yield from _of_paths(task)


def _of_files(task: HarborTask) -> Iterator[Unsupported]:
    for part in (ENVIRONMENT, TESTS):
        for name in COMPOSE_FILES:
            if task.has(f"{part}/{name}"):
                yield _blocks(f"{part}/{name}", "a box is a single container without services")
    ignore_file = next((name for name in task.sizes if name.rpartition("/")[2] == ".harborignore"), None)
    if ignore_file:
        yield _blocks(ignore_file, "delete the files that it excludes instead")
    if task.has("trajectory.json"):
        yield _blocks("trajectory.json", "a rollout cannot continue another agent's conversation")


def _of_paths(task: HarborTask) -> Iterator[Unsupported]:
    """Check that the scored folders are known, and that the verifier's own folders are not among them."""
    if box_folder(task) is None:
        yield _blocks(
            "environment.workdir", "set it, because the working folder is only known to the container image"
        )
        return
    for path in state_paths(task):
        clash = any(path == own or _is_inside(path, own) or _is_inside(own, path) for own in VERIFIER_FOLDERS)
        if path == "/" or clash:
            yield _blocks(
                "metadata.wander.state_paths"
                if path in task.settings.wander.state_paths
                else "environment.workdir",
                f"`{path}` is or contains a folder of the verifier, which cannot come from the model's box",
            )


def _of_verifier(verifier: Verifier) -> Iterator[Unsupported]:
    yield from _of_user("verifier.user", verifier.user)
    if verifier.environment is not None:
        yield from _of_environment("verifier.environment", verifier.environment)
    for number, collect in enumerate(verifier.collect):
        name = f"verifier.collect[{number}]"
        if collect.service != MAIN_SERVICE:
            yield _blocks(f"{name}.service", "a box is a single container without services")
        yield from _of_user(f"{name}.user", collect.user)
        yield _notes(name, "it runs in a new box with the final files, without the agent's processes")


def _of_environment(name: str, environment: Environment) -> Iterator[Unsupported]:
    if environment.os != "linux":
        yield _blocks(f"{name}.os", "boxes run Linux")
    if environment.gpus:
        yield _blocks(f"{name}.gpus", "boxes have no GPU")
    if environment.tpu is not None:
        yield _blocks(f"{name}.tpu", "boxes have no TPU")
    if environment.mcp_servers:
        yield _blocks(f"{name}.mcp_servers", "the model has only the tool `bash`")
    if environment.cpus is not None:
        yield _notes(f"{name}.cpus", "the number of cores is not limited")
    if environment.skills_dir is not None:
        yield _notes(f"{name}.skills_dir", "skills stay in their folder of the image")
    if "build_timeout_sec" in environment.model_fields_set:
        yield _notes(f"{name}.build_timeout_sec", "the time of an image build is not limited")


def _of_user(name: str, user: User) -> Iterator[Unsupported]:
    if user not in (None, "root", "0", 0):
        yield _blocks(name, "commands run as root")


def _of_network(task: HarborTask) -> Iterator[Unsupported]:
    """Compare the network of both phases with that of a box: none, or the hosts of `[environment]`."""
    settings = task.settings
    own = settings.verifier.environment
    verifier_base = settings.environment.network_mode if own is None else own.network_mode
    for name, mode, base in (
        ("agent", settings.agent.network_mode, settings.environment.network_mode),
        ("verifier", settings.verifier.network_mode, verifier_base),
    ):
        if mode == "allowlist" and base != "allowlist":
            yield _blocks(f"{name}.network_mode", "set the hosts for the whole box, in `[environment]`")
        elif (mode or base or "public") == "public":
            yield _notes(f"{name}.network_mode", "boxes have no network, although the task allows it")


def _blocks(field: str, reason: str) -> Unsupported:
    return Unsupported(field, reason, blocks=True)


def _notes(field: str, reason: str) -> Unsupported:
    return Unsupported(field, reason, blocks=False)
