"""The host's side of one worker's life, from its start to its end, whether expected or not."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from wander.clients.base import NOT_RECORDED, Client, ModelRequest, name_of
from wander.errors import ArgumentsRefused, LoadError, ModelError, install_command
from wander.handle import RolloutRequest, Split, make_failed_rollouts
from wander.rollout.activity import PLAY, Notices, Silence
from wander.types import Boundary, EnvironmentInfo, Example, Failure, Rollout
from wander.version import __version__
from wander.worker.channel import Channel
from wander.worker.host.boxes import PlayBoxes
from wander.worker.host.link import LocalLink, WorkerOptions, explain_early_end, load_error, until_ended
from wander.worker.process.start import WorkerProcess
from wander.worker.protocol import (
    PROTOCOL,
    Cancel,
    Close,
    Complete,
    Completed,
    EnvironmentLoaded,
    Examples,
    Fault,
    GetExamples,
    Hello,
    LastWords,
    LoadFailed,
    Noticed,
    PartEnded,
    Ping,
    Play,
    Played,
    Pong,
    Recall,
    Recalled,
    StartBox,
    UseBox,
    WorkerRefused,
    to_host,
)
from wander.worker.remote.link import RemoteLink

CLOSE_SECONDS = 8.0
"""Seconds that a worker gets to close its environment."""
EXIT_SECONDS = 3.0
"""Seconds that its process then gets to exit."""
_MOST_CALLS = 1000
"""Maximum number of concurrent model calls per rollout. More are treated as a flood."""
_MOST_ABANDONED = 64
"""Maximum number of abandoned rollouts whose code may wait in a worker. Beyond that, the oldest is
canceled."""
_MOST_NOTICES = 1000
"""Maximum number of reports by a worker about rollouts without progress. More are treated as a flood."""
_PING_ROUNDS = 6
"""Time that a worker gets to answer if a rollout exceeds its time limit, in units of `stall_seconds / 2`."""


@dataclass
class _Playing:
    """A rollout or a group in flight."""

    asked: Play
    client: Client
    result: asyncio.Future[list[Rollout]]
    begun: float
    """Start time on the event loop's clock."""
    calls: set[asyncio.Task[None]] = field(default_factory=set)
    """Model calls and requests to boxes that the host is working on."""
    boxes: PlayBoxes | None = None
    """Boxes of its rollouts; None until one is asked for."""


class WorkerLost(Exception):
    """The worker ended before it answered a request."""

    def failure(self, *, retryable: bool) -> Failure:
        """Return the failure to record for a rollout whose worker ended."""
        kind = type(self).__name__
        return Failure(boundary="environment", type=kind, message=str(self), retryable=retryable)


class OwnTime:
    """Adds up the time that a request waits for the worker and not for the model.

    The environment's code cannot influence this clock, which measures how long that code takes for a rollout.
    """

    def __init__(self, limit: float) -> None:
        """`limit`: maximum seconds of the environment's own time per rollout."""
        self._limit = limit
        self._spent: dict[int, float] = {}
        self.tick = min(1.0, limit / 4)
        """Seconds between two checks. A late check counts as one, because then this process itself was
        blocked."""

    def find_overdue(self, working: Mapping[int, int]) -> set[int]:
        """Return the requests that exceeded their time. Must be called once per tick.

        `working`: number of rollouts of each request that the worker is working on.
        """
        for number in working:
            self._spent[number] = self._spent.get(number, 0.0) + self.tick
        return {number for number, count in working.items() if self._spent[number] > self._limit * count}


