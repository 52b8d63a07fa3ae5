"""Draws charts as inline SVG, without scripts. The style sheet sets the colors, which follow the theme.

Marks have classes and no inline styles, because the content security policy forbids those. A curve with more
points than pixels shows the minimum and maximum of each bucket, and the page mentions it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Literal, NamedTuple
from urllib.parse import quote

from markupsafe import Markup, escape
from wander.wire import Histogram

from wander_hub.web.text import number, plain, shorten, visible

_BUCKETS = 240
_SHORT = 2 * 86_400
"""Seconds: the chart of a shorter history shows minutes, a longer one only dates."""
_MOST_LINKS = 100
"""Maximum number of links in a chart, so that readers who tab through the links get past it."""
_ALONE = 72
"""Width in pixels of the only bar of a histogram whose values are all equal."""
_KEY_LETTERS = 48
"""Maximum number of characters of a name in a legend."""
_MOST_IN_KEY = 8
_KEPT = 120
"""Number of drawn curves in the cache: five pages, or 40 MB if each compares six runs."""
_KEPT_BARS = 4096
"""Number of drawn interval bars in the cache, of 500 bytes each."""
_DIGIT = 12
"""Width in pixels of a digit in a wide chart on a phone, which enlarges the letters."""
_TOP = 18
"""Pixels above the highest value of a wide chart: its label is half as tall on a phone."""
_NARROW, _SMALL_DIGIT = 400, 7
"""Width up to which a chart looks the same on a phone, and the width of its digits, both in pixels."""


class HistoryDot(NamedTuple):
    """A row of a leaderboard with the time of its posting."""

    run_id: str
    model: str
    reward_mean: float
    posted_at: datetime


@dataclass(frozen=True)
class Axis:
    """A linear scale from values to pixels."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def around(cls, low: float, high: float, start: float, end: float) -> Axis:
        """Return a scale over these values, with a margin on both sides if they are equal."""
        margin = (abs(low) / 2 or 0.5) if low == high else 0.0
        return cls(low - margin, high + margin, start, end)

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        return self.of_many([value])[0]

    def of_many(self, values: Iterable[float]) -> list[float]:
        """Return the pixels of values."""
        low, span, start, length = self.low, self.high - self.low or 1.0, self.start, self.end - self.start
        return [start + (value - low) / span * length for value in values]


def histogram(
    data: Histogram,
    mean: float | None,
    *,
    linked: bool = False,
    values: str = "rewards",
    counted: str = "rollouts",
) -> Markup:
    """Draw the distribution of values with its mean. If `linked`, each bar links to its rollouts."""
    width, height, left, bottom = 640, 200, 24, 52
    tallest = max([*data.counts, 1])
    is_single = data.edges[0] == data.edges[-1]  # all values are equal: one bar in the middle
    ends = (width / 2, width / 2) if is_single else (left, width - left)
    axis = Axis(data.edges[0], data.edges[-1], *ends)
    bars = []
    for low, high, count in zip(data.edges, data.edges[1:], data.counts, strict=False):
        tall = (height - bottom - 24) * count / tallest
        start, end = axis(low), max(axis(high), axis(low) + 2)
        start, end = (start - _ALONE / 2, start + _ALONE / 2) if is_single else (start, end)
        label = f"{number(low)} to {number(high)}: {count} {counted}"
        bar = (
            f'<rect class="bar" x="{start + 0.5:.1f}" y="{height - bottom - tall:.1f}" '
            f'width="{max(end - start - 1, 1):.1f}" height="{tall:.1f}"><title>{label}</title></rect>'
        )
        if linked and count:
            # Only the last bin includes its upper edge, while a filter includes both of its ends.
            most = high if high == data.edges[-1] else math.nextafter(high, low)
            bar = f'<a href="?reward_min={low!r}&amp;reward_max={most!r}#rollouts">{bar}</a>'
        bars.append(bar)
        if count:
            css = "tick crowded" if _DIGIT * len(str(count)) > end - start else "tick"
            bars.append(
                f'<text class="{css}" x="{(start + end) / 2:.1f}" y="{height - bottom - tall - 4:.1f}" '
                f'text-anchor="middle">{count}</text>'
            )
    ticks = _ticks(axis, height - bottom, 6, width)
    marker = _mean_marker(axis, mean, height - bottom) if mean is not None and not is_single else ""
    base = (
        f'<line class="axis" x1="{left}" x2="{width - left}" y1="{height - bottom}" y2="{height - bottom}"/>'
    )
    title = f"Histogram of {sum(data.counts)} {values}, mean {number(mean)}"
    return _svg(width, height, "chart large", title, "".join(bars) + base + ticks + marker)


