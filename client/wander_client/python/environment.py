"""`wander.load`: an environment by name, installed where it is absent, in a process of its own."""

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
    from wander.train.rollouts.own_trainer import EnvironmentRollouts

_NO_OPTIONS = frozenset({"self", "model", "tokenizer", "out", "resume", "only_failed", "engine"})
"""Arguments of `evaluate` that are not settings of an evaluation."""
_PAGE = 500
"""Examples that are fetched at once while a dataset is walked."""


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
    """Load an environment, `owner/name[@version]` or `./folder`, and run it in a process of its own.

    What is absent is installed first, as `wander install` does it: the exact version, its digest checked,
    with the packages of its lock. Close the handle, or use it in a `with`.

    - `hub`, `token`: a URL, or a name of the settings file; by default those of the `wander` command.
    - `workers`: processes that play it; more help where its code computes for long.
    - `sandbox`: True confines it (Linux), a mapping sets limits: `{"memory": "2G"}`.
    - `no_lock`: True takes the newest packages instead of the locked ones.
    - `progress`: False says nothing while it installs, plays and trains.
    - `arguments` and all further keywords go to its `load_environment`.

    Raises `NotFound`, `LoginRequired` or `Unavailable` from the hub, and `LoadError` where it does not load;
    arguments that it does not take are `wander.errors.ArgumentsUnfit`.
    """
    context = open_invocation(hub, token, progress=progress)
    given = {**(arguments or {}), **more}
    spec = os.fspath(environment) if isinstance(environment, str) else str(Path(environment).resolve())
    _require_owner(spec)
    if not isinstance(workers, int):
        raise UsageError(f"`workers={workers!r}` is no number", hint="pass `workers=2`")
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
    """Raise `UsageError` for a bare name that is an environment of this Python."""
    from wander.loading import installed_environments

    if "/" not in spec and spec in installed_environments():
        raise UsageError(
            f"`{spec}` names no owner",
            hint=f'`wander.load("OWNER/{spec}")` installs it from a hub; '
            f'`wander.load_environment("{spec}")` loads the one of this Python, in this process',
        )


