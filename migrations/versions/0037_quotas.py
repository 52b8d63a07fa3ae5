"""How much owners may have"""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"

_INDEX = ("ix_runs_of_poster", "runs", ["posted_by_id", "withdrawn_at", "stored_bytes"])
_BATCH = 20


def upgrade() -> None:
    op.create_table(
        "quotas",
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=True),
        sa.Column("versions", sa.BigInteger(), nullable=True),
        sa.Column("runs", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["owner_id"], ["owners.id"], name="fk_quotas_owner_id_owners"),
        sa.PrimaryKeyConstraint("owner_id", name="pk_quotas"),
    )
    op.add_column("runs", sa.Column("stored_bytes", sa.BigInteger(), server_default="0", nullable=False))
    _measure()
    op.create_index(*_INDEX)


def _measure() -> None:
    """Tell of each run what it stores: rows say how long each of its objects is."""
    runs = sa.table("runs", *(sa.column(one) for one in ("run_id", "manifest", "order_sha256", "stored_bytes")))
    chunks = sa.table(
        "run_chunks",
        *(sa.column("run_id"), sa.column("object_sha256"), sa.column("rollouts")),
        sa.column("row_frames", sa.JSON),
    )
    artifacts = sa.table("run_artifacts", *(sa.column(one) for one in ("run_id", "sha256", "size")))
    connection, last = op.get_bind(), ""
    while True:
        query = sa.select(runs.c.run_id, runs.c.manifest, runs.c.order_sha256)
        some = connection.execute(query.where(runs.c.run_id > last).order_by(runs.c.run_id).limit(_BATCH)).all()
        if not some:
            return
        for run_id, manifest, order in some:
            own = connection.execute(sa.select(artifacts.c.sha256, artifacts.c.size).where(artifacts.c.run_id == run_id))
            sizes = {sha256: size for sha256, size in own}
            rollouts = 0
            held = sa.select(chunks.c.object_sha256, chunks.c.row_frames, chunks.c.rollouts)
            for sha256, frames, count in connection.execute(held.where(chunks.c.run_id == run_id)):
                sizes[sha256] = sum(frames[-1]) if frames else 0  # an object ends with its rows
                rollouts += count
            total = len(manifest.encode()) + sum(sizes.values()) + (4 * rollouts if order else 0)
            connection.execute(sa.update(runs).where(runs.c.run_id == run_id).values(stored_bytes=total))
        last = some[-1][0]


def downgrade() -> None:
    op.drop_index(_INDEX[0], "runs")
    op.drop_column("runs", "stored_bytes")
    op.drop_table("quotas")
