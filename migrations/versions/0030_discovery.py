"""Environments are found by words, filters and use: a text index, marks, stars and counts of downloads"""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"

_KEYS = ("updated_at", "created_at", "run_count", "download_count", "star_count")
_BATCH = 200


def upgrade() -> None:
    op.add_column("environments", sa.Column("marks", sa.Text(), nullable=False, server_default=""))
    op.add_column("environments", sa.Column("download_count", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("environments", sa.Column("star_count", sa.Integer(), nullable=False, server_default="0"))
    for key in _KEYS:
        op.create_index(f"ix_environments_by_{key}", "environments", ["listed", "private", key, "id"])
    op.create_index(op.f("ix_environments_parent_id"), "environments", ["parent_id"])
    unmarked = sa.text("listed AND marks = ''")
    op.create_index(
        "ix_environments_unmarked", "environments", ["id"], sqlite_where=unmarked, postgresql_where=unmarked
    )
    op.add_column("versions", sa.Column("environment_kind", sa.String(40)))
    op.add_column("versions", sa.Column("deterministic", sa.Boolean()))
    op.add_column("versions", sa.Column("checked", sa.Boolean()))
    op.create_table(
        "stars",
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_stars_user_id_users")),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name=op.f("fk_stars_environment_id_environments")
        ),
        sa.PrimaryKeyConstraint("user_id", "environment_id", name=op.f("pk_stars")),
    )
    op.create_index(op.f("ix_stars_environment_id"), "stars", ["environment_id"])
    op.create_table(
        "downloads",
        sa.Column("version_id", sa.Integer(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["version_id"], ["versions.id"], name=op.f("fk_downloads_version_id_versions")),
        sa.PrimaryKeyConstraint("version_id", "day", name=op.f("pk_downloads")),
    )
    op.create_table(
        "search_spellings",
        sa.Column("key", sa.String(24), nullable=False),
        sa.Column("scope", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("word", sa.String(24), nullable=False),
        sa.PrimaryKeyConstraint("key", "scope", "word", name=op.f("pk_search_spellings")),
    )
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            "CREATE VIRTUAL TABLE environment_search USING fts5(name, tags, summary, readme, marks, "
            "tokenize='porter unicode61', columnsize=0, prefix='2 3')"
        )
    else:
        op.execute(
            "CREATE TABLE environment_search (environment_id INTEGER PRIMARY KEY REFERENCES environments (id), "
            "head tsvector NOT NULL, body tsvector NOT NULL)"
        )
        op.execute("CREATE INDEX ix_environment_search_head ON environment_search USING gin (head)")
        op.execute("CREATE INDEX ix_environment_search_body ON environment_search USING gin (body)")
    _take_checks()


def _take_checks() -> None:
    """Tell what the hub's checks of before said: the text index itself is filled when the hub starts."""
    checks = sa.table("version_checks", sa.column("version_id", sa.Integer), sa.column("report", sa.JSON))
    versions = sa.table("versions", sa.column("id", sa.Integer), sa.column("checked", sa.Boolean))
    last = 0
    while True:
        query = sa.select(checks.c.version_id, checks.c.report).where(checks.c.version_id > last)
        rows = op.get_bind().execute(query.order_by(checks.c.version_id).limit(_BATCH)).all()
        if not rows:
            return
        for number, report in rows:
            if report:
                passed = not report["summary"]["failed"]
                op.execute(sa.update(versions).where(versions.c.id == number).values(checked=passed))
        last = rows[-1][0]


def downgrade() -> None:
    op.drop_table("environment_search")
    op.drop_table("search_spellings")
    op.drop_table("downloads")
    op.drop_index(op.f("ix_stars_environment_id"), "stars")
    op.drop_table("stars")
    for key in _KEYS:
        op.drop_index(f"ix_environments_by_{key}", "environments")
    op.drop_index(op.f("ix_environments_parent_id"), "environments")
    op.drop_index("ix_environments_unmarked", "environments")
    for name in ("environment_kind", "deterministic", "checked"):
        op.drop_column("versions", name)
    for name in ("marks", "download_count", "star_count"):
        op.drop_column("environments", name)
