"""Plays rollouts at the same time; one whose worker is lost goes on in another, from where it stood."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wander.clients.base import Client, ModelRequest, ModelResponse, WrappedClient
from wander.handle import EnvironmentHandle, RolloutRequest
from wander.types import Message, Rollout

Asked = tuple[EnvironmentHandle, RolloutRequest]

MOST_LOST = 5
"""Workers that a rollout may lose before it fails: it may be what ends them."""


async def play_together(
    client: Client,
    asked: Sequence[Asked],
    ended: Callable[[int], None] = lambda rollouts: None,
    at_once: int | None = None,
) -> list[list[Rollout]]:
    """Play requests at the same time; return the rollouts of each. `ended` hears how many a request had.

    All begin before any asks the policy, so that every batch holds every rollout that still plays: the same
    requests are always sampled in the same batches. Of more rollouts than `at_once` the next begins in place
    of one that ends, before the batch that follows.
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
                found[number] = await play_on(environment, request)
                current = begin_next()
            finally:
                for name in request.rollout_ids:
                    client.end(name)
            ended(len(request.rollout_ids))

    first = [begun for begun in (begin_next() for _ in range(min(lanes, len(asked)))) if begun]
    try:
        await asyncio.gather(*(play(begun) for begun in first))
    finally:
        for _, request in asked:  # those too that never came to play
            for name in request.rollout_ids:
                client.end(name)
    return found


async def play_on(environment: EnvironmentHandle, request: RolloutRequest) -> list[Rollout]:
    """Play a request; where its worker is lost, once more in another, with what was sampled already.

    An environment that answers as it did gets the same completions for it, down to the one that was being
    sampled, so the rollout ends as if nothing had happened, and batches have waited for it. One that answers
    otherwise gets new completions from there.
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
    """Tell whether a rollout's worker ended and another can play it, or, `for_good`, no other will come."""
    failure = rollout.failure
    return failure is not None and failure.type == "WorkerLost" and failure.retryable is not for_good


@dataclass(frozen=True)
class _Answer:
    turn: int
    messages: int
    """Of the conversation that was answered."""
    said: list[Message]
    """Those of them that were not there when the model was asked before."""
    response: asyncio.Task[ModelResponse]


class _KeptAnswers(WrappedClient):
    """Gives a rollout that is played once more the completions that it had, and hides that it ended."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._answers: dict[str, list[_Answer]] = {}
        """Of each rollout of the request, of its players, and of what its code asked, in the order of the
        questions."""
        self._asked: Counter[str] = Counter()
        self._ending: list[asyncio.Handle] = []
        self._attempt = 0

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the completion that is known, or the client's."""
        name, attempt = request.conversation, self._attempt
        answers, number = self._answers.setdefault(name, []), self._asked[name]
        self._asked[name] += 1
        messages = request.messages[answers[number - 1].messages if 0 < number <= len(answers) else 0 :]
        if number < len(answers):
            known = answers[number]
            if (known.turn, known.messages, known.said) != (request.turn, len(request.messages), messages):
                _cancel(answers[number:])
                del answers[number:]
                # The conversation that the client knows is another one from here.
                self._client.end(request.rollout_id)
                self._client.begin(request.rollout_id)
        if number >= len(answers):
            # A task, since losing the worker that waits must not take back what is being sampled.
            response = asyncio.ensure_future(self._client.complete(request))
            answers.append(_Answer(request.turn, len(request.messages), messages, response))
        response = answers[number].response
        try:
            return await asyncio.shield(response)
        except asyncio.CancelledError:
            if attempt == self._attempt:  # no worker was lost: the environment wants no answer any more
                response.cancel()
            raise

    def end(self, rollout_id: str) -> None:
        """Pass on that a rollout ended, unless it turns out at once that its worker was lost."""
        self._ending.append(asyncio.get_running_loop().call_soon(self._client.end, rollout_id))

    def begin_again(self) -> None:
        """Take back what just ended, as batches have to wait for it, and give the known answers again."""
        self._cancel_endings()
        self._asked.clear()
        self._attempt += 1

    def stop(self) -> None:
        """Stop what is still being sampled; who asked ends the rollouts."""
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
