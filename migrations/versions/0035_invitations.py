"""Roles are offered, and accepted or declined"""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"


def upgrade() -> None:
    op.create_table(
        "invitations",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("owner_id", sa.Integer(), nullable=True),
        sa.Column("environment_id", sa.Integer(), nullable=True),
        sa.Column("name", sa.String(length=39), nullable=False),
        sa.Column("role", sa.String(length=12), nullable=False),
        sa.Column("invited_by_id", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["owner_id"], ["owners.id"], name="fk_invitations_owner_id_owners"),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name="fk_invitations_environment_id_environments"
        ),
        sa.ForeignKeyConstraint(["invited_by_id"], ["users.id"], name="fk_invitations_invited_by_id_users"),
        sa.PrimaryKeyConstraint("id", name="pk_invitations"),
    )
    for target in ("owner", "environment"):
        columns = [f"{target}_id", "name"]
        op.create_index(f"uq_invitations_{target}", "invitations", columns, unique=True)
    for column in ("name", "invited_by_id", "expires_at"):
        op.create_index(f"ix_invitations_{column}", "invitations", [column])


def downgrade() -> None:
    op.drop_table("invitations")
