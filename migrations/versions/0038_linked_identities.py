"""People sign in at a provider"""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"


def upgrade() -> None:
    op.create_table(
        "linked_identities",
        sa.Column("issuer", sa.String(length=300), nullable=False),
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_linked_identities_user_id_users"),
        sa.PrimaryKeyConstraint("issuer", "subject", name="pk_linked_identities"),
    )
    op.create_index("ix_linked_identities_user_id", "linked_identities", ["user_id"])


def downgrade() -> None:
    op.drop_table("linked_identities")
