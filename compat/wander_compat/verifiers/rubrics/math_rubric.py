"""Compares mathematical answers of the classic API by their meaning."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from wander.errors import require_extra
from wander.rubrics.math import MathProcesses

from wander_compat.verifiers.data import extract_boxed_answer
from wander_compat.verifiers.parsers import MaybeThinkParser, Parser
from wander_compat.verifiers.rubrics.rubric import RewardFunction, Rubric

with require_extra("math", needed_for="`MathRubric`"):
    from math_verify import parse, verify
    from math_verify.errors import TimeoutException as MathVerifyTimeout


def verify_response(
    response: str, answer: str, max_verify_chars: int, timeout_seconds: float
) -> tuple[float, float]:
    """Compare two expressions in this process. Returns 1.0 or 0.0, and the number of seconds that it took.

    Expressions that the library cannot compare, or not in time, count as different.
    """
    started = time.perf_counter()
    equal = False
    if len(response) <= max_verify_chars:
        try:
            seconds = max(1, round(timeout_seconds))
            gold = parse(f"\\boxed{{{answer}}}", parsing_timeout=seconds)
            parsed = parse(f"\\boxed{{{response}}}", parsing_timeout=seconds)
            equal = bool(verify(gold, parsed, timeout_seconds=seconds))
        except (Exception, MathVerifyTimeout):  # noqa: BLE001 - the model may write anything
            equal = False
    return float(equal), time.perf_counter() - started


class MathRubric(Rubric):
    """Rewards an answer that is mathematically equal to the row's.

    Comparisons run in separate processes. A comparison that takes longer than `timeout_seconds` counts as 0,
    which is recorded in the state.
    """

    HARD_TIMEOUT_SECONDS = 120.0
    MAX_VERIFY_CHARS = 50_000

    def __init__(
        self,
        funcs: Sequence[RewardFunction] | None = None,
        weights: Sequence[float] | None = None,
        parser: Parser | None = None,
        max_workers: int = 8,
        timeout_seconds: float = 5,
        max_verify_chars: int = MAX_VERIFY_CHARS,
    ) -> None:
        parser = parser or MaybeThinkParser(partial(extract_boxed_answer, strict=True))
        super().__init__(funcs, weights, parser)
        self.timeout_seconds = timeout_seconds
        self.max_verify_chars = max_verify_chars
        self.processes = MathProcesses(max(1, max_workers), timeout_seconds)
        self.add_reward_func(self.correct_answer)

    async def correct_answer(self, parser: Parser, completion: Any, answer: str, **kwargs: Any) -> float:
        """Return 1.0 if the parsed completion equals the answer, otherwise 0.0."""
        response = parser.parse_answer(completion)
        if not response or len(response) > self.max_verify_chars:
            return 0.0
        return float(await self.processes.equal(str(answer), str(response)))

    async def teardown(self) -> None:
        """End the processes."""
        await super().teardown()
        self.processes.close()
