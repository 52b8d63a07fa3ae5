"""A person as the environment: the model plays, and the person makes the environment's choices."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from wander.clients.choices import LINE, PENDING
from wander.evals.exhaustive import ConversationMemo, WalkPlan, count_from

from wander_client.play.player import read_line, show_message
from wander_client.terminal.output import Output

if TYPE_CHECKING:
    from wander.handle import EnvironmentHandle
    from wander.types import Example, Rollout

HELP = (
    "`/undo` takes back your last choice, `/hint` counts the results after each choice, "
    "`/quit` leaves the game"
)


class Opponent:
    """Plays one rollout, one choice at a time.

    After each choice, the rollout is replayed from the start up to the next choice. The model is called once
    per conversation, so its earlier answers do not change.
    """

    def __init__(
        self,
        environment: EnvironmentHandle,
        memo: ConversationMemo,
        opening: Example,
        output: Output,
        *,
        seed: int = 0,
    ) -> None:
        self._environment = environment
        self._memo = memo
        self._opening = opening
        self._output = output
        self._seed = seed
        self._choices: list[Any] = []
        self._shown = 0

    async def play(self) -> Rollout | None:
        """Return the rollout once it has ended; None if the person quit."""
        name = f"{self._opening.example_id}/0"
        while True:
            self._memo.assign(name, self._choices, stop=True)
            rollout = await self._environment.rollout(
                self._memo, self._opening, run_seed=self._seed, sampling=WalkPlan().greedy, rollout_id=name
            )
            messages = [*rollout.prompt, *rollout.completion]
            for message in messages[self._shown :]:
                show_message(message, self._output)
            self._shown = len(messages)
            if rollout.failure is not None or rollout.stop_reason != PENDING:
                return rollout
            line = rollout.info[LINE]
            if line["position"]:
                self._output.line()
                self._output.line(line["position"])
            if not await self._decide(line["pending"]):
                return None

    async def _decide(self, options: list[Any]) -> bool:
        """Ask until a choice is made or taken back; return False if the person quit."""
        by_word = {str(option): option for option in options}
        self._output.line(f"your choice: {', '.join(by_word)}", style="bold")
        while True:
            typed = await asyncio.to_thread(read_line)
            word = typed.strip()
            if not typed or word == "/quit":
                return False
            if word == "/undo" and self._choices:
                self._choices.pop()
                self._shown = 0
                self._output.line()
                self._output.line("-- taken back", style="hint")
                return True
            if word == "/hint":
                await self._hint(by_word)
            elif word in by_word:
                self._choices.append(by_word[word])
                return True
            else:
                self._output.line(f"choose one of {', '.join(by_word)}; {HELP}", style="dim")

    async def _hint(self, by_word: dict[str, Any]) -> None:
        """Print the possible results after each choice."""
        for word, option in by_word.items():
            count = await count_from(
                self._environment, self._memo, self._opening, [*self._choices, option], self._seed
            )
            ends = {name: getattr(count, name) for name in ("won", "drawn", "lost", "unfinished", "failed")}
            told = ", ".join(f"{number} {name}" for name, number in ends.items() if number)
            self._output.line(f"{word}: the model has {told} of {count.lines}", style="dim")
