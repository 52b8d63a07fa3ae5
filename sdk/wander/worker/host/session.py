"""The host's side of one worker's life: from its start to its end, expected or not."""

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
from wander.worker.host.link import LocalLink, WorkerOptions, explain_early_end, load_error, until_ended
from wander.worker.process.start import WorkerProcess
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
    LastWords,
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
    to_host,
)
from wander.worker.remote.link import RemoteLink

CLOSE_SECONDS = 8.0
"""How long a worker may tear its environment down."""
EXIT_SECONDS = 3.0
"""How long its process may then take to end."""
_MOST_CALLS = 1000
"""Model calls that one rollout may have under way; more are a flood."""
_MOST_ABANDONED = 64
"""Abandoned rollouts whose code may wait in a worker; for each further one, the first one is cancelled."""
_MOST_NOTICES = 1000
"""Reports of one worker about rollouts without progress; more are a flood."""
_PING_ROUNDS = 6
"""How many times half of `stall_seconds` a worker may take to answer when a rollout is past its time."""


@dataclass
class _Playing:
    """A rollout or a group in flight."""

    asked: Play
    client: Client
    result: asyncio.Future[list[Rollout]]
    begun: float
    """On the loop's clock."""
    calls: set[asyncio.Task[None]] = field(default_factory=set)


class WorkerLost(Exception):
    """The worker ended while something was asked of it."""

    def failure(self, *, retryable: bool) -> Failure:
        """Return what the record of a rollout says whose worker ended."""
        kind = type(self).__name__
        return Failure(boundary="environment", type=kind, message=str(self), retryable=retryable)


class OwnTime:
    """Adds up, tick by tick, the time in which a request waits for the worker and not for the model.

    So a clock that the environment's code cannot reach says how long that code takes over a rollout.
    """

    def __init__(self, limit: float) -> None:
        """`limit`: seconds that one rollout may take of its own."""
        self._limit = limit
        self._spent: dict[int, float] = {}
        self.tick = min(1.0, limit / 4)
        """Seconds between two looks. A look that comes late counts as one: this process was held up then."""

    def late(self, working: Mapping[int, int]) -> set[int]:
        """Return which of the requests took longer than they may; called once a tick.

        `working`: of each request that the worker works on, how many rollouts it is for.
        """
        for number in working:
            self._spent[number] = self._spent.get(number, 0.0) + self.tick
        return {number for number, count in working.items() if self._spent[number] > self._limit * count}


