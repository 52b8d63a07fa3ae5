"""Export of a whole hub, or of one owner's content, to one archive, while the hub runs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO, Any

from sqlalchemy import Select, func, select

from wander_hub import audit
from wander_hub.accounts.repository import owner_named
from wander_hub.database import Database
from wander_hub.environments.models import Version
from wander_hub.http.problems import HubProblem
from wander_hub.operation import archive
from wander_hub.operation.backup import write_rows
from wander_hub.operation.belongings import needed_objects, roots_of, statements
from wander_hub.sealed.models import SealedSet
from wander_hub.storage import Storage

FORMAT = "wander.archive/1"


def export(
    database: Database, storage: Storage, path: Path, *, origin: audit.Origin, owner: str | None = None
) -> dict[str, int]:
    """Write the archive; return the number of its rows, objects and environments, and of the sealed sets that
    it leaves out.

    An interrupted export leaves no file with the final name, and starts again from the beginning.
    """
    with archive.written(path) as file:
        return write_archive(database, storage, file, origin=origin, owner=owner, folder=path.parent)


def write_archive(
    database: Database,
    storage: Storage,
    file: IO[bytes],
    *,
    origin: audit.Origin,
    owner: str | None = None,
    folder: Path | None = None,
) -> dict[str, int]:
    """Write the archive into an open file, with temporary files in `folder`."""
    if owner is not None:
        with database.read() as session:
            if owner_named(session, owner) is None:
                hint = "the owner is the part of an environment's name before the `/`"
                raise HubProblem(404, "owner_not_found", f"there is no owner `{owner}`", hint=hint)
    roots = roots_of(owner)
    with tempfile.TemporaryFile(dir=folder) as rows:
        with database.connect_at_one_moment() as connection:
            count = write_rows(connection, rows, FORMAT, statements(roots), owner=owner)
            objects = needed_objects(connection, roots)
            total = select(func.count()).select_from(roots["environments"].subquery())
            environments = connection.scalar(total) or 0
            sealed = connection.scalar(_sealed_sets(roots["environments"])) or 0
        archive.write(file, rows, storage, objects)
    counts = {"rows": count, "objects": len(objects), "environments": environments, "sealed_sets": sealed}
    with database.write() as session:
        audit.record(session, origin, owner=owner, target=owner or "", **counts)
    return counts


def _sealed_sets(environments: Select[Any]) -> Select[int]:
    """Return the statement for the number of sealed sets that stay here, because only this hub has their
    keys."""
    sets = select(func.count()).select_from(SealedSet).join(Version, Version.id == SealedSet.version_id)
    return sets.where(Version.environment_id.in_(environments), SealedSet.state != "refused")
