"""A shop's database, the orders to carry out in it, and the session that a model uses for it."""

from __future__ import annotations

import hashlib
import json
import random
import re
import sqlite3

from wander.seeding import derived_rng

SCHEMA = """
    CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT, credit INTEGER);
    CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT, price INTEGER, stock INTEGER);
    CREATE TABLE orders
        (id INTEGER PRIMARY KEY, customer_id INTEGER, product_id INTEGER, pieces INTEGER, status TEXT);
"""
NAMES_TEXT = """
    Ada Bela Cleo Dirk Enno Fay Gus Hana Ilse Jon Kai Lea Max Nia Olaf Pia Ralf Sina Tim Uma
"""
NAMES = NAMES_TEXT.split()
CITIES = ["Aalen", "Bergen", "Delft", "Graz", "Lund", "Turku"]
PRODUCTS_TEXT = """
    anvil bell candle drum easel flute globe hammock inkwell jug kettle lantern
"""
PRODUCTS = PRODUCTS_TEXT.split()
STATUSES = ["open", "paid", "shipped", "returned"]
PLACES = {
    "name": NAMES,
    "city": CITIES,
    "product": PRODUCTS,
    "status": STATUSES,
    "other": ["held", "archived"],
}
NUMBERS = {"order": (1, 40), "few": (2, 9), "percent": (10, 50)}

TASKS = (
    (
        (
            "Set the status of order {order} to {other}.",
            "UPDATE orders SET status = '{other}' WHERE id = {order}",
        ),
        (
            "Raise the stock of the {product} by {few}.",
            "UPDATE products SET stock = stock + {few} WHERE name = '{product}'",
        ),
        (
            "Give {name} {few} of credit more.",
            "UPDATE customers SET credit = credit + {few} WHERE name = '{name}'",
        ),
    ),
    (
        (
            "Give every customer in {city} {few} of credit more.",
            "UPDATE customers SET credit = credit + {few} WHERE city = '{city}'",
        ),
        (
            "Delete the orders of fewer than {few} pieces that are {status}.",
            "DELETE FROM orders WHERE pieces < {few} AND status = '{status}'",
        ),
        (
            "Raise the prices of all products with fewer than {percent} in stock by {few}.",
            "UPDATE products SET price = price + {few} WHERE stock < {percent}",
        ),
    ),
    (
        (
            "Set every order of {name} for the {product} to {other}.",
            "UPDATE orders SET status = '{other}' "
            "WHERE customer_id = (SELECT id FROM customers WHERE name = '{name}') "
            "AND product_id = (SELECT id FROM products WHERE name = '{product}')",
        ),
        (
            "Add the value (pieces times price) of each customer's orders that are {status} "
            "to the customer's credit.",
            "UPDATE customers SET credit = credit + coalesce((SELECT sum(pieces * price) "
            "FROM orders JOIN products ON products.id = product_id "
            "WHERE customer_id = customers.id AND status = '{status}'), 0)",
        ),
        (
            "Delete all customers in {city} who have no orders.",
            "DELETE FROM customers WHERE city = '{city}' AND id NOT IN (SELECT customer_id FROM orders)",
        ),
    ),
)
"""Orders and the statements that carry them out, by difficulty."""
ALLOWED = {
    *(sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE),
    *(sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE),
}
FUNCTION_NAMES = """
    abs avg coalesce count glob group_concat ifnull iif instr length like lower ltrim max min nullif replace
    round rtrim substr substring sum total trim upper
"""
FUNCTIONS = set(FUNCTION_NAMES.split())
"""Nothing that differs between runs or versions of SQLite is among them."""
MOST_STEPS, MOST_ROWS, MOST_CHARS = 2000, 50, 4000


def fill(task: tuple[str, str], rng: random.Random) -> tuple[str, str]:
    """Return an order and its statement with the same values filled in."""
    values: dict[str, object] = {name: rng.choice(options) for name, options in PLACES.items()}
    values |= {name: rng.randint(*span) for name, span in NUMBERS.items()}
    return task[0].format(**values), task[1].format(**values)


def statement_for(order: str) -> str | None:
    """Return the statement that carries out an order, read back from its words."""
    for text, statement in (task for level in TASKS for task in level):
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>\\w+)", re.escape(text))
        if found := re.fullmatch(pattern, order):
            return statement.format(**found.groupdict())
    return None


def open_shop(seed: int) -> sqlite3.Connection:
    """Return a new database in memory with the shop of a seed."""
    rng = derived_rng("shop", seed)
    # Rows are filled in first. After that, the connection may only read and change rows.
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.executescript(SCHEMA)
    customers = [(at, name, rng.choice(CITIES), rng.randint(0, 90)) for at, name in enumerate(NAMES, 1)]
    products = [(at, name, rng.randint(5, 99), rng.randint(0, 60)) for at, name in enumerate(PRODUCTS, 1)]
    buyers = rng.sample(range(1, 21), 14)
    orders = [
        (at, rng.choice(buyers), rng.randint(1, 12), rng.randint(1, 12), rng.choice(STATUSES))
        for at in range(1, 41)
    ]
    database.executemany("INSERT INTO customers VALUES (?, ?, ?, ?)", customers)
    database.executemany("INSERT INTO products VALUES (?, ?, ?, ?)", products)
    database.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", orders)
    database.set_authorizer(authorize)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1_000_000)
    return database


def authorize(action: int, first: str | None, second: str | None, *_: object) -> int:
    """Allow reading and changing rows with functions that only depend on their arguments."""
    known = action in ALLOWED and (action != sqlite3.SQLITE_FUNCTION or (second or "").lower() in FUNCTIONS)
    return sqlite3.SQLITE_OK if known else sqlite3.SQLITE_DENY


def run(database: sqlite3.Connection, statement: str) -> str:
    """Return the rows of a statement as lines of JSON, or how many it changed; stop an endless one."""
    steps = iter(range(MOST_STEPS))
    database.set_progress_handler(lambda: next(steps, None) is None, 1000)
    try:
        before = database.total_changes
        cursor = database.execute(statement)
        found = cursor.fetchmany(MOST_ROWS + 1)
    finally:
        database.set_progress_handler(None, 0)
    if cursor.description is None:
        return f"{database.total_changes - before} rows changed"
    lines = [json.dumps([column[0] for column in cursor.description]), *map(json.dumps, found[:MOST_ROWS])]
    shown = "\n".join([*lines, *(["... more rows"] if len(found) > MOST_ROWS else [])])
    return shown if len(shown) <= MOST_CHARS else f"{shown[:MOST_CHARS]}\n... cut"


def digest(database: sqlite3.Connection) -> str:
    """Return a digest of all rows of all tables."""
    tables = [
        database.execute(f"SELECT * FROM {table} ORDER BY id").fetchall()  # noqa: S608 - our own names
        for table in ("customers", "products", "orders")
    ]
    return hashlib.sha256(json.dumps(tables).encode()).hexdigest()
