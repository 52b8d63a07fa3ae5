"""Content of owners, environments and models: their rows, found by foreign keys, and the objects that the
rows need.

An archive of a hub or of one owner has this content and nothing else. It has no tokens, passwords, sessions,
roles or audit entries, because each hub decides who may do what.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    false,
    literal,
    null,
    or_,
    select,
    union,
)

from wander_hub.database import Base
from wander_hub.jobs import OPEN
from wander_hub.names import BUNDLED_OWNER
from wander_hub.operation import tables  # noqa: F401 - registers every table
from wander_hub.verification import evidence

Roots = Mapping[str, Select[Any]]
"""Ids of the root rows, by table: `owners`, `environments`, `models`."""

PARENTS = {
    "private_names": "owner_id",
    "former_names": "environment_id",
    "versions": "environment_id",
    "files": "version_id",
    "version_documents": "version_id",
    "file_provenances": "file_id",
    "downloads": "version_id",
    "boards": "version_id",
    "runs": "environment_id",
    "run_chunks": "run_id",
    "run_artifacts": "run_id",
    "run_checkpoints": "run_id",
    "run_completions": "run_id",
    "run_examinations": "run_id",
    "board_entries": "run_id",
    "hidden_runs": "run_id",
    "verifications": "run_id",
    "verification_divergences": "verification_id",
    "version_checks": "version_id",
    "model_revisions": "model_id",
    "model_files": "revision_id",
}
"""Column that refers to the parent row, by table."""
LEFT_OUT = {
    *("audit", "attempts", "browser_sessions", "grants", "memberships", "one_time_codes", "tokens"),
    *("linked_identities", "spending"),
    "second_factors",
    *("publishers", "used_assertions", "imports", "webhooks", "webhook_deliveries", "invitations"),
    "content_revision",
    "quotas",  # each hub's operator sets these
    "index_pages",  # rendered again after the import
    *("transfers", "transfer_parts"),
    *("sealed_sets", "sealed_plays"),  # another hub cannot decrypt them
}
"""Tables that archives leave out: rights, unfinished work, and derived data."""
_NAMED = {
    "owners": ("id", "name", "private_by_default", "internal_by_default", "created_at"),
    "users": ("id", "name", "created_at"),
}
"""Columns of owners and users that archives include. The other columns are confidential."""
_OBJECTS = {
    "files": "sha256",
    "version_documents": "sha256",
    "run_chunks": "object_sha256",
    "run_artifacts": "sha256",
    "runs": "order_sha256",
    "model_files": "sha256",
}
"""Column with the digest of an object, by table."""
_TABLES = Base.metadata.tables


def roots_of(owner: str | None) -> Roots:
    """Return the roots of one owner's content, or of the content of all owners.

    The hub's bundled packages are left out, because each hub publishes its own.
    """
    owners, environments = _TABLES["owners"].c, _TABLES["environments"].c
    bundled = environments.owner_id.in_(select(owners.id).where(owners.name == BUNDLED_OWNER))
    present = select(environments.id).where(environments.listed | ~bundled)
    other_columns = [_TABLES[name].c.owner_id for name in ("models", "former_names", "private_names")]
    having = union(present.with_only_columns(environments.owner_id), *map(select, other_columns))
    mine = select(owners.id).where(owners.id.in_(select(having.subquery())))
    if owner is not None:
        mine = select(owners.id).where(owners.name == owner)
    models = _TABLES["models"].c
    return {
        "owners": mine,
        "environments": present.where(environments.owner_id.in_(mine)),
        "models": select(models.id).where(models.owner_id.in_(mine)),
    }


def one_of(name: str, key: int) -> Roots:
    """Return the roots for the content of one environment or one model."""
    nothing = select(literal(0)).where(false())
    return {
        "owners": select(_TABLES["owners"].c.id),
        "environments": nothing,
        "models": nothing,
        name: select(literal(key)),
    }


def rows_below(roots: Roots) -> Iterator[tuple[Table, Select[Any]]]:
    """Yield each table with its rows that belong to environments and models, in an order for insertion."""
    for table in Base.metadata.sorted_tables:
        if table.name in PARENTS or table.name in ("environments", "models", "jobs", "signing_keys"):
            yield table, select(table).where(_belongs(table, roots))


def statements(roots: Roots) -> Iterator[tuple[str, Select[Any]]]:
    """Yield the content of an archive, table by table."""
    below = dict(rows_below(roots))
    for table in Base.metadata.sorted_tables:
        if table.name in _NAMED:
            named: list[ColumnElement[Any]] = [table.c[name] for name in _NAMED[table.name]]
            if table.name == "users":
                named.append(false().label("admin"))
            yield table.name, select(*named).where(table.c.id.in_(_named(table, roots)))
        elif table in below:
            yield table.name, below[table]


def object_column(table: Table) -> str | None:
    """Return the name of the column with the digest of an object, or None."""
    return _OBJECTS.get(table.name)


def needed_objects(connection: Connection, roots: Roots) -> dict[str, int | None]:
    """Return the digests of all objects that the rows need, with their sizes if the rows have them."""
    sizes: dict[str, int | None] = {}
    for name, key in _OBJECTS.items():
        table = _TABLES[name]
        query = select(table.c[key], table.c.size if "size" in table.c else null())
        query = query.where(_belongs(table, roots), table.c[key].is_not(None))
        parent = next(iter(table.c[PARENTS[name]].foreign_keys)).column
        if "deleted_at" in parent.table.c and name != "runs":
            query = query.where(
                table.c[PARENTS[name]].in_(select(parent).where(parent.table.c.deleted_at.is_(None)))
            )
        for sha256, size in connection.execute(query):
            sizes[sha256] = size if size is not None else sizes.get(sha256)
    return sizes


def _belongs(table: Table, roots: Roots) -> ColumnElement[bool]:
    """Return the condition for the rows of a table that belong to the roots."""
    if table.name in roots:
        return table.c.id.in_(roots[table.name])
    runs, jobs = _TABLES["runs"], _TABLES["jobs"]
    if table.name == "signing_keys":
        return table.c.id.in_(select(runs.c.signing_key_id).where(_belongs(runs, roots)))
    if table.name == "jobs":
        users = [_TABLES[name] for name in ("verifications", "version_checks")]
        of_jobs = [table.c.id.in_(select(user.c.job_id).where(_belongs(user, roots))) for user in users]
        read = select(literal(evidence.KEY) + runs.c.run_id).where(_belongs(runs, roots))
        return or_(*of_jobs, table.c.key.in_(read)) & table.c.state.not_in(OPEN)
    key = table.c[PARENTS[table.name]]
    parent = next(iter(key.foreign_keys)).column
    condition: ColumnElement[bool] = key.in_(select(parent).where(_belongs(parent.table, roots)))
    if table.name == "former_names":
        condition &= table.c.owner_id.in_(roots["owners"])
    if "job_id" in table.c:  # the other hub starts unfinished jobs again
        condition &= table.c.job_id.in_(select(jobs.c.id).where(jobs.c.state.not_in(OPEN)))
    return condition


def _named(table: Table, roots: Roots) -> Select[Any]:
    """Return the IDs of the owners or users in these rows."""
    queries = [roots["owners"]] if table.name == "owners" else []
    for other, query in rows_below(roots):
        for key in other.c:
            if any(foreign_key.column.table is table for foreign_key in key.foreign_keys):
                queries.append(query.with_only_columns(key))
    return select(union(*queries).subquery())
