"""MCP files: the model finds facts in a folder tree that an MCP server shows."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

from wander import Example, MCPEnv, MCPServer, Messages, Parser, ProceduralRows, Rubric, XMLParser
from wander.errors import ConfigError
from wander.seeding import derived_rng, derived_seed

from mcp_files.players import Player, expert
from mcp_files.tree import Service, services

__all__ = ["MCPFilesEnv", "load_environment"]

SYSTEM_PROMPT = (
    "Find the answer in the files with the tools; begin with list_folder of `/`. "
    "Put the answer alone into <answer> and </answer>."
)
SERVER = Path(__file__).with_name("server.py")
REFERENCE_SCORES: dict[str, float] = {
    "random player": 0.000,
    "random player, easy": 0.000,
    "SmolLM2-135M-Instruct": 0.000,
    "SmolLM2-135M-Instruct, easy": 0.417,
    "scripted expert": 1.000,
}
"""Mean rewards of the runs in `reference/`."""


class MCPFilesEnv(MCPEnv):
    """Ends with the first answer that calls no tool."""

    def gold(self, example: Example) -> Player:
        """Return the player that knows where things lie."""
        return expert


def right(completion: Messages, answer: str, parser: Parser) -> bool:
    """Return whether the answer is the number or the name, apart from case and full stop."""
    said = parser.parse_answer(completion)
    return said is not None and said.strip(" .").casefold() == answer.casefold()


def draw_question(rng: random.Random, service: Service, level: int) -> tuple[str, str]:
    """Return a question about a service, and its answer: one file, two files, or lines to count."""
    if level == 0:
        return f"On which port does the service {service.name} listen?", str(service.port)
    if level == 1:
        return f"Who is on call for the service {service.name}?", service.on_call
    errors = sum(" ERROR " in line for line in service.log)
    return f"How many lines of the log of the service {service.name} say ERROR?", str(errors)


def load_environment(
    num_examples: int = 1000, levels: int = 3, max_turns: int = 10, seed: int = 0, show_examples: int = 0
) -> MCPFilesEnv:
    """Return the environment; example i has the difficulty i mod `levels`. Each seed has another tree."""
    if num_examples < 1 or not 1 <= levels <= 3 or max_turns < 1:
        raise ConfigError(
            f"`num_examples` is {num_examples}, `levels` is {levels}, `max_turns` is {max_turns}",
            hint="give num_examples >= 1, 1 <= levels <= 3 and max_turns >= 1",
        )

    def rows(split: str) -> ProceduralRows:
        every = services(seed)
        own = [each for each in every if (derived_seed("mcp_files", each.name) % 4 == 0) == (split == "eval")]

        def row_at(index: int) -> dict[str, Any]:
            rng = derived_rng("mcp_files", seed, split, index)
            question, answer = draw_question(rng, rng.choice(own), index % levels)
            return {"question": question, "answer": answer, "stratum": index % levels}

        return ProceduralRows(row_at, num_examples)

    return MCPFilesEnv(
        dataset=rows("train"),
        eval_dataset=rows("eval"),
        few_shot=show_examples,
        mcp_servers=[MCPServer("files", command=sys.executable, args=(str(SERVER), str(seed)))],
        session="environment",  # the tree is read-only, so that all rollouts may share a server
        deterministic=True,  # the package's own server, a pure function of the seed and the call
        max_turns=max_turns,
        system_prompt=SYSTEM_PROMPT,
        parser=XMLParser(["answer"]),
        rubric=Rubric([right]),
        seed=seed,
        strata=levels,
        summary="Find facts in a folder tree over the Model Context Protocol.",
        tags=("files", "mcp", "tool", "train", "eval"),
        reference_scores=REFERENCE_SCORES,
    )
