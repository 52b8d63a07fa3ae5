"""Tasks of Inspect as environments: dataset and scorer, without the solver. Needs the extra `inspect`.

env = InspectEnv("inspect_evals/gsm8k")
env = InspectEnv(my_task(), system_prompt="Think, then answer.")
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from typing import Any

from wander.envs.single_turn import SingleTurnEnv
from wander.errors import ConfigError, MissingExtra, RubricError
from wander.parsers import answer_text, message_text
from wander.rubrics import Rubric
from wander.types import Message, Messages, State

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
ASKED = "{question}\n\n{choices}\n\nEnd with a line `ANSWER: X`, where X is the letter of the right choice."
CHOSEN = re.compile(r"ANSWER\s*:\s*\(?([A-Za-z])\b")


class InspectEnv(SingleTurnEnv):
    """Asks the samples of an Inspect task and scores the completions with its scorer.

    - `task`: a `Task`, or the name under which a package registers one, as in `inspect_evals/gsm8k`.
    - `arguments`: those of a task given by its name.

    The task's solver is not run: the model answers the input of each sample once. Choices, if any, are listed
    below the input. The reward is the first scorer's value as a number (`C` is 1, `P` a half); other scorers
    are metrics. A scorer that asks a model needs Inspect's own settings for that model, and
    `deterministic=False`. Raises `ConfigError` for a task that does not exist, lacks a scorer, or needs a
    sandbox.
    """

    def __init__(self, task: Any, *, arguments: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        if importlib.util.find_spec("inspect_ai") is None:
            raise MissingExtra("inspect", needed_for="playing tasks of Inspect", of="wander-integrations")
        if isinstance(task, str):
            task = self._named(task, arguments or {})
        self.task = task
        self._samples = list(task.dataset)
        scorers = task.scorer if isinstance(task.scorer, list) else [task.scorer]
        if not any(scorers) or not self._samples:
            raise ConfigError(f"the task `{task.name}` has no {'samples' if any(scorers) else 'scorer'}")
        if task.sandbox or any(sample.sandbox or sample.files for sample in self._samples):
            raise ConfigError(
                f"the task `{task.name}` wants a sandbox, which only Inspect's solvers use",
                hint="evaluate it by Inspect itself: `inspect eval`",
            )
        if "rubric" not in kwargs:
            kwargs["rubric"] = rubric = Rubric([_reward_function("score", scorers[0], self)])
            for number, scorer in enumerate(scorers[1:], start=2):
                rubric.add_metric(_reward_function(f"score_{number}", scorer, self))
        super().__init__(
            eval_dataset=[_row(number, each) for number, each in enumerate(self._samples)], **kwargs
        )

    def _named(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Return the task that a package registers under a name."""
        from inspect_ai.util import registry_create

        try:
            return registry_create("task", name, **arguments)
        except (LookupError, TypeError, ValueError) as error:
            raise ConfigError(
                f"Inspect cannot make the task `{name}`: {error}",
                hint="`inspect list tasks` shows those of a folder; a package's are `package/task`",
            ) from error

    async def judge(self, scorer: Any, state: State) -> float:
        """Return the value of a scorer for a rollout."""
        from inspect_ai.model import ModelName, ModelOutput
        from inspect_ai.scorer import Target, value_to_float
        from inspect_ai.solver import TaskState

        sample = self._samples[state.example.index]
        said = answer_text(state.completion[-1]) if state.completion else ""
        asked = [_inspect_message(message) for message in state.prompt]
        output = ModelOutput.from_content(model="wander/policy", content=said)
        task_state = TaskState(
            model=ModelName("wander/policy"),
            sample_id=state.example.example_id,
            epoch=1,
            input=sample.input,
            messages=[*asked, output.message],
            target=Target(sample.target),
            choices=sample.choices,
            output=output,
            completed=True,
            metadata=dict(sample.metadata or {}),
        )
        if sample.choices:
            chosen = CHOSEN.findall(said.upper())
            for place in range(len(sample.choices)):
                task_state.choices.mark_choice(place, bool(chosen) and chosen[-1] == LETTERS[place])
        score = await scorer(task_state, Target(sample.target))
        if score is None or not isinstance(score.value, str | int | float | bool):
            raise RubricError(
                f"the scorer returned `{score and score.value!s:.80}`, which is not a single value"
            )
        return float(value_to_float()(score.value))


def _reward_function(name: str, scorer: Any, env: InspectEnv) -> Any:
    async def score(state: State) -> float:
        return await env.judge(scorer, state)

    score.__name__ = name
    return score


def _row(number: int, sample: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "answer": sample.target,
        "example_id": str(number if sample.id is None else sample.id),
    }
    messages: Messages = [{"role": "user", "content": sample.input}]
    if not isinstance(sample.input, str):
        messages = [{"role": each.role, "content": each.text} for each in sample.input]
    if sample.choices:
        if len(sample.choices) > len(LETTERS):
            raise ConfigError(f"sample `{row['example_id']}` has more choices than there are letters")
        choices = "\n".join(
            f"{letter}) {each}" for letter, each in zip(LETTERS, sample.choices, strict=False)
        )
        messages[-1]["content"] = ASKED.format(question=messages[-1]["content"], choices=choices)
    if isinstance(sample.input, str):
        return row | {"question": messages[0]["content"]}
    return row | {"prompt": messages}


def _inspect_message(message: Message) -> Any:
    from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageUser

    kinds = {"system": ChatMessageSystem, "assistant": ChatMessageAssistant}
    return kinds.get(message["role"], ChatMessageUser)(content=message_text(message))
