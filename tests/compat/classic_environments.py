"""Environments as people wrote them for each generation of the classic API."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from wander_compat.alias import serve_imports

if TYPE_CHECKING:
    from datasets import Dataset

serve_imports()

import verifiers as vf  # noqa: E402
from verifiers.types import Messages, State  # noqa: E402


def rows(count: int = 3, **columns: Any) -> Dataset:
    from datasets import Dataset

    made = {"question": [f"say {n}" for n in range(count)], "answer": [str(n) for n in range(count)]}
    return Dataset.from_dict({**made, **{name: [value] * count for name, value in columns.items()}})


def right(completion, answer, **kwargs) -> float:
    return 1.0 if completion[-1]["content"] == answer else 0.0


class FirstGeneration(vf.MultiTurnEnv):
    """0.1.3 to 0.1.7: sync hooks, pairs, dictionaries, keys that later releases dropped."""

    def __init__(self, **kwargs):
        super().__init__(max_turns=5, name="first", description="kept as an attribute", **kwargs)

    def setup_state(self, state, **kwargs):
        state["guesses"] = []
        return state

    def is_completed(self, messages, state, **kwargs) -> bool:
        assert isinstance(messages, list)
        assert isinstance(messages[-1], dict)
        return state["turn"] >= 3 or messages[-1]["content"] == "stop"

    def env_response(self, messages, state, **kwargs):
        state["guesses"].append(messages[-1]["content"])
        assert len(state["responses"]) == state["turn"] == len(state["guesses"])
        said = state["responses"][-1].choices[0].message.content
        assert state["completion"][-1]["content"] == said
        return [{"role": "user", "content": f"turn {state['turn']}: {said}"}], state


class OwnRollout(vf.Environment):
    """0.1.x: the whole rollout overridden, in the form of columns."""

    async def rollout(
        self, client, model, prompt, answer="", task="default", info=None, sampling_args=None, **kwargs
    ):
        completion = []
        for _ in range(2):
            response = await self.get_model_response(
                client, model, [*prompt, *completion], None, sampling_args, "chat"
            )
            completion.append({"role": "assistant", "content": response.choices[0].message.content})
        direct = await client.chat.completions.create(model=model, messages=[*prompt, *completion])
        completion.append({"role": "assistant", "content": direct.choices[0].message.content})
        return completion, {"prompt": prompt, "answer": answer, "task": task, "info": info}


class SecondGeneration(vf.MultiTurnEnv):
    """0.1.8 to 0.1.10: marked stops, `setup_state` returns, dictionaries."""

    async def setup_state(self, state: State) -> State:
        state["left"] = 2
        return await super().setup_state(state)

    @vf.stop(priority=1)
    async def nothing_left(self, state: State) -> bool:
        return state["left"] == 0

    @vf.cleanup
    async def forget(self, state: State):
        state["cleaned"] = True

    async def env_response(self, messages: Messages, state: State, **kwargs) -> Messages:
        state["left"] -= 1
        return [{"role": "user", "content": f"{state['left']} left after {messages[-1]['content']}"}]


class ThirdGeneration(vf.MultiTurnEnv):
    """0.1.11 to 0.3.1: message classes, attributes, `setup_state` returns nothing."""

    async def setup_state(self, state: vf.State) -> None:
        state["seen"] = 0

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs) -> vf.Messages:
        assert isinstance(messages[-1], vf.AssistantMessage)
        state["seen"] += 1
        if state["seen"] == 2:
            state["final_env_response"] = [vf.UserMessage(content="over")]
            return state["final_env_response"]
        return [vf.UserMessage(content=f"you said {messages[-1].content}")]


class GlobalRandom(vf.MultiTurnEnv):
    """Draws from the global generator, as many published environments do."""

    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": f"dice: {random.randint(1, 10**9)}"}]


def double(x: int) -> int:
    """Double a number.

    Args:
        x: the number
    """
    return 2 * x


def broken(x: int) -> int:
    """Break."""
    raise ValueError("broken tool")


def env_of(cls, rubric=None, **kwargs):
    return cls(dataset=rows(), rubric=rubric or vf.Rubric(funcs=[right]), **kwargs)
