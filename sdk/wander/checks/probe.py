"""One process of a check: loads an environment, reads its rows, plays it, and records the results.

Run as `python -m wander.checks.probe REQUEST RESULT NOTE BOXES`, with the descriptors of three files and
a socket that the parent opened: the request, the result, a note about the current activity, and boxes
(`wander.checks.boxes`). The first process of a check watches reads from outside and plays. The second has
another hash seed and time zone, and replays the recorded rollouts.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from wander.checks.answer_leaks import find_leaked_answer
from wander.checks.boxes import BoxedClient, HostBoxes
from wander.checks.clock import take_clock_shift
from wander.checks.code import find_code_uses
from wander.checks.hacks import HACKS
from wander.checks.judge_trials import fair_judges, judge_rubrics, try_judges
from wander.checks.lasting_state import read_shared
from wander.checks.players import (
    DEMAND,
    MOST_TURNS,
    NOOP,
    SHOTGUN,
    ScriptedPlayer,
    gold_script,
    make_calling,
    make_guessing,
    make_repeating,
)
from wander.checks.records import HackPlay, PlayRecord, ProbeRequest, ProbeResult, RowRead, Trouble
from wander.checks.sources import SourceUse, SourceWatch
from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.clients.replay import ReplayClient
from wander.clients.scripted import Script
from wander.dataset import Dataset
from wander.environment import Environment
from wander.envs.group import EnvGroup, route_example
from wander.envs.sandbox import SandboxEnv, run_commands
from wander.handle import Split
from wander.loading import Factory, find_factory, find_path_factory, module_of
from wander.parsers import message_text
from wander.types import Example, Rollout, canonical_json

HEAVY = ("torch", "tensorflow", "jax", "transformers", "vllm", "trl", "datasets", "pandas", "sklearn")
"""Modules that take seconds to import, and should not be imported just to list an environment."""

PLAYERS = ("gold", "empty", "noop", "demand", "list", "guess", "tools")
"""Players of every example. The position of a player is the index of its rollout."""

GROUP_SECONDS = 120.0
"""Maximum time of all rollouts of one example in seconds."""

_TOLD = 50
"""Number of rows whose prompts are searched for their answers."""
SIBLING = 1000
"""Added to the index of a rollout that is repeated as another rollout of its group."""
HACKED = 2000
"""Index of the rollout that tries the first reward hack. The next hacks have the next indices."""
PARALLEL_HACKS = 4


class Probe:
    """Carries out a request and keeps the result."""

    def __init__(self, request: ProbeRequest, tell: Callable[[str], object], boxes: HostBoxes) -> None:
        self.request = request
        self._boxes = boxes
        self.result = ProbeResult()
        self.watch = SourceWatch()
        self._right: list[str] = []
        """Texts of the gold player, which the scripted judge accepts."""
        self._tell = tell
        """Leaves a note about the current activity, in case this process dies or hangs."""

    def run(self) -> ProbeResult:
        """Load, read and play. Errors of the environment are part of the result."""
        if self.request.watch:
            self.watch.start()
        try:
            self._probe()
        except Exception as error:  # noqa: BLE001 - recorded in the result
            self.result.trouble = Trouble.of(error)
        finally:
            if self.request.watch:
                self.watch.stop()
        return self.result

    def _probe(self) -> None:
        factory = self._import_factory()
        self._tell("calling `load_environment`")
        started = time.perf_counter()
        env = factory.build(dict(self.request.arguments))
        self.result.info = env.info
        self.result.load_seconds = time.perf_counter() - started
        self.result.has_judge = any(judge_rubrics(env))
        if self.request.demonstrations:
            asyncio.run(self._demonstrate(env))
            return
        own = _own_place(self.request, factory)
        self._tell("reading its rows")
        self._read_rows(env, factory)
        self.watch.phase = "rollout"
        asyncio.run(self._play_all(env, own))
        if self.request.watch:
            seen = self.watch.uses(own)
            places = {(use.kind, use.where) for use in seen}
            self.result.uses = seen + [
                SourceUse(kind=use.kind, name=use.name, where=use.where, phase="code")
                for use in find_code_uses(own)
                if (use.kind, use.where) not in places
            ]

    def _import_factory(self) -> Factory:
        self._tell("importing its module")
        self.watch.own = module_of(self.request.target, is_path=self.request.is_path).partition(".")[0]
        before = set(sys.modules)
        started = time.perf_counter()
        factory = (find_path_factory if self.request.is_path else find_factory)(self.request.target)
        self.result.import_seconds = time.perf_counter() - started
        # Environments of the classic API import `datasets`, because that API requires it.
        usual = {"datasets", "pandas"} if "verifiers" in sys.modules else set()
        self.result.heavy = [
            name for name in HEAVY if name in sys.modules and name not in before and name not in usual
        ]
        return factory

    def _read_rows(self, env: Environment, factory: Factory) -> None:
        """Read the rows in order, and read them again from last to first in a second environment."""
        train, evaluation = env.dataset("train"), env.dataset("eval")
        self.result.shares_rows = train is evaluation
        splits: list[Split] = ["train", "eval"] if train is not evaluation else [train.split]
        for split in splits:
            rows = _rows(env.dataset(split), split, self.request.rows)
            self.result.rows += rows
            if self.request.watch and split == splits[-1]:
                shown = [row.index for row in rows if row.trouble is None][:_TOLD]
                self.result.told = find_leaked_answer([env.dataset(split)[index] for index in shown])
            again = factory.build(dict(self.request.arguments)).dataset(split)
            backwards = [_row(again, split, row.index) for row in reversed(rows) if row.trouble is None]
            expected = {row.index: row.digest for row in rows}
            self.result.moved += [row for row in backwards if row.digest != expected[row.index]]

    async def _play_all(self, env: Environment, own: str) -> None:
        try:
            if self.request.recorded is None:
                await self._play(env)
            else:
                await self._replay(env, self.request.recorded, own)
        finally:
            try:
                await env.teardown()
            except Exception as error:  # noqa: BLE001 - recorded in the result
                self.result.closing = Trouble.of(error)

    async def _demonstrate(self, env: Environment) -> None:
        """Let the gold player play training examples, and keep nothing if an example has no gold player."""
        dataset = env.dataset("train")
        length = dataset.length
        count = self.request.demonstrations
        try:
            for position in range(count if length is None else min(count, length)):
                example = dataset[position]
                gold = _players(env, example).get("gold")
                if gold is None:
                    self.result.plays.clear()
                    return
                self._tell(f"playing example `{example.example_id}`")
                client = _Table({f"{example.example_id}/0": gold})
                for rollout in await self._play_in_time(env, client, example, [0]):
                    self.result.plays.append(
                        PlayRecord(player="gold", split="train", position=position, rollout=rollout)
                    )
        finally:
            await env.teardown()

    async def _play(self, env: Environment) -> None:
        """Let every player play some examples."""
        split: Split = "eval"
        readable = [row.index for row in self.result.rows if row.trouble is None and row.split == split]
        if not readable:
            split = "train"
            readable = [row.index for row in self.result.rows if row.trouble is None]
        count = min(self.request.examples, len(readable))
        if count:
            await self._try_judges(env, env.dataset(split)[readable[0]])
        with fair_judges(env, self.result.judged, self._right):
            for place in range(count):
                position = readable[place * len(readable) // count]
                example = env.dataset(split)[position]
                await self._group(env, split, position, example)
        if count and env.info.kind == SandboxEnv.kind:
            await self._try_hacks(env, env.dataset(split)[readable[0]])

    async def _try_hacks(self, env: Environment, example: Example) -> None:
        """Play the known hacks on an example, a few at the same time."""
        for start in range(0, len(HACKS), PARALLEL_HACKS):
            hacks = HACKS[start : start + PARALLEL_HACKS]
            self._tell(f"playing hacks on example `{example.example_id}`, such as `{hacks[0].name}`")
            indices = [HACKED + start + number for number in range(len(hacks))]
            players = {
                f"{example.example_id}/{index}": ScriptedPlayer(run_commands(hack.command), MOST_TURNS)
                for index, hack in zip(indices, hacks, strict=True)
            }
            rollouts = await self._play_in_time(env, _Table(players), example, indices)
            for hack, rollout in zip(hacks, rollouts, strict=False):
                failure = None if rollout.failure is None else rollout.failure.message
                self.result.hacks.append(HackPlay(name=hack.name, reward=rollout.reward, failure=failure))

    async def _try_judges(self, env: Environment, example: Example) -> None:
        if self.result.has_judge:
            self._tell(f"trying scripted judges on example `{example.example_id}`")
            self.result.judged = await try_judges(env, example, env.turn_limit or MOST_TURNS)

    async def _group(self, env: Environment, split: Split, position: int, example: Example) -> None:
        self._tell(f"playing example `{example.example_id}`")
        players = _players(env, example)
        if "gold" in players:
            players["gold"].said = self._right
        indices = [PLAYERS.index(name) for name in players]
        client = _Table(
            {f"{example.example_id}/{PLAYERS.index(name)}": player for name, player in players.items()}
        )
        for rollout in await self._play_in_time(env, client, example, indices):
            name = PLAYERS[rollout.index]
            self.result.plays.append(
                PlayRecord(
                    player=name,
                    split=split,
                    position=position,
                    rollout=rollout,
                    gave_up=players[name].gave_up,
                )
            )

    async def _replay(self, env: Environment, recorded: list[PlayRecord], own: str) -> None:
        """Replay the recorded rollouts, and then again as other members of their groups.

        Everything that is created once exists after the first replay. What still changes is shared by all
        rollouts.
        """
        before: dict[str, str] | None = None
        if recorded:
            await self._try_judges(env, env.dataset(recorded[0].split)[recorded[0].position])
        gold = [play.rollout.completion for play in recorded if play.player == "gold"]
        self._right += [message_text(message) for completion in gold for message in completion]
        with fair_judges(env, self.result.judged, self._right):
            for split, position in dict.fromkeys((play.split, play.position) for play in recorded):
                plays = [play for play in recorded if (play.split, play.position) == (split, position)]
                example = env.dataset(split)[position]
                self._tell(f"playing example `{example.example_id}` again")
                self.result.plays += await self._again(env, example, plays, 0)
                before = before if before is not None else read_shared(env, own)
                self.result.siblings += await self._again(env, example, plays, SIBLING)
        after = read_shared(env, own)
        self.result.changed = [
            f"`{name}` was {then} and is {after[name]}"
            for name, then in (before or {}).items()
            if after.get(name, then) != then
        ]

    async def _again(
        self, env: Environment, example: Example, plays: list[PlayRecord], shift: int
    ) -> list[PlayRecord]:
        """Play one example's recorded rollouts with shifted indices."""
        moved = [
            play.rollout.model_copy(
                update={"index": play.rollout.index + shift, "example_id": example.example_id}
            )
            for play in plays
        ]
        indices = [rollout.index for rollout in moved]
        rollouts = await self._play_in_time(env, ReplayClient(moved), example, indices)
        return [
            play.model_copy(update={"rollout": rollout})
            for play, rollout in zip(plays, rollouts, strict=False)
        ]

    async def _play_in_time(
        self, env: Environment, client: Client, example: Example, indices: list[int]
    ) -> list[Rollout]:
        """Play a group. Returns no rollouts if they do not end in time."""
        group = env.rollout_group(BoxedClient(client, self._boxes), example, indices=indices)
        try:
            async with asyncio.timeout(GROUP_SECONDS):
                return await group
        except TimeoutError:
            self.result.hung.append(example.example_id)
            return []


