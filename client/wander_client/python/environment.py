"""`wander.load`: load an environment by name in its own process. Installs it if necessary."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args, overload

from wander.errors import ArgumentsUnfit, DatasetError
from wander.handle import Split
from wander.types import EnvironmentInfo, Example, Rollout
from wander.wire import TokenPrices

from wander_client.environments.location import locate
from wander_client.environments.opening import open_environment
from wander_client.environments.sandbox import choose_policy, confines, sandbox_options
from wander_client.environments.workers import WorkerChoice
from wander_client.errors import UsageError
from wander_client.evaluate.evaluation import source_digests
from wander_client.python.background import blocking, called_from_python, close_later, hand_over, wait_for
from wander_client.python.evaluation import (
    Loaded,
    Sampling,
    evaluate,
    open_again,
    play_rollout,
    play_rollouts,
)
from wander_client.python.keywords import find_near
from wander_client.python.models import Model
from wander_client.python.output import open_invocation
from wander_client.python.run import Run
from wander_client.terminal.suggestions import choose

if TYPE_CHECKING:
    from wander.train.rollouts.rollout_func import EnvironmentRollouts

_NO_OPTIONS = frozenset({"self", "model", "tokenizer", "out", "resume", "only_failed", "engine"})
"""Arguments of `evaluate` that are not settings of an evaluation."""
_PAGE = 500
"""Number of examples to fetch at a time while iterating over a dataset."""


@called_from_python
def load(
    environment: str | Path,
    /,
    *,
    hub: str | None = None,
    token: str | None = None,
    workers: int = 1,
    sandbox: bool | Mapping[str, Any] | None = None,
    no_lock: bool | None = None,
    progress: bool = True,
    arguments: Mapping[str, Any] | None = None,
    **more: Any,
) -> LoadedEnvironment:
    """Load an environment, `owner/name[@version]` or `./folder`, and run it in its own process.

    If it is not installed, it is installed first, as by `wander install`: the exact version, with its digest
    checked and the packages of its lock. Close the returned handle, or use it in a `with` statement.
    - `hub`, `token`: URL or name from the settings file, and token. The defaults are those of the `wander`
    command.
    - `workers`: number of processes. More processes help if the environment computes for a long time.
    - `sandbox`: True runs it in the sandbox (Linux). A mapping sets limits: `{"memory": "2G"}`.
    - `no_lock`: True installs the newest packages instead of the locked ones.
    - `progress`: False hides progress while it installs, plays and trains.
    - `arguments` and all other keywords are passed to its `load_environment`.
    Raises `NotFound`, `LoginRequired` or `Unavailable` from the hub, and `LoadError` if it cannot be loaded.
    Arguments that it does not accept raise `wander.errors.ArgumentsUnfit`.
    """
    context = open_invocation(hub, token, progress=progress)
    given = {**(arguments or {}), **more}
    spec = os.fspath(environment) if isinstance(environment, str) else str(Path(environment).resolve())
    _require_owner(spec)
    if not isinstance(workers, int):
        raise UsageError(f"`workers={workers!r}` is not a number", hint="for example: `workers=2`")
    policy = choose_policy(*sandbox_options(sandbox), default=confines(context.settings, spec))
    location = locate(context, spec, no_lock=no_lock)
    choice = WorkerChoice(workers)
    files = source_digests(location.folder) if location.folder else None
    stack = contextlib.AsyncExitStack()
    opening = open_environment(context, location, given, sandbox=policy, workers=choice)
    try:
        opened = wait_for(stack.enter_async_context(opening))
    except ArgumentsUnfit as error:
        meant = [find_near(load, name) for name in more]
        error.hint = "; ".join(hint for hint in (*meant, error.hint) if hint)
        raise
    return LoadedEnvironment(Loaded(context, opened, policy, choice, files), stack)


def _require_owner(spec: str) -> None:
    """Raise `UsageError` for a name without an owner that is installed in this Python."""
    from wander.loading import installed_environments

    if "/" not in spec and spec in installed_environments():
        raise UsageError(
            f"the owner is missing in `{spec}`",
            hint=f'`wander.load("OWNER/{spec}")` installs it from a hub, and '
            f'`wander.load_environment("{spec}")` loads the package in this Python and process',
        )


class LoadedEnvironment:
    """An environment in its own process, with the same methods as an environment in this process.

    `load` returns it. Use it from any thread, in a script or while an event loop is running: every `async`
    method has a blocking version, such as `rollout_sync`.
    """

    def __init__(self, loaded: Loaded, stack: contextlib.AsyncExitStack) -> None:
        self._loaded = loaded
        self._stack = stack
        self._process = os.getpid()
        self._closer = weakref.finalize(self, close_later, stack, os.getpid())

    @property
    def info(self) -> EnvironmentInfo:
        """The environment's description of itself."""
        return self._loaded.opened.handle.info

    @property
    def name(self) -> str:
        """`owner/name@version` of an installed environment, or the path of a folder."""
        return self._loaded.name

    @property
    def _playing(self) -> Loaded:
        """The open environment. Raises `UsageError` after it is closed, and in a forked process."""
        fault = "was loaded by another process" if os.getpid() != self._process else "is closed"
        if not self._closer.alive or os.getpid() != self._process:
            raise UsageError(f"`{self.name}` {fault}", hint=f'load it here: `wander.load("{self.name}")`')
        return self._loaded

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments that were passed to its `load_environment`."""
        return dict(self._loaded.opened.pin.arguments)

    @called_from_python
    def dataset(self, split: Split = "train") -> Examples:
        """Return the examples of a split, or those of the other split if the environment does not have it."""
        return Examples(self, choose("split", split, get_args(Split)))

    async def examples(self, split: Split, start: int = 0, count: int | None = None) -> list[Example]:
        """Return `count` examples from index `start` in the stored order. None means all until the end.

        Raises `DatasetError` if an endless dataset is requested completely.
        """
        return await hand_over(self._playing.opened.handle.examples(split, start, count))

    @called_from_python
    async def rollout(
        self,
        model: Model,
        example: Example | int = 0,
        *,
        index: int = 0,
        run_seed: int = 0,
        sampling: Sampling = None,
        split: Split = "eval",
        base_url: str | None = None,
        tokenizer: Any = None,
    ) -> Rollout:
        """Play an example to its end and score it.

        `example` can be an index in the split. `index` distinguishes several rollouts of an example. A failed
        rollout raises no error: the failure is in the record, and the rollout is not scored.
        """
        if isinstance(example, Example):
            asked = example
        elif not isinstance(example, int) or example < 0:
            raise UsageError(
                f"`{example!r}` is not an example",
                hint='pass an example of `env.dataset("eval")`, or its index',
            )
        elif found := await self.examples(split, example, 1):
            asked = found[0]
        else:
            raise IndexError(f"the {split} split has no example at index {example}")
        return await hand_over(
            play_rollout(
                *(self._playing, model, tokenizer, base_url, asked),
                index=index,
                run_seed=run_seed,
                sampling=sampling,
            )
        )

    @called_from_python
    async def rollouts(
        self,
        model: Model,
        *,
        n: int | Literal["all"] | None = None,
        rollouts: int | None = None,
        sampling: Sampling = None,
        split: Split | None = None,
        seed: int | None = None,
        shuffle: bool | None = None,
        strata: bool | None = None,
        concurrency: int | None = None,
        max_rollouts: int | None = None,
        base_url: str | None = None,
        key_variable: str | None = None,
        tokenizer: Any = None,
        device: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> list[Rollout]:
        """Play the rollouts of an evaluation, and return them in order without saving them."""
        options = {key: value for key, value in locals().items() if key not in _NO_OPTIONS}
        return await hand_over(play_rollouts(self._playing, model, tokenizer, options))

    @called_from_python
    async def evaluate(
        self,
        model: Model,
        *,
        n: int | Literal["all"] | None = None,
        rollouts: int | None = None,
        sampling: Sampling = None,
        split: Split | None = None,
        seed: int | None = None,
        shuffle: bool | None = None,
        strata: bool | None = None,
        concurrency: int | None = None,
        max_rollouts: int | None = None,
        base_url: str | None = None,
        key_variable: str | None = None,
        tokenizer: Any = None,
        device: str | None = None,
        call_timeout: float | None = None,
        cache: bool | None = None,
        players: Mapping[str, str] | None = None,
        budget_tokens: int | None = None,
        budget_usd: float | None = None,
        prices: TokenPrices | None = None,
        shard: str | None = None,
        settings: Mapping[str, Any] | None = None,
        engine: str | None = None,
        out: str | os.PathLike[str] | None = None,
        resume: str | os.PathLike[str] | None = None,
        only_failed: bool = False,
    ) -> Run:
        """Evaluate a model, like `wander eval`, and return the run. The run's folder contains every rollout.

        The defaults are those of the command, or those of the run in `resume`.
        - `model`: a `Client`, a name as for `wander eval -m`, a checkpoint folder, or a Hugging Face model in
        memory with its
          `tokenizer`. A client's methods are awaited on a separate event loop.
        - `n`: number of examples of the `split`, or `"all"`; the default is 20. `rollouts`: rollouts per
          example; the default is 1.
        - `sampling`: such as `{"temperature": 0.7, "max_tokens": 256}`. The endpoint decides everything else.
          For a model in this process, `compact_at` leaves out the oldest turns of longer conversations.
        - `concurrency`: concurrent model calls; the default is 32. `max_rollouts`: concurrent rollouts; the
        default is twice
          the concurrency.
        - `base_url`, `key_variable`: an OpenAI-compatible endpoint, and the variable with its key.
        - `call_timeout`: time limit of a call in seconds. `cache`: keep the endpoint's responses for later
        runs.
        - `players`: models of the other players: `{"O": "scripted:tictactoe.players:optimal"}`.
        - `budget_tokens`, and `budget_usd` with `prices`: no rollout starts after the budget is spent.
        - `shard`: `"0/8"` plays only the first of eight parts of the run. `Run.merge` merges the parts.
        - `settings`: further settings by their names, as with `wander eval --set`: `{"reasoning": "keep"}`.
        - `engine`: `"ray://HOST:PORT/32"` plays 32 shards on this cluster, with a model that is named. The
          shards are saved next to `out`, which must be on a file system that all nodes mount.
        - `out`: folder of the run; the default is a new folder in `runs`.
        - `resume`: a run or its folder: plays missing and failed rollouts, with `only_failed` only the failed
        ones. If it is interrupted or canceled, the rollouts are saved for `resume`. Raises `ModelError` if
        the endpoint cannot be used, `UsageError` for an empty split, and `ClientError` if every rollout
        failed. If some rollouts failed, it warns.
        """
        options = {key: value for key, value in locals().items() if key not in _NO_OPTIONS}
        return await evaluate(
            *(self._playing, model, tokenizer, options),
            out=out,
            resume=resume,
            only_failed=only_failed,
            engine=engine,
        )

    rollout_sync = blocking(rollout)
    """Blocking version of `rollout`, which also works while an event loop is running."""
    rollouts_sync = blocking(rollouts)
    """Blocking version of `rollouts`, which also works while an event loop is running."""
    evaluate_sync = blocking(evaluate)
    """Blocking version of `evaluate`, which also works while an event loop is running."""

    @called_from_python
    def train_dataset(self, n: int | None = None) -> Any:
        """Return the first `n` training examples, or all if None, as a dataset for a `GRPOTrainer`."""
        from wander.train.rollouts.rollout_func import training_prompts

        return training_prompts(self.dataset("train").examples(0, n))

    @called_from_python
    def rollout_func(
        self,
        *,
        max_tokens: int | None = None,
        max_rollout_tokens: int | None = None,
        compact_at: int | None = None,
        run_seed: int = 0,
    ) -> EnvironmentRollouts:
        """Return the `rollout_func` for your own `GRPOTrainer`, to use with `train_dataset` and
        `reward_func`. The trainer's model plays this environment in a separate process, which ends with this
        handle. `max_tokens` limits a turn (by default `max_completion_length`), and `max_rollout_tokens` the
        conversation. Above `compact_at` tokens, the oldest turns are left out.
        """
        from wander.train.rollouts.rollout_func import EnvironmentRollouts

        loaded = self._playing  # not `self`, which would then never be collected
        func = EnvironmentRollouts(
            lambda choice: open_again(loaded),
            max_tokens=max_tokens,
            max_rollout_tokens=max_rollout_tokens,
            compact_at=compact_at,
            run_seed=run_seed,
        )
        self._stack.callback(func.close)
        return func

    @property
    def reward_func(self) -> Callable[..., list[float | None]]:
        """The environment's reward, as a function for a `GRPOTrainer`'s `reward_funcs`."""
        from wander.train.rollouts.rollout_func import reward

        return reward

    def close(self) -> None:
        """Close the environment and stop its process. Calling it again does nothing."""
        if self._closer.detach() is not None and os.getpid() == self._process:
            wait_for(self._stack.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._closer.detach() is not None and os.getpid() == self._process:
            await hand_over(self._stack.aclose())

    def __repr__(self) -> str:
        given = "".join(f", {key}={value!r}" for key, value in self.arguments.items())
        return f"wander.load({self.name!r}{given})"


class Examples(Sequence[Example]):
    """The examples of a split, fetched when they are needed. An endless split has no `len`."""

    def __init__(self, environment: LoadedEnvironment, split: Split) -> None:
        self._environment = environment
        self.split: Split = split

    @property
    def length(self) -> int | None:
        """Number of examples, or None for an endless split."""
        info = self._environment.info
        return info.eval_examples if self.split == "eval" else info.train_examples

    def examples(self, start: int = 0, count: int | None = None) -> list[Example]:
        """Return up to `count` examples from index `start`. None means all until the end."""
        return wait_for(self._environment.examples(self.split, start, count))

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError(f"the {self.split} split of `{self._environment.info.name}` is endless")
        return self.length

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        if isinstance(index, slice):
            if self.length is None and (index.stop is None or index.stop < 0 or (index.start or 0) < 0):
                raise DatasetError(
                    f"the {self.split} split of `{self._environment.info.name}` is endless",
                    hint="set an end, for example: `dataset[:100]`",
                )
            places = range(*index.indices(index.stop if self.length is None else self.length))
            low = min(places, default=0)
            rows = self.examples(low, max(places, default=-1) + 1 - low)
            return [rows[place - low] for place in places]
        place = index + len(self) if index < 0 else index
        found = self.examples(place, 1) if place >= 0 else []
        if not found:
            raise IndexError(f"the {self.split} split has no example at index {index}")
        return found[0]

    def __iter__(self) -> Iterator[Example]:
        start = 0
        while page := self.examples(start, _PAGE):
            yield from page
            start += len(page)

    def __repr__(self) -> str:
        size = "endless" if self.length is None else f"{self.length:,} examples"
        return f"<{self.split} split of {self._environment.name}: {size}>"
