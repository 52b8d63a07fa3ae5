"""The token that a token was made with"""

from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    constraint = "CONSTRAINT fk_tokens_parent_id_tokens REFERENCES tokens (id)"
    op.execute(f"ALTER TABLE tokens ADD COLUMN parent_id INTEGER {constraint}")
    op.create_index("ix_tokens_parent_id", "tokens", ["parent_id"])


def downgrade() -> None:
    op.drop_index("ix_tokens_parent_id", "tokens")
    op.drop_column("tokens", "parent_id")
