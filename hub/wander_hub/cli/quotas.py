"""Commands on quotas: `wander-hub quota`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic import ByteSize, TypeAdapter, ValidationError
from wander.wire.people import Allowance, NewQuota, OwnerQuota

from wander_hub.cli.command_line import Group
from wander_hub.cli.options import (
    commit,
    data_option,
    json_option,
    print_row,
    print_rows,
    read_settings,
    reading,
)
from wander_hub.identity import HUB

Function = TypeVar("Function", bound=Callable[..., Any])
_Limit = str | int | None
_KINDS = ("stored_bytes", "versions", "runs")


def _limit(word: str) -> str | int | None:
    if word in ("default", "unlimited"):
        return None if word == "default" else word
    try:
        return int(TypeAdapter(ByteSize).validate_python(word))
    except ValidationError:
        raise click.BadParameter(
            f"`{word}` is not a limit: use a number, a size such as `10GiB`, `unlimited` or `default`"
        ) from None


def _limit_option(kind: str) -> Callable[[Function], Function]:
    amount = "a size such as `10GiB`" if kind == "stored_bytes" else "a number"
    return click.option(
        f"--{kind.replace('_', '-')}",
        type=_limit,
        metavar="LIMIT",
        default="default",
        help=f"{amount}, `unlimited` or `default`",
    )


@click.group(cls=Group)
def quota() -> None:
    """Limit what owners may store: bytes, versions and runs."""


@quota.command("show")
@click.argument("owner")
@data_option
@json_option
def show_quota(owner: str, data: Path | None, as_json: bool) -> None:
    """Show an owner's usage and limits.

    \b
    wander-hub quota show ada
    """
    from wander_hub.quotas import service

    with reading(data) as session:
        _print(service.quota_of_owner(session, read_settings(data=data), HUB, owner), as_json)


@quota.command("set")
@click.argument("owner")
@_limit_option("stored_bytes")
@_limit_option("versions")
@_limit_option("runs")
@data_option
@json_option
def set_quota(
    owner: str, stored_bytes: _Limit, versions: _Limit, runs: _Limit, data: Path | None, as_json: bool
) -> None:
    """Set the limits of an owner. Limits without an option are reset to the hub's defaults.

    \b
    wander-hub quota set ada --stored-bytes 50GiB --runs unlimited
    """
    from wander_hub.quotas import service

    wanted = NewQuota.model_validate({"stored_bytes": stored_bytes, "versions": versions, "runs": runs})
    changed = commit(
        "owner.quota",
        lambda session, settings: service.change_quota(session, settings, HUB, owner, wanted),
        data,
    )
    _print(changed, as_json)


@quota.command("list")
@data_option
@json_option
def list_quotas(data: Path | None, as_json: bool) -> None:
    """List the owners whose limits differ from the hub's defaults."""
    from wander_hub.quotas import service

    with reading(data) as session:
        quotas = service.list_own(session, read_settings(data=data))
    if as_json:
        print_rows([quota.model_dump(mode="json") for quota in quotas], as_json)
        return
    print_rows(
        [
            {"owner": quota.owner} | {kind: _format(getattr(quota, kind)) for kind in _KINDS}
            for quota in quotas
        ],
        False,
    )


def _print(quota: OwnerQuota, as_json: bool) -> None:
    lines = [f"{kind.replace('_', ' ')}: {_format(getattr(quota, kind))}" for kind in _KINDS]
    print_row(quota.model_dump(mode="json"), as_json, "\n".join(lines))


def _format(allowance: Allowance) -> str:
    limit = "no limit" if allowance.allowed is None else f"of {allowance.allowed:,}"
    return f"{allowance.used:,}, {limit}" + (" (set for this owner)" if allowance.own else "")
