"""Commands that move content between hubs: `wander-hub export` and `import`."""

from __future__ import annotations

from pathlib import Path

import click

from wander_hub.cli.command_line import Command, Integer
from wander_hub.cli.options import (
    by_command,
    data_option,
    json_option,
    open_database,
    print_row,
    read_settings,
)
from wander_hub.storage import Storage


@click.command(cls=Command)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--owner", help="export only what belongs to this owner")
@data_option
@json_option
def export(file: Path, owner: str | None, data: Path | None, as_json: bool) -> None:
    """Write all environments, runs, boards and models to one archive. The hub may be running.

    Private environments and models are included. Tokens, passwords, roles, the audit log and sealed task sets
    are not.

    \b
    wander-hub export hub.tar
    wander-hub export --owner games games.tar
    wander-hub import games.tar --data other   import it into another hub
    """
    from wander_hub.operation.export import export as write

    settings = read_settings(data=data)
    with open_database(settings) as database:
        storage = Storage.of(settings)
        counts = write(database, storage, file, owner=owner, origin=by_command("hub.export"))
        content = (
            f"{counts['environments']} environments, {counts['rows']} rows and {counts['objects']} objects"
        )
        print_row(counts, as_json, f"exported {content} to `{file}`")
        if sealed := counts["sealed_sets"]:
            click.echo(f"left out {sealed} sealed task sets, which only this hub can open", err=True)


@click.command("import", cls=Command)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--as",
    "under",
    metavar="OWNER",
    help="import everything under this owner, if the archive contains only one owner",
)
@click.option(
    "--merge",
    is_flag=True,
    help="merge owners and users of the archive with those of this hub that have the same name",
)
@click.option(
    "--unpacked",
    type=Integer(min=1),
    help="maximum size of the unpacked rows in bytes  [default: 1 GiB plus 100 times the compressed size]",
)
@data_option
@json_option
def bring(
    file: Path, under: str | None, merge: bool, unpacked: int | None, data: Path | None, as_json: bool
) -> None:
    """Import an archive into this hub, which may be running and may have other content.

    If names in the archive already exist on this hub, the command lists them and imports nothing. If the
    import is interrupted, run it again to continue. The command adds users of the archive who are not on this
    hub. They get no password, token or role.

    \b
    wander-hub import hub.tar
    wander-hub import games.tar --as old-games
    """
    from wander_hub.operation import imports

    settings = read_settings(data=data)
    with open_database(settings, make=True) as database:
        storage = Storage.of(settings)
        counts = imports.bring(
            database,
            storage,
            file,
            settings=settings,
            origin=by_command("hub.import"),
            choices=imports.Choices(under, merge, unpacked),
        )
    text = f"the archive has {counts['environments']} environments and {counts['models']} models"
    print_row(counts, as_json, f"{text}, of which {counts['new']} are new")
