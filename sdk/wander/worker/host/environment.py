"""The host's handle to an environment that runs in its own processes."""

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

if TYPE_CHECKING:
    from wander.sandbox.visible import Runtime
    from wander.wire.verification import Surroundings
    from wander.worker.process.sandboxed import Sandbox

_PAGE = 500
"""Examples per message. Even a page of long rows then makes a message of moderate size."""


class WorkerEnvironment(EnvironmentHandle):
    """An environment in one or several workers, with the interface that hosts use
    (`wander.handle.EnvironmentHandle`).

    A rollout, or a group that is scored together, goes to the worker with the fewest rollouts in flight. The
    result does not depend on the number of workers. If a worker dies, the rollouts that it was playing fail
    as retryable, and it is restarted, up to `restarts` times without a finished rollout in between. The other
    workers continue. If no worker is left, every rollout fails with `WorkerLost`, which is not retryable and
    ends an evaluation.
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
        rows: list[dict[str, Any]] | None = None,
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
        """Start workers and load an environment in each. Raises `LoadError` and ends all if one fails.

        - `python`: interpreter of the environment's virtual environment. None means this interpreter.
        - `target`: name of an environment or module that is installed there.
        - `path`: project folder or Python file, which takes precedence over `target`.
        - `rows`: rows that replace those of the evaluation split, or None.
        - `environ`: names of environment variables to pass, in addition to PATH, HOME, LANG and TMPDIR.
          Unless `OPENAI_API_KEY` or `OPENAI_BASE_URL` is among them, OpenAI clients in its code call through
          this process, which has the key and records the answers (`wander.worker.openai_proxy`).
        - `log_path`: file to which all output of the environment is appended.
        - `sandbox`: limits of the sandbox (docs/sandbox.md). Raises `SandboxError` if it cannot be made.
          Variables of the host that contain the address or key of a model are not passed. A sandbox needs
          `runtime`, which describes a `python` other than this interpreter.
        - `workers`: number of processes that share the rollouts (`automatic_workers` suggests one).
        - `addresses`: addresses of listening workers (`wander.worker.listener`) to use instead of local
          processes, with at least one worker each. The listener decides about `path`, `python`, `environ`
          and `sandbox`. A `target` with a version (`name@1.2.0`) must be installed there.
        - `rollout_timeout`: seconds after which a rollout fails with `RolloutTimeout`. None means never. If
          the environment's code then blocks its worker for another `stall_seconds`, the worker is ended. Its
          other rollouts are retryable.
        - `message_limit`: maximum size of a message from a worker in bytes. A rollout that needs more fails.
        - `notices`: receiver of reports about rollouts whose code does not return, or None.
        - `surroundings`: hash seed, time zone, locale and (in a sandbox) host name of the processes. They are
          random for a sandbox. Other workers use the machine's, and the same hash seed in every run.
        """
        if sandbox is not None:
            from wander.sandbox.visible import require_known

            require_known(python, runtime)
        load = Load(
            target=None if path else target,
            path=None if path is None else str(path.expanduser().resolve()),  # noqa: ASYNC240 - a moment
            arguments=arguments or {},
            rows=rows,
            rollout_timeout=rollout_timeout,
            stall_seconds=stall_seconds,
            message_limit=message_limit,
            notice_seconds=None if notices is None else notices.seconds,
        )
        passed, proxy = tuple(environ), OpenAIProxy()
        if sandbox is not None and surroundings is None:
            from wander.worker.process.surroundings import draw_surroundings

            surroundings = draw_surroundings(confined=True)
        variables = _own_variables(proxy, passed, surroundings, confined=sandbox is not None)
        options = WorkerOptions(python, load, passed, log_path, startup_timeout, variables, notices=notices)
        if sandbox is not None:
            options = replace(options, sandbox=_sandbox(sandbox, proxy, runtime, surroundings))
        try:
            pool = await WorkerPool.start(_worker_options(options, workers, addresses), restarts)
        except BaseException:
            await proxy.close()
            raise
        return cls(pool, log_path, proxy)

    @property
    def info(self) -> EnvironmentInfo:
        """The environment's description of itself."""
        return self._pool.info

    @property
    def processes(self) -> int:
        """Number of workers."""
        return len(self._pool.slots)

    @property
    def scoring_seconds(self) -> float:
        """Total seconds that synchronous reward functions blocked a worker."""
        return self._pool.scoring_seconds

    @property
    def outside_calls(self) -> CallCount:
        """Number of calls that the environment's code made to other models through the host."""
        return self._proxy.count

    @property
    def log_path(self) -> Path:
        """Log file with all output of the environment."""
        return self._log_path

    @property
    def lost_reason(self) -> str | None:
        """Description of how a worker ended, with the path and the last lines of its log.

        None if all workers are alive or were restarted.
        """
        return self._pool.lost_reason

    async def examples(self, split: Split, start: int = 0, count: int | None = None) -> list[Example]:
        """Return `count` examples from position `start` of the stored order. None means all up to the end."""
        size = self.info.eval_examples if split == "eval" else self.info.train_examples
        if count is None and size is None:
            raise DatasetError(
                f"the `{split}` split of `{self.info.name}` is endless", hint="pass the number of examples"
            )
        wanted = size if size is not None else start + (count or 0)
        end = wanted if count is None else min(wanted, start + count)
        return await self._pages(split, start, end)

    async def openings(self) -> list[Example]:
        """Return an example for every opening, or an empty list if the environment declares no openings."""
        return await self._pages("eval", 0, None, openings=True)

    async def _pages(
        self, split: Split, start: int, end: int | None, *, openings: bool = False
    ) -> list[Example]:
        """Return the examples from `start` to `end` (or to the last one), one page at a time."""
        examples: list[Example] = []
        try:
            _, session = await self._pool.least_loaded()
            while end is None or start + len(examples) < end:
                first = start + len(examples)
                count = _PAGE if end is None else min(_PAGE, end - first)
                page = await session.examples(split, first, count, openings=openings)
                if not page:
                    break
                examples += page
        except WorkerLost as error:
            raise EnvironmentFault(
                self.lost_reason or str(error), hint="read its log for the cause"
            ) from error
        return examples

    async def play_request(self, request: RolloutRequest) -> list[Rollout]:
        """Play and score the request. Failures, even the worker's death, are recorded in the rollouts."""
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
        """Tear the environment down, and end its processes and everything that they started."""
        await self._pool.close()
        await self._proxy.close()


