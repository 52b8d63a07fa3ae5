"""The learning curves of a training run, as SVG and PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wander.errors import MissingExtra

PANELS = (
    ("reward", "mean reward"),
    ("groups_without_variance", "groups that teach nothing"),
    ("entropy", "entropy (nats a token)"),
    ("seconds/step", "seconds a step"),
)
"""Metric and title of each panel; a metric that a run lacks is left out."""

WINDOW = 10
"""Steps of the running mean that is drawn thick."""


def draw_learning_curve(entries: Sequence[dict[str, Any]], folder: Path, *, title: str) -> list[Path]:
    """Write `learning_curve.svg` and `.png` and return their paths; nothing for fewer than two steps.

    Every step is drawn, thin; the thick line is the mean of the last ten. Raises `MissingExtra`.
    """
    try:
        import altair as alt
        import vl_convert  # noqa: F401 - altair saves through it
    except ImportError as error:
        raise MissingExtra("plots", needed_for="drawing learning curves") from error
    panels = [(name, text) for name, text in PANELS if sum(_known(e.get(name)) for e in entries) > 1]
    if not panels:
        return []
    charts = [_panel(alt, entries, name, text) for name, text in panels]
    whole = alt.vconcat(*(alt.hconcat(*charts[first : first + 2]) for first in range(0, len(charts), 2)))
    whole = whole.properties(title=title).configure_view(strokeOpacity=0).configure_axis(gridOpacity=0.4)
    files = [folder / "learning_curve.svg", folder / "learning_curve.png"]
    whole.save(files[0])
    whole.save(files[1], scale_factor=2)
    return files


def _panel(alt: Any, entries: Sequence[dict[str, Any]], name: str, title: str) -> Any:
    rows = []
    recent: list[float] = []
    for entry in entries:
        if _known(entry.get(name)):
            recent = [*recent[-WINDOW + 1 :], float(entry[name])]
            rows.append({"step": entry["step"], "value": recent[-1], "mean": sum(recent) / len(recent)})
    base = alt.Chart(alt.Data(values=rows)).encode(x=alt.X("step:Q", title="step"))
    scale = alt.Scale(zero=False)
    thin = base.mark_line(opacity=0.35, strokeWidth=1).encode(y=alt.Y("value:Q", title=title, scale=scale))
    thick = base.mark_line(strokeWidth=2.5).encode(y=alt.Y("mean:Q", title=title, scale=scale))
    return (thin + thick).properties(width=320, height=180)


def _known(value: Any) -> bool:
    return isinstance(value, int | float) and value == value
