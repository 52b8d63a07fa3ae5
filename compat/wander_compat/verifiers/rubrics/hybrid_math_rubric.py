"""Compares mathematical answers by rule first, and with a judge if the rule finds them different."""

from __future__ import annotations

from typing import Any

from wander_compat.verifiers.data import extract_boxed_answer
from wander_compat.verifiers.parsers import Parser
from wander_compat.verifiers.rubrics.judge_rubric import JudgeRubric
from wander_compat.verifiers.rubrics.math_rubric import MathRubric
from wander_compat.verifiers.types import State

DEFAULT_JUDGE_PROMPT = """Compare the candidate's final answer with the standard answer, which is right.
Look only at the final answers: other notation, rounding or form of the same value counts as equal, and every
part of an answer must be there. A reply that is cut off, repeats itself or refuses is invalid.

Question:
{question}

Standard answer:
{answer}

Candidate's answer:
{response}

Think it through, then end with one of
\\boxed{{A}} (equal), \\boxed{{B}} (not equal), \\boxed{{C}} (invalid)."""


class HybridMathRubric(JudgeRubric):
    """Rewards an answer that is mathematically equal to the row's, or that a judge considers equal.

    The judge is called only with `use_judge_fallback`. Scores are stored in the state: `math_verify_score`,
    `judge_score`, `judge_result`.
    """

    def __init__(
        self,
        parser: Parser | None = None,
        use_judge_fallback: bool = False,
        judge_client: Any = None,
        judge_model: str = "gpt-5-nano",
        judge_prompt: str = DEFAULT_JUDGE_PROMPT,
        judge_sampling_args: dict[str, Any] | None = None,
        timeout_seconds: float = 5,
        max_workers: int = 50,
        **kwargs: Any,
    ) -> None:
        if judge_client is None and not use_judge_fallback:
            from openai import AsyncOpenAI

            judge_client = AsyncOpenAI(api_key="unused")
        super().__init__(
            parser=parser,
            judge_client=judge_client,
            judge_model=judge_model,
            judge_prompt=judge_prompt,
            judge_sampling_args=judge_sampling_args,
            **kwargs,
        )
        self.use_judge_fallback = use_judge_fallback
        self.math_rubric = MathRubric(
            parser=self.parser, timeout_seconds=timeout_seconds, max_workers=max_workers
        )
        self.add_reward_func(self.math_verify_score, weight=0)
        self.add_reward_func(self.judge_score, weight=0)
        self.add_reward_func(self.correct_answer, weight=1)

    async def math_verify_score(self, completion: Any, answer: str, state: State, **kwargs: Any) -> float:
        """Return 1.0 if the rule finds the answers equal, otherwise 0.0."""
        score = await self.math_rubric.correct_answer(self.parser, completion, answer)
        state["math_verify_score"] = score
        return score

    async def judge_score(
        self, prompt: Any, completion: Any, answer: str, state: State, **kwargs: Any
    ) -> float:
        """Return 1.0 if the rule or the judge finds the answers equal, otherwise 0.0."""
        rule_score = float(state.get("math_verify_score") or 0.0)
        if rule_score == 1.0 or not self.use_judge_fallback:
            return rule_score
        judgment = (await self.judge(prompt, completion, answer, state)).strip()
        state["judge_result"] = judgment if len(judgment) == 1 else extract_boxed_answer(judgment)
        state["judge_score"] = 1.0 if state["judge_result"] == "A" else 0.0
        return float(state["judge_score"])

    async def correct_answer(self, state: State, **kwargs: Any) -> float:
        """Return 1.0 if either method found the answers equal, otherwise 0.0."""
        return float(state.get("math_verify_score") or state.get("judge_score") or 0.0)

    async def teardown(self) -> None:
        """End the processes that compare."""
        await self.math_rubric.teardown()
        await super().teardown()
