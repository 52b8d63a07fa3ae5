"""Runs that bear an earlier one's completions and that somebody in charge cleared, with the reason"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_table(
        "cleared_copies",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("cleared_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("cleared_by_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["cleared_by_id"], ["users.id"], name=op.f("fk_cleared_copies_cleared_by_id_users")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("fk_cleared_copies_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_cleared_copies")),
    )


def downgrade() -> None:
    op.drop_table("cleared_copies")
