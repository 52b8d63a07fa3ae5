"""Near names of one that is missing, and an owner's newest environments, are found by an index"""

from alembic import op

revision = "0023"
down_revision = "0022"

_OF_OWNER = "ix_environments_listing_of_owner"
_BY_NAME = "ix_environments_name"


def upgrade() -> None:
    op.create_index(_OF_OWNER, "environments", ["owner_id", "listed", "updated_at", "id"])
    op.create_index(_BY_NAME, "environments", ["name"])


def downgrade() -> None:
    op.drop_index(_BY_NAME, "environments")
    op.drop_index(_OF_OWNER, "environments")
