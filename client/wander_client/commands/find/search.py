"""`wander search`: find environments on the hub."""

from __future__ import annotations

from typing import Annotated

import typer

from wander_client.context import current


def search(
    query: Annotated[str, typer.Argument(help="search words; without any, everything is listed")] = "",
    owner: Annotated[str | None, typer.Option(help="only environments of this owner")] = None,
    tag: Annotated[str | None, typer.Option(help="only environments with this tag")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="rows to show")] = 50,
    cursor: Annotated[
        str | None, typer.Option(help="cursor of the next page, from `next` of the last one")
    ] = None,
) -> None:
    """Find environments on the hub.

    \b
    wander search
    wander search tic
    wander search --tag game --json
    """
    here = current()
    with here.hub() as hub:
        page = hub.environments(query, owner=owner, tag=tag, limit=limit, cursor=cursor)

    def show() -> None:
        columns = ["environment", "version", "best", "by", "runs", "updated", "summary"]
        here.output.table(
            columns,
            [
                [
                    f"{row.owner}/{row.name}",
                    row.latest_version,
                    row.best_reward,
                    row.best_model,
                    row.runs,
                    f"{row.updated_at:%Y-%m-%d}",
                    row.summary,
                ]
                for row in page.data
            ],
            shrink=["summary", "by"],
            drop=["updated", "runs", "by"],
        )

    if not page.data and here.output.human:
        here.output.note(f"nothing on {here.settings.hub} matches" if query else "the hub is empty")
        here.output.next("wander search" if query else "wander new my-env")
        return
    here.output.answer(page.data, show, next=page.next)
    if page.data:
        first = page.data[0]
        here.output.next(f"wander info {first.owner}/{first.name}")
