"""`wander env star`, `wander env use`: what you want to find again, and who uses an environment."""

from __future__ import annotations

from typing import Annotated

from wander_client.context import current
from wander_client.errors import UsageError
from wander_client.names import environment_path, parse_name, target_path
from wander_client.terminal.command import Argument, Option


def star(
    environment: Annotated[str, Argument(help="owner/name; without one, yours are listed")] = "",
    undo: Annotated[bool, Option("--undo", help="take the star back")] = False,
) -> None:
    """Star an environment, or list those that you starred.

    \b
    wander env star admin/tictactoe
    wander env star admin/tictactoe --undo
    wander env star
    """
    from wander.wire import EnvironmentPage
    from wander.wire.environments import StarInfo

    here = current()
    if not environment:
        if undo:
            raise UsageError("`--undo` needs an environment", hint="run `wander env star` to list yours")
        with here.hub(login=True) as hub:
            page = hub.read("/api/v1/stars", EnvironmentPage)
        rows: list[list[str | int | None]] = [
            [f"{one.owner}/{one.name}", one.latest_version, one.stars, one.summary] for one in page.data
        ]
        columns = ["environment", "version", "stars", "summary"]
        here.output.answer(page.data, lambda: here.output.table(columns, rows, shrink=["summary"]))
        return
    name = parse_name(environment)
    with here.hub(login=True) as hub:
        found = hub.change("DELETE" if undo else "PUT", target_path(environment, "star"), StarInfo)
    said = f"{'starred' if found.starred else 'no longer starred'}: {name.owner}/{name.name}"
    here.output.answer(found, f"{said} ({found.stars} in all)")


def use(
    environment: Annotated[str, Argument(help="owner/name")],
    days: Annotated[int, Option(min=1, max=366, help="days of downloads to show")] = 30,
) -> None:
    """Show who uses an environment: downloads, what requires it, forks, models and authors of its runs.

    \b
    wander env use admin/tictactoe
    wander env use admin/tictactoe --days 7 --json
    """
    from wander.wire.environments import DownloadHistory, UsedBy

    here = current()
    name = parse_name(environment)
    path = environment_path(name.owner, name.name)
    with here.hub() as hub:
        history = hub.read(f"{path}/downloads", DownloadHistory, {"days": days})
        used = hub.read(f"{path}/used-by", UsedBy)

    def show() -> None:
        by_version: dict[str, int] = {}
        for one in history.days:
            by_version[one.version] = by_version.get(one.version, 0) + one.downloads
        recent = ", ".join(f"{version} {number:,}" for version, number in by_version.items())
        facts = [
            ("downloads", f"{history.total:,} in all" + (f"; in {days} days: {recent}" if recent else "")),
            ("required by", ", ".join(f"{one.owner}/{one.name}" for one in used.required_by)),
            ("forks", ", ".join(f"{one.owner}/{one.name}" for one in used.forks)),
            ("runs", f"{used.runs:,}"),
            ("models", ", ".join(f"{one.model} ({one.runs})" for one in used.models)),
            ("authors", ", ".join(used.authors)),
        ]
        for label, text in facts:
            if text:
                here.output.line(f"{label:<12} {text}")

    here.output.answer({"downloads": history, "used_by": used}, show)