class LoadedEnvironment:
    """An environment in a process of its own, with the methods of one in this process.

    `load` makes one. Use it from any thread, in a script or while an event loop runs: what is `async` has a
    twin that waits, `rollout_sync` and so on.
    """

    def __init__(self, loaded: Loaded, stack: contextlib.AsyncExitStack) -> None:
        self._loaded = loaded
        self._stack = stack
        self._process = os.getpid()
        self._closer = weakref.finalize(self, close_later, stack, os.getpid())

    @property
    def info(self) -> EnvironmentInfo:
        """What the environment says about itself."""
        return self._loaded.opened.handle.info

    @property
    def name(self) -> str:
        """`owner/name@version` of an installed environment, the path of a folder."""
        return self._loaded.name

    @property
    def _playing(self) -> Loaded:
        """What plays; raises `UsageError` once it is closed, and in a forked process."""
        fault = "was loaded by another process" if os.getpid() != self._process else "is closed"
        if not self._closer.alive or os.getpid() != self._process:
            raise UsageError(f"`{self.name}` {fault}", hint=f'load it here: `wander.load("{self.name}")`')
        return self._loaded

    @property
    def arguments(self) -> dict[str, Any]:
        """What was passed to its `load_environment`."""
        return dict(self._loaded.opened.pin.arguments)

    @called_from_python
    def dataset(self, split: Split = "train") -> Examples:
        """Return the examples of a split, or those of the other one when the environment lacks it."""
        return Examples(self, choose("split", split, get_args(Split)))

    async def examples(self, split: Split, start: int = 0, count: int | None = None) -> list[Example]:
        """Return `count` examples from position `start` of the stored order; None means to the end.

        Raises `DatasetError` for all of an endless dataset.
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
        """Play one episode to its end and score it.

        `example` may be its position in the split; `index` tells rollouts of one example apart. Never raises
        for a failed rollout: the failure is in the record, and such a rollout is not scored.
        """
        if isinstance(example, Example):
            asked = example
        elif not isinstance(example, int) or example < 0:
            raise UsageError(
                f"`{example!r}` is no example",
                hint='pass one of `env.dataset("eval")`, or its position from 0',
            )
        elif found := await self.examples(split, example, 1):
            asked = found[0]
        else:
            raise IndexError(f"the {split} split has no example at position {example}")
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
    ) -> list[Rollout]:
        """Play what `evaluate` plays, and return the rollouts in order without saving them."""
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
        engine: str | None = None,
        out: str | os.PathLike[str] | None = None,
        resume: str | os.PathLike[str] | None = None,
        only_failed: bool = False,
    ) -> Run:
        """Evaluate a model, as `wander eval` does, and return the run, whose folder has every rollout.

        What is not said is as for the command, or as the run has it that `resume` names.

        - `model`: a `Client`, a name as `wander eval -m` takes it, a checkpoint's folder, or a Hugging Face
          model in memory with its `tokenizer`. A client's methods are awaited on an event loop of its own.
        - `n`: examples of the `split`, 20 unless said, or `"all"`; `rollouts`: of each, 1 unless said.
        - `sampling`: `{"temperature": 0.7, "max_tokens": 256}`; what is not said the endpoint decides.
          `compact_at` leaves out the oldest turns of longer conversations, of a model in this process.
        - `concurrency`: model calls at once, 32 unless said; `max_rollouts`: rollouts at once, twice that.
        - `base_url`, `key_variable`: an OpenAI-compatible endpoint, and the variable with its key.
        - `call_timeout`: seconds that one call may take; `cache` keeps answers of endpoints for later runs.
        - `players`: who plays whom beside the model, `{"O": "scripted:tictactoe.players:optimal"}`.
        - `budget_tokens`, `budget_usd` with `prices`: no rollout begins once that is spent.
        - `shard`: `"0/8"` plays the first of eight parts of the run alone; `Run.merge` makes one run of them.
        - `engine`: `"ray://HOST:PORT/32"` plays 32 shards on that cluster, a model that is named. The shards
          are kept next to `out`, which must be on a file system that all nodes mount.
        - `out`: the run's folder; by default a new one below `runs`.
        - `resume`: a run, or its folder: what is missing or failed is played, with `only_failed` the latter.

        Interrupted or cancelled, it keeps what was played for `resume`. Raises `ModelError` for an endpoint
        that cannot be used, `UsageError` for an empty split, and `ClientError` where every rollout failed;
        some that fail are a warning.
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
    """`rollout`, which waits; works where an event loop runs, too."""
    rollouts_sync = blocking(rollouts)
    """`rollouts`, which waits; works where an event loop runs, too."""
    evaluate_sync = blocking(evaluate)
    """`evaluate`, which waits; works where an event loop runs, too."""

    @called_from_python
    def train_dataset(self, n: int | None = None) -> Any:
        """Return the first `n` training examples, all for None, as a dataset for a `GRPOTrainer`."""
        from wander.train.rollouts.own_trainer import training_prompts

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
        """Return the `rollout_func` of a `GRPOTrainer` of your own, beside `train_dataset` and `reward_func`.

        The trainer's model plays this environment, in a process of its own that ends with this handle:
        `max_tokens` a turn, by default `max_completion_length`, and `max_rollout_tokens` the conversation,
        whose oldest turns are left out from `compact_at` tokens on.
        """
        from wander.train.rollouts.own_trainer import EnvironmentRollouts

        loaded = self._playing  # not the handle, which would be held by what closes it
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
        """The reward that the environment gave, as one of a `GRPOTrainer`'s `reward_funcs`."""
        from wander.train.rollouts.own_trainer import reward

        return reward

    def close(self) -> None:
        """Tear the environment down and end its process; safe to call twice."""
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
    """The examples of one split, fetched as they are asked for; an endless split has no `len`."""

    def __init__(self, environment: LoadedEnvironment, split: Split) -> None:
        self._environment = environment
        self.split: Split = split

    @property
    def length(self) -> int | None:
        """Number of examples; None when the split is endless."""
        info = self._environment.info
        return info.eval_examples if self.split == "eval" else info.train_examples

    def examples(self, start: int = 0, count: int | None = None) -> list[Example]:
        """Return up to `count` examples from position `start`; None means to the end."""
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
                    hint="say where to end: `dataset[:100]`",
                )
            places = range(*index.indices(index.stop if self.length is None else self.length))
            low = min(places, default=0)
            rows = self.examples(low, max(places, default=-1) + 1 - low)
            return [rows[place - low] for place in places]
        place = index + len(self) if index < 0 else index
        found = self.examples(place, 1) if place >= 0 else []
        if not found:
            raise IndexError(f"the {self.split} split has no example at position {index}")
        return found[0]

    def __iter__(self) -> Iterator[Example]:
        start = 0
        while page := self.examples(start, _PAGE):
            yield from page
            start += len(page)

    def __repr__(self) -> str:
        size = "endless" if self.length is None else f"{self.length:,} examples"
        return f"<{self.split} split of {self._environment.name}: {size}>"
