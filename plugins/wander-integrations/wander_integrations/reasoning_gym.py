"""Tasks of reasoning-gym, scored by its own scorers. Needs the extra `reasoning-gym`.

env = ReasoningGymEnv("chain_sum", settings={"min_terms": 3})
env = ReasoningGymEnv({"chain_sum": {"weight": 2}, "leg_counting": {}})
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wander.dataset import ProceduralRows
from wander.envs.single_turn import SingleTurnEnv
from wander.errors import ConfigError, did_you_mean, require_extra
from wander.parsers import Parser, XMLParser
from wander.rubrics import Rubric
from wander.seeding import derived_seed
from wander.system.child_environ import child_environ
from wander.types import Example, Messages, State

from wander_integrations.games import require_count

Tasks = dict[str, dict[str, Any]]
"""The settings of each task, including its `weight`."""

PROMPT = "Put your final answer, and nothing else, into <answer> and </answer>."
FAR = 2**30
"""Distance between the seeds of the splits. Item 1 of the library's seed 5 is item 0 of its seed 6."""
HASHED = {"isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"}
"""Tasks that draw from sets. Their items depend on the hash seed of the process."""
BLOCK = 8
"""Number of items that a process with hash seed 0 makes in one go."""
ANSWERS = ("possible_answer", "example_answer", "example_correct_answer")
"""Keys of an answer in the metadata of tasks that accept several answers."""


