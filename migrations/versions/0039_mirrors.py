"""What the hub follows on other hubs"""

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"


def upgrade() -> None:
    op.add_column("environments", sa.Column("mirror_of", sa.Text(), nullable=True))
    op.create_table(
        "mirrors",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("url", sa.String(length=300), nullable=False),
        sa.Column("owner", sa.String(length=39), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("token_file", sa.Text(), nullable=True),
        sa.Column("added_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("looked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("problems", sa.JSON(), nullable=False),
        sa.Column("seen", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_mirrors"),
        sa.UniqueConstraint("url", "owner", "name", name="uq_mirrors_url_owner_name"),
    )


def downgrade() -> None:
    op.drop_table("mirrors")
    op.drop_column("environments", "mirror_of")
