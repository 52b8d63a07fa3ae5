"""Runs arrive and lie in chunks; private and withdrawn runs, signatures, checkpoints of training runs"""

import sqlalchemy as sa
from alembic import op

revision = '0009'
down_revision = '0008'


def _refuse_runs() -> None:
    runs = op.get_bind().execute(sa.text('SELECT count(*) FROM runs')).scalar_one()
    if runs:
        raise RuntimeError(
            f'this hub holds {runs} runs whose rollouts lie as another version stores them: '
            'begin with an empty data folder and post the run folders again'
        )


def upgrade() -> None:
    _refuse_runs()
    op.drop_table('run_rollouts')
    op.drop_index('ix_runs_rollouts_sha256', 'runs')
    op.create_table('signing_keys',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('user_id', sa.Integer(), nullable=False),
    sa.Column('fingerprint', sa.String(length=64), nullable=False),
    sa.Column('name', sa.String(length=80), nullable=False),
    sa.Column('public_key', sa.String(length=44), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('revoked_at', sa.DateTime(timezone=True), nullable=True),
    sa.ForeignKeyConstraint(['user_id'], ['users.id'], name=op.f('fk_signing_keys_user_id_users')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_signing_keys')),
    sa.UniqueConstraint('fingerprint', name=op.f('uq_signing_keys_fingerprint'))
    )
    op.create_index('ix_signing_keys_user_id', 'signing_keys', ['user_id'])
    op.add_column('runs', sa.Column('order_sha256', sa.String(length=64), nullable=True))
    op.add_column('runs', sa.Column('weights_sha256', sa.String(length=64), nullable=True))
    op.add_column('runs', sa.Column('private', sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column('runs', sa.Column('withdrawn_at', sa.DateTime(timezone=True), nullable=True))
    op.add_column('runs', sa.Column('withdrawn_reason', sa.Text(), nullable=True))
    op.add_column('runs', sa.Column('signature', sa.String(length=100), nullable=True))
    # SQLite cannot make a table anew that others refer to, so the columns bring their constraints themselves.
    for column, target in (('withdrawn_by_id', 'users'), ('signing_key_id', 'signing_keys')):
        name = f'fk_runs_{column}_{target}'
        op.execute(f'ALTER TABLE runs ADD COLUMN {column} INTEGER CONSTRAINT {name} REFERENCES {target} (id)')
    op.create_index('ix_runs_order_sha256', 'runs', ['order_sha256'])
    op.create_index('ix_runs_weights_sha256', 'runs', ['weights_sha256'])
    _create_contents()
    _create_postings()


def _create_contents() -> None:
    op.create_table('run_chunks',
    sa.Column('run_id', sa.String(length=64), nullable=False),
    sa.Column('first', sa.Integer(), nullable=False),
    sa.Column('rollouts', sa.Integer(), nullable=False),
    sa.Column('object_sha256', sa.String(length=64), nullable=False),
    sa.Column('row_frames', sa.JSON(), nullable=False),
    sa.ForeignKeyConstraint(['run_id'], ['runs.run_id'], name=op.f('fk_run_chunks_run_id_runs')),
    sa.PrimaryKeyConstraint('run_id', 'first', name=op.f('pk_run_chunks'))
    )
    op.create_index('ix_run_chunks_object_sha256', 'run_chunks', ['object_sha256'])
    op.create_table('run_checkpoints',
    sa.Column('run_id', sa.String(length=64), nullable=False),
    sa.Column('step', sa.Integer(), nullable=False),
    sa.Column('weights_sha256', sa.String(length=64), nullable=False),
    sa.ForeignKeyConstraint(['run_id'], ['runs.run_id'], name=op.f('fk_run_checkpoints_run_id_runs')),
    sa.PrimaryKeyConstraint('run_id', 'weights_sha256', name=op.f('pk_run_checkpoints'))
    )
    op.create_index('ix_run_checkpoints_weights_sha256', 'run_checkpoints', ['weights_sha256'])


def _create_postings() -> None:
    op.create_table('postings',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('user_id', sa.Integer(), nullable=False),
    sa.Column('sha256', sa.String(length=64), nullable=False),
    sa.Column('run_id', sa.String(length=64), nullable=False),
    sa.Column('manifest', sa.Text(), nullable=False),
    sa.Column('manifest_sha256', sa.String(length=64), nullable=False),
    sa.Column('private', sa.Boolean(), nullable=False),
    sa.Column('expires_at', sa.DateTime(timezone=True), nullable=False),
    sa.ForeignKeyConstraint(['user_id'], ['users.id'], name=op.f('fk_postings_user_id_users')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_postings')),
    sa.UniqueConstraint('user_id', 'sha256', name=op.f('uq_postings_user_id_sha256'))
    )
    op.create_index('ix_postings_expires_at', 'postings', ['expires_at'])
    op.create_table('posting_chunks',
    sa.Column('posting_id', sa.Integer(), nullable=False),
    sa.Column('number', sa.Integer(), nullable=False),
    sa.Column('sha256', sa.String(length=64), nullable=False),
    sa.Column('size', sa.BigInteger(), nullable=False),
    sa.Column('rollouts', sa.Integer(), nullable=False),
    sa.Column('object_sha256', sa.String(length=64), nullable=False),
    sa.Column('row_frames', sa.JSON(), nullable=False),
    sa.ForeignKeyConstraint(['posting_id'], ['postings.id'], name=op.f('fk_posting_chunks_posting_id_postings')),
    sa.PrimaryKeyConstraint('posting_id', 'number', name=op.f('pk_posting_chunks'))
    )
    op.create_index('ix_posting_chunks_object_sha256', 'posting_chunks', ['object_sha256'])
    op.create_table('posting_artifacts',
    sa.Column('posting_id', sa.Integer(), nullable=False),
    sa.Column('name', sa.String(length=100), nullable=False),
    sa.Column('media_type', sa.String(length=80), nullable=False),
    sa.Column('size', sa.BigInteger(), nullable=False),
    sa.Column('sha256', sa.String(length=64), nullable=False),
    sa.ForeignKeyConstraint(['posting_id'], ['postings.id'], name=op.f('fk_posting_artifacts_posting_id_postings')),
    sa.PrimaryKeyConstraint('posting_id', 'name', name=op.f('pk_posting_artifacts'))
    )
    op.create_index('ix_posting_artifacts_sha256', 'posting_artifacts', ['sha256'])


def downgrade() -> None:
    _refuse_runs()
    for table in ('posting_artifacts', 'posting_chunks', 'postings', 'run_checkpoints', 'run_chunks'):
        op.drop_table(table)
    op.drop_index('ix_runs_weights_sha256', 'runs')
    op.drop_index('ix_runs_order_sha256', 'runs')
    for column in (
        *('signing_key_id', 'withdrawn_by_id', 'signature', 'withdrawn_reason', 'withdrawn_at', 'private'),
        *('weights_sha256', 'order_sha256'),
    ):
        op.drop_column('runs', column)
    op.drop_table('signing_keys')
    op.create_index('ix_runs_rollouts_sha256', 'runs', ['rollouts_sha256'])
    op.create_table('run_rollouts',
    sa.Column('run_id', sa.String(length=64), nullable=False),
    sa.Column('number', sa.Integer(), nullable=False),
    sa.Column('example_id', sa.Text(), nullable=False),
    sa.Column('index', sa.Integer(), nullable=False),
    sa.Column('reward', sa.Double(), nullable=True),
    sa.Column('stop_reason', sa.Text(), nullable=True),
    sa.Column('failure', sa.String(length=16), nullable=True),
    sa.Column('truncated', sa.Boolean(), nullable=False),
    sa.Column('turns', sa.Integer(), nullable=False),
    sa.Column('completion_tokens', sa.Integer(), nullable=False),
    sa.Column('seconds', sa.Double(), nullable=False),
    sa.Column('preview', sa.String(length=200), nullable=False),
    sa.Column('block_start', sa.BigInteger(), nullable=False),
    sa.Column('block_length', sa.BigInteger(), nullable=False),
    sa.Column('offset', sa.BigInteger(), nullable=False),
    sa.Column('length', sa.BigInteger(), nullable=False),
    sa.ForeignKeyConstraint(['run_id'], ['runs.run_id'], name=op.f('fk_run_rollouts_run_id_runs')),
    sa.PrimaryKeyConstraint('run_id', 'number', name=op.f('pk_run_rollouts'))
    )
