"""Tokens are found by what listings show of them"""

from alembic import op

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    op.create_index("ix_tokens_prefix", "tokens", ["prefix"])


def downgrade() -> None:
    op.drop_index("ix_tokens_prefix", "tokens")