@lru_cache(_KEPT_BARS)
def interval_bar(mean: float, low: float, high: float, axis_low: float, axis_high: float) -> Markup:
    """Draw a mean and its interval on the axis that all rows of a table share."""
    width, height = 200, 20
    axis = Axis(axis_low, axis_high, 6, width - 6)
    zero = ""
    if axis_low < 0 < axis_high:
        zero = f'<line class="grid" x1="{axis(0):.1f}" x2="{axis(0):.1f}" y1="0" y2="{height}"/>'
    body = (
        f'<line class="grid" x1="6" x2="{width - 6}" y1="10" y2="10"/>{zero}'
        f'<line class="interval" x1="{axis(low):.1f}" x2="{axis(high):.1f}" y1="10" y2="10"/>'
        f'<circle class="dot" cx="{axis(mean):.1f}" cy="10" r="3.5"/>'
    )
    return _svg(width, height, "interval-chart", _interval(mean, low, high), body)


def days(counts: Sequence[int], noun: str) -> Markup:
    """Draw a bar for each of the last days, the newest on the right."""
    width, height, tallest = 240, 36, max([*counts, 1])
    wide = width / len(counts)
    bars = "".join(
        f'<rect class="bar" x="{place * wide:.1f}" y="{height - max(height * count / tallest, 1):.1f}" '
        f'width="{wide - 1:.1f}" height="{max(height * count / tallest, 1):.1f}"/>'
        for place, count in enumerate(counts)
    )
    title = f"{sum(counts)} {noun} in {len(counts)} days, at most {max(counts)} a day"
    return _svg(width, height, "chart", title, bars)


def scatter(examples: Iterable[tuple[str, float, float]], address: str) -> Markup:
    """Draw a dot for the two values of each example, larger if several examples have the same values.

    The dots farthest from the diagonal link to the rollouts of their first example in the run at `address`.
    """
    side, left, base = 300, 40, 268
    points = dict[tuple[float, float], list[str]]()
    for example, x, y in examples:
        points.setdefault((round(x, 3), round(y, 3)), []).append(example)
    values = [value for pair in points for value in pair]
    low, high = min([0.0, *values]), max([1.0, *values])
    # The margins keep dots at the end of an axis off its numbers.
    across, up = Axis(low, high, left + 14, side - 14), Axis(low, high, base - 14, 14)
    most = max(map(len, points.values()), default=1)
    apart = sorted(points, key=lambda one: -abs(one[0] - one[1]))[:_MOST_LINKS]
    dots = Markup("")
    for (x, y), some in sorted(points.items(), key=lambda one: -len(one[1])):
        names = f"{len(some)} examples" if len(some) > 1 else f"example {plain(shorten(some[0]))}"
        label = f"{number(x)} and {number(y)}: {names}"
        dot = _dot(across(x), up(y), 2.5 + 7 * math.sqrt(len(some) / most), label)
        rollouts = f"{address}?text={quote(some[0][:200])}#rollouts"
        dots += _link(rollouts, dot, label) if (x, y) in apart else dot
    frame = (
        f'<line class="axis" x1="{left}" x2="{side - 10}" y1="{base}" y2="{base}"/>'
        f'<line class="axis" x1="{left}" x2="{left}" y1="10" y2="{base}"/>'
        f'<line class="grid" x1="{across(low)}" x2="{across(high)}" y1="{up(low)}" y2="{up(high)}"/>'
    )
    marks = "".join(
        f'<text class="tick" x="{left - 6}" y="{up(value) + 4:.1f}" text-anchor="end">'
        f"{_tick_text(value)}</text>"
        for value in _round_ticks(low, high, 5)
    )
    title = f"Mean rewards of {sum(map(len, points.values()))} examples in both runs"
    return _svg(side, side, "chart scatter", title, f"{frame}{_ticks(across, base, 5, side)}{marks}{dots}")


