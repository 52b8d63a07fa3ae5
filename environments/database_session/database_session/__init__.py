"""Database session: the model carries out a shop's orders in an SQLite database of its own."""

from __future__ import annotations

import sqlite3
from typing import Any

from wander import Example, Messages, ProceduralRows, Rubric, State, StatefulToolEnv, cleanup
from wander.errors import ConfigError
from wander.seeding import derived_rng
from wander.types import TableView

from database_session.players import Player, expert
from database_session.shop import TASKS, digest, fill, open_shop, run

__all__ = ["DatabaseSessionEnv", "load_environment"]

SYSTEM_PROMPT = (
    "You keep the database of a shop (SQLite). Do what you are asked with the tool `sql`, "
    "and change nothing else. Say `done` when you have finished."
)
REFERENCE_SCORES: dict[str, float] = {
    "random player": 0.010,
    "random player, easy": 0.000,
    "SmolLM2-135M-Instruct": 0.000,
    "SmolLM2-135M-Instruct, easy": 0.083,
    "scripted expert": 1.000,
}
"""Mean rewards of the runs in `reference/`."""


class DatabaseSessionEnv(StatefulToolEnv):
    """Every rollout has a database in memory, closed with it."""

    def setup_state(self, state: State) -> None:
        """Fill the rollout's database."""
        state["database"] = open_shop(state["info"]["shop"])

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Messages, state: State
    ) -> dict[str, Any]:
        """Give the tool the rollout's database."""
        return {**tool_args, "database": state["database"]}

    @cleanup
    def close_database(self, state: State) -> None:
        """Keep what the database came to, and close it."""
        if "database" in state:
            state["came_to"] = digest(state["database"])
            state["database"].close()

    def gold(self, example: Example) -> Player:
        """Return the player that knows the statement for every kind of order."""
        return expert


def sql(statement: str, database: sqlite3.Connection) -> str:
    """Run one SQL statement and return its rows, or how many rows it changed.

    Args:
        statement: SQLite's SQL; `SELECT sql FROM sqlite_master` shows the tables
    """
    return run(database, statement)


def carried_out(state: State) -> bool:
    """Return whether the database came to exactly what the order asks for."""
    return bool(state["came_to"] == state["info"]["wanted"])


def touched(state: State) -> bool:
    """Return whether anything was changed, rightly or not."""
    return bool(state["came_to"] != state["info"]["began"])


def load_environment(
    num_examples: int = 1000, levels: int = 3, max_turns: int = 8, seed: int = 0, show_examples: int = 0
) -> DatabaseSessionEnv:
    """Return the environment; example i has level i mod `levels`: one row, a condition, two tables."""
    if num_examples < 1 or not 1 <= levels <= 3 or max_turns < 1:
        raise ConfigError(
            f"`num_examples` is {num_examples}, `levels` is {levels}, `max_turns` is {max_turns}",
            hint="give num_examples >= 1, 1 <= levels <= 3 and max_turns >= 1",
        )

    def rows(split: str) -> ProceduralRows:
        def row_at(index: int) -> dict[str, Any]:
            rng = derived_rng("database_session", seed, split, index)
            while True:  # an order that would change nothing is drawn again
                shop = rng.getrandbits(32)
                order, statement = fill(rng.choice(TASKS[index % levels]), rng)
                database = open_shop(shop)
                began = digest(database)
                database.execute(statement)
                wanted = digest(database)
                database.close()
                if began != wanted:
                    break
            return {
                "question": order,
                "info": {"shop": shop, "began": began, "wanted": wanted},
                "stratum": index % levels,
            }

        return ProceduralRows(row_at, num_examples)

    rubric = Rubric([carried_out])
    rubric.add_metric(touched)
    env = DatabaseSessionEnv(
        dataset=rows("train"),
        eval_dataset=rows("eval"),
        few_shot=show_examples,
        max_turns=max_turns,
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        seed=seed,
        strata=levels,
        summary="Carry out a shop's orders in an SQLite database of your own.",
        tags=("sql", "stateful-tool", "train", "eval"),
        reference_scores=REFERENCE_SCORES,
        view=TableView(),
    )
    env.add_tool(sql, args_to_skip=["database"])
    return env
