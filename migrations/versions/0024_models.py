"""Models, their revisions and files"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    op.create_table(
        "models",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("private", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["owner_id"], ["owners.id"], name=op.f("fk_models_owner_id_owners")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
        sa.UniqueConstraint("owner_id", "name", name=op.f("uq_models_owner_id_name")),
    )
    op.create_table(
        "model_revisions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("revision", sa.String(length=64), nullable=False),
        sa.Column("weights_sha256", sa.String(length=64), nullable=False),
        sa.Column("architecture", sa.String(length=100), nullable=False),
        sa.Column("parameters", sa.BigInteger(), nullable=False),
        sa.Column("card_html", sa.Text(), nullable=False),
        sa.Column("yanked", sa.Boolean(), nullable=False),
        sa.Column("yanked_reason", sa.Text(), nullable=True),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("pushed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("pushed_by_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_model_revisions_model_id_models")),
        sa.ForeignKeyConstraint(
            ["pushed_by_id"], ["users.id"], name=op.f("fk_model_revisions_pushed_by_id_users")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model_revisions")),
        sa.UniqueConstraint("model_id", "revision", name=op.f("uq_model_revisions_model_id_revision")),
    )
    op.create_index(
        op.f("ix_model_revisions_weights_sha256"), "model_revisions", ["weights_sha256"], unique=False
    )
    op.create_table(
        "model_files",
        sa.Column("revision_id", sa.Integer(), nullable=False),
        sa.Column("filename", sa.String(length=100), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["revision_id"], ["model_revisions.id"], name=op.f("fk_model_files_revision_id_model_revisions")
        ),
        sa.PrimaryKeyConstraint("revision_id", "filename", name=op.f("pk_model_files")),
    )
    op.create_index(op.f("ix_model_files_sha256"), "model_files", ["sha256"], unique=False)


def downgrade() -> None:
    op.drop_table("model_files")
    op.drop_table("model_revisions")
    op.drop_table("models")
