"""Boards with what their owners made of them, and the runs that stand on each in rows of their own

The hub puts the runs that it has on their boards when it starts (`leaderboards/placing.py`).
"""

import sqlalchemy as sa
from alembic import op

revision = '0012'
down_revision = '0011'

MISPLACED = (
    "board_level <> CASE WHEN kind = 'evaluation' AND level <> 'claimed' AND NOT private"
    " AND withdrawn_at IS NULL AND NOT hidden THEN level ELSE '' END"
)
INCOMPLETE = "kind = 'evaluation' AND level = 'claimed' AND NOT private AND withdrawn_at IS NULL"


def upgrade() -> None:
    op.add_column(
        'runs', sa.Column('board_level', sa.String(length=16), nullable=False, server_default='')
    )
    op.add_column('runs', sa.Column('hidden', sa.Boolean(), nullable=False, server_default=sa.false()))
    op.drop_index('ix_runs_board', 'runs')
    op.create_index('ix_runs_version', 'runs', ['version_id', 'posted_at'])
    op.create_index(
        'ix_runs_misplaced', 'runs', ['environment_id'],
        sqlite_where=sa.text(MISPLACED), postgresql_where=sa.text(MISPLACED),
    )
    op.create_index(
        'ix_runs_incomplete', 'runs', ['version_id', 'task_set_sha256'],
        sqlite_where=sa.text(INCOMPLETE), postgresql_where=sa.text(INCOMPLETE),
    )
    op.create_table('boards',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('version_id', sa.Integer(), nullable=False),
    sa.Column('task_set_sha256', sa.String(length=64), nullable=False),
    sa.Column('protocol_sha256', sa.String(length=64), nullable=False),
    sa.Column('name', sa.String(length=8), nullable=False),
    sa.Column('split', sa.String(length=8), nullable=False),
    sa.Column('examples', sa.Integer(), nullable=False),
    sa.Column('rollouts_per_example', sa.Integer(), nullable=False),
    sa.Column('arguments', sa.JSON(), nullable=False),
    sa.Column('max_tokens', sa.Integer(), nullable=True),
    sa.Column('runs', sa.Integer(), nullable=False),
    sa.Column('models', sa.Integer(), nullable=False),
    sa.Column('last_posted_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('lows', sa.LargeBinary(), nullable=False),
    sa.Column('highs', sa.LargeBinary(), nullable=False),
    sa.Column('title', sa.Text(), nullable=False),
    sa.Column('description', sa.Text(), nullable=False),
    sa.Column('columns', sa.JSON(none_as_null=True), nullable=True),
    sa.Column('pinned', sa.Boolean(), nullable=False),
    sa.ForeignKeyConstraint(['version_id'], ['versions.id'], name=op.f('fk_boards_version_id_versions')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_boards')),
    sa.UniqueConstraint(
        'version_id', 'task_set_sha256', 'protocol_sha256', name=op.f('uq_boards_version_id_task_set_sha256_protocol_sha256')
    )
    )
    op.create_table('board_entries',
    sa.Column('run_id', sa.String(length=64), nullable=False),
    sa.Column('board_id', sa.Integer(), nullable=False),
    sa.Column('model', sa.Text(), nullable=False),
    sa.Column('level', sa.String(length=16), nullable=False),
    sa.Column('shortfall', sa.Double(), nullable=False),
    sa.Column('low', sa.Double(), nullable=True),
    sa.Column('high', sa.Double(), nullable=True),
    sa.Column('tokens', sa.Double(), nullable=True),
    sa.Column('usd', sa.Double(), nullable=True),
    sa.Column('posted_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('record', sa.Boolean(), nullable=False),
    sa.Column('best', sa.Boolean(), nullable=False),
    sa.ForeignKeyConstraint(['board_id'], ['boards.id'], name=op.f('fk_board_entries_board_id_boards')),
    sa.ForeignKeyConstraint(['run_id'], ['runs.run_id'], name=op.f('fk_board_entries_run_id_runs')),
    sa.PrimaryKeyConstraint('run_id', name=op.f('pk_board_entries'))
    )
    order = ['shortfall', 'posted_at', 'run_id']
    op.create_index('ix_board_entries_all', 'board_entries', ['board_id', *order])
    op.create_index('ix_board_entries_best', 'board_entries', ['board_id', 'best', *order])
    op.create_index('ix_board_entries_posted', 'board_entries', ['board_id', 'posted_at', 'run_id'])
    op.create_index('ix_board_entries_model', 'board_entries', ['board_id', 'model', 'posted_at', 'run_id'])
    op.create_index(
        'ix_board_entries_record', 'board_entries', ['board_id', 'record', 'model', 'posted_at']
    )
    op.create_table('hidden_runs',
    sa.Column('run_id', sa.String(length=64), nullable=False),
    sa.Column('board_id', sa.Integer(), nullable=False),
    sa.Column('reason', sa.Text(), nullable=False),
    sa.Column('hidden_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('hidden_by_id', sa.Integer(), nullable=False),
    sa.ForeignKeyConstraint(['board_id'], ['boards.id'], name=op.f('fk_hidden_runs_board_id_boards')),
    sa.ForeignKeyConstraint(['hidden_by_id'], ['users.id'], name=op.f('fk_hidden_runs_hidden_by_id_users')),
    sa.ForeignKeyConstraint(['run_id'], ['runs.run_id'], name=op.f('fk_hidden_runs_run_id_runs')),
    sa.PrimaryKeyConstraint('run_id', name=op.f('pk_hidden_runs'))
    )
    op.create_index('ix_hidden_runs_board_id', 'hidden_runs', ['board_id'])


def downgrade() -> None:
    op.drop_table('hidden_runs')
    op.drop_table('board_entries')
    op.drop_table('boards')
    op.drop_index('ix_runs_incomplete', 'runs')
    op.drop_index('ix_runs_misplaced', 'runs')
    op.drop_index('ix_runs_version', 'runs')
    op.create_index(
        'ix_runs_board', 'runs', ['version_id', 'kind', 'task_set_sha256', 'protocol_sha256']
    )
    op.drop_column('runs', 'hidden')
    op.drop_column('runs', 'board_level')
