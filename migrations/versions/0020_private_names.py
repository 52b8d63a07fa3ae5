"""The names of each owner's index that are or once were private

What was private before and is public now, or gone to another name, is not known any more.
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.create_table(
        "private_names",
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column("project", sa.String(length=200), nullable=False),
        sa.ForeignKeyConstraint(["owner_id"], ["owners.id"], name=op.f("fk_private_names_owner_id_owners")),
        sa.PrimaryKeyConstraint("owner_id", "project", name=op.f("pk_private_names")),
    )
    op.execute(
        "INSERT INTO private_names (owner_id, project) "
        "SELECT p.owner_id, p.project FROM index_pages p JOIN environments e ON e.id = p.environment_id "
        "WHERE e.private UNION "
        "SELECT f.owner_id, f.name FROM former_names f JOIN environments e ON e.id = f.environment_id "
        "WHERE e.private"
    )


def downgrade() -> None:
    op.drop_table("private_names")