def outcome_bar(parts: Sequence[tuple[str, str, int]]) -> Markup:
    """Draw parts of a whole as one bar. Each part is (class, label, count)."""
    total = sum(count for _, _, count in parts) or 1
    title = ", ".join(f"{count} {label}" for _, label, count in parts)
    return _whole(title, [(css, count / total, f"{count} {label}") for css, label, count in parts])


def shares(parts: Sequence[tuple[str, float]]) -> Markup:
    """Draw shares of a whole as one bar, in the colors of `series-N`."""
    title = ", ".join(f"{name} {share:.0%}" for name, share in parts)
    colored = enumerate(parts)
    return _whole(title, [(f"series-{n % 8}", share, f"{name} {share:.1%}") for n, (name, share) in colored])


def _whole(title: str, parts: Iterable[tuple[str, float, str]]) -> Markup:
    width, height, position, body = 640, 14, 0.0, ""
    for css, share, label in parts:
        body += (
            f'<rect class="{css}" x="{position:.1f}" y="0" width="{width * share:.1f}" '
            f'height="{height}"><title>{escape(label)}</title></rect>'
        )
        position += width * share
    return _svg(width, height, "outcome-chart", title, body, stretch=True)


@dataclass(frozen=True)
class Mark:
    """An event at a step, drawn as a line across a curve."""

    step: float
    text: str
    css: Literal["alert-mark", "phase-mark"] = "alert-mark"


@lru_cache(_KEPT)
def curves(
    name: str,
    runs: tuple[tuple[tuple[float, float], ...], ...],
    marks: tuple[Mark, ...] = (),
    *,
    large: bool = False,
) -> Markup:
    """Draw one metric over the steps, for one run, or for several in the colors of `series-N`.

    A script reads the drawn points from the chart. The result is empty if no run has points.
    """
    width, height, left, bottom, top = (640, 240, 64, 34, _TOP) if large else (360, 160, 52, 26, 10)
    finite = [[(x, y) for x, y in points if math.isfinite(y)] for points in runs]
    every = [point for points in finite for point in points]
    if not every:
        return Markup("")
    across = Axis(min(x for x, _ in every), max(x for x, _ in every), left, width - 8)
    up = Axis.around(min(y for _, y in every), max(y for _, y in every), height - bottom, top)
    shown = [bucket(points) for points in finite]
    lines = dots = ""
    for place, points in enumerate(shown):
        css = f" series-{place % 8}" if len(runs) > 1 else ""
        if len(points) > 1:
            xs, ys = across.of_many([x for x, _ in points]), up.of_many([y for _, y in points])
            path = " ".join([f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True)])
            lines += f'<polyline class="curve{css}" data-series="{place}" points="{path}"/>'
        if points:
            x, y = finite[place][-1]
            dots += f'<circle class="dot{css}" cx="{across(x):.1f}" cy="{up(y):.1f}" r="3"/>'
    marked = Markup("")
    for mark in marks:
        if across.low <= mark.step <= across.high:
            marked += Markup(
                '<line class="{0}" data-step="{1:g}" x1="{2:.1f}" x2="{2:.1f}" y1="{3}" y2="{4}">'
                "<title>{5}</title></line>"
            ).format(
                *(mark.css, mark.step, across(mark.step), top, height - bottom),
                f"step {mark.step:g}: {plain(mark.text)}",
            )
    first, last = every[0], every[-1]
    title = f"{name}: {number(first[1])} at step {first[0]:g}, {number(last[1])} at step {last[0]:g}"
    title = title if len(runs) == 1 else f"{name} of {len(runs)} runs over the steps"
    values = ";".join(" ".join(f"{x:.10g},{y:.4g}" for x, y in points) for points in shown)
    grid = _grid(up, left, width - 8, 6 if large else 4)
    body = f"{grid}{_ticks(across, height - bottom, 5, width)}{marked}{lines}{dots}"
    frame = f"{left} {width - 8} {height - bottom}"
    return _svg(width, height, "chart large" if large else "chart", title, body, points=values, frame=frame)


