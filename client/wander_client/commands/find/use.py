"""`wander env use`: who uses an environment."""

from __future__ import annotations

from typing import Annotated

from wander_client.context import current
from wander_client.names import environment_path, parse_name
from wander_client.terminal.command import Argument, Option


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
