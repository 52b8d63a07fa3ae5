"""An index of training runs, which environments list"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

TRAINING = sa.text("kind = 'training'")


def upgrade() -> None:
    op.create_index(
        "ix_runs_training",
        "runs",
        ["environment_id", "posted_at"],
        sqlite_where=TRAINING,
        postgresql_where=TRAINING,
    )


def downgrade() -> None:
    op.drop_index("ix_runs_training", table_name="runs", sqlite_where=TRAINING, postgresql_where=TRAINING)
