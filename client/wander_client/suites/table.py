"""Progress of a suite: a live table on a terminal, otherwise a line from time to time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from wander_client.evaluate.progress import rate_limit_note
from wander_client.terminal.escape import one_line
from wander_client.terminal.output import Output, clock_time, counted

if TYPE_CHECKING:
    from rich.table import Table
    from wander.evals.run.runner import Progress

State = Literal["waiting", "starting", "playing", "done", "kept", "partial", "failed", "stopped"]
_LINE_SECONDS = 30.0
_STYLES: dict[State, str] = {"done": "green", "kept": "green", "partial": "yellow", "failed": "red"}


@dataclass
class SuiteRow:
    """An evaluation's row of the table."""

    name: str
    state: State = "waiting"
    progress: Progress | None = None
    resumed_rollouts: int = 0
    """Number of rollouts that were played before this part."""
    note: str = ""
    """Error or note that is shown after the state."""
    printed_step: int = 0
    printed_at: float = field(default_factory=time.monotonic)

    def eta(self) -> str:
        """Return the estimated time left, from the average pace."""
        progress = self.progress
        if self.state != "playing" or progress is None or progress.done <= self.resumed_rollouts:
            return ""
        remaining = progress.total - progress.done
        return clock_time(progress.seconds / (progress.done - self.resumed_rollouts) * remaining)

    def cells(self) -> list[str]:
        """Return name, state, rollouts, reward, failures, tokens, cost and time left."""
        progress = self.progress
        if progress is None:
            return [self.name, self.state, "", "", "", "", "", self.note]
        tokens = progress.usage.prompt_tokens + progress.usage.completion_tokens
        return [
            self.name,
            self.state,
            f"{progress.done:,}/{progress.total:,}",
            "" if progress.reward_mean is None else f"{progress.reward_mean:.3f}",
            f"{progress.failed:,}" if progress.failed else "",
            f"{tokens:,}" if tokens else "",
            "" if progress.usd is None else f"{progress.usd:.4g}",
            f"{self.eta()}{rate_limit_note(progress)}".strip() if self.state == "playing" else self.note,
        ]


class SuiteTable:
    """A table of the suite's evaluations that is updated while they play."""

    def __init__(self, output: Output, names: list[str]) -> None:
        self.rows = [SuiteRow(name) for name in names]
        self._output = output

    @contextmanager
    def show(self) -> Iterator[None]:
        """Show the table while the block runs, and then clear it."""
        if not (self._output.human and self._output.shows_progress and sys.stderr.isatty()):
            yield
            return
        from rich.console import Console
        from rich.live import Live

        with Live(
            console=Console(stderr=True),
            get_renderable=self._table,
            refresh_per_second=4,
            transient=True,
        ):
            yield

    def set_state(self, number: int, state: State, note: str = "") -> None:
        """Set the state of an evaluation, and print it without a live table."""
        row = self.rows[number]
        row.state, row.note = state, one_line(note)
        if state != "waiting":
            self._print(f"{row.name}  {state}{'  ' + row.note if note else ''}")

    def set_progress(self, number: int, progress: Progress) -> None:
        """Update the progress of an evaluation."""
        row = self.rows[number]
        if row.progress is None:
            row.resumed_rollouts = progress.done
            row.state = "playing"
        row.progress = progress
        step = 4 * progress.done // progress.total if progress.total else 0
        if step > row.printed_step or time.monotonic() - row.printed_at > _LINE_SECONDS:
            row.printed_step, row.printed_at = step, time.monotonic()
            parts = [cell for cell in row.cells()[2:4] if cell]
            failed = f"  {progress.failed} failed" if progress.failed else ""
            self._print(f"{row.name}  {'  reward '.join(parts)}{failed}{rate_limit_note(progress)}")

    def _print(self, line: str) -> None:
        """Print a line without a live table."""
        if not (self._output.human and sys.stderr.isatty()) and self._output.shows_progress:
            self._output.note(line)

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, title=None)
        for name in ("evaluation", "state", "rollouts", "reward", "failed", "tokens", "USD", "left"):
            right = name not in ("evaluation", "state", "left")
            table.add_column(name, justify="right" if right else "left", no_wrap=name != "evaluation")
        for row in self.rows:
            table.add_row(*(Text(cell) for cell in row.cells()), style=_STYLES.get(row.state))
        done = sum(row.state in ("done", "kept", "partial", "failed") for row in self.rows)
        table.caption = f"{done} of {counted(len(self.rows), 'evaluation')}"
        table.caption_justify = "left"
        return table
