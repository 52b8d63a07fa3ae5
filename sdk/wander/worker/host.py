"""The host's handle to an environment that runs in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from wander.clients.base import Client
from wander.errors import DatasetError, EnvironmentFault, LoadError
from wander.handle import Split
from wander.types import EnvironmentInfo, Example, Rollout, SamplingArgs
from wander.worker.endpoint import CallCount, HostEndpoint
from wander.worker.protocol import Load
from wander.worker.session import WorkerLost, WorkerOptions, WorkerSession, lost_rollouts

_PAGE = 500
"""Examples a message: a page of long rows still makes a message of moderate size."""


class WorkerEnvironment:
    """An environment in a worker, behind the port that hosts use (`wander.handle.EnvironmentHandle`).

    A worker that dies fails the rollouts it was playing, as retryable, and is started again for the next one,
    up to `restarts` times in a row without a finished rollout between. After that every rollout fails with
    `WorkerLost`, which is not retryable and ends an evaluation.
    """

    def __init__(
        self, options: WorkerOptions, session: WorkerSession, restarts: int, endpoint: HostEndpoint
    ) -> None:
        self._options = options
        self._endpoint = endpoint
        self._session = session
        self._restarts = restarts
        self._restarted = 0
        self._starting = asyncio.Lock()
        self._closed = False
        self._info = session.info

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
        restarts: int = 3,
    ) -> WorkerEnvironment:
        """Start a worker and load an environment in it; raises `LoadError` with the true cause.

        - `python`: the interpreter of the environment's virtual environment; None means this one.
        - `target`: name of an environment installed there, or of its module; or give `path`, a project folder
          or a Python file, which then counts.
        - `environ`: names of the environment variables that it may see, beside PATH, HOME, LANG and TMPDIR.
          Unless `OPENAI_API_KEY` or `OPENAI_BASE_URL` is among them, OpenAI clients in its code call through
          this process, which has the key and records the answers (`wander.worker.endpoint`).
        - `log_path`: takes everything the environment prints; appended to.
        """
        load = Load(
            target=None if path else target,
            path=None if path is None else _absolute(path),
            arguments=arguments or {},
        )
        passed = tuple(environ)
        endpoint = HostEndpoint.open()
        # An environment that is given the user's own key or address talks to that endpoint itself.
        own = not endpoint.variables.keys() & set(passed)
        options = WorkerOptions(
            python, load, passed, log_path, startup_timeout, variables=endpoint.variables if own else {}
        )
        try:
            session = await WorkerSession.start(options)
        except BaseException:
            await endpoint.close()
            raise
        return cls(options, session, restarts, endpoint)

    @property
    def info(self) -> EnvironmentInfo:
        """What the environment says about itself."""
        return self._info

    @property
    def outside_calls(self) -> CallCount:
        """What the environment's code asked of other models through the host."""
        return self._endpoint.count

    @property
    def log_path(self) -> Path:
        """Where everything goes that the environment prints."""
        return self._options.log_path

    @property
    def lost_reason(self) -> str | None:
        """How the worker ended, with the end of its log and the log's path; None while it runs."""
        return self._session.lost_reason

    async def examples(self, split: Split, start: int = 0, count: int | None = None) -> list[Example]:
        """Return `count` examples from position `start` of the stored order; None means to the end."""
        size = self._info.eval_examples if split == "eval" else self._info.train_examples
        if count is None and size is None:
            raise DatasetError(
                f"the `{split}` split of `{self._info.name}` is endless", hint="say how many examples to take"
            )
        wanted = size if size is not None else start + (count or 0)
        end = wanted if count is None else min(wanted, start + count)
        found: list[Example] = []
        try:
            session = await self._alive()
            for first in range(start, end, _PAGE):
                found += await session.examples(split, first, min(_PAGE, end - first))
        except WorkerLost as error:
            raise EnvironmentFault(
                self.lost_reason or str(error), hint="look for the cause in its log"
            ) from error
        return found

    async def rollout(
        self,
        client: Client,
        example: Example,
        *,
        index: int = 0,
        run_seed: int = 0,
        sampling: SamplingArgs | None = None,
        rollout_id: str | None = None,
    ) -> Rollout:
        """Play one episode to its end and score it; a failure, also the worker's death, is in the record."""
        name = rollout_id or f"{example.example_id}/{index}"
        (rollout,) = await self._play(client, example, [index], [name], run_seed, sampling, group=False)
        return rollout

    async def rollout_group(
        self,
        client: Client,
        example: Example,
        *,
        indices: Sequence[int],
        run_seed: int = 0,
        sampling: SamplingArgs | None = None,
        rollout_ids: Sequence[str] | None = None,
    ) -> list[Rollout]:
        """Play several episodes of one example at the same time and score them together."""
        names = list(rollout_ids or (f"{example.example_id}/{index}" for index in indices))
        return await self._play(client, example, list(indices), names, run_seed, sampling, group=True)

    async def _play(
        self,
        client: Client,
        example: Example,
        indices: list[int],
        names: list[str],
        run_seed: int,
        sampling: SamplingArgs | None,
        *,
        group: bool,
    ) -> list[Rollout]:
        for name in names:
            client.begin(name)
            self._endpoint.begin(name, client.recorded(name))
        rollouts: list[Rollout] = []
        try:
            session = await self._alive()
            rollouts = await session.play(
                client,
                example,
                indices=indices,
                rollout_ids=names,
                run_seed=run_seed,
                sampling=sampling or SamplingArgs(),
                group=group,
            )
        except (WorkerLost, LoadError) as error:
            return lost_rollouts(example, indices, str(error), retryable=False)
        finally:
            for name, rollout in zip_longest(names, rollouts):
                client.end(name)
                self._endpoint.end(name, rollout)
        if rollouts[0].failure is None:
            self._restarted = 0
        return rollouts

    async def close(self) -> None:
        """Tear the environment down and end its process and all that it started."""
        async with self._starting:
            self._closed = True
            await self._session.close()
            await self._endpoint.close()

    async def _alive(self) -> WorkerSession:
        """Return a session whose worker lives, starting one where that is still allowed."""
        if self._session.lost is None:
            return self._session
        async with self._starting:
            if self._session.lost is None:
                return self._session
            if self._closed or self._restarted >= self._restarts:
                raise WorkerLost(self._session.lost)
            self._restarted += 1
            await self._session.close()
            self._session = await WorkerSession.start(self._options)
            return self._session


def _absolute(path: Path) -> str:
    return str(path.expanduser().resolve())
