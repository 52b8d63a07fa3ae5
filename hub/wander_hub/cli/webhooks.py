"""Commands on webhooks: `wander-hub webhook`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from sqlalchemy.orm import Session

from wander_hub.cli.options import commit, data_option, json_option, print_row, print_rows, reading
from wander_hub.identity import HUB
from wander_hub.settings import Settings

owner_option = click.option("--owner", help="whose; without it those of the hub, for all that is public")


@click.group()
def webhook() -> None:
    """Tell other programs of what happens on the hub."""


@webhook.command("list")
@owner_option
@data_option
@json_option
def list_webhooks(owner: str | None, data: Path | None, as_json: bool) -> None:
    """List webhooks, without their secrets."""
    from wander_hub.webhooks import service

    with reading(data) as session:
        rows = [one.model_dump(mode="json") for one in service.list_all(session, HUB, owner)]
    print_rows(rows, as_json)


@webhook.command("add")
@click.argument("url")
@owner_option
@click.option("--environment", help="of the owner; all without it")
@click.option("--event", multiple=True, help="such as `run.posted`; may repeat  [default: all]")
@data_option
@json_option
def add_webhook(
    url: str,
    owner: str | None,
    environment: str | None,
    event: tuple[str, ...],
    data: Path | None,
    as_json: bool,
) -> None:
    """Add a webhook and print the secret that signs what it is told; it cannot be shown again.

    \b
    wander-hub webhook add https://ci.example.org/hook --owner games --event version.published
    """
    from wander.wire.events import NewWebhook

    from wander_hub.webhooks import service

    given: dict[str, Any] = {"url": url, "owner": owner, "environment": environment, "events": list(event)}
    wanted = NewWebhook.model_validate(given)

    def add(session: Session, settings: Settings) -> dict[str, Any]:
        made = service.create(session, settings, HUB, wanted)
        return made.webhook.model_dump(mode="json") | {"secret": made.secret}

    row = commit("webhook.create", add, data)
    print_row(row, as_json, f"webhook {row['id']}: {row['secret']}")


@webhook.command("remove")
@click.argument("number", type=int)
@data_option
@json_option
def remove_webhook(number: int, data: Path | None, as_json: bool) -> None:
    """Remove a webhook with its deliveries."""
    from wander_hub.webhooks import service

    row = commit("webhook.remove", lambda session, _: service.remove(session, HUB, number), data)
    print_row(row.model_dump(mode="json"), as_json, f"removed webhook {number}")


@webhook.command("test")
@click.argument("number", type=int)
@data_option
@json_option
def try_webhook(number: int, data: Path | None, as_json: bool) -> None:
    """Have `webhook.test` delivered by the running hub; `deliveries` tells how that ends."""
    from wander_hub.webhooks import service

    row = commit("webhook.test", lambda session, _: service.try_out(session, HUB, number), data)
    print_row(row.model_dump(mode="json"), as_json, f"delivery {row.id} waits")


@webhook.command("deliveries")
@click.argument("number", type=int)
@click.option("--limit", type=click.IntRange(min=1, max=10000), default=20, show_default=True)
@data_option
@json_option
def list_deliveries(number: int, limit: int, data: Path | None, as_json: bool) -> None:
    """List what was and is to be delivered to a webhook, the newest first."""
    from wander_hub.webhooks import service

    with reading(data) as session:
        page = service.list_deliveries(session, HUB, number, None, limit)
    print_rows([one.model_dump(mode="json") for one in page.data], as_json)


@webhook.command("redeliver")
@click.argument("number", type=int)
@click.argument("delivery", type=int)
@data_option
@json_option
def redeliver(number: int, delivery: int, data: Path | None, as_json: bool) -> None:
    """Have a delivery made again now."""
    from wander_hub.webhooks import service

    row = commit(
        "webhook.redeliver", lambda session, _: service.redeliver(session, HUB, number, delivery), data
    )
    print_row(row.model_dump(mode="json"), as_json, f"delivery {row.id} waits")
