"""A run in words: plain text, Markdown, and the histogram of its rewards as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wander.errors import ConfigError, MissingExtra
from wander.wire import RunManifest, RunSummary

_BAR = 30


def text_lines(manifest: RunManifest, summary: RunSummary) -> list[str]:
    """Return the report as lines of plain text, readable without colour."""
    lines = [_title(manifest), *(f"{name:<10}{value}" for name, value in facts(manifest, summary))]
    if summary.metrics:
        width = max(len(name) for name in ("metric", *summary.metrics))
        lines += ["", f"{'metric':<{width}}  {'mean':>9}  {'std':>9}  {'count':>6}"]
        lines += [
            f"{name:<{width}}  {one.mean:>9.4f}  {one.std:>9.4f}  {one.count:>6}"
            for name, one in summary.metrics.items()
        ]
    if histogram := histogram_lines(summary):
        lines += ["", *histogram]
    return lines


def markdown(manifest: RunManifest, summary: RunSummary) -> str:
    """Return the report as a Markdown section."""
    parts = [f"## {_escaped(_title(manifest))}", "", "| | |", "|---|---|"]
    parts += [f"| {name} | {_escaped(value)} |" for name, value in facts(manifest, summary)]
    if summary.metrics:
        parts += ["", "| metric | mean | std | count |", "|---|---:|---:|---:|"]
        parts += [
            f"| {_escaped(name)} | {one.mean:.4f} | {one.std:.4f} | {one.count} |"
            for name, one in summary.metrics.items()
        ]
    if histogram := histogram_lines(summary):
        parts += ["", "```text", *histogram, "```"]
    return "\n".join(parts) + "\n"


def facts(manifest: RunManifest, summary: RunSummary) -> list[tuple[str, str]]:
    """Return what a report says first, as (name, value) pairs."""
    rows = [("reward", score(summary)), ("rollouts", _counts(manifest, summary))]
    if summary.failures:
        rows.append(("failed", _shares(summary.failures)))
    if summary.stop_reasons:
        rows.append(("ended", _shares(summary.stop_reasons)))
    if summary.truncated:
        rows.append(("truncated", str(summary.truncated)))
    if summary.turns_mean is not None:
        rows.append(("turns", f"{summary.turns_mean:.2f} a rollout"))
    if summary.usage.completion_tokens:
        usage = summary.usage
        rows.append(("tokens", f"{usage.prompt_tokens:,} read, {usage.completion_tokens:,} written"))
    if manifest.endpoints is not None:
        rows.append(("calls", manifest.endpoints.told()))
    if summary.seconds_mean is not None:
        rows.append(("time", f"{summary.seconds_mean:.2f} s a rollout"))
    rows.append(("task set", manifest.task_set_sha256[:12]))
    rows.append(("run", manifest.run_id))
    return rows


def score(summary: RunSummary) -> str:
    """Return the mean reward with its 95 % interval: `0.7310 (95 % interval 0.6500 to 0.8010)`."""
    if summary.reward_mean is None:
        return "none: no rollout was scored"
    if summary.reward_low is None or summary.reward_high is None:
        return f"{summary.reward_mean:.4f} (too few rollouts for an interval)"
    return f"{summary.reward_mean:.4f} (95 % interval {summary.reward_low:.4f} to {summary.reward_high:.4f})"


def histogram_lines(summary: RunSummary) -> list[str]:
    """Return the reward histogram as lines of text; the longest bar fills its column."""
    if summary.histogram is None:
        return []
    edges, counts = summary.histogram.edges, summary.histogram.counts
    most = max(counts)
    lines = []
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        # A bin that holds anything shows something.
        bar = "#" * max(round(_BAR * count / most), 1 if count else 0)
        lines.append(f"{low:>9.3f} to {high:>9.3f}  {count:>6}  {bar}".rstrip())
    return lines


def reward_histogram_chart(summary: RunSummary, path: Path) -> None:
    """Draw the reward histogram to a `.png`, `.svg` or `.pdf` file; raises `MissingExtra` without altair."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"cannot draw to `{path.name}`", hint="name the file `.svg`, `.png` or `.pdf`")
    if summary.histogram is None:
        raise ConfigError("there is no histogram to draw: no rollout was scored")
    try:
        import altair
        import vl_convert  # noqa: F401 - altair saves through it
    except ImportError as error:
        raise MissingExtra("plots", needed_for="drawing a chart") from error
    alt: Any = altair
    bins: list[dict[str, Any]] = [
        {"low": low, "high": high if high > low else low + 0.05, "count": count}
        for low, high, count in zip(
            summary.histogram.edges, summary.histogram.edges[1:], summary.histogram.counts, strict=False
        )
    ]
    chart = alt.Chart(alt.Data(values=bins), width=480, height=240, title="Rewards")
    bars = chart.mark_bar(binSpacing=1).encode(
        x=alt.X("low:Q", bin="binned", title="reward"),
        x2="high:Q",
        y=alt.Y("count:Q", title="rollouts"),
    )
    layers = [bars]
    if summary.reward_mean is not None:
        mean = alt.Chart(alt.Data(values=[{"mean": summary.reward_mean}]))
        layers.append(mean.mark_rule(strokeDash=[4, 3], strokeWidth=2).encode(x="mean:Q"))
    alt.layer(*layers).save(path)


def _title(manifest: RunManifest) -> str:
    environment = manifest.environment
    name = f"{environment.owner}/{environment.name}" if environment.owner else environment.name
    return f"{manifest.model.name} on {name}" + (f" {environment.version}" if environment.version else "")


def _counts(manifest: RunManifest, summary: RunSummary) -> str:
    each = manifest.rollouts_per_example
    text = f"{summary.rollouts} of {summary.expected}: {len(manifest.example_ids)} examples, {each} each"
    return text if not summary.failed else f"{text}; {summary.failed} failed"


def _shares(counts: dict[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count}" for name, count in ordered)


def _escaped(text: str) -> str:
    """Keep text from outside (names of models, metrics, stops) inside its table cell."""
    plain = " ".join(text.split())
    for character in "\\`*_[]<>|#":
        plain = plain.replace(character, "\\" + character)
    return plain
