"""Levels that were asked for and given, divergences one by one, copies and reruns, checks that the hub ran"""

import sqlalchemy as sa
from alembic import op

revision = '0010'
down_revision = '0009'


def upgrade() -> None:
    op.add_column(
        'verifications', sa.Column('level', sa.String(length=12), nullable=False, server_default='highest')
    )
    op.add_column('verifications', sa.Column('gave', sa.String(length=16), nullable=True))
    op.create_table('verification_divergences',
    sa.Column('verification_id', sa.Integer(), nullable=False),
    sa.Column('number', sa.Integer(), nullable=False),
    sa.Column('example_id', sa.Text(), nullable=False),
    sa.Column('index', sa.Integer(), nullable=False),
    sa.Column('part', sa.String(length=40), nullable=False),
    sa.Column('message', sa.Integer(), nullable=True),
    sa.Column('difference', sa.Text(), nullable=False),
    sa.ForeignKeyConstraint(
        ['verification_id'], ['verifications.id'],
        name=op.f('fk_verification_divergences_verification_id_verifications'),
    ),
    sa.PrimaryKeyConstraint('verification_id', 'number', name=op.f('pk_verification_divergences'))
    )
    op.create_table('run_examinations',
    sa.Column('run_id', sa.String(length=64), nullable=False),
    sa.Column('completions_sha256', sa.String(length=64), nullable=True),
    sa.Column('duplicate_of', sa.String(length=64), nullable=True),
    sa.Column('rerun_of', sa.String(length=64), nullable=True),
    sa.Column('agreement', sa.JSON(none_as_null=True), nullable=True),
    sa.Column('independent', sa.Boolean(), nullable=False),
    sa.Column('note', sa.Text(), nullable=False),
    sa.Column('examined_at', sa.DateTime(timezone=True), nullable=False),
    sa.ForeignKeyConstraint(['run_id'], ['runs.run_id'], name=op.f('fk_run_examinations_run_id_runs')),
    sa.PrimaryKeyConstraint('run_id', name=op.f('pk_run_examinations'))
    )
    op.create_index('ix_run_examinations_completions_sha256', 'run_examinations', ['completions_sha256'])
    op.create_index('ix_run_examinations_rerun_of', 'run_examinations', ['rerun_of'])
    op.create_table('version_checks',
    sa.Column('version_id', sa.Integer(), nullable=False),
    sa.Column('job_id', sa.Integer(), nullable=False),
    sa.Column('report', sa.JSON(none_as_null=True), nullable=True),
    sa.Column('made_with', sa.JSON(none_as_null=True), nullable=True),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.ForeignKeyConstraint(['job_id'], ['jobs.id'], name=op.f('fk_version_checks_job_id_jobs')),
    sa.ForeignKeyConstraint(
        ['version_id'], ['versions.id'], name=op.f('fk_version_checks_version_id_versions')
    ),
    sa.PrimaryKeyConstraint('version_id', name=op.f('pk_version_checks')),
    sa.UniqueConstraint('job_id', name=op.f('uq_version_checks_job_id'))
    )


def downgrade() -> None:
    op.drop_table('version_checks')
    op.drop_table('run_examinations')
    op.drop_table('verification_divergences')
    op.drop_column('verifications', 'gave')
    op.drop_column('verifications', 'level')
