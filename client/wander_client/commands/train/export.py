"""`wander env export`: make an environment available to another trainer.

Plugins write the packages. An entry point of the group `wander.trainers` has the name of a trainer. It refers
to an object whose method `package_files` returns the texts of the package by their paths. Harbor and OpenEnv
are task formats (`wander_client.packages.origins.task_folders`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from wander_client.context import current
from wander_client.terminal.command import (
    Argument,
    EnvironmentArguments,
    EnvironmentArgumentsJSON,
    Option,
    refuse_options,
)
from wander_client.terminal.output import counted, shell_word

if TYPE_CHECKING:
    from wander_client.environments.location import Location

HARBOR = "harbor"
OPENENV = "openenv"


def export(
    environment: Annotated[str, Argument(help="owner/name[@version], or ./folder")],
    to: Annotated[
        Literal["prime-rl", "skyrl", "tinker", "openenv", "harbor"],
        Option("--to", help="trainer, or OpenEnv's or Harbor's format"),
    ],
    out: Annotated[Path, Option("-o", "--out", help="new folder for the package or the tasks")],
    argument: EnvironmentArguments = None,
    args: EnvironmentArgumentsJSON = None,
    examples: Annotated[
        int | None, Option("-n", "--examples", help="with --to harbor: number of tasks  [default: 10]")
    ] = None,
    organization: Annotated[
        str | None,
        Option(help="with --to harbor: organization in the names of the tasks  [default: the owner]"),
    ] = None,
    image: Annotated[
        str | None,
        Option(help="with --to harbor: container image for tasks whose boxes start from the host's system"),
    ] = None,
) -> None:
    """Write a small package that lets another trainer use an environment, or an OpenEnv server, or Harbor's
    task folders.

    \b
    wander env export admin/tictactoe --to skyrl --out adapters/skyrl
    wander env export ./my-env --to tinker --out adapters/tinker -a size=3
    wander env export ./my-env --to openenv --out servers/my-env
    wander env export ./my-env --to harbor --out tasks --examples 20 --image python:3.12-slim

    The package depends on `wander-sdk`, the environment and the trainer's interface. Install it next to the
    trainer. For the same completions, it gives the same rewards as `wander eval`.

    `--to openenv` writes an OpenEnv server with its `openenv.yaml`.

    `--to harbor` needs an environment with a shell. Each example becomes a task folder in Harbor's format.
    """
    from wander.lazy import load_plugin

    from wander_client.environments.location import locate, parse_arguments
    from wander_client.packages.needs import INTEGRATIONS
    from wander_client.packages.origins.task_folders import load_format
    from wander_client.packages.scaffold import require_free, write_files

    here = current()
    location = locate(here, environment)
    given = parse_arguments(argument or [], args)
    if to == HARBOR:
        _export_tasks(location, given, out, examples, organization, image)
        return
    refuse_options("examples", "organization", "image", because="requires `--to harbor`")
    require_free(out, "choose another folder")
    described = _describe(location, given)
    if to == OPENENV:
        import asyncio

        manifest = asyncio.run(_openenv_manifest(location, given))
        files = load_format(OPENENV).server_files(described, manifest)
    else:
        title = f"the export to {to}"
        trainer = load_plugin("wander.trainers", to, title, INTEGRATIONS, here.settings.hub)
        files = trainer.package_files(described)
    written = write_files(out, files)
    here.output.answer(
        {"out": str(out), "files": [str(file) for file in written]},
        f"{out}: {', '.join(str(file) for file in written)}",
    )
    here.output.next(f"pip install --index-url {described['index']} {shell_word(out)}")


def _describe(location: Location, arguments: dict[str, Any]) -> dict[str, str]:
    """Return the facts about an environment that a package of it needs."""
    from wander_client.errors import ClientError
    from wander_client.packages.built_package import require_project

    owner = "OWNER"
    if location.installed is not None:
        owner, name = location.installed.record.owner, location.installed.record.name
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
    return {
        "label": location.label,
        "name": name,
        "requirement": requirement,
        "index": f"{current().settings.hub.rstrip('/')}/{owner}/index/",
        "arguments": json.dumps(arguments),
    }


async def _openenv_manifest(location: Location, arguments: dict[str, Any]) -> dict[str, Any]:
    """Load the environment and return the manifest for its `openenv.yaml`."""
    from wander.sandbox import SandboxPolicy

    from wander_client.environments.location import project_version
    from wander_client.environments.opening import open_environment
    from wander_client.environments.sandbox import choose_policy, confines
    from wander_client.errors import ClientError
    from wander_client.packages.origins.task_folders import load_format

    here = current()
    policy = choose_policy(None, None, default=confines(here.settings, location.spec))
    async with open_environment(here, location, arguments, sandbox=policy) as opened:
        try:
            manifest: dict[str, Any] = load_format(OPENENV).openenv_manifest(
                opened.handle.info,
                project_version(location),
                limits=policy or SandboxPolicy(),
                uses_network=not opened.handle.info.deterministic,
            )
            return manifest
        except ValueError as error:
            raise ClientError(str(error), code="export_failed") from error


def _export_tasks(
    location: Location,
    arguments: dict[str, Any],
    out: Path,
    examples: int | None,
    organization: str | None,
    image: str | None,
) -> None:
    """Write task folders, in the sandbox if the environment is from a hub."""
    from wander_client.environments.sandbox import choose_policy, confines, hide_own
    from wander_client.environments.task_export import export_tasks
    from wander_client.packages.origins.task_folders import load_format

    here = current()
    policy = choose_policy(None, None, default=confines(here.settings, location.spec))
    owner = location.installed.record.owner if location.installed else "local"
    tasks = export_tasks(
        location,
        load_format(HARBOR).EXPORT_MODULE,
        out,
        None if policy is None else hide_own(policy, here.settings),
        arguments=arguments,
        organization=organization or owner,
        count=examples or 10,
        image=image,
    )
    here.output.answer({"out": str(out), "tasks": tasks}, f"{out}: {counted(len(tasks), 'task')}")
    here.output.next(f"harbor run --path {shell_word(out)} --agent oracle")
