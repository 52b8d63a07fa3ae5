"""The worker's side: loads one environment, and plays rollouts for the host that started it."""

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

from wander.boxes.base import Box, BoxSpec
from wander.clients.base import Client, ModelRequest, ModelResponse, Recollection, Transcript
from wander.environment import LocalEnvironment
from wander.errors import DatasetError, EnvironmentFault, LoadError, WanderError
from wander.handle import RolloutRequest, make_failed_rollouts
from wander.loading import cause, load_environment, load_path
from wander.modules import missing_resource
from wander.rollout.activity import Notices, Silence
from wander.rollout.outside_calls import ROLLOUT, attribute_openai_calls
from wander.types import Example, Failure, Rollout
from wander.version import __version__
from wander.worker.channel import Channel
from wander.worker.child.boxes import BoxRequests
from wander.worker.child.stall_watch import StallWatch, log_line
from wander.worker.note import PLAY, Note
from wander.worker.protocol import (
    PAGE_BYTES,
    PROTOCOL,
    BoxAnswer,
    Cancel,
    Close,
    Complete,
    Completed,
    EnvironmentLoaded,
    Examples,
    Fault,
    GetExamples,
    Hello,
    Load,
    LoadFailed,
    Noticed,
    PartEnded,
    Ping,
    Play,
    Played,
    Pong,
    Recall,
    Recalled,
    WorkerRefused,
    to_worker,
)

_TEARDOWN_SECONDS = 5.0


