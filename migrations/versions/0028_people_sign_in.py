"""Passwords, sessions of browsers, codes to choose a password, and attempts at signing in"""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    op.add_column("users", sa.Column("password_hash", sa.Text(), nullable=True))
    op.create_table(
        "browser_sessions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_browser_sessions_user_id_users"),
        sa.PrimaryKeyConstraint("id", name="pk_browser_sessions"),
        sa.UniqueConstraint("sha256", name="uq_browser_sessions_sha256"),
    )
    op.create_index("ix_browser_sessions_user_id", "browser_sessions", ["user_id"])
    op.create_table(
        "one_time_codes",
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_one_time_codes_user_id_users"),
        sa.PrimaryKeyConstraint("user_id", name="pk_one_time_codes"),
        sa.UniqueConstraint("sha256", name="uq_one_time_codes_sha256"),
    )
    op.create_table(
        "attempts",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name="pk_attempts"),
    )
    op.create_index("ix_attempts_until", "attempts", ["until"])


def downgrade() -> None:
    for table in ("attempts", "one_time_codes", "browser_sessions"):
        op.drop_table(table)
    op.drop_column("users", "password_hash")
