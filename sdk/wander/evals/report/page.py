"""Renders a report as one self-contained HTML page that works offline: charts, tables and rollouts.

Text from models, endpoints and environments cannot become markup: the template escapes it, and the page's
content security policy allows only its two inline scripts, no requests and no frames.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from typing import Any

from wander.evals.report import charts
from wander.evals.report import document as words
from wander.evals.report.contents import ReportedRun, RunReport
from wander.parsers import message_text
from wander.types import Message, Rollout

LONGEST = 4000
"""Characters shown of a message. The page says how many were cut."""

_REASON = 80
"""Characters shown of a stop reason."""

_FACTS = (
    *("reward", "rollouts", "failed", "truncated", "refused", "filtered", "turns", "tokens", "time"),
    *("task set", "run"),
)
"""Facts that are compared side by side."""

_DRAW = """
const dark = matchMedia("(prefers-color-scheme: dark)");
const specs = JSON.parse(document.getElementById("charts").textContent);
function draw() {
  const style = getComputedStyle(document.documentElement), css = name => style.getPropertyValue(name).trim();
  const ink = css("--text"), muted = css("--muted"), line = css("--line");
  const palette = css("--palette").split(/\\s+/);
  const config = {
    background: "transparent", font: "system-ui, sans-serif", view: {stroke: "transparent"},
    axis: {labelColor: muted, titleColor: muted, gridColor: line, domainColor: line, tickColor: line,
           labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal"},
    legend: {labelColor: ink, titleColor: muted, labelFontSize: 12, symbolType: "circle",
             symbolOpacity: 1, symbolBaseStrokeColor: ink},
    bar: {fill: palette[0]}, rule: {stroke: ink}, point: {fill: palette[0]}, line: {stroke: palette[0]},
    range: {category: palette},
  };
  for (const [name, spec] of Object.entries(specs)) {
    const tooltip = {theme: dark.matches ? "dark" : "light"};
    const options = {actions: false, renderer: "svg", ast: true, config, tooltip};
    window.vegaEmbed(document.getElementById(name), spec, options);
  }
}
dark.addEventListener("change", draw);
draw();
"""


def html_report(report: RunReport) -> str:
    """Return the HTML page of a report. Raises `MissingExtra` if `wander-sdk[plots]` is not installed."""
    charts.require_charts("an HTML report")
    from jinja2 import Environment, StrictUndefined

    specs: dict[str, charts.Row] = {}
    shared = _place(_chart_together(report.runs), "shared", specs)
    sections = [_section(run, number, specs) for number, run in enumerate(report.runs)]
    scripts = [_libraries(), _inline(_DRAW)]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = (
        resources.files("wander.evals.report").joinpath("templates/report.html").read_text(encoding="utf-8")
    )
    return environment.from_string(source).render(
        title=words.report_title(report),
        sections=sections,
        shared=shared,
        side_by_side=_side_by_side(sections),
        contrasts=[(contrast.label, words.contrast_cells(contrast)) for contrast in report.contrasts],
        base=words.base_label(report),
        specs=json.dumps(specs).replace("<", "\\u003c"),
        scripts=scripts,
        policy=" ".join(f"'sha256-{_digest(script)}'" for script in scripts),
    )


@cache
def _libraries() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script. Bundling them takes seconds."""
    import vl_convert

    return _inline(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed"))


def _section(run: ReportedRun, number: int, specs: dict[str, charts.Row]) -> dict[str, Any]:
    summary, breakdown = run.breakdown.summary, run.breakdown
    histograms = {
        "rewards": ("Rewards", "reward", summary.histogram, summary.reward_mean),
        "tokens": ("Lengths", "completion tokens per rollout", breakdown.tokens, None),
        "turns": ("Turns", "turns per rollout", breakdown.turns, None),
    }
    drawn = {
        name: (title, charts.chart_histogram(bins, axis=axis, mean=mean))
        for name, (title, axis, bins, mean) in histograms.items()
        if bins is not None and words.only_value(bins) is None
    }
    equal = [
        (title, f"{value:.4g} {axis}" if axis.endswith("per rollout") else f"{value:.4g} in every rollout")
        for title, axis, bins, _ in histograms.values()
        if bins is not None and (value := words.only_value(bins)) is not None
    ]
    return {
        "label": run.label,
        "title": words.run_title(run.manifest),
        "facts": words.run_facts(run.manifest, breakdown),
        "tables": list(words.score_tables(breakdown)),
        "failures": words.failure_table(breakdown)[1],
        "equal": equal,
        "charts": _place(drawn, f"run{number}", specs),
        "ends": [
            ("Highest rewards", [_show(rollout) for rollout in breakdown.best]),
            ("Lowest rewards", [_show(rollout) for rollout in breakdown.worst]),
        ],
    }


def _side_by_side(sections: Sequence[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return the names and values of the facts that at least one run has."""
    facts = [dict(section["facts"]) for section in sections]
    rows = [(name, [values.get(name, "") for values in facts]) for name in _FACTS]
    return [(name, values) for name, values in rows if any(values)]


def _place(
    drawn: dict[str, tuple[str, Any]], place: str, specs: dict[str, charts.Row]
) -> list[tuple[str, str]]:
    """Add charts to the page's specs, and return the id and title of each."""
    for name, (_, chart) in drawn.items():
        spec = chart.to_dict()
        spec.pop("config", None)  # the page sets its own
        specs[f"{place}-{name}"] = spec
    return [(f"{place}-{name}", title) for name, (title, _) in drawn.items()]


def _chart_together(runs: Sequence[ReportedRun]) -> dict[str, tuple[str, Any]]:
    """Return the title and chart, by name, of the charts that combine all runs of a report."""
    scores = charts.chart_intervals(list(_scores(runs)), "metric")
    drawn = {"scores": ("Rewards and metrics, with 95% intervals", scores)}
    if rates := list(_rates(runs)):
        title = "Passing once (pass@k) and always (pass^k) in k rollouts"
        drawn["passes"] = (title, charts.chart_pass_rates(rates))
    if strata := list(_strata(runs)):
        drawn["strata"] = ("Reward by stratum", charts.chart_intervals(strata, "stratum"))
    return drawn


def _scores(runs: Sequence[ReportedRun]) -> Iterator[charts.Row]:
    for run in runs:
        summary = run.breakdown.summary
        if summary.reward_mean is not None:
            yield _row(run, "reward", summary.reward_mean, summary.reward_low, summary.reward_high)
        for name, metric in summary.metrics.items():
            yield _row(run, name, metric.mean, metric.low, metric.high)


def _strata(runs: Sequence[ReportedRun]) -> Iterator[charts.Row]:
    for run in runs:
        for stratum in run.breakdown.strata:
            if stratum.mean is not None:
                name = "none" if stratum.stratum is None else str(stratum.stratum)
                yield _row(run, name, stratum.mean, stratum.low, stratum.high)


def _row(run: ReportedRun, name: str, mean: float, low: float | None, high: float | None) -> charts.Row:
    ends = {"low": mean if low is None else low, "high": mean if high is None else high}
    return {"run": run.label, "name": name, "mean": mean, **ends}


def _rates(runs: Sequence[ReportedRun]) -> Iterator[charts.Row]:
    for run in runs:
        for rate in run.breakdown.summary.pass_rates:
            any_pass = (rate.pass_at_k, rate.pass_at_k_low, rate.pass_at_k_high)
            all_pass = (rate.pass_hat_k, rate.pass_hat_k_low, rate.pass_hat_k_high)
            for kind, (value, low, high) in (("pass@k", any_pass), ("pass^k", all_pass)):
                yield {"run": run.label, "k": rate.k, "kind": kind, "value": value, "low": low, "high": high}


def _show(rollout: Rollout) -> dict[str, Any]:
    return {
        "name": f"{rollout.example_id} / {rollout.index}",
        "reward": "none" if rollout.reward is None else f"{rollout.reward:.4f}",
        "ended": (rollout.stop_reason or "")[:_REASON],
        "truncated": rollout.truncated,
        "answer": "" if rollout.answer in ("", None) else _shorten(str(rollout.answer)),
        "metrics": ", ".join(f"{name} {value:.4g}" for name, value in rollout.metrics.items()),
        "messages": [_message(message) for message in [*rollout.prompt, *rollout.completion]],
    }


def _message(message: Message) -> dict[str, Any]:
    calls = message.get("tool_calls")
    functions = [call.get("function", {}) for call in calls if isinstance(call, dict)] if calls else []
    return {
        "role": str(message.get("role", "?")),
        "reasoning": _shorten(str(message.get("reasoning_content") or "")),
        "text": _shorten(message_text(message)),
        "calls": [_shorten(f"{function.get('name')}({function.get('arguments')})") for function in functions],
    }


def _shorten(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}\n... {len(text) - LONGEST:,} more characters"


def _inline(script: str) -> str:
    """Return a script escaped such that no string in it can close the script element."""
    return re.sub(r"<(?=/script|!--)", r"\\x3c", script, flags=re.IGNORECASE)


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
