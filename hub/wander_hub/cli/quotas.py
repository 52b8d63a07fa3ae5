"""Commands on how much owners may have: `wander-hub quota`."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError
from wander.wire.people import Allowance, NewQuota, OwnerQuota

from wander_hub.cli.options import AsJson, Data, commit, group, print_row, print_rows, read_settings, reading
from wander_hub.identity import HUB

quota_app = group("Say how much owners may have: stored bytes, versions, runs.")
_KINDS = ("stored_bytes", "versions", "runs")


def _limit(word: str) -> str | int | None:
    if word in ("default", "unlimited"):
        return None if word == "default" else word
    try:
        return int(TypeAdapter(ByteSize).validate_python(word))
    except ValidationError:
        raise typer.BadParameter(f"`{word}` is no number, `10GiB`, `unlimited` or `default`") from None


Limit = Annotated[
    str, typer.Option(parser=_limit, metavar="LIMIT", help="a number, `10GiB`, `unlimited` or `default`")
]


@quota_app.command("show")
def show_quota(owner: str, data: Data = None, as_json: AsJson = False) -> None:
    """Show what an owner has and may have.

    \b
    wander-hub quota show ada
    """
    from wander_hub.quotas import service

    with reading(data) as session:
        _print(service.of_owner(session, read_settings(data=data), HUB, owner), as_json)


@quota_app.command("set")
def set_quota(
    owner: str,
    stored_bytes: Limit = "default",
    versions: Limit = "default",
    runs: Limit = "default",
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Give an owner limits of its own; what is not given is as the hub's settings say.

    \b
    wander-hub quota set ada --stored-bytes 50GiB --runs unlimited
    """
    from wander_hub.quotas import service

    wanted = NewQuota.model_validate({"stored_bytes": stored_bytes, "versions": versions, "runs": runs})
    changed = commit(
        "owner.quota", lambda session, settings: service.change(session, settings, HUB, owner, wanted), data
    )
    _print(changed, as_json)


@quota_app.command("list")
def list_quotas(data: Data = None, as_json: AsJson = False) -> None:
    """List the owners with limits of their own."""
    from wander_hub.quotas import service

    with reading(data) as session:
        found = service.list_own(session, read_settings(data=data))
    if as_json:
        print_rows([one.model_dump(mode="json") for one in found], as_json)
        return
    print_rows(
        [{"owner": one.owner} | {kind: _told(getattr(one, kind)) for kind in _KINDS} for one in found], False
    )


def _print(found: OwnerQuota, as_json: bool) -> None:
    lines = [f"{kind.replace('_', ' ')}: {_told(getattr(found, kind))}" for kind in _KINDS]
    print_row(found.model_dump(mode="json"), as_json, "\n".join(lines))


def _told(one: Allowance) -> str:
    limit = "no limit" if one.allowed is None else f"of {one.allowed:,}"
    return f"{one.used:,}, {limit}" + (", its own" if one.own else "")