class Service:
    """One worker: it greets the host, loads the environment, and serves until a request to close."""

    def __init__(self, channel: Channel, note: int | None = None) -> None:
        """Communicate over a channel. `note` is the descriptor of a file that the host reads if the process
        ends unexpectedly.
        """
        self._channel = channel
        self._lines: AsyncIterator[bytes] = channel.lines()
        self._note = note
        self._load = Load()
        self._plays: dict[int, asyncio.Task[None]] = {}
        self._begun: dict[int, float] = {}
        self._canceled: set[int] = set()
        """Plays that the host has canceled. All others get an answer, regardless of errors."""
        self._asking: set[int] = set()
        """Plays that were interrupted while they waited for the model."""
        self._calls: dict[int, asyncio.Future[ModelResponse]] = {}
        self._recalls: dict[int, asyncio.Future[Any]] = {}
        self.boxes = BoxRequests(channel.send)
        self._next_call = 0
        self._reported_scoring = 0.0
        """Seconds of scoring that were already reported to the host."""
        self._others: set[asyncio.Task[None]] = set()

    async def greet(self) -> Load | None:
        """Send the greeting and return the host's load request, or None if the host is gone."""
        self._others.add(asyncio.create_task(self._channel.run()))
        hello = Hello(
            protocol=PROTOCOL, wander=__version__, python=platform.python_version(), pid=os.getpid()
        )
        self._channel.send(hello.model_dump_json())
        async for line in self._lines:
            try:
                message = to_worker.validate_json(line)
            except ValidationError:
                message = WorkerRefused(reason=f"the host sent an invalid message for protocol {PROTOCOL}")
            if isinstance(message, Load):
                self._load = message
                return message
            if isinstance(message, WorkerRefused):
                log_line(message.reason)
            return None
        return None

    async def serve(self, environment: LocalEnvironment, end: Callable[[], None]) -> bool:
        """Serve the host, then tear the environment down. Returns True if the host sent `Close`, and False
        if the connection was lost. `end` ends the process immediately when the code of an overdue rollout
        blocks it.
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
        self._channel.send(EnvironmentLoaded.model_construct(info=environment.info).model_dump_json())
        async for line in self._lines:
            message = to_worker.validate_json(line)
            if isinstance(message, Completed):
                self._resolve_call(message)
            elif isinstance(message, Recalled):
                self._resolve_recall(message)
            elif isinstance(message, BoxAnswer):
                self.boxes.resolve(message)
            elif isinstance(message, Play):
                self._start_play(environment, message)
            elif isinstance(message, Cancel):
                if message.id in self._plays:
                    self._canceled.add(message.id)
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
        """Tell the host why the environment could not be loaded."""
        self._channel.send(LoadFailed(fault=Fault.of(error)).model_dump_json())
        await self._channel.close()

    def _report(self, silence: Silence, note: Note, loop: asyncio.AbstractEventLoop) -> None:
        """Report rollouts without progress to the host, from another thread."""
        log_line(str(silence))
        note.leave_silence(silence)
        text = Noticed(silence=silence).model_dump_json()
        with contextlib.suppress(RuntimeError):  # the loop has ended in the meantime
            loop.call_soon_threadsafe(self._channel.send, text)

    def _start_play(self, environment: LocalEnvironment, play: Play) -> None:
        context = copy_context()
        context.run(PLAY.set, play.id)
        task = asyncio.create_task(self._play(environment, play), context=context)
        self._plays[play.id] = task
        self._begun[play.id] = time.monotonic()
        task.add_done_callback(lambda _: self._forget(play.id))

    def _forget(self, play: int) -> None:
        del self._plays[play], self._begun[play]
        self._canceled.discard(play)
        self._asking.discard(play)

    async def _play(self, environment: LocalEnvironment, play: Play) -> None:
        attribute_openai_calls()
        ROLLOUT.set(play.rollout_ids[0])
        limit = asyncio.timeout(self._load.rollout_timeout)
        request = RolloutRequest.of(
            _HostClient(self, play),
            play.example,
            play.indices,
            run_seed=play.run_seed,
            sampling=play.sampling,
            rollout_ids=play.rollout_ids,
            together=play.group,
        )
        try:
            async with limit:
                rollouts = await environment.play_request(request)
            self._send_played(environment, play, rollouts)
        except BaseException as error:
            if play.id in self._canceled:
                raise
            if limit.expired():
                failure = Failure(
                    boundary="model" if play.id in self._asking else "environment",
                    type="RolloutTimeout",
                    message=f"it did not finish within {self._load.rollout_timeout:g} s",
                )
            else:  # an error outside of the code whose failures the rollout loop catches
                log_trace()
                kind = type(error).__name__
                failure = Failure(boundary="environment", type=kind, message=str(error) or kind)
            self._send_played(environment, play, make_failed_rollouts(play.example, play.indices, failure))

    def _send_played(self, environment: LocalEnvironment, play: Play, rollouts: list[Rollout]) -> None:
        seconds, self._reported_scoring = (
            environment.scoring_seconds - self._reported_scoring,
            environment.scoring_seconds,
        )
        text = Played.assemble(
            type="played", id=play.id, rollouts=rollouts, scoring_seconds=seconds
        ).model_dump_json()
        if self._too_long(text):
            failure = self._oversize("the record of this rollout", text).failure()
            failed = make_failed_rollouts(play.example, play.indices, failure)
            text = Played(id=play.id, rollouts=failed).model_dump_json()
        self._channel.send(text)

    def _too_long(self, text: str) -> bool:
        limit = self._load.message_limit
        return len(text) * 4 > limit and len(text.encode()) > limit

    def _oversize(self, what: str, text: str) -> EnvironmentFault:
        size, limit = len(text.encode()), self._load.message_limit
        return EnvironmentFault(f"{what} has {size:,} bytes, more than the {limit:,} allowed in a message")

    def end_part(self, play: int, rollout_id: str) -> None:
        """Tell the host that a rollout of a group has made its last call."""
        part = PartEnded.model_construct(play=play, rollout_id=rollout_id)
        self._channel.send(part.model_dump_json())

    async def ask(self, play: int, request: ModelRequest) -> ModelResponse:
        """Return the answer of the host's client. Raises its `ModelError`."""
        self._next_call += 1
        call = self._next_call
        answer: asyncio.Future[ModelResponse] = asyncio.get_running_loop().create_future()
        self._calls[call] = answer
        try:
            message = Complete.assemble(type="complete", id=call, play=play, request=request)
            text = message.model_dump_json()
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
        """Ask the host for a value from the record. Raises `ModelError`."""
        self._next_call += 1
        number = self._next_call
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._recalls[number] = answer
        try:
            message = Recall(id=number, play=play, rollout_id=rollout_id, about=about, key=key)
            self._channel.send(message.model_dump_json())
            return await answer
        finally:
            del self._recalls[number]

    def _resolve_recall(self, message: Recalled) -> None:
        answer = self._recalls.get(message.id)
        if answer is None or answer.done():
            return  # the rollout was canceled in the meantime
        if message.fault is None:
            answer.set_result(message.value)
        else:
            answer.set_exception(message.fault.model_error())

    def _resolve_call(self, message: Completed) -> None:
        answer = self._calls.get(message.id)
        if answer is None or answer.done():
            return  # the rollout was canceled in the meantime
        if message.response is not None:
            answer.set_result(message.response)
        else:
            fault = message.fault or Fault(type="ModelError", message="the host sent no answer")
            answer.set_exception(fault.model_error())

    async def _examples(self, environment: LocalEnvironment, request: GetExamples) -> None:
        try:
            if request.openings:
                examples = (await environment.openings())[request.start : request.start + request.count]
            else:
                examples = await environment.examples(request.split, request.start, request.count)
            text = self._page(request.id, examples)
        except BaseException as error:  # noqa: BLE001 - the host raises it
            if not isinstance(error, WanderError):
                log_trace()
            if need := missing_resource(error):
                error = need[0](f"reading its examples raised `{cause(error)}`", hint=need[1])
            text = Examples(id=request.id, fault=Fault.of(error)).model_dump_json()
        self._channel.send(text)

    def _page(self, number: int, examples: list[Example]) -> str:
        """Serialize a page: as many of the examples as fit into a message of moderate size."""
        # Measured in characters, which may take four bytes each.
        most = min(PAGE_BYTES, self._load.message_limit // 4)
        text = Examples.model_construct(id=number, examples=examples).model_dump_json()
        while len(text) > most and len(examples) > 1:
            examples = examples[: max(1, min(len(examples) - 1, len(examples) * most // len(text)))]
            text = Examples.model_construct(id=number, examples=examples).model_dump_json()
        if self._too_long(text):
            raise DatasetError(str(self._oversize(f"example `{examples[0].example_id}`", text)))
        return text

    async def _end(self, environment: LocalEnvironment) -> None:
        """Cancel all plays, tear down within a limited time, and send the remaining messages."""
        tasks = list(self._plays.values())
        self._canceled.update(self._plays)
        for task in tasks:
            task.cancel()
        try:
            async with asyncio.timeout(_TEARDOWN_SECONDS):
                await asyncio.gather(*tasks, return_exceptions=True)
                await environment.close()
        except BaseException:  # noqa: BLE001 - logged only, because nobody waits for an answer
            log_trace()
        await self._channel.close()
        for task in self._others:
            task.cancel()
        await asyncio.gather(*self._others, return_exceptions=True)


def load(request: Load) -> LocalEnvironment:
    """Load the requested environment. Every failure is a `LoadError` or another `WanderError`."""
    try:
        if request.path is not None:
            env = load_path(request.path, **request.arguments)
        else:
            env = load_environment(request.target or "", **request.arguments)
        if request.rows is not None:
            env.use_rows(request.rows)
        return LocalEnvironment(env)
    except WanderError:
        log_trace()
        raise
    except BaseException as error:
        log_trace()
        raise LoadError(f"loading raised `{type(error).__name__}: {error}`") from error
    finally:
        # The environment may have closed or replaced the streams.
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()


def log_trace() -> None:
    """Write the exception being handled to the log, unless the environment has closed it."""
    with contextlib.suppress(Exception):
        traceback.print_exc()


class _HostClient(Client):
    """Forwards the model calls of a `Play` to the host, and gets other values for the rollout from it."""

    def __init__(self, service: Service, play: Play) -> None:
        self.model = play.model
        self.scripts = play.scripts
        self._service = service
        self._play = play
        self._lines = dict(zip(play.rollout_ids, play.lines, strict=False))
        self._transcripts = dict(zip(play.rollout_ids, play.transcripts, strict=False))

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the answer of the host's client. Raises its `ModelError`."""
        return await self._service.ask(self._play.id, request)

    def end(self, rollout_id: str) -> None:
        """Tell the host that a rollout of a group has made its last call.

        `Played` already reports the end of a single rollout. A client that waits for all rollouts in flight
        must not wait for a finished rollout whose group continues.
        """
        if self._play.group:
            self._service.end_part(self._play.id, rollout_id)

    def line(self, rollout_id: str) -> dict[str, Any] | None:
        """Return the choices that the host assigned to the environment."""
        return self._lines.get(rollout_id)

    async def recall(self, rollout_id: str, about: Recollection, key: Any) -> Any:
        """Return the value that the host's client has on record."""
        return await self._service.recall(self._play.id, rollout_id, about, key)

    async def start_box(self, rollout_id: str, spec: BoxSpec) -> Box:
        """Have the host start a box."""
        return await self._service.boxes.start(self._play.id, rollout_id, spec)

    def transcript(self, rollout_id: str) -> Transcript | None:
        """Return the transcript that the host wants scored again, or None if the rollout must be played."""
        return self._transcripts.get(rollout_id)
