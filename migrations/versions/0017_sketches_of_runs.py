"""Sketches of what runs say, by which copies are found, and who vouched for a run"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.create_table(
        "sketch_keys",
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name=op.f("fk_sketch_keys_environment_id_environments")
        ),
        sa.PrimaryKeyConstraint("environment_id", name=op.f("pk_sketch_keys")),
    )
    op.create_table(
        "run_sketches",
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name=op.f("fk_run_sketches_environment_id_environments")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("fk_run_sketches_run_id_runs")),
        sa.PrimaryKeyConstraint("environment_id", "value", "run_id", name=op.f("pk_run_sketches")),
    )
    op.create_index(op.f("ix_run_sketches_run_id"), "run_sketches", ["run_id"])
    op.add_column("run_examinations", sa.Column("fault", sa.String(length=80), nullable=True))
    op.add_column("runs", sa.Column("vouched_by", sa.String(length=39), nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "vouched_by")
    op.drop_column("run_examinations", "fault")
    op.drop_table("run_sketches")
    op.drop_table("sketch_keys")
