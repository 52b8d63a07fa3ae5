"""Runs migrations on the connection that `wander_hub.database` provides."""

from alembic import context
from sqlalchemy import Connection, DateTime
from wander_hub.database import Base, UtcDateTime
from wander_hub.operation import tables  # noqa: F401 - registers every table


def render_item(kind: str, item: object, autogen_context: object) -> str | bool:
    """Render the hub's own types as SQLAlchemy types: migrations must not depend on types that may change."""
    if kind == "type" and isinstance(item, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    return False


def compare_type(context, column, inspected, database_type, model_type):  # type: ignore[no-untyped-def]
    """Treat a UTC timestamp as the same type as the database's timestamp."""
    if isinstance(model_type, UtcDateTime):
        return not isinstance(database_type, DateTime)
    return None


def include_name(name: str | None, kind: str, parents: object) -> bool:
    """Skip the tables of the text index, which are specific to the database and have no model."""
    return kind != "table" or not str(name).startswith("environment_search")


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        render_item=render_item,
        compare_type=compare_type,
        include_name=include_name,
    )
    with context.begin_transaction():
        context.run_migrations()


run(context.config.attributes["connection"])
