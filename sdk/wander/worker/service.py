"""The worker's side: loads one environment and plays rollouts for the host that started it."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import traceback
from collections.abc import AsyncIterator

from wander import __version__
from wander.clients.base import ModelRequest, ModelResponse
from wander.clients.proxy import ProxyClient
from wander.environment import LocalEnvironment
from wander.errors import LoadError, WanderError
from wander.loading import load_environment, load_path
from wander.outside_calls import ROLLOUT, attribute_openai_calls
from wander.types import Failure, Rollout
from wander.worker.channel import Channel
from wander.worker.protocol import (
    PROTOCOL,
    Cancel,
    Close,
    Complete,
    Completed,
    Examples,
    Fault,
    GetExamples,
    Hello,
    Load,
    Loaded,
    LoadFailed,
    PartEnded,
    Play,
    Played,
    to_worker,
)

_TEARDOWN_SECONDS = 5.0


class Service:
    """One worker: greet, load, then serve until the host says `Close` or is gone."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lines: AsyncIterator[bytes] = channel.lines()
        self._plays: dict[int, asyncio.Task[None]] = {}
        self._calls: dict[int, asyncio.Future[ModelResponse]] = {}
        self._next_call = 0
        self._others: set[asyncio.Task[None]] = set()

    async def greet(self) -> Load | None:
        """Say hello and return what the host wants loaded; None when it went away."""
        self._others.add(asyncio.create_task(self._channel.run()))
        hello = Hello(
            protocol=PROTOCOL, wander=__version__, python=platform.python_version(), pid=os.getpid()
        )
        self._channel.send(hello.model_dump_json())
        async for line in self._lines:
            message = to_worker.validate_json(line)
            return message if isinstance(message, Load) else None
        return None

    async def serve(self, environment: LocalEnvironment) -> bool:
        """Answer the host, then tear the environment down; True when the host said `Close`, False when it
        went away.
        """
        closed = False
        self._channel.send(Loaded.model_construct(info=environment.info).model_dump_json())
        async for line in self._lines:
            message = to_worker.validate_json(line)
            if isinstance(message, Completed):
                self._completed(message)
            elif isinstance(message, Play):
                self._start_play(environment, message)
            elif isinstance(message, Cancel):
                if message.id in self._plays:
                    self._plays[message.id].cancel()
            elif isinstance(message, GetExamples):
                task = asyncio.create_task(self._examples(environment, message))
                self._others.add(task)
                task.add_done_callback(self._others.discard)
            elif isinstance(message, Close):
                closed = True
                break
        await self._end(environment)
        return closed

    async def refuse(self, error: BaseException) -> None:
        """Tell the host why there is no environment."""
        self._channel.send(LoadFailed(fault=Fault.of(error)).model_dump_json())
        await self._channel.close()

    def _start_play(self, environment: LocalEnvironment, asked: Play) -> None:
        task = asyncio.create_task(self._play(environment, asked))
        self._plays[asked.id] = task
        task.add_done_callback(lambda _: self._plays.pop(asked.id, None))

    async def _play(self, environment: LocalEnvironment, asked: Play) -> None:
        async def ask(request: ModelRequest) -> ModelResponse:
            return await self._ask(asked.id, request)

        def ended(rollout_id: str) -> None:
            # A single rollout's end is told by its `Played`; a client that waits for all that play must
            # not wait for one whose group still goes on.
            if asked.group:
                part = PartEnded.model_construct(play=asked.id, rollout_id=rollout_id)
                self._channel.send(part.model_dump_json())

        recorded = dict(zip(asked.rollout_ids, asked.recorded, strict=False))
        client = ProxyClient(ask, asked.model, recorded, ended)
        attribute_openai_calls()
        ROLLOUT.set(asked.rollout_ids[0])
        try:
            rollouts = await _rollouts(environment, client, asked)
            self._send_played(asked, rollouts)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the host gets it as the rollout's failure
            traceback.print_exc()
            self._send_played(asked, [_failed(asked, index, error) for index in asked.indices])

    def _send_played(self, asked: Play, rollouts: list[Rollout]) -> None:
        self._channel.send(Played.model_construct(id=asked.id, rollouts=rollouts).model_dump_json())

    async def _ask(self, play: int, request: ModelRequest) -> ModelResponse:
        self._next_call += 1
        call = self._next_call
        answer: asyncio.Future[ModelResponse] = asyncio.get_running_loop().create_future()
        self._calls[call] = answer
        try:
            asked = Complete.model_construct(id=call, play=play, request=request)
            self._channel.send(asked.model_dump_json())
            return await answer
        finally:
            del self._calls[call]

    def _completed(self, message: Completed) -> None:
        answer = self._calls.get(message.id)
        if answer is None or answer.done():
            return  # the rollout that asked was cancelled meanwhile
        if message.response is not None:
            answer.set_result(message.response)
        else:
            fault = message.fault or Fault(type="ModelError", message="the host gave no answer")
            answer.set_exception(fault.model_error())

    async def _examples(self, environment: LocalEnvironment, asked: GetExamples) -> None:
        try:
            found = await environment.examples(asked.split, asked.start, asked.count)
            text = Examples.model_construct(id=asked.id, examples=found).model_dump_json()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the host raises it
            if not isinstance(error, WanderError):
                traceback.print_exc()
            text = Examples(id=asked.id, fault=Fault.of(error)).model_dump_json()
        self._channel.send(text)

    async def _end(self, environment: LocalEnvironment) -> None:
        """Cancel what plays, tear down within a bounded time, and send what is left."""
        tasks = list(self._plays.values())
        for task in tasks:
            task.cancel()
        try:
            async with asyncio.timeout(_TEARDOWN_SECONDS):
                await asyncio.gather(*tasks, return_exceptions=True)
                await environment.close()
        except (Exception, SystemExit):  # noqa: BLE001 - goes to the log; nobody waits for an answer
            traceback.print_exc()
        await self._channel.close()
        for task in self._others:
            task.cancel()
        await asyncio.gather(*self._others, return_exceptions=True)


def load(asked: Load) -> LocalEnvironment:
    """Load what the host asks for; every failure is a `LoadError` or another `WanderError`."""
    try:
        if asked.path is not None:
            return LocalEnvironment(load_path(asked.path, **asked.arguments))
        return LocalEnvironment(load_environment(asked.target or "", **asked.arguments))
    except WanderError:
        traceback.print_exc()
        raise
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        raise LoadError(f"loading raised `{type(error).__name__}: {error}`") from error
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


async def _rollouts(environment: LocalEnvironment, client: ProxyClient, asked: Play) -> list[Rollout]:
    """Play what was asked for."""
    if asked.group:
        return await environment.rollout_group(
            client,
            asked.example,
            indices=asked.indices,
            run_seed=asked.run_seed,
            sampling=asked.sampling,
            rollout_ids=asked.rollout_ids,
        )
    rollout = await environment.rollout(
        client,
        asked.example,
        index=asked.indices[0],
        run_seed=asked.run_seed,
        sampling=asked.sampling,
        rollout_id=asked.rollout_ids[0],
    )
    return [rollout]


def _failed(asked: Play, index: int, error: BaseException) -> Rollout:
    """A rollout that broke outside the places where its own loop catches failures."""
    return Rollout(
        example_id=asked.example.example_id,
        index=index,
        seed=asked.example.seed,
        prompt=asked.example.prompt,
        completion=[],
        failure=Failure(
            boundary="environment", type=type(error).__name__, message=str(error) or type(error).__name__
        ),
    )
