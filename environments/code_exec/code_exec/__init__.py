"""Code exec: the model writes a Python function, which has to pass hidden tests in a sandbox."""

from __future__ import annotations

import json
import re
import sys
from typing import Any, Literal

from wander import Example, Messages, Parser, ProceduralRows, Rubric, SingleTurnEnv
from wander.envs import Repl, ReplLimits
from wander.errors import ConfigError
from wander.seeding import derived_rng, derived_seed

from code_exec.players import Player, expert
from code_exec.problems import PROBLEMS, draw_inputs, task

__all__ = ["CodeExecEnv", "load_environment"]

SYSTEM_PROMPT = (
    "Write a Python function with the name and the argument that are asked for. "
    "Use the standard library alone. Put the code into a block that starts with ```python."
)
Sandbox = Literal["none", "auto", "bwrap"]
BLOCK = re.compile(r"```python[ \t]*\n(.*?)```", re.DOTALL)
LIMITS = ReplLimits(cell_seconds=5.0, memory_mb=512, file_mb=1, output_chars=100)
REFERENCE_SCORES: dict[str, float] = {
    "random player": 0.000,
    "random player, easy": 0.000,
    "SmolLM2-135M-Instruct": 0.000,
    "SmolLM2-135M-Instruct, easy": 1.000,
    "scripted expert": 1.000,
}
"""Mean rewards of the runs in `reference/`."""


class CodeExecEnv(SingleTurnEnv):
    """One completion, scored by running it."""

    def gold(self, example: Example) -> Player:
        """Return the player that knows the problems."""
        return expert


def find_code(text: str) -> str | None:
    """Return the code of the last block, or None."""
    return (BLOCK.findall(text) or [None])[-1]


async def run_tests(code: str, inputs: list[Any], sandbox: Sandbox) -> list[str]:
    """Return what `solve` returns for each input, as JSON; an empty list if the code fails or takes too long.

    The process gets only the inputs, never the expected results. It runs the interpreter outside of the
    virtual environment, so that the code cannot import this package.
    """
    repl = Repl(LIMITS, sandbox=sandbox, python=getattr(sys, "_base_executable", sys.executable))

    async def refuse(queries: list[Any]) -> str:
        return "there is no model to ask"

    results = f"[json.dumps(solve(each)) for each in json.loads({json.dumps(inputs)!r})]"
    calls = f"import json\nFINAL(json.dumps({results}))"
    try:
        if (await repl.run(code, refuse)).ended != "ok":
            return []
        said = (await repl.run(calls, refuse)).final
    finally:
        await repl.close()
    try:
        results = json.loads(said or "[]")
    except ValueError:
        return []
    return results if isinstance(results, list) and len(results) == len(inputs) else []


def load_environment(
    num_examples: int = 1000,
    tests: int = 8,
    sandbox: Sandbox = "auto",
    problems: int = len(PROBLEMS),
    seed: int = 0,
    show_examples: int = 0,
) -> CodeExecEnv:
    """Return the environment: a problem with its number drawn for each example, and `tests` hidden tests.

    Problems are drawn from the first `problems` of the twelve.

    Code runs in bubblewrap, without a network and files; with `sandbox="auto"`, only if that is installed.
    """
    if num_examples < 1 or tests < 3 or not 1 <= problems <= len(PROBLEMS):
        raise ConfigError(
            f"`num_examples` is {num_examples}, `tests` is {tests}, `problems` is {problems}",
            hint=f"give num_examples >= 1, tests >= 3 and 1 <= problems <= {len(PROBLEMS)}",
        )
    offered = sorted([*PROBLEMS][:problems])

    async def passed(completion: Messages, info: dict[str, Any], parser: Parser) -> float:
        """Share of hidden tests that pass."""
        code = parser.parse_answer(completion)
        if code is None:
            return 0.0
        problem = PROBLEMS[info["problem"]]
        rng = derived_rng("code_exec tests", info["tests_seed"])
        inputs = draw_inputs(problem, info["number"], rng, tests)
        expected = [json.dumps(problem(each, info["number"])) for each in inputs]
        said = await run_tests(code, inputs, sandbox)
        return sum(a == b for a, b in zip(said, expected, strict=False)) / tests

    async def solved(completion: Messages, info: dict[str, Any], parser: Parser) -> bool:
        """Return whether every hidden test passes."""
        return await passed(completion, info, parser) == 1.0

    def rows(split: str) -> ProceduralRows:
        def row_at(index: int) -> dict[str, Any]:
            rng = derived_rng("code_exec", seed, split, index)
            while True:  # a problem with its number belongs to only one split
                name, number = rng.choice(offered), rng.randint(2, 25)
                if (derived_seed("code_exec", name, number) % 4 == 0) == (split == "eval"):
                    break
            return {
                "question": task(PROBLEMS[name], number),
                "info": {"problem": name, "number": number, "tests_seed": rng.getrandbits(32)},
            }

        return ProceduralRows(row_at, num_examples)

    return CodeExecEnv(
        dataset=rows("train"),
        eval_dataset=rows("eval"),
        few_shot=show_examples,
        system_prompt=SYSTEM_PROMPT,
        parser=Parser(find_code),
        rubric=Rubric([solved]),
        seed=seed,
        summary="Write a Python function that passes hidden tests in a sandbox.",
        tags=("code", "sandbox", "single-turn", "train", "eval"),
        reference_scores=REFERENCE_SCORES,
    )
