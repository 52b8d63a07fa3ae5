"""Index pages tell whether their name lies in its owner's namespace"""

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"

_WHERE = {
    "sqlite_where": sa.text("in_namespace IS NOT 0"),
    "postgresql_where": sa.text("in_namespace IS NOT false"),
}


def upgrade() -> None:
    op.add_column("index_pages", sa.Column("in_namespace", sa.Boolean()))
    op.execute(
        "UPDATE index_pages SET in_namespace = (SELECT index_pages.project = owners.name "
        "OR index_pages.project LIKE owners.name || '-%' FROM owners WHERE owners.id = owner_id)"
    )
    op.create_index("ix_index_pages_in_namespace", "index_pages", ["project"], **_WHERE)


def downgrade() -> None:
    op.drop_index("ix_index_pages_in_namespace", "index_pages", **_WHERE)
    op.drop_column("index_pages", "in_namespace")
