"""An audit log, whose rows are only ever added"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"

_CHANGES = ("UPDATE", "DELETE")


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(80), nullable=False),
        sa.Column("token", sa.String(16)),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("owner", sa.String(39)),
        sa.Column("target", sa.String(300), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.Column("address", sa.String(64)),
        sa.Column("request_id", sa.String(64)),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    for column in ("owner", "actor", "action"):
        op.create_index(f"ix_audit_{column}", "audit", [column, "id"])
    if op.get_bind().dialect.name == "postgresql":
        refuse = "BEGIN RAISE EXCEPTION 'the audit log is only added to'; END"
        op.execute(f"CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $${refuse}$$")
        op.execute(
            "CREATE TRIGGER audit_stays BEFORE UPDATE OR DELETE ON audit"
            " FOR EACH ROW EXECUTE FUNCTION refuse_audit_change()"
        )
        return
    for change in _CHANGES:
        op.execute(
            f"CREATE TRIGGER audit_stays_{change.lower()} BEFORE {change} ON audit"
            " BEGIN SELECT RAISE(ABORT, 'the audit log is only added to'); END"
        )


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP TRIGGER audit_stays ON audit")
        op.execute("DROP FUNCTION refuse_audit_change()")
    else:
        for change in _CHANGES:
            op.execute(f"DROP TRIGGER audit_stays_{change.lower()}")
    op.drop_table("audit")
