"""An episode that is played step by step, for trainers with a loop of their own.

An environment drives its rollout against a client. Here that client waits: `begin` returns the first messages
for the model, and `answer` passes its completion on and returns the next messages, until the rollout has
ended. For the same completions, an evaluation plays the same rollout: the same messages, the same reward.

    episode = SteppedRollout(env, env.dataset()[0])
    messages = await episode.begin()
    while episode.rollout is None:
        new = await episode.answer({"role": "assistant", "content": reply(messages)})
        messages = episode.messages
    reward = episode.rollout.reward

`Episode` does the same for synchronous code:

    episode = Episode(env, 0)
    messages = episode.begin()
    while not episode.done:
        messages = episode.step("my reply")
    print(episode.reward)
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.errors import ConfigError, ModelError, WanderError
from wander.loop_thread import LoopThread
from wander.types import EnvironmentInfo, Example, Message, Messages, Rollout, Usage, copy_json

if TYPE_CHECKING:
    from wander.handle import Split


class Playable(Protocol):
    """An environment that can be played in steps: of this process, a handle, or from `wander.load`."""

    @property
    def info(self) -> EnvironmentInfo:
        """Description that the environment gives of itself."""

    def rollout(
        self, client: Client, example: Example, /, *, index: int = 0, run_seed: int = 0
    ) -> Coroutine[Any, Any, Rollout]:
        """Play one episode to its end and score it."""


class SteppedRollout:
    """One episode of one example. Use it from one event loop; `close` ends it early.

    The caller samples, so it does not take sampling arguments. Raises `ConfigError` for an environment whose
    rewards compare the rollouts of a group, because an episode is a single rollout.
    """

    def __init__(self, environment: Playable, example: Example, *, index: int = 0, run_seed: int = 0) -> None:
        if environment.info.group_rewards:
            raise ConfigError(
                f"`{environment.info.name}` compares the rollouts of a group, so a single one has no reward"
            )
        self._environment = environment
        self._example = example
        self._index = index
        self._run_seed = run_seed
        self._client = _WaitingClient()
        self._task: asyncio.Task[Rollout] | None = None
        self.messages: Messages = []
        """The conversation so far, completions included."""
        self.tools: list[dict[str, Any]] | None = None
        """Function schemas that the model may call in the next completion."""
        self.rollout: Rollout | None = None
        """The finished rollout; None before the episode ends."""

    async def begin(self) -> Messages:
        """Start the episode and return the first messages for the model."""
        self._client.home = asyncio.get_running_loop()
        self._task = asyncio.create_task(
            self._environment.rollout(self._client, self._example, index=self._index, run_seed=self._run_seed)
        )
        return await self._next()

    async def answer(
        self, message: Message, *, finish_reason: str = "stop", usage: Usage | None = None
    ) -> Messages:
        """Pass the completion on; return the messages that follow it, and set `rollout` at the end."""
        if self._client.answer is None or self.rollout is not None:
            raise ModelError("nothing is asked: the episode has not begun, or has ended")
        self._client.answer.set_result(
            ModelResponse(message=copy_json(message), finish_reason=finish_reason, usage=usage or Usage())
        )
        return await self._next()

    async def close(self) -> None:
        """End an episode early. Safe to call at any time."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _next(self) -> Messages:
        """Wait for the next request, or for the end, and return the new messages."""
        assert self._task is not None
        asked = asyncio.create_task(self._client.asked.get())
        try:
            await asyncio.wait({asked, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not asked.done():
                asked.cancel()
        known = len(self.messages)
        if asked.done() and not asked.cancelled():
            request = asked.result()
            self.messages, self.tools = request.messages, request.tools
        else:
            self.rollout = self._task.result()
            self.messages = [*self.rollout.prompt, *self.rollout.completion]
        # The caller already knows its own completion.
        return self.messages[known + 1 if known else 0 :]


class _WaitingClient(Client):
    """Passes requests to the caller and waits for the answers, also from another event loop."""

    model = "stepped"

    def __init__(self) -> None:
        self.home: asyncio.AbstractEventLoop | None = None
        """The caller's event loop."""
        self.asked: asyncio.Queue[ModelRequest] = asyncio.Queue()
        self.answer: concurrent.futures.Future[ModelResponse] | None = None
        """Set while a request waits."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the answer once it is given."""
        if self.answer is not None:
            raise ModelError("an episode that is played in steps asks one completion at a time")
        assert self.home is not None
        self.answer = concurrent.futures.Future()
        self.home.call_soon_threadsafe(self.asked.put_nowait, request)
        try:
            return await asyncio.wrap_future(self.answer)
        finally:
            self.answer = None


class Rows(Protocol):
    """The examples of a split."""

    def __getitem__(self, position: int, /) -> Example:
        """Return the example at a position."""


class Steppable(Playable, Protocol):
    """An environment of this process (`wander.load_environment`), or one by name (`wander.load`)."""

    def dataset(self, split: Split = "train", /) -> Rows:
        """Return the examples of a split."""


class EpisodeFailed(WanderError):
    """The environment, a tool or a reward function failed, so the episode is not scored, not even with 0."""


class Episode:
    """One episode of the example at a position. Its reward is that of an evaluation with the same
    completions.

    All episodes of a process share one event loop in a thread. Use each episode from one thread only.
    """

    def __init__(
        self,
        environment: Steppable,
        position: int = 0,
        *,
        split: Split = "train",
        index: int = 0,
        run_seed: int = 0,
    ) -> None:
        example = environment.dataset(split)[position]
        self._stepped = SteppedRollout(environment, example, index=index, run_seed=run_seed)

    def begin(self) -> Messages:
        """Start the episode and return the first messages for the model; raises `EpisodeFailed`."""
        messages = episode_loop().run(self._stepped.begin())
        self._require_sound()
        return messages

    def step(self, action: str | Message) -> Messages:
        """Pass the model's reply (text or a message) on, and return the messages that follow it.

        Raises `EpisodeFailed`, and `ModelError` for an episode that has ended.
        """
        message = {"role": "assistant", "content": action} if isinstance(action, str) else action
        messages = episode_loop().run(self._stepped.answer(message))
        self._require_sound()
        return messages

    def close(self) -> None:
        """End an episode early. Safe to call at any time."""
        episode_loop().run(self._stepped.close())

    @property
    def messages(self) -> Messages:
        """The conversation so far."""
        return self._stepped.messages

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Function schemas that the next reply may call."""
        return self._stepped.tools or []

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""
        return self._stepped.rollout is not None

    @property
    def truncated(self) -> bool:
        """Whether a limit ended it."""
        return self._stepped.rollout is not None and self._stepped.rollout.truncated

    @property
    def reward(self) -> float | None:
        """The reward; None before the episode ends."""
        return None if self._stepped.rollout is None else self._stepped.rollout.reward

    @property
    def metrics(self) -> dict[str, float]:
        """The value of each reward function and metric; empty before the episode ends."""
        return {} if self._stepped.rollout is None else dict(self._stepped.rollout.metrics)

    def _require_sound(self) -> None:
        if self._stepped.rollout is not None:
            require_sound(self._stepped.rollout)


def require_sound(rollout: Rollout) -> None:
    """Raise `EpisodeFailed` for a rollout that failed."""
    if rollout.failure is not None:
        raise EpisodeFailed(f"the episode failed: {rollout.failure.boundary}: {rollout.failure.message}")


@cache
def episode_loop() -> LoopThread:
    """Return the loop of all episodes of this process."""
    return LoopThread("wander episodes")