def automatic_workers(concurrency: int) -> int:
    """Return a suitable number of workers: one per 256 concurrent rollouts, at most one per core."""
    return max(1, min(os.cpu_count() or 1, math.ceil(concurrency / 256)))


def _own_variables(
    proxy: OpenAIProxy, passed: Sequence[str], surroundings: Surroundings | None, *, confined: bool
) -> dict[str, str]:
    """Return the variables of the processes besides the passed ones.

    An environment with the user's own key or address calls that endpoint directly, and not through the proxy.
    """
    uses_proxy = confined or not proxy.variables.keys() & set(passed)
    variables = dict(proxy.variables) if uses_proxy else {}
    if surroundings is not None:
        from wander.worker.process.surroundings import surrounding_variables

        variables |= surrounding_variables(surroundings)
    return variables


def _sandbox(
    policy: SandboxPolicy, proxy: OpenAIProxy, runtime: Runtime | None, surroundings: Surroundings | None
) -> Sandbox:
    """Return the sandbox of the processes, which reaches other models only through the proxy."""
    from wander.worker.process.sandboxed import Sandbox

    host_name = surroundings and surroundings.host_name
    return Sandbox(policy, proxy.take, proxy.address, runtime, host_name or "sandbox")


def _worker_options(
    options: WorkerOptions, workers: int, addresses: Sequence[WorkerPlace]
) -> list[WorkerOptions]:
    """Return the options of every worker."""
    if workers < 1:
        raise ConfigError(f"`workers` must be at least 1, not {workers}")
    if not addresses:
        return [options] * workers
    if options.sandbox is not None or options.environ:
        raise ConfigError(
            "`sandbox` and `environ` of a worker on another machine are chosen where it is started",
            hint="leave out `sandbox` and `environ`",
        )
    # Only the name of a folder is sent, to be compared with the folder that is served there.
    path = options.load.path
    load = options.load.model_copy(update={"path": None if path is None else Path(path).name})
    places = [replace(options, load=load, address=address) for address in addresses]
    return [places[number % len(places)] for number in range(max(workers, len(places)))]
