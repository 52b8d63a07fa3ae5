"""Formatting of runs and rollouts for the terminal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from wander_client.terminal.output import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from wander.types import Message, Rollout
    from wander.wire import RolloutRow, RunManifest, RunSummary
    from wander.wire.transfers import SealedPlay

    from wander_client.terminal.output import Cell, Output

BAR_WIDTH = 30
Row = TypeVar("Row")


def show_summary(summary: RunSummary, output: Output, manifest: RunManifest) -> None:
    """Print the score, counts, metrics and reward histogram of a run."""
    use = manifest.endpoints
    output.line(f"reward  {interval(summary)}", style="bold")
    output.line(
        f"scored  {summary.rollouts - summary.failed} of {counted(summary.expected, 'rollout')}, "
        f"{counted(summary.examples, 'example')}, {summary.failed} failed, {summary.truncated} truncated"
        + (f", {summary.refused} refused" if summary.refused else "")
        + (f", {summary.filtered} filtered" if summary.filtered else "")
    )
    if endings := summary.endings(manifest.environment.info):
        reasons = sorted(endings.items(), key=lambda item: -item[1])
        output.line("ended   " + ", ".join(f"{name} {count}" for name, count in reasons))
    if summary.usage.completion_tokens:
        from wander.evals.report.document import token_text

        output.line(f"tokens  {token_text(summary.usage)}")
    if use is not None:
        output.line(f"calls   {use.told()}")
    if summary.metrics:
        output.line()
        rows: list[list[Cell]] = [
            [name, metric.mean, metric.std, metric.count] for name, metric in summary.metrics.items()
        ]
        output.table(["metric", "mean", "std", "count"], rows)
    if summary.pass_rates:
        from wander.evals.report.document import pass_table

        heading, rates = pass_table(summary)
        output.line()
        output.table(heading, rates)
    if (histogram := summary.histogram) is not None and output.human:
        output.line()
        most = max(histogram.counts, default=0)
        for low, high, count in zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False):
            if count:
                bar = "█" * round(BAR_WIDTH * count / most)
                output.line(f"{low:>8.3f} to {high:<8.3f} {count:>6}  {bar}")


def failure_reasons(run_dir: Path) -> list[tuple[str, int]]:
    """Return the three most common failures of a run's rollouts, with their counts."""
    from wander.evals.store.folder import RunFolder

    failures = [
        rollout.failure for rollout in RunFolder.open(run_dir).rollouts() if rollout.failure is not None
    ]
    reasons = Counter(f"{f.boundary}: {f.type}: {shorten(f.message, 160)}" for f in failures)
    return reasons.most_common(3)


def interval(summary: RunSummary | SealedPlay) -> str:
    """Return the mean reward with its 95% interval."""
    if summary.reward_mean is None:
        return "none: no rollout was scored"
    text = f"{summary.reward_mean:.4f}"
    if summary.reward_low is not None and summary.reward_high is not None:
        text += f"  [{summary.reward_low:.4f}, {summary.reward_high:.4f}]"
    return text


def rollout_row(row: RolloutRow) -> list[Cell]:
    """Return the cells of `ROLLOUT_COLUMNS` for a rollout. In a training run, the index is followed by the
    step, as in `3 @40`."""
    ended = f"failed: {row.failure}" if row.failure else row.stop_reason or ""
    said = shorten(row.preview)
    index: Cell = row.index if row.step is None else f"{row.index} @{row.step}"
    return [row.number, row.example_id, index, row.reward, row.turns, ended, said]


ROLLOUT_COLUMNS = ["#", "example", "index", "reward", "turns", "ended", "last answer"]


StyledLine = tuple[str, str | None]
"""A line (or several, with newlines) and its style."""


def show_rollout(number: int, rollout: Rollout, output: Output) -> None:
    """Print a whole rollout: prompt, turns, reason for its end, and rewards."""
    for text, style in rollout_lines(number, rollout):
        output.line(text, style=style)


def rollout_lines(number: int, rollout: Rollout) -> Iterator[StyledLine]:
    """Yield a whole rollout as styled lines: prompt, turns, reason for its end, and rewards."""
    reward = "none" if rollout.reward is None else f"{rollout.reward:.4f}"
    step = "" if rollout.step is None else f", after {counted(rollout.step, 'step')} of training"
    head = f"rollout {number}: example {rollout.example_id}, index {rollout.index}, reward {reward}{step}"
    yield head, "bold"
    for message in rollout.prompt:
        yield from _message_parts(message, "")
    turn = 0
    for message in rollout.completion:
        mark = ""
        if message.get("role") == "assistant":
            mark = _turn_facts(rollout, turn)
            turn += 1
        yield from _message_parts(message, mark)
    yield "", None
    if rollout.failure is not None:
        failure = rollout.failure
        yield f"failed at the {failure.boundary}: {failure.type}: {failure.message}", "error"
    else:
        yield f"ended: {rollout.stop_reason}" + (", truncated" if rollout.truncated else ""), None
    if rollout.answer not in ("", None):
        yield f"expected: {rollout.answer}", None
    for player, value in rollout.rewards.items():
        yield f"reward of {player}: {value:.4f}", None
        for name, metric in rollout.player_metrics.get(player, {}).items():
            yield f"  {name:<24} {metric:.4g}", None
    for name, value in rollout.metrics.items():
        yield f"  {name:<24} {value:.4g}", None


def _turn_facts(rollout: Rollout, turn: int) -> str:
    if turn >= len(rollout.turns):
        return ""
    fact = rollout.turns[turn]
    tokens = f", {fact.usage.completion_tokens} tokens" if fact.usage.completion_tokens else ""
    cached = ", from the cache" if fact.cached else ""
    gap = f", without messages {fact.left_out[0] + 1} to {fact.left_out[1]}" if fact.left_out else ""
    return f"turn {turn + 1}{tokens}, {fact.model_seconds:.2f} s{cached}{gap}"


def _message_parts(message: Message, mark: str) -> Iterator[StyledLine]:
    role = str(message.get("role", "?"))
    yield "", None
    player = f" {message['player']}" if "player" in message else ""
    yield f"-- {role}{player}" + (f" ({mark})" if mark else ""), "hint"
    if message.get("reasoning_content"):
        yield f"[reasoning] {message['reasoning_content']}", "dim"
    yield message_text(message), None
    for call in message.get("tool_calls") or []:
        function = call.get("function", {})
        yield f"[calls] {function.get('name')}({function.get('arguments')})", None


def message_text(message: Message) -> str:
    """Return the text of a message, for every form of content."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [
            part.get("text", f"[{part.get('type', 'part')}]") for part in content if isinstance(part, dict)
        ]
        return "\n".join(str(part) for part in parts)
    return "" if content is None else str(content)


def sort_by(rows: list[Row], value: Callable[[Row], Any], *, falling: bool) -> list[Row]:
    """Return rows sorted by a value; rows without the value come last in both directions."""
    present = sorted((row for row in rows if value(row) is not None), key=value, reverse=falling)
    return [*present, *(row for row in rows if value(row) is None)]


def row_order(name: str, *, falling: bool) -> Callable[[RolloutRow], tuple[bool, float]]:
    """Return a sort key for rollouts by a field; rows without the field come last in both directions."""

    def order(row: RolloutRow) -> tuple[bool, float]:
        value = getattr(row, name)
        return value is None, 0.0 if value is None else -value if falling else value

    return order


def shorten(text: str, width: int = 60) -> str:
    """Return a single line of at most `width` characters, shortened in the middle."""
    from wander_client.terminal.output import cut

    return cut(" ".join(text.split()), width)