@lru_cache(_KEPT)
def history(points: tuple[HistoryDot, ...]) -> Markup:
    """Draw rows over time, and the best score so far as a step line. Empty for fewer than two points."""
    if len(points) < 2:
        return Markup("")
    width, height, left, bottom, top, right = 640, 240, 64, 34, _TOP, 12
    times = [one.posted_at.timestamp() for one in points]
    rewards = [one.reward_mean for one in points]
    margin = 0.05 * (max(rewards) - min(rewards))
    across = Axis(min(times), max(times), left, width - right)
    up = Axis.around(min(rewards) - margin, max(rewards) + margin, height - bottom, top)
    grid = _grid(up, left, width - right)
    ends = [("start", points[0], left), ("end", points[-1], width - right)]
    moment = "%Y-%m-%d" if max(times) - min(times) > _SHORT else "%Y-%m-%d %H:%M"
    is_short = points[0].posted_at.strftime(moment) == points[-1].posted_at.strftime(moment)
    tick = "%H:%M:%S" if is_short else moment
    if points[0].posted_at.strftime(tick) == points[-1].posted_at.strftime(tick):
        ends, tick = ends[:1], moment  # all points lie within one second
    dates = "".join(
        f'<text class="tick" x="{place}" y="{height - 8}" text-anchor="{anchor}">'
        f"{one.posted_at.strftime(tick)}</text>"
        for anchor, one, place in ends
    )
    records: list[HistoryDot] = []
    path, dots = "", Markup("")
    for one in points:
        x, y = across(one.posted_at.timestamp()), up(one.reward_mean)
        is_record = not records or one.reward_mean > records[-1].reward_mean
        if is_record:
            path += f" H{x:.1f} V{y:.1f}" if path else f"M{x:.1f},{y:.1f}"
            records.append(one)
        label = f"{plain(one.model)} {number(one.reward_mean)}, {one.posted_at.strftime(moment)}"
        css = "series-0" if is_record else "series-7"
        dots += _link(f"/runs/{one.run_id}", _dot(x, y, 3.5, label, css), label)
    line = Markup('<path class="curve series-0" d="{}"/>').format(f"{path} H{across.end:.1f}")
    title = f"Best score over time: {len(records)} records among {len(points)} rows"
    drawn = _svg(width, height, "chart large", title, f"{grid}{dates}{line}{dots}")
    return _keyed(drawn, [("series-0", one.model, one.reward_mean) for one in records[::-1]])


def evaluations(cells: Mapping[str, Sequence[tuple[int, float, float, float]]]) -> Markup:
    """Draw evaluations over the steps: a line with intervals for each cell's (step, mean, low, high)."""
    width, height, left, bottom, top, right = 640, 240, 64, 34, _TOP, 12
    every = [point for points in cells.values() for point in points]
    lowest, highest = min(low for _, _, low, _ in every), max(high for _, _, _, high in every)
    across = Axis(min(step for step, *_ in every), max(step for step, *_ in every), left, width - right)
    up = Axis.around(lowest, highest, height - bottom, top)
    grid = _grid(up, left, width - right)
    ticks = _ticks(across, height - bottom, 5, width)
    lines = Markup("")
    for place, (cell, points) in enumerate(cells.items()):
        css, path, marks = f"series-{place % 8}", "", Markup("")
        for step, mean, low, high in points:
            x, y = across(step), up(mean)
            path += f" L{x:.1f},{y:.1f}" if path else f"M{x:.1f},{y:.1f}"
            marks += Markup(
                '<line class="whisker {0}" x1="{1:.1f}" x2="{1:.1f}" y1="{2:.1f}" y2="{3:.1f}"/>'
            ).format(css, x, up(low), up(high))
            label = f"{cell} {_interval(mean, low, high)} at step {step}"
            marks += _dot(x, y, 3.5, label, css, focusable=True)
        lines += Markup('<path class="curve {}" d="{}"/>').format(css, path) + marks
    title = f"Mean reward of {len(cells)} evaluations over the steps, with 95% intervals"
    drawn = _svg(width, height, "chart large", title, f"{grid}{ticks}{lines}")
    ends = [(cell, points[-1][1]) for cell, points in cells.items()]
    return _keyed(drawn, [(f"series-{place % 8}", *end) for place, end in enumerate(ends)])


