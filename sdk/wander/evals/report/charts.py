"""Builds all charts of a run as Vega-Lite with Altair: its rewards, and the curves of training runs.

Each function takes rows of data.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from wander.errors import require_extra
from wander.wire import Histogram

Row = dict[str, Any]


def require_charts(needed_for: str) -> Any:
    """Return altair. Raises `MissingExtra` if altair or the converter that it needs is not installed."""
    with require_extra("plots", needed_for=needed_for):
        import altair
        import vl_convert  # noqa: F401 - draws what altair describes
    return altair


def drawn_in_notebooks(chart: Any) -> Any:
    """Make notebooks display a chart as SVG. Altair's default loads scripts from a server."""
    kind = type(chart)

    def draw(chart: Any, **_: Any) -> dict[str, str]:
        drawing = io.StringIO()
        chart.save(drawing, format="svg")
        return {"image/svg+xml": drawing.getvalue()}

    # Bypass altair, which treats every attribute set on a chart as a property of the chart.
    object.__setattr__(chart, "__class__", type(kind.__name__, (kind,), {"_repr_mimebundle_": draw}))
    return chart


def chart_histogram(bins: Histogram, *, axis: str, mean: float | None = None) -> Any:
    """Chart the number of rollouts in each bin, and their mean as a dashed line."""
    alt = require_charts("drawing a chart")
    narrow = max(abs(bins.edges[0]) * 0.02, 0.02)  # equal values give one bin of width 0
    bars = [
        {"low": low, "high": high if high > low else low + narrow, "count": count}
        for low, high, count in zip(bins.edges, bins.edges[1:], bins.counts, strict=False)
    ]
    columns = alt.Chart(alt.Data(values=bars)).mark_bar(binSpacing=1)
    columns = columns.encode(
        x=alt.X("low:Q", bin="binned", title=axis),
        x2="high:Q",
        y=alt.Y("count:Q", title="rollouts", axis=alt.Axis(tickMinStep=1, format="d")),
        tooltip=[alt.Tooltip("low:Q", format=".4g"), alt.Tooltip("high:Q", format=".4g"), "count:Q"],
    )
    layers = [columns]
    if mean is not None:
        rule = alt.Chart(alt.Data(values=[{"mean": mean}])).mark_rule(strokeDash=[4, 3], strokeWidth=2)
        layers.append(rule.encode(x="mean:Q", tooltip=[alt.Tooltip("mean:Q", format=".4f")]))
    return alt.layer(*layers).properties(width="container", height=160)


def chart_intervals(rows: Sequence[Row], what: str) -> Any:
    """Chart means with their intervals, with one line per `name` and one point per run on it."""
    alt = require_charts("drawing a chart")
    names = list(dict.fromkeys(row["name"] for row in rows))
    runs = list(dict.fromkeys(row["run"] for row in rows))
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("name:N", sort=names, title=None, axis=alt.Axis(labelLimit=220)),
        color=_color_by_run(alt, runs),
        tooltip=[
            alt.Tooltip("name:N", title=what),
            "run:N",
            *(alt.Tooltip(f"{end}:Q", format=".4f") for end in ("mean", "low", "high")),
        ],
    )
    if len(runs) > 1:
        base = base.encode(yOffset=alt.YOffset("run:N", sort=runs))
    lines = base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title="mean"), x2="high:Q")
    dots = base.mark_point(filled=True, size=70, opacity=1).encode(x="mean:Q")
    height = 20 + len(names) * max(30, 16 * len(runs))
    return alt.layer(lines, dots).properties(width="container", height=height)


def _color_by_run(alt: Any, runs: list[str]) -> Any:
    legend = alt.Legend(orient="bottom", labelLimit=400, symbolOpacity=1) if len(runs) > 1 else None
    return alt.Color("run:N", sort=runs, title=None, legend=legend)


_PANEL = {"width": 320, "height": 180}


def chart_curve(
    rows: Sequence[Row], evaluations: Sequence[Row], runs: Sequence[str], *, title: str, across: str
) -> Any:
    """Chart a metric of training runs: thin lines for steps, thick lines for the running `mean`, points for
    evaluations.

    If there is only one run, the spread between `low` and `high` is also drawn. Evaluations have one marker
    shape per `cell`, and error bars for their intervals.
    """
    alt = require_charts("drawing learning curves")
    # This format hides digits that are only floating-point noise.
    shape = {"title": title, "scale": alt.Scale(zero=False), "axis": alt.Axis(format=".4~g")}
    is_single = len(runs) == 1
    color = {} if is_single else {"color": alt.Color("run:N", title="run", sort=runs)}
    base = alt.Chart(alt.Data(values=rows)).encode(x=alt.X("at:Q", title=across), **color)
    layers = [
        base.mark_line(opacity=0.35, strokeWidth=1).encode(y=alt.Y("value:Q", **shape)),
        base.mark_line(strokeWidth=2.5).encode(y=alt.Y("mean:Q", **shape)),
    ]
    if is_single and "low" in rows[0]:
        layers.insert(0, base.mark_area(opacity=0.12).encode(y=alt.Y("low:Q", **shape), y2="high:Q"))
    if evaluations:
        base = alt.Chart(alt.Data(values=evaluations)).encode(x="at:Q", **color)
        # A single run uses the default color, and its evaluations should stand out from its steps.
        red = {"color": "#e45756"} if is_single else {}
        points = base.mark_point(filled=True, size=45, opacity=1, **red)
        layers += [
            base.mark_rule(**red).encode(y=alt.Y("low:Q", **shape), y2="high:Q"),
            points.encode(y=alt.Y("mean:Q", **shape), shape=alt.Shape("cell:N", title="evaluation")),
        ]
    return alt.layer(*layers).properties(**_PANEL)


def chart_shares(rows: Sequence[Row], parts: Sequence[str], *, across: str) -> Any:
    """Chart the share that every `part` takes of each step's `seconds`, stacked."""
    alt = require_charts("drawing learning curves")
    chart = alt.Chart(alt.Data(values=rows)).mark_area()
    chart = chart.encode(
        x=alt.X("at:Q", title=across),
        y=alt.Y("seconds:Q", stack="normalize", title="share of the time", axis=alt.Axis(format="%")),
        color=alt.Color("part:N", sort=list(parts)),
    )
    return chart.properties(**_PANEL)


def arrange_panels(panels: Sequence[Any], *, title: str) -> Any:
    """Arrange panels in rows of three under one title."""
    alt = require_charts("drawing learning curves")
    rows = [alt.hconcat(*panels[first : first + 3]) for first in range(0, len(panels), 3)]
    # Time shares and runs never appear in the same figure, so one color scale serves both.
    whole = alt.vconcat(*rows).properties(title=title).resolve_scale(color="shared")
    return whole.configure_view(strokeOpacity=0).configure_axis(gridOpacity=0.4)