class WorkerSession:
    """One worker process and the requests that it is answering. Created by `start`, ended by `close`."""

    def __init__(self, options: WorkerOptions, channel: Channel, process: WorkerProcess) -> None:
        self.options = options
        self._channel = channel
        self._lines = channel.lines()
        self._process = process
        self._next_id = 0
        self._playing: dict[int, _Playing] = {}
        self._examples: dict[int, asyncio.Future[list[Example]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._abandoned: deque[int] = deque()
        self._unanswered: dict[int, tuple[str, str]] = {}
        """Requests whose code got no answer, so that the worker was ended, with the failure of their
        rollouts."""
        self._pong = False
        self._held_up = False
        self._heard_at = -math.inf
        """Time of the last message to or from the worker, on the event loop's clock."""
        self._reported: set[tuple[str, str | None]] = set()
        """Reported places and examples, because the worker and its host may notice the same silence."""
        self._noticed: tuple[str, float] | None = None
        """The last silence that the worker reported, which may still be in its note."""
        self.scoring_seconds = 0.0
        """Seconds that synchronous reward functions blocked the worker."""
        self._overdue: set[int] = set()
        self._too_long = ""
        """Failure message for the overdue requests."""
        self.info: EnvironmentInfo
        self.lost: str | None = None
        """Public description of how the worker ended. None while the worker is alive."""
        self.lost_reason: str | None = None
        """`lost` with the path and the end of the log, for the user who runs the worker."""
        self.on_lost: Callable[[], None] = lambda: None
        """Callback for when the worker has ended, whether expected or not."""

    @classmethod
    async def start(cls, options: WorkerOptions) -> WorkerSession:
        """Start a worker and load its environment. Raises `LoadError`, and leaves no process behind."""
        link: LocalLink | RemoteLink
        if options.address is None:
            link = await LocalLink.open(options)
        else:
            link = await RemoteLink.open(
                await options.address.find(),
                message_limit=options.load.message_limit,
                seconds=options.startup_timeout,
            )
        session: WorkerSession | None = None
        try:
            async with asyncio.timeout(options.startup_timeout):
                channel = Channel(await link.wait_for_connection())
                session = cls(options, channel, link.process)
                info = await until_ended(link.process, session._load())
                if info is None:
                    raise explain_early_end(link.process)
        except BaseException as error:
            await link.process.end(grace=0)
            if session is not None:
                for task in session._tasks:
                    task.cancel()
                await asyncio.gather(*session._tasks, return_exceptions=True)
            await link.close()
            if (cause := link.process.find_failed_start()) is not None:
                raise cause from None
            if isinstance(error, TimeoutError):
                seconds = f"{options.startup_timeout:g} s"
                raise load_error(f"the environment was not loaded within {seconds}", link.process) from None
            raise
        session.info = info
        session._serve(link)
        return session

    async def examples(
        self, split: Split, start: int, count: int, *, openings: bool = False
    ) -> list[Example]:
        """Return examples or openings. Raises `WorkerLost`, or the worker's fault as `LoadError`."""
        number = self._number()
        answer: asyncio.Future[list[Example]] = asyncio.get_running_loop().create_future()
        self._examples[number] = answer
        self._heard_at = asyncio.get_running_loop().time()
        message = GetExamples(id=number, split=split, start=start, count=count, openings=openings)
        self._channel.send(message.model_dump_json())
        try:
            return await answer
        finally:
            del self._examples[number]

    async def play(self, request: RolloutRequest) -> list[Rollout]:
        """Play a rollout or a group in the worker.

        If the worker ends, the rollouts fail as retryable. Raises `WorkerLost` if the worker had ended
        before.
        """
        client, names = request.client, list(request.rollout_ids)
        asked = Play.assemble(
            type="play",
            id=self._number(),
            example=request.example,
            group=request.together,
            indices=list(request.indices),
            rollout_ids=names,
            lines=[client.line(name) for name in names],
            transcripts=[transcript for name in names if (transcript := client.transcript(name)) is not None],
            run_seed=request.run_seed,
            sampling=request.sampling,
            model=client.model,
            scripts=dict(client.scripts),
        )
        loop = asyncio.get_running_loop()
        running = _Playing(asked, client, loop.create_future(), begun=loop.time())
        self._heard_at = loop.time()
        self._playing[asked.id] = running
        self._channel.send(asked.model_dump_json())
        try:
            return await running.result
        except asyncio.CancelledError:
            self._channel.send(Cancel(id=asked.id).model_dump_json())
            raise
        finally:
            del self._playing[asked.id]
            for call in running.calls:
                call.cancel()
            if running.boxes is not None:
                self._spawn(running.boxes.stop(list(running.calls)))

    def abandon(self, rollout_id: str, kind: str, reason: str) -> None:
        """Fail a rollout whose code waits for an answer over HTTP, and end the worker.

        This wait may block everything else in the worker. The worker's other rollouts are retryable.
        """
        for number, running in self._playing.items():
            if rollout_id in running.asked.rollout_ids:
                self._unanswered.setdefault(number, (kind, reason))
        self._process.kill()

    def _abandon_play(self, running: _Playing, kind: str, reason: str) -> None:
        """Fail a rollout and its group while its code waits for an answer.

        The code does not learn about this, so it cannot behave differently in later rollouts.
        """
        if running.result.done():
            return
        running.result.set_result(_fail(running.asked, kind, reason))
        self._abandoned.append(running.asked.id)
        if len(self._abandoned) > _MOST_ABANDONED:
            self._channel.send(Cancel(id=self._abandoned.popleft()).model_dump_json())

    async def close(self) -> None:
        """Tear the environment down, then end the process. May be called when the process is gone."""
        if self.lost is None:
            self._channel.send(Close().model_dump_json())
        await self._process.end(CLOSE_SECONDS if self.lost is None else 0)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _load(self) -> EnvironmentInfo:
        """Check the worker's greeting, and make it load the environment."""
        self._spawn(self._channel.run())
        async for line in self._lines:
            try:
                answer = to_host.validate_json(line)
            except ValidationError:
                reason = "the environment's process sent an invalid message"
                raise LoadError(reason, hint=self._process.whole_trace()) from None
            if isinstance(answer, Hello):
                if answer.protocol != PROTOCOL:
                    raise self._refuse(answer)
                self._channel.send(self.options.load.model_dump_json())
            if isinstance(answer, EnvironmentLoaded):
                return answer.info
            if isinstance(answer, LoadFailed):
                error = answer.fault.load_error()
                if not isinstance(error, ArgumentsRefused):  # its message is complete
                    log = self._process.whole_trace()
                    error.hint = f"{error.hint}; {log}" if error.hint else log
                raise error
        await self._process.wait()
        raise explain_early_end(self._process)

    def _refuse(self, hello: Hello) -> LoadError:
        """Tell a worker with another protocol version why it is refused, and return the error."""
        reason = (
            f"the environment's wander-sdk {hello.wander} uses protocol {hello.protocol}, this wander-sdk "
            f"{__version__} uses {PROTOCOL}"
        )
        self._channel.send(WorkerRefused(reason=f"refused by the host: {reason}").model_dump_json())
        hint = "install the environment again, or upgrade wander-sdk in its virtual environment"
        if hello.protocol > PROTOCOL:
            hint = f"upgrade this one: `{install_command('-U wander-sdk wander-client')}`"
        return LoadError(reason, hint=hint)

    def _serve(self, link: LocalLink | RemoteLink) -> None:
        """Handle the worker's messages until it ends."""

        async def serve() -> None:
            ending = None
            limit = self.options.load.rollout_timeout
            watching = [] if limit is None else [asyncio.create_task(self._watch(limit))]
            if self.options.notices is not None:
                watching.append(asyncio.create_task(self._watch_silence(self.options.notices, link)))
            if self.options.sandbox is not None:
                watching.append(asyncio.create_task(self._limit_time(self.options.sandbox.policy.rollout)))
            try:
                await until_ended(self._process, self._read())
                if self._channel.too_long:
                    most = self.options.load.message_limit
                    ending = f"sent a message of more than {most:,} bytes and was stopped"
            except ValidationError as error:
                ending = f"sent an invalid message ({error.title}) and was stopped"
            finally:
                for task in watching:
                    task.cancel()
                self._channel.stop()
                await self._process.end(grace=0 if ending else EXIT_SECONDS)
                self._answer_all(ending, link.last_words())
                await link.close()

        self._spawn(serve())

    async def _read(self) -> None:
        async for line in self._lines:
            self._handle(line)

    async def _watch(self, limit: float) -> None:
        """End a worker that cannot end itself, because its code blocks even its other threads."""
        pause = self.options.load.stall_seconds / 2
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(pause)
            oldest = next(iter(self._playing.values()), None)
            if oldest is None or loop.time() - oldest.begun < limit + 4 * pause:
                continue
            self._pong = False
            self._channel.send(Ping().model_dump_json())
            # Counted in turns of this event loop, because this process may be blocked as well.
            for _ in range(_PING_ROUNDS):
                await asyncio.sleep(pause)
                if self._pong:
                    break
            else:
                self._held_up = True
                self._process.kill()
                return

    async def _watch_silence(self, notices: Notices, link: LocalLink | RemoteLink) -> None:
        """Report a worker whose code prevents it from reporting its rollouts itself."""
        tick = min(5.0, notices.seconds / 4)
        loop = asyncio.get_running_loop()
        reported_at = 0.0
        while True:
            await asyncio.sleep(tick)
            waiting = [
                running.asked.example.example_id for running in self._playing.values() if not running.calls
            ]
            heard_at = self._heard_at
            if not (waiting or self._examples) or loop.time() - heard_at < notices.seconds:
                continue
            self._channel.send(Ping().model_dump_json())
            await asyncio.sleep(tick)
            if self._heard_at != heard_at:
                continue
            silent, noted = loop.time() - heard_at, link.last_silence()
            if noted is not None and _key_of(noted) != self._noticed:
                reported_at, self._noticed = heard_at, _key_of(noted)
                self._report(noted.model_copy(update={"seconds": silent}))
            elif reported_at != heard_at and silent >= notices.seconds + 2 * tick:
                # The worker has had time to name the place. If it does so later, that is reported as well.
                reported_at = heard_at
                self._report(Silence(place=PLAY, examples=waiting, seconds=silent))

    def _report(self, silence: Silence) -> None:
        """Report rollouts without progress once. Limit what an untrusted worker can report."""
        notices, place = self.options.notices, silence.place[:80]
        asked = {running.asked.example.example_id for running in self._playing.values()}
        examples = [example_id for example_id in silence.examples if example_id in asked]
        if silence.examples and not examples and not self._examples:
            return
        named: list[str | None] = [*examples] or [None]
        new = {(place, example_id) for example_id in named} - self._reported
        if notices is None or not new or len(self._reported) >= _MOST_NOTICES:
            return
        self._reported |= new
        examples = [example_id for example_id in examples if (place, example_id) in new]
        notices.tell(Silence(place=place, examples=examples, seconds=silence.seconds))

    async def _limit_time(self, limit: float) -> None:
        """End a sandboxed worker that takes too long for a rollout or for examples, no matter what it
        answers.
        """
        clock = OwnTime(limit)
        while not self._overdue:
            await asyncio.sleep(clock.tick)
            playing = {
                number: len(running.asked.indices)
                for number, running in self._playing.items()
                if not running.calls
            }
            self._overdue = clock.find_overdue({**playing, **dict.fromkeys(self._examples, 1)})
        self._too_long = f"its code took more than the {limit:g} s that the sandbox allows"
        self._process.kill()

    def _handle(self, line: bytes) -> None:
        message = to_host.validate_json(line)
        self._heard_at = asyncio.get_running_loop().time()
        if isinstance(message, Complete | StartBox | UseBox):
            self._start_call(message)
        elif isinstance(message, Played):
            self.scoring_seconds += message.scoring_seconds
            running = self._playing.get(message.id)
            if message.id not in self._unanswered and running is not None and not running.result.done():
                running.result.set_result(_check_answer(running.asked, message.rollouts))
        elif isinstance(message, PartEnded):
            running = self._playing.get(message.play)
            if running is not None and message.rollout_id in running.asked.rollout_ids:
                running.client.end(message.rollout_id)
        elif isinstance(message, Recall):
            running = self._playing.get(message.play)
            if running is not None and message.rollout_id in running.asked.rollout_ids:
                self._spawn(self._recall(running, message))
        elif isinstance(message, Pong):
            self._pong = True
        elif isinstance(message, Noticed):
            self._noticed = _key_of(message.silence)
            self._report(message.silence)
        elif isinstance(message, Examples):
            self._resolve_examples(message)

    def _resolve_examples(self, message: Examples) -> None:
        answer = self._examples.get(message.id)
        if answer is None or answer.done():
            return
        if message.fault is None:
            answer.set_result(message.examples)
        else:
            answer.set_exception(message.fault.load_error())

    def _start_call(self, asked: Complete | StartBox | UseBox) -> None:
        running = self._playing.get(asked.play)
        if running is None:
            return  # canceled in the meantime
        if len(running.calls) >= _MOST_CALLS * len(running.asked.indices):
            if not running.result.done():
                self._channel.send(Cancel(id=asked.play).model_dump_json())
                reason = f"it made more than {_MOST_CALLS} requests at the same time"
                running.result.set_result(_fail(running.asked, "TooManyCalls", reason))
            return
        work = (
            self._call(running, asked.id, asked.request)
            if isinstance(asked, Complete)
            else self._use_box(running, asked)
        )
        call = asyncio.create_task(work)
        running.calls.add(call)
        call.add_done_callback(running.calls.discard)

    async def _use_box(self, running: _Playing, asked: StartBox | UseBox) -> None:
        """Answer a request of the worker to a box."""
        if running.boxes is None:
            running.boxes = PlayBoxes(running.client, running.asked.rollout_ids, self._process.find_on_host)
        self._channel.send(await running.boxes.answer(asked))
        self._heard_at = asyncio.get_running_loop().time()

    async def _recall(self, running: _Playing, asked: Recall) -> None:
        """Send a value from the record of the host's client to the worker."""
        try:
            value = await running.client.recall(asked.rollout_id, asked.about, asked.key)
            answer = Recalled(id=asked.id, value=value)
        except ModelError as error:
            if (missing := running.client.lack(asked.rollout_id)) is not None:
                self._abandon_play(running, NOT_RECORDED, missing)
                return
            answer = Recalled(id=asked.id, fault=Fault.of(error))
        self._channel.send(answer.model_dump_json())

    async def _call(self, running: _Playing, number: int, request: ModelRequest) -> None:
        """Call the host's client for the worker."""
        client = running.client
        try:
            response = await client.complete(request)
            answer = Completed.assemble(type="completed", id=number, response=response, fault=None)
            text = answer.model_dump_json()
        except ModelError as error:
            if (missing := client.lack(request.rollout_id)) is not None:
                self._abandon_play(running, NOT_RECORDED, missing)
                return
            text = Completed(id=number, fault=Fault.of(error)).model_dump_json()
        except Exception as error:  # noqa: BLE001 - an unexpected error of a client fails one rollout
            message = f"`{name_of(client)}.complete` raised `{type(error).__name__}: {error}`"
            text = Completed(id=number, fault=Fault(type="ModelError", message=message)).model_dump_json()
        self._channel.send(text)
        self._heard_at = asyncio.get_running_loop().time()

    def _answer_all(self, ending: str | None, words: LastWords | None) -> None:
        """Resolve every open request, because the process has ended."""
        if self._held_up or (words is not None and words.seconds):
            ending = "was stopped, because the code of a rollout past its time limit blocked everything else"
        elif self._overdue:
            ending = f"was stopped, because {self._too_long}"
        self.lost = f"the environment's process {ending or self._process.ending()}"
        self.lost_reason = self._process.with_log(self.lost)
        for running in list(self._playing.values()):
            asked = running.asked
            if running.result.done():
                continue
            if asked.id in self._overdue:
                running.result.set_result(_fail(asked, "RolloutTimeout", self._too_long))
            elif asked.id in self._unanswered:
                running.result.set_result(_fail(asked, *self._unanswered[asked.id]))
            elif words is not None and asked.id == words.play:
                # Not retryable, because the same code would do the same again.
                kind, reason = "ProcessEnded", f"its code ended its process: {self.lost}"
                if words.seconds:
                    where = f" ({words.where})" if words.where else ""
                    kind = "RolloutTimeout"
                    reason = (
                        f"its code blocked the worker for {words.seconds:g} s after the time limit{where}"
                    )
                running.result.set_result(_fail(asked, kind, reason, words.boundary))
            else:
                lost = WorkerLost(self.lost).failure(retryable=True)
                running.result.set_result(make_failed_rollouts(asked.example, asked.indices, lost))
        for answer in list(self._examples.values()):
            if not answer.done():
                answer.set_exception(WorkerLost(self.lost))
        self.on_lost()

    def _number(self) -> int:
        if self.lost is not None:
            raise WorkerLost(self.lost)
        self._next_id += 1
        return self._next_id

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _key_of(silence: Silence) -> tuple[str, float]:
    """Return what a worker's message about a silence and its note have in common."""
    return silence.place, silence.seconds


def _check_answer(asked: Play, rollouts: list[Rollout]) -> list[Rollout]:
    """Return the worker's answer if its rollouts match the request.

    A worker must not write other rollouts.
    """
    wanted = [(asked.example.example_id, index) for index in asked.indices]
    if [rollout.key for rollout in rollouts] == wanted:
        return rollouts
    reason = "the environment's process answered with rollouts that were not requested"
    return _fail(asked, "ForeignRollouts", reason)


def _fail(asked: Play, kind: str, reason: str, boundary: Boundary = "environment") -> list[Rollout]:
    failure = Failure(boundary=boundary, type=kind, message=reason)
    return make_failed_rollouts(asked.example, asked.indices, failure)
