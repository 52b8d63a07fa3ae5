"""`wander env yank`, `env deprecate`, `env delete`: what should no longer be used, or not be there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wander_client.context import current
from wander_client.errors import UsageError
from wander_client.failures import validate
from wander_client.names import parse_name, target_path
from wander_client.terminal.command import Argument, Option, Yes

if TYPE_CHECKING:
    from wander.wire import ProjectStatus


def yank(
    environment: Annotated[str, Argument(help="owner/name@version")],
    reason: Annotated[str | None, Option(help="reason, shown to everybody")] = None,
    undo: Annotated[bool, Option("--undo", help="undo: offer the version again")] = False,
) -> None:
    """Have installers pass a version over unless its exact number is asked for.

    \b
    wander env yank acme/wordle@0.2.0 --reason "rewards were wrong"
    wander env yank acme/wordle@0.2.0 --undo

    Nothing is removed: what is pinned to the version goes on working. `wander env delete` removes files.
    """
    from wander.wire import VersionDetail
    from wander.wire.changes import Reason

    here = current()
    name = parse_name(environment)
    if name.version is None:
        raise UsageError(f"`{environment}` names no version", hint=f"write `{name}@VERSION`")
    if undo and reason is not None:
        raise UsageError("`--undo` takes no `--reason`", hint=f"run `wander env yank {name} --undo`")
    with here.hub(login=True) as hub:
        path = target_path(environment, "versions", name.version, "yank")
        method, body = ("DELETE", None) if undo else ("PUT", Reason(reason=reason))
        version = hub.change(method, path, VersionDetail, body)
    label = f"{version.owner}/{version.name}@{version.version}"
    here.output.answer(version, f"{'yanked' if version.yanked else 'offered again'}: {label}")


def deprecate(
    environment: Annotated[str, Argument(help="owner/name")],
    reason: Annotated[str | None, Option(help="reason, shown to everybody")] = None,
    successor: Annotated[str | None, Option(help="owner/name to use instead")] = None,
    archive: Annotated[bool, Option("--archive", help="archive it: accept no more uploads")] = False,
    quarantine: Annotated[
        bool, Option("--quarantine", help="serve no files either (administrators only)")
    ] = False,
    undo: Annotated[bool, Option("--undo", help="make it active again")] = False,
) -> None:
    """Mark an environment as deprecated, archived or quarantined; installers and pages tell so.

    \b
    wander env deprecate acme/wordle --reason "scores are biased" --successor acme/wordle2
    wander env deprecate acme/wordle --archive
    wander env deprecate acme/wordle --undo
    """
    from wander.wire import EnvironmentDetail
    from wander.wire.changes import NewStatus

    here = current()
    name = parse_name(environment)
    if name.version is not None:
        hint = f"`wander env yank {name}` marks one version"
        raise UsageError("a status is that of the whole environment", hint=hint)
    chosen: dict[ProjectStatus, bool] = {"archived": archive, "quarantined": quarantine, "active": undo}
    given = [status for status, wanted in chosen.items() if wanted]
    if len(given) > 1:
        raise UsageError("`--archive`, `--quarantine` and `--undo` exclude each other", hint="give one")
    status: ProjectStatus = given[0] if given else "deprecated"
    if successor is not None and status != "deprecated":
        raise UsageError("only a deprecated environment has a successor", hint="leave `--successor` out")
    body = {"status": status, "reason": reason, "successor": successor}
    wanted = validate(NewStatus, body, "`wander env deprecate --help` has examples")
    with here.hub(login=True) as hub:
        detail = hub.change("PUT", target_path(environment, "status"), EnvironmentDetail, wanted)
    here.output.answer(detail, f"{detail.owner}/{detail.name} is {detail.status}")


def delete(
    environment: Annotated[str, Argument(help="owner/name@version, or owner/name for all of it")],
    reason: Annotated[str | None, Option(help="reason, shown to everybody")] = None,
    yes: Yes = False,
) -> None:
    """Delete a version's files from the hub, or a whole environment; neither number nor name comes back.

    \b
    wander env delete acme/wordle@0.2.0 --reason "held private data"
    wander env delete acme/wordle --yes

    Posted runs keep their numbers and say that the version was deleted. What is merely wrong is better
    yanked: `wander env yank acme/wordle@0.2.0`.
    """
    here = current()
    name = parse_name(environment)
    here.output.confirm(str(name), "delete it for good", yes=yes)
    with here.hub(login=True) as hub:
        below = () if name.version is None else ("versions", name.version)
        hub.change("DELETE", target_path(environment, *below), None, params={"reason": reason})
    here.output.answer({"deleted": str(name), "reason": reason}, f"deleted {name}")
