"""Words of names are sought by marks of their own"""

from alembic import op

revision = "0040"
down_revision = "0039"


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            "UPDATE environment_search SET marks = marks || ' zn' || (SELECT replace(name, '-', ' zn') "
            "FROM environments WHERE environments.id = environment_search.rowid)"
        )
    else:
        op.execute(
            "UPDATE environment_search SET head = head || setweight("
            "to_tsvector('english', 'zn' || replace(name, '-', ' zn')), 'C') "
            "FROM environments WHERE environments.id = environment_id"
        )


def downgrade() -> None:
    """The release of before passes over the marks that it does not know."""
