"""The worker's side: loads one environment and plays rollouts for the host that started it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable
from contextvars import copy_context
from typing import Any

from pydantic import ValidationError

from wander.clients.base import Client, ModelRequest, ModelResponse, Recollection, Transcript
from wander.environment import LocalEnvironment
from wander.errors import DatasetError, EnvironmentFault, LoadError, WanderError
from wander.handle import RolloutRequest, make_failed_rollouts
from wander.loading import cause, load_environment, load_path
from wander.modules import outside_need
from wander.rollout.activity import Notices, Silence
from wander.rollout.outside_calls import ROLLOUT, attribute_openai_calls
from wander.types import Example, Failure, Rollout
from wander.version import __version__
from wander.worker.channel import Channel
from wander.worker.child.stall_watch import StallWatch, log_line
from wander.worker.note import PLAY, Note
from wander.worker.protocol import (
    PAGE_BYTES,
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
    Noticed,
    PartEnded,
    Ping,
    Play,
    Played,
    Pong,
    Recall,
    Recalled,
    Refused,
    to_worker,
)

_TEARDOWN_SECONDS = 5.0


class Service:
    """One worker: greet, load, then serve until the host says `Close` or is gone."""

    def __init__(self, channel: Channel, note: int | None = None) -> None:
        """Speak over a channel; the host looks into the file `note`, a descriptor, when the process ended
        unexpectedly.
        """
        self._channel = channel
        self._lines: AsyncIterator[bytes] = channel.lines()
        self._note = note
        self._load = Load()
        self._plays: dict[int, asyncio.Task[None]] = {}
        self._begun: dict[int, float] = {}
        self._cancelled: set[int] = set()
        """Plays that the host does not want any more; all others are answered, whatever is raised."""
        self._asking: set[int] = set()
        """Plays that were interrupted while they waited for the model."""
        self._calls: dict[int, asyncio.Future[ModelResponse]] = {}
        self._recalls: dict[int, asyncio.Future[Any]] = {}
        self._next_call = 0
        self._told_scoring = 0.0
        """Seconds of the environment's scoring that the host knows of."""
        self._others: set[asyncio.Task[None]] = set()

    async def greet(self) -> Load | None:
        """Say hello and return what the host wants loaded; None when it went away."""
        self._others.add(asyncio.create_task(self._channel.run()))
        hello = Hello(
            protocol=PROTOCOL, wander=__version__, python=platform.python_version(), pid=os.getpid()
        )
        self._channel.send(hello.model_dump_json())
        async for line in self._lines:
            try:
                message = to_worker.validate_json(line)
            except ValidationError:
                message = Refused(reason=f"the host sent what is no message of protocol {PROTOCOL}")
            if isinstance(message, Load):
                self._load = message
                return message
            if isinstance(message, Refused):
                log_line(message.reason)
            return None
        return None

    async def serve(self, environment: LocalEnvironment, end: Callable[[], None]) -> bool:
        """Answer the host, then tear the environment down; True when the host said `Close`, False when it
        went away. `end` ends the process at once: the code of a rollout past its time held everything up.
        """
        closed = False
        note = Note(self._note)
        note.follow()
        StallWatch(
            asyncio.get_running_loop(),
            note,
            self._begun,
            end,
            limits=(self._load.rollout_timeout, getattr(environment.env, "timeout_seconds", None)),
            stall_seconds=self._load.stall_seconds,
        ).start()
        if self._load.notice_seconds is not None:
            loop = asyncio.get_running_loop()
            environment.report_silence(
                Notices(lambda silence: self._report(silence, note, loop), self._load.notice_seconds)
            )
        self._channel.send(Loaded.model_construct(info=environment.info).model_dump_json())
        async for line in self._lines:
            message = to_worker.validate_json(line)
            if isinstance(message, Completed):
                self._complete(message)
            elif isinstance(message, Recalled):
                self._recall_answered(message)
            elif isinstance(message, Play):
                self._start_play(environment, message)
            elif isinstance(message, Cancel):
                if message.id in self._plays:
                    self._cancelled.add(message.id)
                    self._plays[message.id].cancel()
            elif isinstance(message, Ping):
                self._channel.send(Pong().model_dump_json())
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

    def _report(self, silence: Silence, note: Note, loop: asyncio.AbstractEventLoop) -> None:
        """Tell the host of rollouts without progress, from another thread."""
        log_line(str(silence))
        note.leave_silence(silence)
        text = Noticed(silence=silence).model_dump_json()
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(self._channel.send, text)

    def _start_play(self, environment: LocalEnvironment, asked: Play) -> None:
        context = copy_context()
        context.run(PLAY.set, asked.id)
        task = asyncio.create_task(self._play(environment, asked), context=context)
        self._plays[asked.id] = task
        self._begun[asked.id] = time.monotonic()
        task.add_done_callback(lambda _: self._forget(asked.id))

    def _forget(self, play: int) -> None:
        del self._plays[play], self._begun[play]
        self._cancelled.discard(play)
        self._asking.discard(play)

    async def _play(self, environment: LocalEnvironment, asked: Play) -> None:
        attribute_openai_calls()
        ROLLOUT.set(asked.rollout_ids[0])
        limit = asyncio.timeout(self._load.rollout_timeout)
        request = RolloutRequest.of(
            _HostClient(self, asked),
            asked.example,
            asked.indices,
            run_seed=asked.run_seed,
            sampling=asked.sampling,
            rollout_ids=asked.rollout_ids,
            together=asked.group,
        )
        try:
            async with limit:
                rollouts = await environment.play_request(request)
            self._send_played(environment, asked, rollouts)
        except BaseException as error:
            if asked.id in self._cancelled:
                raise
            if limit.expired():
                failure = Failure(
                    boundary="model" if asked.id in self._asking else "environment",
                    type="RolloutTimeout",
                    message=f"it was not over after {self._load.rollout_timeout:g} s",
                )
            else:  # it broke outside the places where the rollout's own loop catches failures
                log_trace()
                kind = type(error).__name__
                failure = Failure(boundary="environment", type=kind, message=str(error) or kind)
            self._send_played(environment, asked, make_failed_rollouts(asked.example, asked.indices, failure))

    def _send_played(self, environment: LocalEnvironment, asked: Play, rollouts: list[Rollout]) -> None:
        seconds, self._told_scoring = (
            environment.scoring_seconds - self._told_scoring,
            environment.scoring_seconds,
        )
        text = Played.assemble(
            type="played", id=asked.id, rollouts=rollouts, scoring_seconds=seconds
        ).model_dump_json()
        if self._too_long(text):
            failure = self._oversize("the record of this rollout", text).failure()
            failed = make_failed_rollouts(asked.example, asked.indices, failure)
            text = Played(id=asked.id, rollouts=failed).model_dump_json()
        self._channel.send(text)

    def _too_long(self, text: str) -> bool:
        limit = self._load.message_limit
        return len(text) * 4 > limit and len(text.encode()) > limit

    def _oversize(self, what: str, text: str) -> EnvironmentFault:
        size, limit = len(text.encode()), self._load.message_limit
        return EnvironmentFault(f"{what} has {size:,} bytes, more than the {limit:,} that a message may have")

    def end_part(self, play: int, rollout_id: str) -> None:
        """Tell the host that a rollout of a group makes no more calls."""
        part = PartEnded.model_construct(play=play, rollout_id=rollout_id)
        self._channel.send(part.model_dump_json())

    async def ask(self, play: int, request: ModelRequest) -> ModelResponse:
        """Return what the host's client answers; raises its `ModelError`."""
        self._next_call += 1
        call = self._next_call
        answer: asyncio.Future[ModelResponse] = asyncio.get_running_loop().create_future()
        self._calls[call] = answer
        try:
            asked = Complete.assemble(type="complete", id=call, play=play, request=request)
            text = asked.model_dump_json()
            if self._too_long(text):
                raise self._oversize("the conversation", text)
            await self._channel.room()
            self._channel.send(text)
            return await answer
        except asyncio.CancelledError:
            self._asking.add(play)
            raise
        finally:
            del self._calls[call]

    async def recall(self, play: int, rollout_id: str, about: Recollection, key: Any) -> Any:
        """Ask the host what is on record; raises `ModelError`."""
        self._next_call += 1
        number = self._next_call
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._recalls[number] = answer
        try:
            asked = Recall(id=number, play=play, rollout_id=rollout_id, about=about, key=key)
            self._channel.send(asked.model_dump_json())
            return await answer
        finally:
            del self._recalls[number]

    def _recall_answered(self, message: Recalled) -> None:
        answer = self._recalls.get(message.id)
        if answer is None or answer.done():
            return  # the rollout that asked was cancelled meanwhile
        if message.fault is None:
            answer.set_result(message.value)
        else:
            answer.set_exception(message.fault.model_error())

    def _complete(self, message: Completed) -> None:
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
            if asked.openings:
                found = (await environment.openings())[asked.start : asked.start + asked.count]
            else:
                found = await environment.examples(asked.split, asked.start, asked.count)
            text = self._page(asked.id, found)
        except BaseException as error:  # noqa: BLE001 - the host raises it
            if not isinstance(error, WanderError):
                log_trace()
            if need := outside_need(error):
                error = need[0](f"reading its examples raised `{cause(error)}`", hint=need[1])
            text = Examples(id=asked.id, fault=Fault.of(error)).model_dump_json()
        self._channel.send(text)

    def _page(self, number: int, examples: list[Example]) -> str:
        """Write the first examples: all of them, or as many as make a message of moderate size."""
        # In letters, which may have four bytes each.
        most = min(PAGE_BYTES, self._load.message_limit // 4)
        text = Examples.model_construct(id=number, examples=examples).model_dump_json()
        while len(text) > most and len(examples) > 1:
            examples = examples[: max(1, min(len(examples) - 1, len(examples) * most // len(text)))]
            text = Examples.model_construct(id=number, examples=examples).model_dump_json()
        if self._too_long(text):
            raise DatasetError(str(self._oversize(f"example `{examples[0].example_id}`", text)))
        return text

    async def _end(self, environment: LocalEnvironment) -> None:
        """Cancel what plays, tear down within a bounded time, and send what is left."""
        tasks = list(self._plays.values())
        self._cancelled.update(self._plays)
        for task in tasks:
            task.cancel()
        try:
            async with asyncio.timeout(_TEARDOWN_SECONDS):
                await asyncio.gather(*tasks, return_exceptions=True)
                await environment.close()
        except BaseException:  # noqa: BLE001 - goes to the log; nobody waits for an answer
            log_trace()
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
        log_trace()
        raise
    except BaseException as error:
        log_trace()
        raise LoadError(f"loading raised `{type(error).__name__}: {error}`") from error
    finally:
        # An environment may have closed or replaced the streams.
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()


def log_trace() -> None:
    """Write the exception that is being handled to the log, unless the environment has closed it."""
    with contextlib.suppress(Exception):
        traceback.print_exc()


class _HostClient(Client):
    """Hands the model calls of one `Play` to the host, and asks it what else the rollout needs."""

    def __init__(self, service: Service, asked: Play) -> None:
        self.model = asked.model
        self.scripts = asked.scripts
        self._service = service
        self._asked = asked
        self._lines = dict(zip(asked.rollout_ids, asked.lines, strict=False))
        self._transcripts = dict(zip(asked.rollout_ids, asked.transcripts, strict=False))

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return what the host's client answered; raises its `ModelError`."""
        return await self._service.ask(self._asked.id, request)

    def end(self, rollout_id: str) -> None:
        """Tell the host that a rollout of a group makes no more calls.

        A single rollout's end is told by its `Played`; a client that waits for all that play must not wait
        for one whose group still goes on.
        """
        if self._asked.group:
            self._service.end_part(self._asked.id, rollout_id)

    def line(self, rollout_id: str) -> dict[str, Any] | None:
        """Return the choices that the host makes for the environment."""
        return self._lines.get(rollout_id)

    async def recall(self, rollout_id: str, about: Recollection, key: Any) -> Any:
        """Return what the host's client has on record."""
        return await self._service.recall(self._asked.id, rollout_id, about, key)

    def transcript(self, rollout_id: str) -> Transcript | None:
        """Return what the host wants scored again, or None for a rollout to be played."""
        return self._transcripts.get(rollout_id)
