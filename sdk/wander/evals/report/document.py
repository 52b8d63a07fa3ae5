"""Renders reports as plain text and Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wander.evals.report.contents import Contrast, RunReport
    from wander.evals.stats.breakdown import Breakdown
    from wander.types import Usage
    from wander.wire import Histogram, RunManifest, RunSummary

_BAR = 30
_REASON = 80
"""Characters shown of a stop reason."""


def report_lines(report: RunReport) -> list[str]:
    """Return a whole report as lines of plain text."""
    lines: list[str] = []
    for run in report.runs:
        lines += [*run_lines(run.manifest, run.breakdown), ""]
    if report.contrasts:
        lines += [f"compared with {base_label(report)}, example by example", ""]
        lines += _table(("run", *_CONTRAST), _contrast_rows(report))
    return lines if report.contrasts else lines[:-1]


def report_markdown(report: RunReport) -> str:
    """Return a whole report as Markdown."""
    parts = [run_markdown(run.manifest, run.breakdown) for run in report.runs]
    if report.contrasts:
        title = f"## Compared with {escape_markdown(base_label(report))}, example by example\n"
        parts.append("\n".join([title, *_markdown_table(("run", *_CONTRAST), _contrast_rows(report))]) + "\n")
    return "\n".join(parts)


def base_label(report: RunReport) -> str:
    """Return the label of the baseline of a report."""
    bases = {contrast.base for contrast in report.contrasts}
    return bases.pop() if len(bases) == 1 else "the first run of the same environment"


def run_lines(manifest: RunManifest, breakdown: Breakdown) -> list[str]:
    """Return the report as lines of plain text, readable without color."""
    lines = [run_title(manifest), *(f"{name:<10}{value}" for name, value in run_facts(manifest, breakdown))]
    for heading, rows in (*score_tables(breakdown), failure_table(breakdown)):
        lines += ["", *_table(heading, rows)] if rows else []
    if histogram := histogram_lines(breakdown.summary):
        lines += ["", *histogram]
    return lines


def run_markdown(manifest: RunManifest, breakdown: Breakdown) -> str:
    """Return the report as a Markdown section."""
    parts = [f"## {escape_markdown(run_title(manifest))}", "", "| | |", "|---|---|"]
    parts += [f"| {name} | {escape_markdown(value)} |" for name, value in run_facts(manifest, breakdown)]
    for heading, rows in (*score_tables(breakdown), failure_table(breakdown)):
        parts += ["", *_markdown_table(heading, rows)] if rows else []
    if histogram := histogram_lines(breakdown.summary):
        parts += ["", "```text", *histogram, "```"]
    return "\n".join(parts) + "\n"


_CONTRAST = ("difference", "95% interval", "p", "better", "worse", "same", "verdict")
"""Columns of a comparison, after the run's label."""


def contrast_cells(contrast: Contrast) -> list[str]:
    """Return a comparison as the cells of its table row."""
    comparison = contrast.comparison
    if comparison is None:
        return ["", "", "", "", "", "", contrast.refusal]
    interval = (
        ""
        if comparison.low is None or comparison.high is None
        else f"{comparison.low:+.4f} to {comparison.high:+.4f}"
    )
    counts = [str(comparison.wins), str(comparison.losses), str(comparison.ties)]
    p_value = "" if comparison.p_value is None else f"{comparison.p_value:.2g}"
    verdict = "clear" if comparison.significant else "within chance"
    if comparison.differing:
        verdict += f"; also differ in {', '.join(comparison.differing)}"
    return [f"{comparison.difference:+.4f}", interval, p_value, *counts, verdict]


def _contrast_rows(report: RunReport) -> list[list[str]]:
    return [[contrast.label, *contrast_cells(contrast)] for contrast in report.contrasts]


def score_tables(breakdown: Breakdown) -> Iterator[tuple[Sequence[str], list[list[str]]]]:
    """Yield the heading and rows of every score table that the run has."""
    if breakdown.summary.metrics:
        yield metric_table(breakdown)
    if breakdown.summary.pass_rates:
        yield pass_table(breakdown.summary)
    if breakdown.strata:
        yield stratum_table(breakdown)


def metric_table(breakdown: Breakdown) -> tuple[Sequence[str], list[list[str]]]:
    """Return the heading and rows of the table of metrics."""
    rows = []
    for name, metric in breakdown.summary.metrics.items():
        rows.append(
            [
                name,
                f"{metric.mean:.4f}",
                interval_text(metric.low, metric.high),
                f"{metric.std:.4f}",
                str(metric.count),
            ]
        )
    return ("metric", "mean", "95% interval", "std", "count"), rows


def pass_table(summary: RunSummary) -> tuple[Sequence[str], list[list[str]]]:
    """Return the heading and rows of the table of pass@k and pass^k."""
    rows = [
        [
            *(str(rate.k), f"{rate.pass_at_k:.4f}", interval_text(rate.pass_at_k_low, rate.pass_at_k_high)),
            *(f"{rate.pass_hat_k:.4f}", interval_text(rate.pass_hat_k_low, rate.pass_hat_k_high)),
            str(rate.examples),
        ]
        for rate in summary.pass_rates
    ]
    return ("k", "pass@k", "95% interval", "pass^k", "95% interval", "examples"), rows


