"""Compressed bodies of index pages"""

import sqlalchemy as sa
from alembic import op

revision = '0005'
down_revision = '0004'

COLUMNS = ('html_gzip', 'html_zstd', 'json_gzip', 'json_zstd')


def upgrade() -> None:
    for column in COLUMNS:
        op.add_column('index_pages', sa.Column(column, sa.LargeBinary(), nullable=True))
    op.create_index('ix_environments_owner_id_private', 'environments', ['owner_id', 'private'])


def downgrade() -> None:
    op.drop_index('ix_environments_owner_id_private', 'environments')
    for column in COLUMNS:
        op.drop_column('index_pages', column)
