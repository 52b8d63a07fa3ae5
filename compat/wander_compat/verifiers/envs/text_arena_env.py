"""Word-guessing games of the library `textarena` as an environment."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from copy import deepcopy
from types import ModuleType
from typing import Any

from wander.seeding import derived_rng

from wander_compat.verifiers.decorators import cleanup
from wander_compat.verifiers.envs.multi_turn import MultiTurnEnv
from wander_compat.verifiers.parsers import Parser, XMLParser
from wander_compat.verifiers.rubrics.rubric import Rubric
from wander_compat.verifiers.types import State

WORDS = {"words": "corpora", "averaged_perceptron_tagger_eng": "taggers"}
"""Data of nltk for the library's word games, and the folder of each."""


def _library() -> ModuleType:
    try:
        nltk, library = (importlib.import_module(name) for name in ("nltk", "textarena"))
    except ImportError as error:
        raise ImportError(
            "`TextArenaEnv` needs `textarena` and `nltk`: run `pip install textarena nltk`"
        ) from error
    for name, folder in WORDS.items():
        try:
            nltk.data.find(f"{folder}/{name}")
        except LookupError:
            nltk.download(name, quiet=True)  # without a network, it only returns False
    return library


def same(text: str) -> str:
    """Return the text unchanged."""
    return text


class TextArenaEnv(MultiTurnEnv):
    """Plays a one-player game of textarena with a word list and a secret word, such as Wordle.

    A row's `answer` is the secret word, and the model's guess is the parsed answer. `feedback_fn` changes the
    game's messages before the model reads them. Raises `RuntimeError` if the game's data is missing, and
    `ValueError` for other kinds of games.
    """

    def __init__(
        self,
        game: str = "Wordle-v0",
        num_train_examples: int = 1000,
        num_eval_examples: int = 0,
        system_prompt: str | None = None,
        parser: Parser | None = None,
        rubric: Rubric | None = None,
        feedback_fn: Callable[[str], str] = same,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        self.game = game
        self.feedback_fn = feedback_fn
        self.ta_env = self._make_game(game)
        _, question = self.ta_env.get_observation()
        words = self.ta_env.word_list
        if isinstance(words, dict):
            words = [
                word for value in words.values() for word in ([value] if isinstance(value, str) else value)
            ]
        draw = derived_rng("textarena", seed)
        drawn = [
            {"question": question, "answer": draw.choice(words)}
            for _ in range(num_train_examples + num_eval_examples)
        ]
        super().__init__(
            dataset=drawn[:num_train_examples] or None,
            eval_dataset=drawn[num_train_examples:] or None,
            system_prompt=system_prompt,
            parser=parser or XMLParser(fields=["think", "guess"], answer_field="guess"),
            rubric=rubric,
            **kwargs,
        )

    @staticmethod
    def _make_game(game: str) -> Any:
        library = _library()
        try:
            made = library.make(env_id=game)
            made.reset(num_players=1)
        except LookupError as error:
            raise RuntimeError(
                f"`{game}` needs data of nltk that cannot be downloaded here: run "
                f"`python -m nltk.downloader {' '.join(WORDS)}` on a machine with a network, and set "
                "`NLTK_DATA` to the folder"
            ) from error
        if not hasattr(made, "word_list") or "secret_word" not in made.state.game_state:
            raise ValueError(f"`{game}` has no secret word; `TextArenaEnv` plays word-guessing games")
        return made

    async def setup_state(self, state: State, **kwargs: Any) -> Any:
        """Start a new game for the rollout, with the row's word."""
        inner = self.ta_env
        while "env" in vars(inner):
            inner = inner.env
        shared = [getattr(inner, name, None) for name in ("dictionary", "word_list")]  # large, and only read
        game = deepcopy(self.ta_env, {id(words): words for words in shared if words is not None})
        game.state.game_state["secret_word"] = state["answer"]
        state["ta_env"] = game
        return await super().setup_state(state, **kwargs)

    async def env_response(self, messages: Any, state: State, **kwargs: Any) -> Any:
        """Play the guess, and return the game's messages."""
        game = state["ta_env"]
        game.step(str(self.parser.parse_answer(messages)))
        if game.state.done:
            reply = self.own_messages([{"role": "user", "content": str(game.state.game_info[0]["reason"])}])
            state["final_env_response"] = reply
            return reply
        _, seen = game.get_observation()
        return self.own_messages([{"role": "user", "content": str(self.feedback_fn(seen))}])

    @cleanup
    async def cleanup_ta_env(self, state: State) -> None:
        """Drop the game, which is recorded in the conversation."""
        state.pop("ta_env", None)
