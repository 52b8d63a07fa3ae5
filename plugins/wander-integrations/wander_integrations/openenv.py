"""Environments that an OpenEnv server plays. Needs the extra `openenv`, and a server that runs.

    env = OpenEnvEnv("http://localhost:8000", text_field="message")

An action is a JSON object, or with `text_field` any text, which becomes that field.
"""

from __future__ import annotations

import json
from typing import Any

from wander.errors import EnvironmentFault, require_extra
from wander.parsers import MaybeThinkParser
from wander.types import State

from wander_integrations.games import Game, GameEnv, NoAction

MAX_TURNS = 50
"""Turns unless `max_turns` is given; servers do not tell their limits."""


class OpenEnvEnv(GameEnv):
    """Plays episodes of an OpenEnv server, each in a session of its own.

    - `url`: where the server answers.
    - `text_field`: the field of an action that takes the model's text; without it, it says a JSON object.
    - `observed_field`: the field of observations that is shown; without it all are, as JSON.

    `reset` gets a seed of the example and the run, which a server may ignore. The reward is the sum of the
    steps' rewards. A server is an outside observation, so the environment counts as not deterministic unless
    its author passes `deterministic=True`. As many rollouts play at once as the server allows sessions.
    """

    def __init__(
        self,
        url: str,
        *,
        text_field: str | None = None,
        observed_field: str | None = None,
        deterministic: bool = False,
        **kwargs: Any,
    ) -> None:
        self.url, self._text_field, self._observed_field = url, text_field, observed_field
        _client_class()
        kwargs = {"max_turns": MAX_TURNS, "parser": MaybeThinkParser(), **kwargs}
        super().__init__(deterministic=deterministic, **kwargs)
        self.no_action = "That is no action. Answer with a JSON object."

    def open(self, state: State) -> Game:
        """Return an episode in a session of its own."""
        return _Session(_client_class()(base_url=self.url), self._text_field, self._observed_field)


class _Session(Game):
    """One session with a server."""

    def __init__(self, client: Any, text_field: str | None, observed_field: str | None) -> None:
        super().__init__()
        self._client, self._text_field, self._observed_field = client, text_field, observed_field

    async def begin(self, seed: int) -> str:
        """Connect and reset."""
        self.earned[None] = 0.0
        try:
            await self._client.connect()
        except ConnectionError as error:
            raise EnvironmentFault(f"no OpenEnv server answers: {error}", retryable=True) from error
        return self._take(await self._client.reset(seed=seed))

    async def step(self, action: str) -> str:
        """Take one step."""
        fields: Any = {self._text_field: action}
        if self._text_field is None:
            try:
                fields = json.loads(action)
            except ValueError as error:
                raise NoAction from error
            if not isinstance(fields, dict):
                raise NoAction
        try:
            return self._take(await self._client.step(fields))
        except RuntimeError as error:  # its client has no other for what a server refuses
            if "(code: VALIDATION_ERROR)" in str(error):
                raise NoAction("The server takes no such action.") from error
            raise

    async def close(self) -> None:
        """End the session."""
        await self._client.close()

    def _take(self, result: Any) -> str:
        """Note reward and ending, and return what is to be told."""
        self.earned[None] += float(result.reward or 0.0)
        self.over = bool(result.done)
        shown: Any = {key: value for key, value in result.observation.items() if value or key != "metadata"}
        if self._observed_field is not None:
            if self._observed_field not in shown:
                raise EnvironmentFault(
                    f"the observation has no `{self._observed_field}`, but {', '.join(map(repr, shown))}"
                )
            shown = shown[self._observed_field]
        return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)


def _client_class() -> Any:
    with require_extra("openenv", needed_for="playing on an OpenEnv server", of="wander-integrations"):
        from openenv.core import GenericEnvClient
    return GenericEnvClient