def stratum_table(breakdown: Breakdown) -> tuple[Sequence[str], list[list[str]]]:
    """Return the heading and rows of the table of mean rewards by stratum."""
    rows = [
        [
            "none" if score.stratum is None else str(score.stratum),
            "" if score.mean is None else f"{score.mean:.4f}",
            interval_text(score.low, score.high),
            str(score.examples),
        ]
        for score in breakdown.strata
    ]
    return ("stratum", "reward", "95% interval", "examples"), rows


def failure_table(breakdown: Breakdown) -> tuple[Sequence[str], list[list[str]]]:
    """Return the heading and rows of the table of the most frequent failures."""
    rows = [
        [failure.boundary, str(failure.count), f"{failure.type}: {' '.join(failure.message.split())}"[:160]]
        for failure in breakdown.failures[:10]
    ]
    return ("failed at", "count", "reason"), rows


def interval_text(low: float | None, high: float | None) -> str:
    """Format an interval as text: `0.6500 to 0.8010`."""
    return "" if low is None or high is None else f"{low:.4f} to {high:.4f}"


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Align columns: the first column and text to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    number = [
        place > 0 and all(not row[place] or row[place][0] in "0123456789+-" for row in rows)
        for place in range(len(heading))
    ]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, number, strict=True)
        ).rstrip()
        for line in (heading, *rows)
    ]


def _markdown_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(heading) + " |", "|" + "---|" * len(heading)]
    return lines + ["| " + " | ".join(map(escape_markdown, row)) + " |" for row in rows]


def run_facts(manifest: RunManifest, breakdown: Breakdown) -> list[tuple[str, str]]:
    """Return the main facts of a run as (name, value) pairs."""
    summary, per_example = breakdown.summary, manifest.rollouts_per_example
    counts = (
        f"{summary.rollouts} of {summary.expected}: {len(manifest.example_ids)} examples, {per_example} each"
    )
    if summary.failed:
        counts += f"; {summary.failed} failed"
    rows = [("reward", reward_text(summary)), ("rollouts", counts)]
    if breakdown.detectable is not None:
        shown = f"a difference of {breakdown.detectable:.4f} from a run on other examples, with 80% power"
        rows.append(("detects", shown))
    if summary.failures:
        rows.append(("failed", _shares(summary.failures)))
    if endings := summary.endings(manifest.environment.info):
        rows.append(("ended", _shares(endings)))
    for name in ("truncated", "refused", "filtered"):
        if count := getattr(summary, name):
            rows.append((name, str(count)))
    if summary.turns_mean is not None:
        rows.append(("turns", f"{summary.turns_mean:.2f} per rollout"))
    if summary.usage.completion_tokens:
        rows.append(("tokens", token_text(summary.usage)))
    if manifest.endpoints is not None:
        rows.append(("calls", manifest.endpoints.told()))
    if summary.seconds_mean is not None:
        rows.append(("time", f"{summary.seconds_mean:.2f} s per rollout"))
    rows.append(("task set", manifest.task_set_sha256[:12]))
    rows.append(("run", manifest.run_id))
    return rows


def token_text(usage: Usage) -> str:
    """Format the tokens of a run: `1,200 read, 300 written`."""
    counts = f"{usage.prompt_tokens:,} read, {usage.completion_tokens:,} written"
    return f"about {counts}: the endpoint does not count all of them" if usage.estimated else counts


def reward_text(summary: RunSummary) -> str:
    """Format the mean reward with its 95% interval: `0.7310 (95% interval 0.6500 to 0.8010)`."""
    if summary.reward_mean is None:
        return "none: no rollout was scored"
    if summary.reward_low is None or summary.reward_high is None:
        return f"{summary.reward_mean:.4f} (too few rollouts for an interval)"
    return f"{summary.reward_mean:.4f} (95% interval {summary.reward_low:.4f} to {summary.reward_high:.4f})"


def histogram_lines(summary: RunSummary) -> list[str]:
    """Return the non-empty bins of the reward histogram as lines of text.

    The longest bar fills its column.
    """
    if summary.histogram is None:
        return []
    if (value := only_value(summary.histogram)) is not None:
        return [f"every reward is {value:.4g}"]
    edges, counts = summary.histogram.edges, summary.histogram.counts
    most = max(counts)
    lines = []
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        if count:
            bar = "#" * max(round(_BAR * count / most), 1)
            lines.append(f"{low:>9.3f} to {high:>9.3f}  {count:>6}  {bar}")
    return lines


def only_value(bins: Histogram) -> float | None:
    """Return the value shared by everything that was counted, or None if the values differ."""
    return bins.edges[0] if bins.edges[0] == bins.edges[-1] else None


def run_title(manifest: RunManifest) -> str:
    """Return the title of a run: `model on owner/name 1.2`."""
    pin = manifest.environment
    title = f"{manifest.model.name} on {pin.full_name}"
    return f"{title} {pin.version}" if pin.version else title


def _shares(counts: dict[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name[:_REASON]} {count}" for name, count in ordered)


def escape_markdown(text: str) -> str:
    """Escape text from outside (names of models, metrics, stop reasons) for a Markdown table cell."""
    plain = " ".join(text.split())
    for character in "\\`*_[]<>|#":
        plain = plain.replace(character, "\\" + character)
    return plain