class _Table(Client):
    """Assigns a player to every rollout."""

    def __init__(self, players: dict[str, ScriptedPlayer]) -> None:
        self.model = "check"
        self._players = players

    def begin(self, rollout_id: str) -> None:
        self._players[rollout_id].begin(rollout_id)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        return await self._players[request.rollout_id].complete(request)


def _players(env: Environment, example: Example) -> dict[str, ScriptedPlayer]:
    while isinstance(env, EnvGroup):
        name, example = route_example(example)
        env = env.members[name]
    limit = min(env.turn_limit or MOST_TURNS, 4 * MOST_TURNS)
    gold = gold_script(env, example)
    if gold is None and env.turn_limit == 1 and isinstance(example.answer, str) and any(judge_rubrics(env)):
        gold = [example.answer]  # the scripted judge accepts it
    scripts: dict[str, Script] = {
        "empty": lambda request: "",
        "noop": lambda request: NOOP,
        "demand": make_repeating(env.parser, DEMAND),
        "list": make_repeating(env.parser, SHOTGUN),
        "guess": make_guessing(env.parser),
    }
    if hasattr(env, "offered"):  # tools
        scripts["tools"] = make_calling()
    players = {name: ScriptedPlayer(script, limit) for name, script in scripts.items()}
    return {"gold": ScriptedPlayer(gold, limit), **players} if gold is not None else players