class ReasoningGymEnv(SingleTurnEnv):
    """Asks the questions of a task, or of several mixed, and scores the answers as the library does.

    - `task`: a name, a list of names, names separated by commas, or a dictionary with the settings of each
      task, including its `weight`.
    - `settings`: the settings of a single task.

    The reward is the library's score of the text in the answer's tags, and 0 without tags. If a scorer raises
    an error for an answer, the reward is 0, and the metric `scorer_raised` is 1. Each of several tasks is a
    stratum. Raises `ConfigError` for a task or a setting that does not exist.
    """

    def __init__(
        self,
        task: str | Sequence[str] | Mapping[str, Mapping[str, Any]],
        *,
        settings: Mapping[str, Any] | None = None,
        num_examples: int = 1000,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        require_count(num_examples)
        self.tasks = _named_tasks(task, settings or {})
        first = derived_seed("reasoning-gym", seed) % FAR
        self._made = make_items(self.tasks, first, num_examples)
        self._items = {
            "eval": _items(self.tasks, first, num_examples),
            "train": _items(self.tasks, first + FAR, num_examples),
        }
        if "rubric" not in kwargs:
            kwargs["rubric"] = Rubric([self.score])
            kwargs["rubric"].add_metric(scorer_raised)
        kwargs = {
            "system_prompt": PROMPT,
            "parser": XMLParser(["answer"]),
            "strata": len(self.tasks) if len(self.tasks) > 1 else None,
            **kwargs,
        }
        splits = [
            ProceduralRows(functools.partial(self._row, split), num_examples) for split in ("train", "eval")
        ]
        super().__init__(*splits, seed=seed, **kwargs)

    def score(self, completion: Messages, parser: Parser, state: State) -> float:
        """Return the library's score of the answer."""
        state["scorer_raised"] = False
        said = parser.parse_answer(completion)
        if not said:
            return 0.0
        item = self._item(state.example)
        try:
            return float(self._made.score_answer(said, item))
        except Exception:  # noqa: BLE001 - an answer that breaks the scorer is wrong
            state["scorer_raised"] = True
            return 0.0

    def gold(self, example: Example) -> str | None:
        """Return the library's answer, or None."""
        item = self._item(example)
        kept = (item["metadata"].get(key) for key in ANSWERS)
        answer = item["answer"] if item["answer"] is not None else next(filter(None, kept), None)
        if answer is None:
            return None
        return f"<answer>{answer if isinstance(answer, str) else json.dumps(answer)}</answer>"

    def _item(self, example: Example) -> dict[str, Any]:
        return self._items[example.split](example.index)

    def _row(self, split: str, index: int) -> dict[str, Any]:
        item = self._items[split](index)
        row = {"question": item["question"], "answer": item["answer"], "example_id": f"{split}-{index}"}
        if len(self.tasks) > 1:
            row["stratum"] = list(self.tasks).index(item["metadata"]["source_dataset"])
            row["task"] = item["metadata"]["source_dataset"]
        return row


def scorer_raised(state: State) -> bool:
    """Return whether the library's scorer raised an error for the answer."""
    return bool(state["scorer_raised"])


def make_items(tasks: Tasks, seed: int, size: int) -> Any:
    """Return the library's dataset; raises `ConfigError` for settings that it rejects."""
    library = _library()
    own = {
        name: {key: value for key, value in each.items() if key != "weight"} for name, each in tasks.items()
    }
    try:
        if len(tasks) == 1:
            ((name, settings),) = own.items()
            return library.create_dataset(name, seed=seed, size=size, **settings)
        from reasoning_gym.composite import DatasetSpec

        specs = [
            DatasetSpec(name, tasks[name].get("weight", 1.0), settings) for name, settings in own.items()
        ]
        return library.create_dataset("composite", seed=seed, size=size, datasets=specs)
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(f"reasoning-gym refuses the settings of {', '.join(tasks)}: {error}") from error


def _items(tasks: Tasks, seed: int, size: int) -> Callable[[int], dict[str, Any]]:
    """Return a function from a position to the item there, the same in every process."""
    if not HASHED & tasks.keys() or os.environ.get("PYTHONHASHSEED") == "0":
        return functools.lru_cache(256)(make_items(tasks, seed, size).__getitem__)

    @functools.lru_cache(64)
    def block(number: int) -> list[dict[str, Any]]:
        places = range(number * BLOCK, min(size, (number + 1) * BLOCK))
        code = (
            "import json, sys; from wander_integrations.reasoning_gym import make_items; "
            "asked = json.load(sys.stdin); made = make_items(*asked[:3]); "
            "print('\\n' + json.dumps([made[each] for each in asked[3]]))"
        )
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-c", code],
            input=json.dumps([tasks, seed, size, list(places)]),
            capture_output=True,
            text=True,
            env=child_environ(PYTHONHASHSEED="0", PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
        )
        if done.returncode:
            raise ConfigError(f"reasoning-gym cannot make items of {', '.join(tasks)}: {done.stderr[-500:]}")
        found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
        return found

    return lambda place: block(place // BLOCK)[place % BLOCK]


def _named_tasks(task: Any, settings: Mapping[str, Any]) -> Tasks:
    """Return tasks with their settings; raises `ConfigError` for names that do not exist."""
    if isinstance(task, str):
        task = [name.strip() for name in task.split(",")]
    if not isinstance(task, Mapping):
        task = {name: {} for name in task}
    if not task:
        raise ConfigError("no task is named", hint="name one, as in `chain_sum`")
    if settings and len(task) > 1:
        raise ConfigError(
            "`settings` are those of a single task",
            hint='give each its own: `{"chain_sum": {"min_terms": 3}, "leg_counting": {}}`',
        )
    tasks = {name: {**own, **settings} for name, own in task.items()}
    from_library = _library().factory.DATASETS
    for name, own in tasks.items():
        _require(name, set(from_library) - {"composite"}, "reasoning-gym has no task `{}`")
        fields = {field.name for field in dataclasses.fields(from_library[name][1])} - {"seed", "size"}
        for setting in own:
            _require(setting, fields | {"weight"}, f"the task `{name}` has no setting `{{}}`")
    return tasks


def _require(name: Any, known: set[str], message: str) -> None:
    if name not in known:
        hint = did_you_mean(str(name), sorted(known), cutoff=0.5) or f"there are {', '.join(sorted(known))}"
        raise ConfigError(message.format(name), hint=hint)


@functools.cache
def _library() -> Any:
    needed_for = "playing tasks of reasoning-gym"
    with (
        require_extra("reasoning-gym", needed_for=needed_for, of="wander-integrations"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # one of its dependencies does not compile without
        import reasoning_gym
    return reasoning_gym
