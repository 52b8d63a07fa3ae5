"""Environments of an OpenEnv server. Needs the extra `openenv` and a running server.

    env = OpenEnvEnv("http://localhost:8000", text_field="message")

An action is a JSON object. With `text_field`, it is any text, which becomes that field.
"""

from __future__ import annotations

import json
from typing import Any

from wander.errors import EnvironmentFault, require_extra
from wander.parsers import MaybeThinkParser
from wander.types import State

from wander_integrations.games import Game, GameEnv, NoAction

MAX_TURNS = 50
"""Default of `max_turns`, because servers do not report their limits."""


class OpenEnvEnv(GameEnv):
    """Plays episodes of an OpenEnv server, each in a session of its own.

    - `url`: the server's address.
    - `text_field`: the field of an action that gets the model's text. Without it, the model writes a JSON
      object.
    - `observed_field`: the field of an observation that the model sees. Without it, the model sees all fields
      as JSON.

    `reset` gets a seed that depends on the example and the run; a server may ignore it. The reward is the sum
    of the steps' rewards. The determinism contract does not cover a server, so the environment is not
    deterministic unless its author passes `deterministic=True`. The server's limit of sessions also limits
    parallel rollouts.
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
        self.no_action = "That is not an action. Answer with a JSON object."

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
            raise EnvironmentFault(f"no OpenEnv server responds: {error}", retryable=True) from error
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
        except RuntimeError as error:  # the only error that its client raises for a rejected action
            if "(code: VALIDATION_ERROR)" in str(error):
                raise NoAction("The server does not accept this action.") from error
            raise

    async def close(self) -> None:
        """End the session."""
        await self._client.close()

    def _take(self, result: Any) -> str:
        """Record the reward and the end, and return the text for the model."""
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
