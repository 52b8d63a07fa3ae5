"""The environment played by Wander in this benchmark: one question, one answer, one reward function."""

from __future__ import annotations

from typing import Any

from wander import Environment, MultiTurnEnv, Rubric, SingleTurnEnv


def exact(completion: list[dict[str, Any]], answer: str) -> float:
    return float(completion[-1]["content"] == answer)


class Conversation(MultiTurnEnv):
    """Answers every turn with the same message."""

    def env_response(self, messages: list[dict[str, Any]], state: Any) -> list[dict[str, Any]]:
        return [{"role": "user", "content": "next"}]


def load_environment(n: int = 2048, turns: int = 1) -> Environment:
    rows = [{"question": f"What is {i}+1?", "answer": str(i + 1)} for i in range(n)]
    if turns == 1:
        return SingleTurnEnv(eval_dataset=rows, rubric=Rubric([exact]), name="addition")
    return Conversation(eval_dataset=rows, rubric=Rubric([exact]), name="addition", max_turns=turns)