def _rows(dataset: Dataset, split: Split, most: int) -> list[RowRead]:
    """Read the first rows and the last one."""
    length = dataset.length
    indices = list(range(most if length is None else min(most, length)))
    if length is not None and length > most:
        indices.append(length - 1)
    return [_row(dataset, split, index) for index in indices]


def _row(dataset: Dataset, split: Split, index: int) -> RowRead:
    try:
        example = dataset[index]
    except Exception as error:  # noqa: BLE001 - an error of the author's code is recorded in the result
        return RowRead(split=split, index=index, trouble=Trouble.of(error))
    content = canonical_json([example.prompt, example.answer, example.info])
    return RowRead(
        split=split,
        index=index,
        example_id=example.example_id,
        digest=example.digest(),
        content=hashlib.sha256(content.encode()).hexdigest(),
        prompt=hashlib.sha256(canonical_json(example.prompt).encode()).hexdigest(),
    )


def _own_place(request: ProbeRequest, factory: Factory) -> str:
    """Return the folder or file with the environment's own code."""
    if request.is_path and Path(request.target).is_dir():
        return str(Path(request.target).resolve())
    module: ModuleType | None = inspect.getmodule(factory.function)
    top = sys.modules.get((module.__name__ if module else "").partition(".")[0])
    if top is None or top.__file__ is None:
        return os.sep
    place = Path(top.__file__)
    return str(place.parent if hasattr(top, "__path__") else place)


def main() -> None:
    """Read the request, run the probe, and write the result."""
    asked, told, note, boxes = map(int, sys.argv[1:])
    for descriptor in (asked, told, note, boxes):
        os.set_inheritable(descriptor, False)

    def tell(doing: str) -> None:
        os.ftruncate(note, 0)
        os.pwrite(note, doing.encode(), 0)

    text = os.pread(asked, os.fstat(asked).st_size, 0)
    take_clock_shift()
    result = Probe(ProbeRequest.model_validate_json(text), tell, HostBoxes(boxes)).run()
    with os.fdopen(told, "wb") as file:
        file.write(result.model_dump_json().encode())


if __name__ == "__main__":
    main()
