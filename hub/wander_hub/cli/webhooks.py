"""Commands on webhooks: `wander-hub webhook`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from sqlalchemy.orm import Session
from wander.wire.events import EVENTS

from wander_hub.cli.options import commit, data_option, json_option, print_row, print_rows, reading
from wander_hub.identity import HUB
from wander_hub.settings import Settings

owner_option = click.option(
    "--owner", help="owner of the webhooks  [default: the hub, for all public events]"
)


@click.group()
def webhook() -> None:
    """Notify other programs of events on the hub."""


@webhook.command("list")
@owner_option
@data_option
@json_option
def list_webhooks(owner: str | None, data: Path | None, as_json: bool) -> None:
    """List webhooks without their secrets."""
    from wander_hub.webhooks import service

    with reading(data) as session:
        rows = [hook.model_dump(mode="json") for hook in service.list_all(session, HUB, owner)]
    print_rows(rows, as_json)


@webhook.command("add")
@click.argument("url")
@owner_option
@click.option("--environment", help="environment of the owner  [default: all]")
@click.option(
    "--event",
    multiple=True,
    type=click.Choice(EVENTS),
    metavar="EVENT",
    help="event such as `run.posted`; repeatable  [default: all]",
)
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
    """Add a webhook and print its signing secret. The secret cannot be shown again.

    \b
    wander-hub webhook add https://ci.example.org/hook --owner games --event version.published
    """
    from wander.wire.events import NewWebhook

    from wander_hub.webhooks import service

    given: dict[str, Any] = {"url": url, "owner": owner, "environment": environment, "events": list(event)}
    wanted = NewWebhook.model_validate(given)

    def add(session: Session, settings: Settings) -> dict[str, Any]:
        created = service.create(session, settings, HUB, wanted)
        return created.webhook.model_dump(mode="json") | {"secret": created.secret}

    row = commit("webhook.create", add, data)
    print_row(row, as_json, f"webhook {row['id']}: {row['secret']}")


@webhook.command("remove")
@click.argument("number", type=int)
@data_option
@json_option
def remove_webhook(number: int, data: Path | None, as_json: bool) -> None:
    """Remove a webhook and its deliveries."""
    from wander_hub.webhooks import service

    row = commit("webhook.remove", lambda session, _: service.remove(session, HUB, number), data)
    print_row(row.model_dump(mode="json"), as_json, f"removed webhook {number}")


@webhook.command("test")
@click.argument("number", type=int)
@data_option
@json_option
def try_webhook(number: int, data: Path | None, as_json: bool) -> None:
    """Send `webhook.test` to a webhook through the running hub. See `wander-hub webhook deliveries` for the
    result."""
    from wander_hub.webhooks import service

    row = commit("webhook.test", lambda session, _: service.try_out(session, HUB, number), data)
    print_row(row.model_dump(mode="json"), as_json, f"delivery {row.id} is queued")


@webhook.command("deliveries")
@click.argument("number", type=int)
@click.option("--limit", type=click.IntRange(min=1, max=10000), default=20, show_default=True)
@data_option
@json_option
def list_deliveries(number: int, limit: int, data: Path | None, as_json: bool) -> None:
    """List the deliveries of a webhook, newest first."""
    from wander_hub.webhooks import service

    with reading(data) as session:
        page = service.list_deliveries(session, HUB, number, None, limit)
    print_rows([delivery.model_dump(mode="json") for delivery in page.data], as_json)


@webhook.command("redeliver")
@click.argument("number", type=int)
@click.argument("delivery", type=int)
@data_option
@json_option
def redeliver(number: int, delivery: int, data: Path | None, as_json: bool) -> None:
    """Send a delivery again, immediately."""
    from wander_hub.webhooks import service

    row = commit(
        "webhook.redeliver", lambda session, _: service.redeliver(session, HUB, number, delivery), data
    )
    print_row(row.model_dump(mode="json"), as_json, f"delivery {row.id} is queued")
