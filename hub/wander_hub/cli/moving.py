"""Commands that carry a hub's content elsewhere: `wander-hub export` and `import`."""

from __future__ import annotations

from pathlib import Path

import click

from wander_hub.cli.options import (
    by_command,
    data_option,
    json_option,
    open_database,
    print_row,
    read_settings,
)
from wander_hub.storage import Storage


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--owner", help="only what this owner has")
@data_option
@json_option
def export(file: Path, owner: str | None, data: Path | None, as_json: bool) -> None:
    """Write all environments, runs, boards and models into one archive, while the hub runs.

    Tokens, passwords, roles and the audit log stay behind; what is private does not.

    \b
    wander-hub export hub.tar
    wander-hub export --owner games games.tar
    wander-hub import games.tar --data other   into another hub
    """
    from wander_hub.operation.export import export as write

    settings = read_settings(data=data)
    with open_database(settings) as database:
        storage = Storage.of(settings)
        found = write(database, storage, file, owner=owner, origin=by_command("hub.export"))
    told = f"{found['environments']} environments, {found['rows']} rows and {found['objects']} objects"
    print_row(found, as_json, f"`{file}` holds {told}")


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--as", "under", metavar="OWNER", help="the owner that gets what one owner had")
@click.option("--merge", is_flag=True, help="owners and users whose names are here are the same ones")
@click.option(
    "--unpacked",
    type=click.IntRange(min=1),
    help="bytes that its rows may unpack to  [default: 1 GiB and 100 times as many]",
)
@data_option
@json_option
def bring(
    file: Path, under: str | None, merge: bool, unpacked: int | None, data: Path | None, as_json: bool
) -> None:
    """Bring an archive into this hub, which may run and have other things already.

    Names that are taken are told before anything is written. Killed in the middle, it goes on when it is
    run again. Users who are not here become names without password, token or role.

    \b
    wander-hub import hub.tar
    wander-hub import games.tar --as old-games
    """
    from wander_hub.index.public_files import FOLDER, PublicFiles
    from wander_hub.operation import imports

    settings = read_settings(data=data)
    with open_database(settings, make=True) as database:
        storage = Storage.of(settings)
        if settings.public_files:
            PublicFiles(database, storage, settings.data / FOLDER).attach()
        found = imports.bring(
            database,
            storage,
            file,
            settings=settings,
            origin=by_command("hub.import"),
            choices=imports.Choices(under, merge, unpacked),
        )
    told = f"{found['environments']} environments and {found['models']} models are here"
    print_row(found, as_json, f"{told}, {found['new']} of them new")
