"""What belongs to an owner, an environment or a model: rows by their foreign keys, and objects by their rows.

An archive of a whole hub or of one owner holds this and nothing else. Neither tokens, passwords, sessions and
roles nor the audit log are among it: who may do what is a matter of each hub.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    case,
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
"""The ids with which it begins, by table: `owners`, `environments`, `models`."""

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
"""By table, the column that says which row a row belongs to."""
LEFT_OUT = {
    *("audit", "attempts", "browser_sessions", "grants", "memberships", "one_time_codes", "tokens"),
    *("linked_identities", "spending"),
    "second_factors",
    *("publishers", "used_assertions", "stars", "imports", "webhooks", "webhook_deliveries", "invitations"),
    "content_revision",
    "quotas",  # how much an owner may have, each hub's operator says
    "index_pages",  # rendered again
    *("transfers", "transfer_parts"),
}
"""Tables of rights, of what is under way, and of what is derived."""
_NAMED = {
    "owners": ("id", "name", "private_by_default", "internal_by_default", "created_at"),
    "users": ("id", "name", "created_at"),
}
"""Columns that tell who is named; the others are nobody else's business."""
_OBJECTS = {
    "files": "sha256",
    "version_documents": "sha256",
    "run_chunks": "object_sha256",
    "run_artifacts": "sha256",
    "runs": "order_sha256",
    "model_files": "sha256",
}
"""By table, the column that names an object."""
_TABLES = Base.metadata.tables


def roots_of(owner: str | None) -> Roots:
    """Return the roots of what one owner has, or all who have something.

    The hub's own packages are left out: each hub has them from its own installation.
    """
    owners, environments = _TABLES["owners"].c, _TABLES["environments"].c
    bundled = environments.owner_id.in_(select(owners.id).where(owners.name == BUNDLED_OWNER))
    present = select(environments.id).where(environments.listed | ~bundled)
    others = [_TABLES[one].c.owner_id for one in ("models", "former_names", "private_names")]
    having = union(present.with_only_columns(environments.owner_id), *(select(one) for one in others))
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
    """Return the roots of what one environment or one model has."""
    nothing = select(literal(0)).where(false())
    return {
        "owners": select(_TABLES["owners"].c.id),
        "environments": nothing,
        "models": nothing,
        name: select(literal(key)),
    }


def rows_below(roots: Roots) -> Iterator[tuple[Table, Select[Any]]]:
    """Yield each table of what belongs to environments and models, in an order in which rows can be added."""
    for each in Base.metadata.sorted_tables:
        if each.name in PARENTS or each.name in ("environments", "models", "jobs", "signing_keys"):
            yield each, select(each).where(_belongs(each, roots))


def statements(roots: Roots) -> Iterator[tuple[str, Select[Any]]]:
    """Yield what an archive holds, table by table."""
    below = dict(rows_below(roots))
    for each in Base.metadata.sorted_tables:
        if each.name in _NAMED:
            named: list[ColumnElement[Any]] = [each.c[one] for one in _NAMED[each.name]]
            if each.name == "users":
                named.append(false().label("admin"))
            yield each.name, select(*named).where(each.c.id.in_(_named(each, roots)))
        elif each.name == "environments":
            kept = each.c.parent_id.in_(roots["environments"])
            instead: dict[str, ColumnElement[Any]] = {
                "parent_id": case((kept, each.c.parent_id), else_=null()).label("parent_id"),
                "star_count": literal(0).label("star_count"),
            }
            columns = [instead.get(one.name, one) for one in each.c]
            yield each.name, select(*columns).where(_belongs(each, roots))
        elif each in below:
            yield each.name, below[each]


def object_column(table: Table) -> str | None:
    """Return the name of the column by which rows of a table need an object."""
    return _OBJECTS.get(table.name)


def needed_objects(connection: Connection, roots: Roots) -> dict[str, int | None]:
    """Return the digests of all objects that must be there, with their sizes where rows tell them."""
    found: dict[str, int | None] = {}
    for name, key in _OBJECTS.items():
        each = _TABLES[name]
        query = select(each.c[key], each.c.size if "size" in each.c else null())
        query = query.where(_belongs(each, roots), each.c[key].is_not(None))
        above = next(iter(each.c[PARENTS[name]].foreign_keys)).column
        if "deleted_at" in above.table.c and name != "runs":
            query = query.where(
                each.c[PARENTS[name]].in_(select(above).where(above.table.c.deleted_at.is_(None)))
            )
        for sha256, size in connection.execute(query):
            found[sha256] = size if size is not None else found.get(sha256)
    return found


def _belongs(table: Table, roots: Roots) -> ColumnElement[bool]:
    """Return the condition that holds for the rows of a table that belong to the roots."""
    if table.name in roots:
        return table.c.id.in_(roots[table.name])
    runs, jobs = _TABLES["runs"], _TABLES["jobs"]
    if table.name == "signing_keys":
        return table.c.id.in_(select(runs.c.signing_key_id).where(_belongs(runs, roots)))
    if table.name == "jobs":
        asked = [_TABLES[one] for one in ("verifications", "version_checks")]
        of_jobs = [table.c.id.in_(select(one.c.job_id).where(_belongs(one, roots))) for one in asked]
        read = select(literal(evidence.KEY) + runs.c.run_id).where(_belongs(runs, roots))
        return or_(*of_jobs, table.c.key.in_(read)) & table.c.state.not_in(OPEN)
    key = table.c[PARENTS[table.name]]
    above = next(iter(key.foreign_keys)).column
    found: ColumnElement[bool] = key.in_(select(above).where(_belongs(above.table, roots)))
    if table.name == "former_names":
        found &= table.c.owner_id.in_(roots["owners"])
    if "job_id" in table.c:  # what is under way begins anew elsewhere
        found &= table.c.job_id.in_(select(jobs.c.id).where(jobs.c.state.not_in(OPEN)))
    return found


def _named(table: Table, roots: Roots) -> Select[Any]:
    """Return the ids of the owners or users that the rows name."""
    found = [roots["owners"]] if table.name == "owners" else []
    for each, query in rows_below(roots):
        for key in each.c:
            if any(one.column.table is table for one in key.foreign_keys):
                found.append(query.with_only_columns(key))
    return select(union(*found).subquery())