class WorkerSession:
    """One worker process and the requests it is answering. Made by `start`, ended by `close`."""

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
        """Requests for which the worker is ended, with the failure of their rollouts."""
        self._pong = False
        self._held_up = False
        self._heard_at = -math.inf
        """When the worker was asked or said anything last, on the loop's clock."""
        self._reported: set[tuple[str, str | None]] = set()
        """Places and examples: the worker and its host may notice the same silence."""
        self.scoring_seconds = 0.0
        """Seconds for which synchronous reward functions let nothing else of the worker go on."""
        self._late: set[int] = set()
        self._too_long = ""
        """Requests on which the worker worked for too long, and what their records say about that."""
        self.info: EnvironmentInfo
        self.lost: str | None = None
        """How the worker ended, once it has, in words fit for a public record."""
        self.lost_reason: str | None = None
        """The same with the end of the log and its path, for whoever runs it."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called once the worker has ended, expected or not."""

    @classmethod
    async def start(cls, options: WorkerOptions) -> WorkerSession:
        """Start a worker and have it load its environment; raises `LoadError`, leaving no process."""
        link: LocalLink | RemoteLink
        if options.address is None:
            link = await LocalLink.open(options)
        else:
            link = await RemoteLink.open(
                await options.address.find(),
                message_limit=options.load.message_limit,
                seconds=options.startup_timeout,
                answer=options.answer_call,
            )
        session: WorkerSession | None = None
        try:
            async with asyncio.timeout(options.startup_timeout):
                channel = Channel(await link.wait_for_connection(), link.aside)
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
        """Return examples, or the openings; raises `WorkerLost`, or the worker's fault as `LoadError`."""
        number = self._number()
        answer: asyncio.Future[list[Example]] = asyncio.get_running_loop().create_future()
        self._examples[number] = answer
        self._heard_at = asyncio.get_running_loop().time()
        asked = GetExamples(id=number, split=split, start=start, count=count, openings=openings)
        self._channel.send(asked.model_dump_json())
        try:
            return await answer
        finally:
            del self._examples[number]

    async def play(self, request: RolloutRequest) -> list[Rollout]:
        """Play one rollout, or a group, in the worker.

        When the worker ends, the rollouts are failed and retryable. Raises `WorkerLost` when it had ended
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

    def abandon(self, rollout_id: str, kind: str, reason: str) -> None:
        """Fail a rollout whose code waits for an answer over HTTP, and end the worker.

        Such a wait may hold up everything else in the worker. Its other rollouts are retryable.
        """
        for number, running in self._playing.items():
            if rollout_id in running.asked.rollout_ids:
                self._unanswered.setdefault(number, (kind, reason))
        self._process.kill()

    def _abandon(self, running: _Playing, kind: str, reason: str) -> None:
        """Fail a rollout, and the group that it belongs to, while its code waits for an answer.

        The code is not told, so that it cannot behave otherwise in the rollouts that follow.
        """
        if running.result.done():
            return
        running.result.set_result(_fail(running.asked, kind, reason))
        self._abandoned.append(running.asked.id)
        if len(self._abandoned) > _MOST_ABANDONED:
            self._channel.send(Cancel(id=self._abandoned.popleft()).model_dump_json())

    async def close(self) -> None:
        """Have the environment torn down, then end the process; safe to call when it is gone."""
        if self.lost is None:
            self._channel.send(Close().model_dump_json())
        await self._process.end(CLOSE_SECONDS if self.lost is None else 0)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _load(self) -> EnvironmentInfo:
        """Check the worker's greeting and have the environment loaded."""
        self._spawn(self._channel.run())
        async for line in self._lines:
            try:
                answer = to_host.validate_json(line)
            except ValidationError:
                said = "the environment's process sent what is no message of this protocol"
                raise LoadError(said, hint=self._process.whole_trace()) from None
            if isinstance(answer, Hello):
                if answer.protocol != PROTOCOL:
                    raise self._refuse(answer)
                self._channel.send(self.options.load.model_dump_json())
            if isinstance(answer, Loaded):
                return answer.info
            if isinstance(answer, LoadFailed):
                error = answer.fault.load_error()
                if not isinstance(error, ArgumentsRefused):  # which says it all
                    log = self._process.whole_trace()
                    error.hint = f"{error.hint}; {log}" if error.hint else log
                raise error
        await self._process.wait()
        raise explain_early_end(self._process)

    def _refuse(self, hello: Hello) -> LoadError:
        """Tell a worker that speaks otherwise so, for its log, and return the error."""
        said = (
            f"the environment's wander-sdk {hello.wander} speaks protocol {hello.protocol}, this wander-sdk "
            f"{__version__} speaks {PROTOCOL}"
        )
        self._channel.send(Refused(reason=f"refused by the host: {said}").model_dump_json())
        hint = "install the environment again, or upgrade wander-sdk in its virtual environment"
        if hello.protocol > PROTOCOL:
            hint = f"upgrade this one: `{install_command('-U wander-sdk wander-client')}`"
        return LoadError(said, hint=hint)

    def _serve(self, link: LocalLink | RemoteLink) -> None:
        """Handle what the worker sends, until it ends."""

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
                    ending = f"sent a message of more than {most:,} bytes and was ended"
            except ValidationError as error:
                ending = f"sent what is no message of this protocol ({error.title}) and was ended"
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
        """End a worker that cannot even end itself: its code keeps its other threads from running too."""
        pause = self.options.load.stall_seconds / 2
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(pause)
            oldest = next(iter(self._playing.values()), None)
            if oldest is None or loop.time() - oldest.begun < limit + 4 * pause:
                continue
            self._pong = False
            self._channel.send(Ping().model_dump_json())
            # Counted in turns of this loop, which may have been held up as well.
            for _ in range(_PING_ROUNDS):
                await asyncio.sleep(pause)
                if self._pong:
                    break
            else:
                self._held_up = True
                self._process.kill()
                return

    async def _watch_silence(self, notices: Notices, link: LocalLink | RemoteLink) -> None:
        """Report a worker whose code lets it say nothing: any other reports its rollouts itself."""
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
            if self._heard_at == heard_at != reported_at:
                reported_at, silent = heard_at, loop.time() - heard_at
                left = link.last_silence() or Silence(place=PLAY, examples=waiting, seconds=silent)
                self._report(left.model_copy(update={"seconds": silent}))

    def _report(self, silence: Silence) -> None:
        """Report rollouts without progress once, with no more than a worker has to say about them."""
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
        """End a sandboxed worker that takes too long over a rollout or over examples, whatever it answers."""
        own = OwnTime(limit)
        while not self._late:
            await asyncio.sleep(own.tick)
            playing = {
                number: len(running.asked.indices)
                for number, running in self._playing.items()
                if not running.calls
            }
            self._late = own.late({**playing, **dict.fromkeys(self._examples, 1)})
        self._too_long = f"its code took more than {limit:g} s, which the sandbox does not allow"
        self._process.kill()

    def _handle(self, line: bytes) -> None:
        message = to_host.validate_json(line)
        self._heard_at = asyncio.get_running_loop().time()
        if isinstance(message, Complete):
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
            self._report(message.silence)
        elif isinstance(message, Examples):
            self._hand_out(message)

    def _hand_out(self, message: Examples) -> None:
        answer = self._examples.get(message.id)
        if answer is None or answer.done():
            return
        if message.fault is None:
            answer.set_result(message.examples)
        else:
            answer.set_exception(message.fault.load_error())

    def _start_call(self, asked: Complete) -> None:
        running = self._playing.get(asked.play)
        if running is None:
            return  # cancelled meanwhile
        if len(running.calls) >= _MOST_CALLS * len(running.asked.indices):
            if not running.result.done():
                self._channel.send(Cancel(id=asked.play).model_dump_json())
                reason = f"it asked for more than {_MOST_CALLS} completions at once"
                running.result.set_result(_fail(running.asked, "TooManyCalls", reason))
            return
        call = asyncio.create_task(self._call(running, asked.id, asked.request))
        running.calls.add(call)
        call.add_done_callback(running.calls.discard)

    async def _recall(self, running: _Playing, asked: Recall) -> None:
        """Tell the worker what the host's client has on record."""
        try:
            value = await running.client.recall(asked.rollout_id, asked.about, asked.key)
            answer = Recalled(id=asked.id, value=value)
        except ModelError as error:
            if (lack := running.client.lack(asked.rollout_id)) is not None:
                self._abandon(running, NOT_RECORDED, lack)
                return
            answer = Recalled(id=asked.id, fault=Fault.of(error))
        self._channel.send(answer.model_dump_json())

    async def _call(self, running: _Playing, number: int, request: ModelRequest) -> None:
        """Ask the host's client on behalf of the worker."""
        client = running.client
        try:
            response = await client.complete(request)
            answer = Completed.assemble(type="completed", id=number, response=response, fault=None)
            text = answer.model_dump_json()
        except ModelError as error:
            if (lack := client.lack(request.rollout_id)) is not None:
                self._abandon(running, NOT_RECORDED, lack)
                return
            text = Completed(id=number, fault=Fault.of(error)).model_dump_json()
        except Exception as error:  # noqa: BLE001 - a client that breaks its promise fails one rollout
            message = f"`{name_of(client)}.complete` raised `{type(error).__name__}: {error}`"
            text = Completed(id=number, fault=Fault(type="ModelError", message=message)).model_dump_json()
        self._channel.send(text)
        self._heard_at = asyncio.get_running_loop().time()

    def _answer_all(self, ending: str | None, words: LastWords | None) -> None:
        """Answer everything that waits: the process has ended."""
        if self._held_up or (words is not None and words.seconds):
            ending = "was ended, since the code of a rollout past its time let nothing else go on"
        elif self._late:
            ending = f"was ended, since {self._too_long}"
        self.lost = f"the environment's process {ending or self._process.ending()}"
        self.lost_reason = self._process.with_log(self.lost)
        for running in list(self._playing.values()):
            asked = running.asked
            if running.result.done():
                continue
            if asked.id in self._late:
                running.result.set_result(_fail(asked, "RolloutTimeout", self._too_long))
            elif asked.id in self._unanswered:
                running.result.set_result(_fail(asked, *self._unanswered[asked.id]))
            elif words is not None and asked.id == words.play:
                # Not retryable: a second time it would do the same.
                kind, reason = "ProcessEnded", f"its code ended its process: {self.lost}"
                if words.seconds:
                    where = f" ({words.where})" if words.where else ""
                    kind = "RolloutTimeout"
                    reason = f"past its time, its code let nothing else go on for {words.seconds:g} s{where}"
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


def _check_answer(asked: Play, rollouts: list[Rollout]) -> list[Rollout]:
    """Return the worker's answer if it is for what was asked: a worker must not write others' rollouts."""
    wanted = [(asked.example.example_id, index) for index in asked.indices]
    if [rollout.key for rollout in rollouts] == wanted:
        return rollouts
    reason = "the environment's process answered with rollouts that were not asked for"
    return _fail(asked, "ForeignRollouts", reason)


def _fail(asked: Play, kind: str, reason: str, boundary: Boundary = "environment") -> list[Rollout]:
    failure = Failure(boundary=boundary, type=kind, message=reason)
    return make_failed_rollouts(asked.example, asked.indices, failure)
