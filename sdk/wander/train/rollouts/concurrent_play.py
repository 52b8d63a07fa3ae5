"""Concurrent playing of rollouts; if a worker is lost, its rollouts continue in another worker from the same
point."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wander.clients.base import Client, ModelRequest, ModelResponse, WrappedClient
from wander.handle import EnvironmentHandle, RolloutRequest
from wander.types import Example, Message, Rollout, SamplingArgs

Asked = tuple[EnvironmentHandle, RolloutRequest]

MOST_LOST = 5
"""Maximum number of workers that a rollout may lose before it fails, because it may be the cause."""


async def play_concurrently(
    client: Client,
    asked: Sequence[Asked],
    ended: Callable[[int], None] = lambda rollouts: None,
    at_once: int | None = None,
) -> list[list[Rollout]]:
    """Play requests concurrently; return the rollouts of each. `ended` is called with the number of rollouts
    in a request.

    All rollouts begin before any of them calls the policy, so that every batch contains all active rollouts.
    The same requests are therefore always sampled in the same batches. If there are more rollouts than
    `at_once`, the next one begins when one ends, before the next batch.
    """
    found: list[list[Rollout]] = [[] for _ in asked]
    waiting = iter(enumerate(asked))
    size = max((len(request.indices) for _, request in asked), default=1)
    lanes = len(asked) if at_once is None else max(1, at_once // size)

    def begin_next() -> tuple[int, Asked] | None:
        following = next(waiting, None)
        for name in following[1][1].rollout_ids if following else ():
            client.begin(name)
        return following

    async def play(current: tuple[int, Asked] | None) -> None:
        while current is not None:
            number, (environment, request) = current
            try:
                found[number] = await play_despite_losses(environment, request)
                current = begin_next()
            finally:
                for name in request.rollout_ids:
                    client.end(name)
            ended(len(request.rollout_ids))

    first = [begun for begun in (begin_next() for _ in range(min(lanes, len(asked)))) if begun]
    try:
        await asyncio.gather(*(play(begun) for begun in first))
    finally:
        for _, request in asked:  # including requests that never started
            for name in request.rollout_ids:
                client.end(name)
    return found


async def play_once(
    client: Client,
    environment: EnvironmentHandle,
    examples: Sequence[Example],
    rollout_ids: Sequence[str],
    *,
    run_seed: int = 0,
    sampling: SamplingArgs | None = None,
    at_once: int | None = None,
) -> list[Rollout]:
    """Play one rollout of each example by `play_concurrently`, and return them in order."""
    requests = [
        (
            environment,
            RolloutRequest.of(
                client,
                example,
                [0],
                run_seed=run_seed,
                sampling=sampling,
                rollout_ids=[rollout_id],
                together=environment.info.group_rewards,
            ),
        )
        for example, rollout_id in zip(examples, rollout_ids, strict=True)
    ]
    return [rollout for (rollout,) in await play_concurrently(client, requests, at_once=at_once)]


async def play_despite_losses(environment: EnvironmentHandle, request: RolloutRequest) -> list[Rollout]:
    """Play a request; if its worker is lost, play it again in another worker with the turns that were already
    sampled.

    If the environment repeats its messages, it gets the same completions, including the one that was being
    sampled. Batches wait for the rollout, so it ends as if nothing had happened. If the environment's
    messages differ, it gets new completions from that point on.
    """
    answers = _KeptAnswers(request.client)
    try:
        for _ in range(MOST_LOST):
            rollouts = await replace(request, client=answers).send(environment)
            if not any(map(is_lost, rollouts)):
                break
            answers.begin_again()
        return rollouts
    finally:
        answers.stop()


def is_lost(rollout: Rollout, *, for_good: bool = False) -> bool:
    """Return whether a rollout's worker was lost and another can play it, or, with `for_good`, no other
    worker exists."""
    failure = rollout.failure
    return failure is not None and failure.type == "WorkerLost" and failure.retryable is not for_good


@dataclass(frozen=True)
class _Answer:
    turn: int
    messages: int
    """Number of messages in the conversation that was answered."""
    said: list[Message]
    """Messages that were added since the previous answer."""
    response: asyncio.Task[ModelResponse]


class _KeptAnswers(WrappedClient):
    """Gives a repeated rollout its earlier completions, and hides from the client that it ended."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._answers: dict[str, list[_Answer]] = {}
        """Answers in the order of the requests, for each rollout, each of its players, and each call by its
        code."""
        self._asked: Counter[str] = Counter()
        self._ending: list[asyncio.Handle] = []
        self._attempt = 0

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the recorded completion, or a new one from the client."""
        name, attempt = request.conversation, self._attempt
        answers, number = self._answers.setdefault(name, []), self._asked[name]
        self._asked[name] += 1
        messages = request.messages[answers[number - 1].messages if 0 < number <= len(answers) else 0 :]
        if number < len(answers):
            known = answers[number]
            if (known.turn, known.messages, known.said) != (request.turn, len(request.messages), messages):
                _cancel(answers[number:])
                del answers[number:]
                # From this point on, the conversation differs from the one that the client has.
                self._client.end(request.rollout_id)
                self._client.begin(request.rollout_id)
        if number >= len(answers):
            # A task is used so that losing the waiting worker does not cancel the sampling.
            response = asyncio.ensure_future(self._client.complete(request))
            answers.append(_Answer(request.turn, len(request.messages), messages, response))
        response = answers[number].response
        try:
            return await asyncio.shield(response)
        except asyncio.CancelledError:
            # In the same attempt, no worker was lost, so the environment itself canceled the call.
            if attempt == self._attempt:
                response.cancel()
            raise

    def end(self, rollout_id: str) -> None:
        """Tell the client that a rollout ended, unless the loss of its worker becomes known immediately."""
        self._ending.append(asyncio.get_running_loop().call_soon(self._client.end, rollout_id))

    def begin_again(self) -> None:
        """Undo the last endings, because batches must wait for these rollouts, and start to repeat the known
        answers."""
        self._cancel_endings()
        self._asked.clear()
        self._attempt += 1

    def stop(self) -> None:
        """Cancel turns that are still being sampled; the caller ends the rollouts."""
        self._cancel_endings()
        for answers in self._answers.values():
            _cancel(answers)

    def _cancel_endings(self) -> None:
        for handle in self._ending:
            handle.cancel()
        self._ending.clear()


def _cancel(answers: Sequence[_Answer]) -> None:
    for answer in answers:
        answer.response.cancel()
