"""`wander env yank`, `env deprecate`, `env delete`: withdraw versions and environments."""

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
    undo: Annotated[bool, Option("--undo", help="remove the yank")] = False,
) -> None:
    """Exclude a version from new installations, unless its exact number is requested.

    \b
    wander env yank acme/wordle@0.2.0 --reason "rewards were wrong"
    wander env yank acme/wordle@0.2.0 --undo

    No files are deleted, so everything that pins the version keeps working. `wander env delete` deletes
    files.
    """
    from wander.wire import VersionDetail
    from wander.wire.changes import Reason

    here = current()
    name = parse_name(environment)
    if name.version is None:
        raise UsageError(f"`{environment}` does not name a version", hint=f"write `{name}@VERSION`")
    if undo and reason is not None:
        raise UsageError("`--undo` does not accept `--reason`", hint=f"run `wander env yank {name} --undo`")
    with here.hub(login=True) as hub:
        path = target_path(environment, "versions", name.version, "yank")
        method, body = ("DELETE", None) if undo else ("PUT", Reason(reason=reason))
        version = hub.change(method, path, VersionDetail, body)
    label = f"{version.owner}/{version.name}@{version.version}"
    here.output.answer(version, f"{'yanked' if version.yanked else 'no longer yanked'}: {label}")


def deprecate(
    environment: Annotated[str, Argument(help="owner/name")],
    reason: Annotated[str | None, Option(help="reason, shown to everybody")] = None,
    successor: Annotated[str | None, Option(help="owner/name to use instead")] = None,
    archive: Annotated[
        bool, Option("--archive", help="archive the environment: it accepts no more uploads")
    ] = False,
    quarantine: Annotated[
        bool,
        Option(
            "--quarantine", help="quarantine the environment: its files are not served (administrators only)"
        ),
    ] = False,
    undo: Annotated[bool, Option("--undo", help="make the environment active again")] = False,
) -> None:
    """Mark an environment as deprecated, archived or quarantined. Pages and installers show this.

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
        hint = f"run `wander env yank {name}` to mark a single version"
        raise UsageError("the status applies to the whole environment, not to a version", hint=hint)
    chosen: dict[ProjectStatus, bool] = {"archived": archive, "quarantined": quarantine, "active": undo}
    chosen_statuses = [status for status, wanted in chosen.items() if wanted]
    if len(chosen_statuses) > 1:
        raise UsageError(
            "`--archive`, `--quarantine` and `--undo` cannot be used together", hint="pass only one of them"
        )
    status: ProjectStatus = chosen_statuses[0] if chosen_statuses else "deprecated"
    if successor is not None and status != "deprecated":
        raise UsageError("only a deprecated environment has a successor", hint="remove `--successor`")
    body = {"status": status, "reason": reason, "successor": successor}
    wanted = validate(NewStatus, body, "run `wander env deprecate --help` for examples")
    with here.hub(login=True) as hub:
        detail = hub.change("PUT", target_path(environment, "status"), EnvironmentDetail, wanted)
    here.output.answer(detail, f"{detail.owner}/{detail.name} is now {detail.status}")


def delete(
    environment: Annotated[str, Argument(help="owner/name@version, or owner/name for the whole environment")],
    reason: Annotated[str | None, Option(help="reason, shown to everybody")] = None,
    yes: Yes = False,
) -> None:
    """Delete a version's files or a whole environment from the hub. The number or name cannot be used again.

    \b
    wander env delete acme/wordle@0.2.0 --reason "held private data"
    wander env delete acme/wordle --yes

    Posted runs keep their results, and show that the version was deleted. If a version is only faulty, yank
    it instead: `wander env yank acme/wordle@0.2.0`.
    """
    here = current()
    name = parse_name(environment)
    here.output.confirm(str(name), "delete this permanently", yes=yes)
    with here.hub(login=True) as hub:
        below = () if name.version is None else ("versions", name.version)
        hub.change("DELETE", target_path(environment, *below), None, params={"reason": reason})
    here.output.answer({"deleted": str(name), "reason": reason}, f"deleted {name}")
