"""Commands on webhooks: `wander-hub webhook`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from sqlalchemy.orm import Session

from wander_hub.cli.options import AsJson, Data, commit, group, print_row, print_rows, reading
from wander_hub.identity import HUB
from wander_hub.settings import Settings

webhook_app = group("Tell other programs of what happens on the hub.")
Owner = Annotated[str | None, typer.Option(help="whose; without it those of the hub, for all that is public")]
Event = Annotated[list[str] | None, typer.Option(help="such as `run.posted`; may repeat  [default: all]")]


@webhook_app.command("list")
def list_webhooks(owner: Owner = None, data: Data = None, as_json: AsJson = False) -> None:
    """List webhooks, without their secrets."""
    from wander_hub.webhooks import service

    with reading(data) as session:
        rows = [one.model_dump(mode="json") for one in service.list_all(session, HUB, owner)]
    print_rows(rows, as_json)


@webhook_app.command("add")
def add_webhook(
    url: str,
    owner: Owner = None,
    environment: Annotated[str | None, typer.Option(help="of the owner; all without it")] = None,
    event: Event = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Add a webhook and print the secret that signs what it is told; it cannot be shown again.

    \b
    wander-hub webhook add https://ci.example.org/hook --owner games --event version.published
    """
    from wander.wire.events import NewWebhook

    from wander_hub.webhooks import service

    given = {"url": url, "owner": owner, "environment": environment, "events": event or []}
    wanted = NewWebhook.model_validate(given)

    def add(session: Session, settings: Settings) -> dict[str, Any]:
        made = service.create(session, settings, HUB, wanted)
        return made.webhook.model_dump(mode="json") | {"secret": made.secret}

    row = commit("webhook.create", add, data)
    print_row(row, as_json, f"webhook {row['id']}: {row['secret']}")


@webhook_app.command("remove")
def remove_webhook(number: int, data: Data = None, as_json: AsJson = False) -> None:
    """Remove a webhook with its deliveries."""
    from wander_hub.webhooks import service

    row = commit("webhook.remove", lambda session, _: service.remove(session, HUB, number), data)
    print_row(row.model_dump(mode="json"), as_json, f"removed webhook {number}")


@webhook_app.command("test")
def try_webhook(number: int, data: Data = None, as_json: AsJson = False) -> None:
    """Have `webhook.test` delivered by the running hub; `deliveries` tells how that ends."""
    from wander_hub.webhooks import service

    row = commit("webhook.test", lambda session, _: service.try_out(session, HUB, number), data)
    print_row(row.model_dump(mode="json"), as_json, f"delivery {row.id} waits")


@webhook_app.command("deliveries")
def list_deliveries(
    number: int,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 20,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List what was and is to be delivered to a webhook, the newest first."""
    from wander_hub.webhooks import service

    with reading(data) as session:
        page = service.list_deliveries(session, HUB, number, None, limit)
    print_rows([one.model_dump(mode="json") for one in page.data], as_json)


@webhook_app.command("redeliver")
def redeliver(number: int, delivery: int, data: Data = None, as_json: AsJson = False) -> None:
    """Have a delivery made again now."""
    from wander_hub.webhooks import service

    row = commit(
        "webhook.redeliver", lambda session, _: service.redeliver(session, HUB, number, delivery), data
    )
    print_row(row.model_dump(mode="json"), as_json, f"delivery {row.id} waits")
