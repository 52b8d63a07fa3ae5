"""Progress of a suite: a line when an evaluation starts and ends, and after each quarter of its rollouts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from wander_client.evaluate.progress import rate_limit_note
from wander_client.terminal.escape import one_line

if TYPE_CHECKING:
    from wander.evals.run.runner import Progress

    from wander_client.terminal.output import Output

State = Literal["waiting", "starting", "playing", "done", "kept", "partial", "failed", "stopped"]
_LINE_SECONDS = 30.0


@dataclass
class EvaluationProgress:
    """The progress of an evaluation of the suite."""

    name: str
    state: State = "waiting"
    progress: Progress | None = None
    printed_step: int = 0
    printed_at: float = field(default_factory=time.monotonic)


class SuiteProgress:
    """Prints the progress of a suite's evaluations while they play."""

    def __init__(self, output: Output, names: list[str]) -> None:
        self.rows = [EvaluationProgress(name) for name in names]
        self._output = output

    def set_state(self, number: int, state: State, note: str = "") -> None:
        """Set and print the state of an evaluation."""
        row = self.rows[number]
        row.state = state
        self._print(f"{row.name}  {state}{'  ' + one_line(note) if note else ''}")

    def set_progress(self, number: int, progress: Progress) -> None:
        """Update the progress of an evaluation."""
        row = self.rows[number]
        if row.progress is None:
            row.state = "playing"
        row.progress = progress
        step = 4 * progress.done // progress.total if progress.total else 0
        if step > row.printed_step or time.monotonic() - row.printed_at > _LINE_SECONDS:
            row.printed_step, row.printed_at = step, time.monotonic()
            mean = "" if progress.reward_mean is None else f"  reward {progress.reward_mean:.3f}"
            failed = f"  {progress.failed} failed" if progress.failed else ""
            done = f"{progress.done:,}/{progress.total:,}"
            self._print(f"{row.name}  {done}{mean}{failed}{rate_limit_note(progress)}")

    def _print(self, line: str) -> None:
        if self._output.shows_progress:
            self._output.note(line)
