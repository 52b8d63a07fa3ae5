"""The charts of a report, as Vega-Lite: every one has its numbers in a table or a tooltip beside it.

Colours, lines and letters come from the page, so that charts follow its light or dark theme.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from wander.errors import ConfigError, MissingExtra
from wander.evals.report.contents import ReportedRun, RunReport
from wander.wire import Histogram, RunSummary

Spec = dict[str, Any]


def require_charts(needed_for: str) -> Any:
    """Return altair; raises `MissingExtra` without it or without the converter that it saves through."""
    try:
        import altair
        import vl_convert  # noqa: F401 - draws and bundles what altair describes
    except ImportError as error:
        raise MissingExtra("plots", needed_for=needed_for) from error
    return altair


def make_shared_charts(report: RunReport) -> dict[str, tuple[str, Spec]]:
    """Return title and chart, by name, of what all runs of a report show together."""
    found = {
        "scores": ("Rewards and metrics, with 95 % intervals", _intervals(_scores(report.runs), "metric"))
    }
    if rates := list(_rates(report.runs)):
        found["passes"] = ("Passing once (pass@k) and always (pass^k) in k rollouts", _pass_lines(rates))
    if strata := list(_strata(report.runs)):
        found["strata"] = ("Reward by stratum", _intervals(strata, "stratum"))
    return found


def run_charts(run: ReportedRun) -> dict[str, tuple[str, Spec]]:
    """Return title and chart, by name, of what one run shows."""
    breakdown = run.breakdown
    histograms = {
        "rewards": ("Rewards", "reward", breakdown.summary.histogram),
        "tokens": ("Lengths", "completion tokens a rollout", breakdown.tokens),
        "turns": ("Turns", "turns a rollout", breakdown.turns),
    }
    return {
        name: (title, _histogram(axis, bins, breakdown.summary.reward_mean if name == "rewards" else None))
        for name, (title, axis, bins) in histograms.items()
        if bins is not None
    }


def reward_histogram_chart(summary: RunSummary, path: Path) -> None:
    """Draw the reward histogram to a `.png`, `.svg` or `.pdf` file; raises `MissingExtra` without altair."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"cannot draw to `{path.name}`", hint="name the file `.svg`, `.png` or `.pdf`")
    if summary.histogram is None:
        raise ConfigError("there is no histogram to draw: no rollout was scored")
    alt = require_charts("drawing a chart")
    chart = alt.Chart(alt.Data(values=bars(summary.histogram)), width=480, height=240, title="Rewards")
    columns = chart.mark_bar(binSpacing=1).encode(
        x=alt.X("low:Q", bin="binned", title="reward"),
        x2="high:Q",
        y=alt.Y("count:Q", title="rollouts"),
    )
    layers = [columns]
    if summary.reward_mean is not None:
        mean = alt.Chart(alt.Data(values=[{"mean": summary.reward_mean}]))
        layers.append(mean.mark_rule(strokeDash=[4, 3], strokeWidth=2).encode(x="mean:Q"))
    alt.layer(*layers).save(path)


def bars(bins: Histogram) -> list[dict[str, float]]:
    """Return the bins as rows; one of width 0 is drawn with a little."""
    narrow = max(abs(bins.edges[0]) * 0.02, 0.02)
    return [
        {"low": low, "high": high if high > low else low + narrow, "count": count}
        for low, high, count in zip(bins.edges, bins.edges[1:], bins.counts, strict=False)
    ]


def _histogram(axis: str, bins: Histogram, mean: float | None) -> Spec:
    alt = require_charts("drawing a chart")
    chart = alt.Chart(alt.Data(values=bars(bins)))
    columns = chart.mark_bar(binSpacing=1).encode(
        x=alt.X("low:Q", bin="binned", title=axis),
        x2="high:Q",
        y=alt.Y("count:Q", title="rollouts", axis=alt.Axis(tickMinStep=1, format="d")),
        tooltip=[alt.Tooltip("low:Q", format=".4g"), alt.Tooltip("high:Q", format=".4g"), "count:Q"],
    )
    layers = [columns]
    if mean is not None:
        rule = alt.Chart(alt.Data(values=[{"mean": mean}])).mark_rule(strokeDash=[4, 3], strokeWidth=2)
        layers.append(rule.encode(x="mean:Q", tooltip=[alt.Tooltip("mean:Q", format=".4f")]))
    return _spec(alt.layer(*layers).properties(width="container", height=160))


