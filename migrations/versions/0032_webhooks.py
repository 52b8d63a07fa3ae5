"""Webhooks, and what was and is to be delivered to them"""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "webhooks",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("owner_id", sa.Integer()),
        sa.Column("environment_id", sa.Integer()),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("events", sa.JSON(), nullable=False),
        sa.Column("secret", sa.String(80), nullable=False),
        sa.Column("former_secret", sa.String(80)),
        sa.Column("former_secret_until", moment),
        sa.Column("keeper_id", sa.Integer()),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("failing_since", moment),
        sa.Column("slow", sa.Boolean(), nullable=False),
        sa.Column("disabled_at", moment),
        sa.Column("disabled_reason", sa.Text()),
        sa.ForeignKeyConstraint(["owner_id"], ["owners.id"], name=op.f("fk_webhooks_owner_id_owners")),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name=op.f("fk_webhooks_environment_id_environments")
        ),
        sa.ForeignKeyConstraint(["keeper_id"], ["users.id"], name=op.f("fk_webhooks_keeper_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    op.create_index(op.f("ix_webhooks_owner_id"), "webhooks", ["owner_id"])
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("webhook_id", sa.Integer(), nullable=False),
        sa.Column("message_id", sa.String(40), nullable=False),
        sa.Column("event", sa.String(24), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("attempted_at", moment),
        sa.Column("next_at", moment),
        sa.Column("status", sa.Integer()),
        sa.Column("answer", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("seconds", sa.Float()),
        sa.ForeignKeyConstraint(
            ["webhook_id"], ["webhooks.id"], name=op.f("fk_webhook_deliveries_webhook_id_webhooks")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
    )
    op.create_index("ix_webhook_deliveries_listing", "webhook_deliveries", ["webhook_id", "id"])
    op.create_index(op.f("ix_webhook_deliveries_created_at"), "webhook_deliveries", ["created_at"])
    unsent = sa.text("state = 'new'")
    op.create_index(
        "ix_webhook_deliveries_unsent",
        "webhook_deliveries",
        ["id"],
        sqlite_where=unsent,
        postgresql_where=unsent,
    )


def downgrade() -> None:
    op.drop_table("webhook_deliveries")
    op.drop_table("webhooks")