def bucket(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points of a curve to draw, with its first and last. A second call drops no more."""
    if len(points) <= 2 * _BUCKETS + 2:
        return list(points)
    step = math.ceil(len(points) / _BUCKETS)
    kept = {points[0], points[-1]}
    for start in range(0, len(points), step):
        bucket = points[start : start + step]
        kept |= {min(bucket, key=lambda one: one[1]), max(bucket, key=lambda one: one[1])}
    return sorted(kept)


def _round_ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most `most` round values inside a range."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    power = 10.0 ** math.floor(math.log10(span / (most + 1)))
    for step in (power * factor for factor in (1, 2, 5, 10, 20, 50)):
        places = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
        if len(places) <= most:
            break
    return [round(place * step, 12) + 0.0 for place in places]


def _grid(up: Axis, left: float, right: float, most: int = 4) -> str:
    """Draw at most `most` horizontal lines at round values of the vertical axis, each with its value."""
    return "".join(
        f'<line class="grid" x1="{left}" x2="{right}" y1="{up(value):.1f}" y2="{up(value):.1f}"/>'
        f'<text class="tick" x="{left - 6}" y="{up(value) + 4:.1f}" text-anchor="end">'
        f"{_tick_text(value)}</text>"
        for value in _round_ticks(up.low, up.high, most)
    )


def _keyed(drawn: Markup, rows: Sequence[tuple[str, str, float]]) -> Markup:
    """Add a legend to a chart. Each row is (class, name, value)."""
    key = Markup("").join(
        Markup('<li><span class="key {}"></span>{} <b>{}</b></li>').format(
            css, visible(shorten(name, _KEY_LETTERS)), number(value)
        )
        for css, name, value in rows[:_MOST_IN_KEY]
    )
    return Markup('<div class="keyed">{}<ul class="small">{}</ul></div>').format(drawn, key)


def _dot(x: float, y: float, radius: float, label: str, css: str = "", *, focusable: bool = False) -> Markup:
    """Draw a dot with a title. The keyboard can reach it if `focusable`."""
    label = escape(label)
    focus = f' tabindex="0" role="img" aria-label="{label}"' if focusable else ""
    return Markup(  # noqa: S704 - numbers, constants, and escaped text
        f'<circle class="dot {css}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"{focus}>'
        f"<title>{label}</title></circle>"
    )


def _link(address: str, mark: Markup, label: str) -> Markup:
    """Make a mark a link. Screen readers read its label, and a script shows the label on focus."""
    return Markup('<a href="{}" aria-label="{}">{}</a>').format(address, label, mark)


def _ticks(axis: Axis, base: float, most: int, width: float) -> str:
    """Draw at most `most` ticks at round values below a horizontal axis, each with its value.

    A value that would extend past the right edge of the chart is aligned to that edge.
    """
    marks, digit = "", _DIGIT if width > _NARROW else _SMALL_DIGIT
    for value in _round_ticks(axis.low, axis.high, most):
        x, text = axis(value), _tick_text(value)
        place, anchor = (width, "end") if x + digit * len(text) / 2 > width else (x, "middle")
        marks += (
            f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 4}"/>'
            f'<text class="tick below" x="{place:.1f}" y="{base + 20}" text-anchor="{anchor}">{text}</text>'
        )
    return marks


def _interval(mean: float, low: float, high: float) -> str:
    return f"{number(mean)} [{number(low)}, {number(high)}]"


def _tick_text(value: float) -> str:
    return f"{value:g}".replace("-", "−")


def _mean_marker(axis: Axis, mean: float, base: float) -> str:
    place = axis(mean)
    anchor = "end" if place > (axis.start + axis.end) / 2 else "start"
    shift = -5 if anchor == "end" else 5
    return (
        f'<line class="mean" x1="{place:.1f}" x2="{place:.1f}" y1="4" y2="{base}"/>'
        f'<text class="mean-label" x="{place + shift:.1f}" y="{base + 44}" text-anchor="{anchor}">'
        f"mean {number(mean)}</text>"
    )


def _svg(
    width: int,
    height: int,
    css: str,
    title: str,
    body: str,
    *,
    stretch: bool = False,
    points: str = "",
    frame: str = "",
) -> Markup:
    role = "group" if "<a " in body or "tabindex" in body else "img"  # readers cannot enter an image
    head = f'<svg class="{css}" viewBox="0 0 {width} {height}" role="{role}" aria-label="{escape(title)}"'
    ratio = ' preserveAspectRatio="none"' if stretch else ""
    size = f' width="{width}" height="{height}"{ratio}'
    size += f' data-points="{points}" data-frame="{frame}"' if points else ""
    return Markup(f"{head}{size}>{body}</svg>")  # noqa: S704 - numbers, constants, and escaped text
