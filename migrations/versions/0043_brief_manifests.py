"""Lists of runs read manifests without their examples"""

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"


def upgrade() -> None:
    op.add_column("runs", sa.Column("brief", sa.Text()))


def downgrade() -> None:
    op.drop_column("runs", "brief")
