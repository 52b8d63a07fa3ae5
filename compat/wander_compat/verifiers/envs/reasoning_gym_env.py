"""Tasks of the library `reasoning-gym` as an environment."""

from __future__ import annotations

import importlib
from typing import Any

from wander_compat.verifiers.envs.multi_turn import SingleTurnEnv
from wander_compat.verifiers.parsers import Parser, XMLParser
from wander_compat.verifiers.rubrics.rubric import Rubric


def _library(module: str = "") -> Any:
    try:
        return importlib.import_module(f"reasoning_gym{module}")
    except ImportError as error:
        raise ImportError(
            "`ReasoningGymEnv` needs `reasoning-gym`: run `pip install reasoning-gym`"
        ) from error


class ReasoningGymEnv(SingleTurnEnv):
    """Plays one task of reasoning-gym, or a mix of several. The task's own verifier computes the reward.

    `gym` is a task's name, or a list of names and of `{"name", "weight", "config"}`. A row's `answer` is the
    number of the entry that the verifier looks up.
    """

    def __init__(
        self,
        gym: str | list[str | dict[str, Any]],
        num_train_examples: int = 1000,
        num_eval_examples: int = 100,
        system_prompt: str | None = None,
        parser: Parser | None = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        self.gym = gym
        self.num_train_examples = num_train_examples
        self.num_eval_examples = num_eval_examples
        self.seed = seed
        self.rg_dataset = self.build_rg_dataset(gym, num_train_examples + num_eval_examples, seed)
        train, evaluation = self.rg_to_hf(self.rg_dataset)
        parser = parser or XMLParser(fields=["answer"])
        prompts = _library(".utils").SYSTEM_PROMPTS
        super().__init__(
            dataset=train,
            eval_dataset=evaluation,
            system_prompt=prompts["default"] if system_prompt is None else system_prompt,
            parser=parser,
            **kwargs,
        )

        def check_answer_reward_func(completion: Any, answer: str, parser: Parser) -> float:
            entry = self.rg_dataset[int(answer)]
            response = str(parser.parse_answer(completion)).strip()
            return float(self.rg_dataset.score_answer(answer=response, entry=entry))

        self.rubric = Rubric(parser=parser)
        self.rubric.add_reward_func(check_answer_reward_func)
        self.rubric.add_reward_func(parser.get_format_reward_func(), weight=0.0)

    def build_rg_dataset(
        self, gym: str | list[str | dict[str, Any]], total_examples: int = 1000, seed: int = 0
    ) -> Any:
        """Return the library's dataset with this number of entries."""
        if isinstance(gym, str):
            return _library().create_dataset(gym, size=total_examples, seed=seed)
        spec = _library(".composite").DatasetSpec
        tasks = [{"name": task} if isinstance(task, str) else task for task in gym]
        specs = [
            spec(name=task["name"], weight=task.get("weight", 1.0), config=task.get("config", {}))
            for task in tasks
        ]
        return _library().create_dataset("composite", size=total_examples, seed=seed, datasets=specs)

    def rg_to_hf(self, rg_dataset: Any) -> tuple[Any, Any]:
        """Return the entries as training and evaluation rows."""
        from datasets import Dataset

        rows = []
        for number, entry in enumerate(rg_dataset):
            source = (entry.get("metadata") or {}).get("source_dataset", self.gym)
            row = {"question": entry["question"], "answer": str(number), "info": {"source_dataset": source}}
            rows.append(row)
        split = self.num_train_examples
        return Dataset.from_list(rows[:split]), Dataset.from_list(rows[split:])
