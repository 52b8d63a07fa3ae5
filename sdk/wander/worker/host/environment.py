"""The host's handle to an environment that runs in processes of its own."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander.errors import ConfigError, DatasetError, EnvironmentFault, SandboxError
from wander.handle import EnvironmentHandle, RolloutRequest, Split, make_failed_rollouts
from wander.rollout.activity import Notices
from wander.sandbox import SandboxPolicy
from wander.types import EnvironmentInfo, Example, Rollout
from wander.worker.host.link import WorkerOptions
from wander.worker.host.pool import WorkerPool
from wander.worker.host.session import WorkerLost
from wander.worker.openai_proxy import CallCount, OpenAIProxy
from wander.worker.protocol import MESSAGE_LIMIT, Load
from wander.worker.remote.address import WorkerPlace
from wander.worker.remote.tunnel import AnswerCall

if TYPE_CHECKING:
    from wander.sandbox.visible import Runtime
    from wander.wire.verification import Surroundings

_PAGE = 500
"""Examples a message: a page of long rows still makes a message of moderate size."""


class WorkerEnvironment(EnvironmentHandle):
    """An environment in one or several workers, behind the port that hosts use
    (`wander.handle.EnvironmentHandle`).

    A rollout, or a group that is scored together, goes to the worker that plays the fewest. What comes of it
    does not depend on how many there are. A worker that dies fails the rollouts it was playing, as retryable,
    and is started again, up to `restarts` times in a row without a finished rollout between; the others go
    on. When none is left, every rollout fails with `WorkerLost`, which is not retryable and ends an
    evaluation.
    """

    def __init__(self, pool: WorkerPool, log: Path, proxy: OpenAIProxy) -> None:
        self._pool = pool
        self._log_path = log
        self._proxy = proxy

    @classmethod
    async def start(
        cls,
        python: Path | None,
        target: str | None,
        *,
        arguments: dict[str, Any] | None = None,
        path: Path | None = None,
        environ: Iterable[str] = (),
        log_path: Path,
        startup_timeout: float = 300.0,
        restarts: int = 10,
        sandbox: SandboxPolicy | None = None,
        runtime: Runtime | None = None,
        workers: int = 1,
        addresses: Sequence[WorkerPlace] = (),
        rollout_timeout: float | None = None,
        stall_seconds: float = 10.0,
        message_limit: int = MESSAGE_LIMIT,
        surroundings: Surroundings | None = None,
        notices: Notices | None = None,
    ) -> WorkerEnvironment:
        """Start workers and load an environment in each; raises `LoadError` and ends them if that fails.

        - `python`: the interpreter of the environment's virtual environment; None means this one.
        - `target`: name of an environment installed there, or of its module; or give `path`, a project folder
          or a Python file, which then counts.
        - `environ`: names of the environment variables that it may see, beside PATH, HOME, LANG and TMPDIR.
          Unless `OPENAI_API_KEY` or `OPENAI_BASE_URL` is among them, OpenAI clients in its code call through
          this process, which has the key and records the answers (`wander.worker.openai_proxy`).
        - `log_path`: takes everything the environment prints; appended to.
        - `sandbox`: confines it to these limits (docs/sandbox.md), or raises `SandboxError`. Variables of the
          host that hold an address or a key of a model stay outside. It needs `runtime`, which is what is
          known of a `python` other than this interpreter.
        - `workers`: number of processes that share the rollouts (`automatic_workers` suggests one).
        - `addresses`: where workers listen (`wander.worker.listener`), instead of processes started here. The
          workers are spread over them, at least one each. The listener decides on `path`, `python`,
          `environ` and `sandbox`; a `target` with a version (`name@1.2.0`) must be installed there.
        - `rollout_timeout`: seconds after which a rollout fails with `RolloutTimeout`; None means never.
          Where the environment's code then lets nothing else of its worker go on for `stall_seconds`, the
          worker is ended; its other rollouts are retryable.
        - `message_limit`: most bytes of one message from a worker. A rollout that needs more fails by itself.
        - `notices`: receives reports of rollouts whose code does not return; None means nobody does.
        - `surroundings`: hash seed, time zone, locale and, in a sandbox, host name of the processes. They are
          drawn for a sandbox. Other workers have the machine's own, and one hash seed in every run.
        """
        if sandbox is not None:
            from wander.sandbox.visible import require_known

            require_known(python, runtime)
        load = Load(
            target=None if path else target,
            path=None if path is None else str(path.expanduser().resolve()),  # noqa: ASYNC240 - a moment
            arguments=arguments or {},
            rollout_timeout=rollout_timeout,
            stall_seconds=stall_seconds,
            message_limit=message_limit,
            notice_seconds=None if notices is None else notices.seconds,
        )
        passed, proxy = tuple(environ), OpenAIProxy()
        # An environment that is given the user's own key or address talks to that endpoint itself.
        own = sandbox is not None or not proxy.variables.keys() & set(passed)
        variables = dict(proxy.variables) if own else {}
        if sandbox is not None or surroundings is not None:
            from wander.worker.process.surroundings import draw_surroundings, surrounding_variables

            drawn = surroundings or draw_surroundings(confined=True)
            variables |= surrounding_variables(drawn)
        options = WorkerOptions(python, load, passed, log_path, startup_timeout, variables, notices=notices)
        if sandbox is not None:
            from wander.worker.process.sandboxed import Sandbox

            inside = Sandbox(sandbox, proxy.take, proxy.address, runtime, drawn.host_name or "sandbox")
            options = replace(options, sandbox=inside)
        try:
            pool = await WorkerPool.start(_each(options, workers, addresses, proxy.answer), restarts)
        except BaseException:
            await proxy.close()
            raise
        return cls(pool, log_path, proxy)

    @property
    def info(self) -> EnvironmentInfo:
        """What the environment says about itself."""
        return self._pool.info

    @property
    def processes(self) -> int:
        """The number of workers."""
        return len(self._pool.slots)

    @property
    def scoring_seconds(self) -> float:
        """Seconds for which synchronous reward functions let nothing else of a worker go on, in total."""
        return self._pool.scoring_seconds

    @property
    def outside_calls(self) -> CallCount:
        """Calls that the environment's code made to other models through the host."""
        return self._proxy.count

    @property
    def log_path(self) -> Path:
        """File that gets everything the environment prints."""
        return self._log_path

    @property
    def lost_reason(self) -> str | None:
        """How a worker ended that is not back, with the end of its log and the log's path; else None."""
        return self._pool.lost_reason

    async def examples(self, split: Split, start: int = 0, count: int | None = None) -> list[Example]:
        """Return `count` examples from position `start` of the stored order; None means to the end."""
        size = self.info.eval_examples if split == "eval" else self.info.train_examples
        if count is None and size is None:
            raise DatasetError(
                f"the `{split}` split of `{self.info.name}` is endless", hint="say how many examples to take"
            )
        wanted = size if size is not None else start + (count or 0)
        end = wanted if count is None else min(wanted, start + count)
        return await self._pages(split, start, end)

    async def openings(self) -> list[Example]:
        """Return an example for every opening; empty when the environment declares none."""
        return await self._pages("eval", 0, None, openings=True)

    async def _pages(
        self, split: Split, start: int, end: int | None, *, openings: bool = False
    ) -> list[Example]:
        """Return examples from `start` to `end`, or to the last that there is, a page at a time."""
        found: list[Example] = []
        try:
            _, session = await self._pool.least_loaded()
            while end is None or start + len(found) < end:
                first = start + len(found)
                count = _PAGE if end is None else min(_PAGE, end - first)
                page = await session.examples(split, first, count, openings=openings)
                if not page:
                    break
                found += page
        except WorkerLost as error:
            raise EnvironmentFault(
                self.lost_reason or str(error), hint="look for the cause in its log"
            ) from error
        return found

    async def play_request(self, request: RolloutRequest) -> list[Rollout]:
        """Play and score the request; record a failure, even the worker's death, in its rollout."""
        client, example, indices = request.client, request.example, request.indices
        for name in request.rollout_ids:
            client.begin(name)
        rollouts: list[Rollout] = []
        try:
            slot, session = await self._pool.least_loaded()
            for name in request.rollout_ids:
                abandon = partial(session.abandon, name)
                self._proxy.begin(name, client.outside_calls(name), abandon, client.limiter)
            slot.under_way += len(indices)
            try:
                rollouts = await session.play(request)
            finally:
                slot.under_way -= len(indices)
        except WorkerLost as error:
            return make_failed_rollouts(example, indices, error.failure(retryable=False))
        except SandboxError as error:
            return make_failed_rollouts(example, indices, error.failure())
        finally:
            for name, rollout in zip_longest(request.rollout_ids, rollouts):
                client.end(name)
                self._proxy.end(name, rollout)
        if rollouts[0].failure is None:
            slot.count_finished()
        return rollouts

    async def close(self) -> None:
        """Tear the environment down and end its processes and all that they started."""
        await self._pool.close()
        await self._proxy.close()


def automatic_workers(concurrency: int) -> int:
    """Return how many workers suit so many rollouts at once: one for 256 of them, at most one a core."""
    return max(1, min(os.cpu_count() or 1, math.ceil(concurrency / 256)))


def _each(
    options: WorkerOptions, workers: int, addresses: Sequence[WorkerPlace], answer: AnswerCall
) -> list[WorkerOptions]:
    """Return the options of every worker."""
    if workers < 1:
        raise ConfigError(f"`workers` must be at least 1, not {workers}")
    if not addresses:
        return [options] * workers
    if options.sandbox is not None or options.environ:
        raise ConfigError(
            "what a worker on another machine may see and do is said there, where it is started",
            hint="leave `sandbox` and `environ` out",
        )
    # Of a folder only its name goes there, to be compared with that of the one that is served.
    path = options.load.path
    load = options.load.model_copy(update={"path": None if path is None else Path(path).name})
    places = [replace(options, load=load, address=address, answer_call=answer) for address in addresses]
    return [places[number % len(places)] for number in range(max(workers, len(places)))]