def _intervals(rows: list[dict[str, Any]], what: str) -> Spec:
    alt = require_charts("drawing a chart")
    names = list(dict.fromkeys(row["name"] for row in rows))
    runs = list(dict.fromkeys(row["run"] for row in rows))
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("name:N", sort=names, title=None, axis=alt.Axis(labelLimit=220)),
        color=alt.Color("run:N", sort=runs, title=None, legend=_legend(alt, runs)),
        tooltip=[
            alt.Tooltip("name:N", title=what),
            "run:N",
            *(alt.Tooltip(f"{one}:Q", format=".4f") for one in ("mean", "low", "high")),
        ],
    )
    if len(runs) > 1:
        base = base.encode(yOffset=alt.YOffset("run:N", sort=runs))
    lines = base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title="mean"), x2="high:Q")
    dots = base.mark_point(filled=True, size=70, opacity=1).encode(x="mean:Q")
    height = 20 + len(names) * max(30, 16 * len(runs))
    return _spec(alt.layer(lines, dots).properties(width="container", height=height))


def _pass_lines(rows: list[dict[str, Any]]) -> Spec:
    alt = require_charts("drawing a chart")
    runs = list(dict.fromkeys(row["run"] for row in rows))
    sizes = sorted({row["k"] for row in rows})
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("k:Q", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=sizes, format="d")),
        color=alt.Color("run:N", sort=runs, title=None, legend=_legend(alt, runs)),
        tooltip=[
            *("kind:N", "run:N", "k:Q"),
            *(alt.Tooltip(f"{one}:Q", format=".4f") for one in ("value", "low", "high")),
        ],
    )
    dash = alt.StrokeDash("kind:N", title=None, legend=alt.Legend(orient="bottom", symbolType="stroke"))
    chance = alt.Y("value:Q", title="chance", scale=alt.Scale(domain=[0, 1]))
    lines = base.mark_line(point=True).encode(y=chance, strokeDash=dash)
    spread = base.mark_area(opacity=0.14).encode(y=alt.Y("low:Q"), y2="high:Q", detail="kind:N")
    return _spec(alt.layer(spread, lines).properties(width="container", height=220))


def _scores(runs: Iterable[ReportedRun]) -> list[dict[str, Any]]:
    rows = []
    for run in runs:
        summary = run.breakdown.summary
        if summary.reward_mean is not None:
            rows.append(_row(run, "reward", summary.reward_mean, summary.reward_low, summary.reward_high))
        for name, metric in summary.metrics.items():
            interval = run.breakdown.metrics[name]
            rows.append(_row(run, name, metric.mean, interval.low, interval.high))
    return rows


def _strata(runs: Iterable[ReportedRun]) -> Iterable[dict[str, Any]]:
    for run in runs:
        for one in run.breakdown.strata:
            if one.mean is not None:
                name = "none" if one.stratum is None else str(one.stratum)
                yield _row(run, name, one.mean, one.low, one.high)


def _rates(runs: Iterable[ReportedRun]) -> Iterable[dict[str, Any]]:
    for run in runs:
        for rate in run.breakdown.summary.pass_rates:
            some = (rate.pass_at_k, rate.pass_at_k_low, rate.pass_at_k_high)
            whole = (rate.pass_hat_k, rate.pass_hat_k_low, rate.pass_hat_k_high)
            for kind, (value, low, high) in (("pass@k", some), ("pass^k", whole)):
                yield {"run": run.label, "k": rate.k, "kind": kind, "value": value, "low": low, "high": high}


def _row(run: ReportedRun, name: str, mean: float, low: float | None, high: float | None) -> dict[str, Any]:
    return {
        "run": run.label,
        "name": name,
        "mean": mean,
        "low": mean if low is None else low,
        "high": mean if high is None else high,
    }


def _legend(alt: Any, runs: list[str]) -> Any:
    return alt.Legend(orient="bottom", labelLimit=400, symbolOpacity=1) if len(runs) > 1 else None


def _spec(chart: Any) -> Spec:
    spec: Spec = chart.to_dict()
    spec.pop("config", None)  # the page's
    return spec
