"""The orders, the session, and what a model can not do in it."""

from __future__ import annotations

import json
import sqlite3

import pytest
from database_session import load_environment
from database_session.shop import TASKS, digest, fill, open_shop, run, statement_for
from wander import ScriptedClient
from wander.seeding import derived_rng


def call(statement):
    function = {"name": "sql", "arguments": json.dumps({"statement": statement})}
    return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}


async def played(statements, index=0):
    env = load_environment()
    replies = [*map(call, statements), "done"]
    return await env.rollout(ScriptedClient(replies), env.dataset("eval")[index])


def test_every_order_is_read_back():
    for at, task in enumerate(task for level in TASKS for task in level):
        order, statement = fill(task, derived_rng("test", at))
        assert statement_for(order) == statement
        assert "{" not in order + statement


@pytest.mark.parametrize(
    "statement",
    [
        "ATTACH DATABASE '/tmp/stolen' AS other",
        "PRAGMA table_info(orders)",
        "VACUUM INTO '/tmp/stolen'",
        "CREATE TABLE notes (x)",
        "DROP TABLE orders",
        "SELECT random()",
        "SELECT datetime('now')",
        "SELECT CURRENT_TIMESTAMP",
        "SELECT sqlite_version()",
        "SELECT load_extension('x')",
        "BEGIN",
        "SELECT 1; DELETE FROM orders",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n",
    ],
)
def test_a_session_refuses_what_leads_out_of_it(statement):
    database = open_shop(1)
    before = digest(database)
    with pytest.raises((sqlite3.DatabaseError, sqlite3.Warning, sqlite3.ProgrammingError)):
        run(database, statement)
    assert digest(database) == before
    assert run(database, "SELECT count(*) FROM orders").splitlines()[1] == "[40]"


def test_long_results_are_cut():
    database = open_shop(1)
    shown = run(database, "SELECT * FROM orders, customers")
    assert shown.endswith("... more rows")
    wide = run(database, "SELECT replace('x', 'x', '" + "y" * 9000 + "')")
    assert wide.endswith("... cut")
    assert len(wide) < 4100


async def test_an_error_is_a_message_and_looking_around_earns_nothing():
    rollout = await played(
        ["SELECT * FROM nothing", "SELECT * FROM sqlite_master", "SELECT * FROM customers"]
    )
    assert rollout.failure is None
    assert (rollout.reward, rollout.metrics["touched"], rollout.metrics["tool_errors"]) == (0.0, 0.0, 1.0)


async def test_to_do_more_than_was_asked_earns_nothing():
    env = load_environment()
    for index, example in enumerate(env.dataset("eval").examples(0, 6)):
        right = statement_for(example.prompt[-1]["content"])
        assert (await played([right], index)).reward == 1.0
        spoiled = await played([right, "UPDATE products SET price = price + 1 WHERE id = 7"], index)
        assert (spoiled.reward, spoiled.metrics["touched"]) == (0.0, 1.0)


async def test_rollouts_share_no_database():
    first, second = [await played(["SELECT count(*) FROM orders", "DELETE FROM orders"]) for _ in range(2)]
    assert first.completion[1] == second.completion[1]
