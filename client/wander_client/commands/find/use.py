"""`wander env star`, `wander env use`: your stars, and who uses an environment."""

from __future__ import annotations

from typing import Annotated

from wander_client.context import current
from wander_client.errors import UsageError
from wander_client.names import environment_path, parse_name, target_path
from wander_client.terminal.command import Argument, Option


def star(
    environment: Annotated[str, Argument(help="owner/name; without it, your stars are listed")] = "",
    undo: Annotated[bool, Option("--undo", help="remove the star")] = False,
) -> None:
    """Star an environment, or list the environments that you starred.

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
            raise UsageError(
                "`--undo` requires an environment", hint="run `wander env star` to list your stars"
            )
        with here.hub(login=True) as hub:
            page = hub.read("/api/v1/stars", EnvironmentPage)
        rows: list[list[str | int | None]] = [
            [f"{item.owner}/{item.name}", item.latest_version, item.stars, item.summary] for item in page.data
        ]
        columns = ["environment", "version", "stars", "summary"]
        here.output.answer(page.data, lambda: here.output.table(columns, rows, shrink=["summary"]))
        return
    name = parse_name(environment)
    with here.hub(login=True) as hub:
        star = hub.change("DELETE" if undo else "PUT", target_path(environment, "star"), StarInfo)
    text = f"{'starred' if star.starred else 'removed the star from'} {name.owner}/{name.name}"
    here.output.answer(star, f"{text} ({star.stars} in total)")


def use(
    environment: Annotated[str, Argument(help="owner/name")],
    days: Annotated[int, Option(min=1, max=366, help="number of days for which to show downloads")] = 30,
) -> None:
    """Show how an environment is used: downloads, dependents, forks, and the models and authors of its runs.

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
        for day in history.days:
            by_version[day.version] = by_version.get(day.version, 0) + day.downloads
        recent = ", ".join(f"{version} {number:,}" for version, number in by_version.items())
        facts = [
            (
                "downloads",
                f"{history.total:,} in total" + (f"; in the last {days} days: {recent}" if recent else ""),
            ),
            ("required by", ", ".join(f"{user.owner}/{user.name}" for user in used.required_by)),
            ("forks", ", ".join(f"{fork.owner}/{fork.name}" for fork in used.forks)),
            ("runs", f"{used.runs:,}"),
            ("models", ", ".join(f"{model.model} ({model.runs})" for model in used.models)),
            ("authors", ", ".join(used.authors)),
        ]
        for label, text in facts:
            if text:
                here.output.line(f"{label:<12} {text}")

    here.output.answer({"downloads": history, "used_by": used}, show)
