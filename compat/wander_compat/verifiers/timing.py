"""Timing of a rollout, with the field names of the later and the earlier generations."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

EARLIER_NAMES = {"generation_ms": "generation", "scoring_ms": "scoring"}


class TimeSpan(BaseModel):
    """A span from `start` to `end`, in seconds of the clock."""

    model_config = ConfigDict(extra="allow")

    start: float = 0.0
    end: float = 0.0

    @property
    def duration(self) -> float:
        """Seconds from start to end, or 0 until the end is known."""
        return max(0.0, self.end - self.start) if self.end else 0.0


class TimeSpans(BaseModel):
    """Several spans, one per call."""

    model_config = ConfigDict(extra="allow")

    spans: list[TimeSpan] = Field(default_factory=list)

    @property
    def duration(self) -> float:
        """Total duration in seconds."""
        return sum(span.duration for span in self.spans)


class RolloutTiming(BaseModel):
    """The parts of a rollout's time. Also supports `timing["total_ms"]` and similar keys."""

    model_config = ConfigDict(extra="allow")

    start_time: float = Field(default_factory=time.time)
    setup: TimeSpan = Field(default_factory=TimeSpan)
    generation: TimeSpan = Field(default_factory=TimeSpan)
    scoring: TimeSpan = Field(default_factory=TimeSpan)
    model: TimeSpans = Field(default_factory=TimeSpans)
    env: TimeSpans = Field(default_factory=TimeSpans)

    @property
    def total(self) -> float:
        """Seconds of generation and scoring."""
        return self.generation.duration + self.scoring.duration

    @property
    def overhead(self) -> float:
        """Seconds used by neither the model nor the environment."""
        known = self.setup.duration + self.model.duration + self.env.duration + self.scoring.duration
        return max(0.0, self.total - known)

    def __getitem__(self, name: str) -> Any:
        if name == "total_ms":
            return self.total * 1000
        if name in EARLIER_NAMES:
            return getattr(self, EARLIER_NAMES[name]).duration * 1000
        try:
            return getattr(self, name)
        except AttributeError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        if name in EARLIER_NAMES:
            span = getattr(self, EARLIER_NAMES[name])
            span.end = span.start + float(value) / 1000
        elif name != "total_ms":  # the sum of the other two
            setattr(self, name, value)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a part, by its name in any generation."""
        try:
            return self[name]
        except KeyError:
            return default


@contextmanager
def time_block(span: TimeSpan) -> Iterator[None]:
    """Measure the time of a block."""
    span.start = time.time()
    try:
        yield
    finally:
        span.end = time.time()


@contextmanager
def time_call(spans: TimeSpans) -> Iterator[None]:
    """Measure the time of one of several calls."""
    span = TimeSpan()
    spans.spans.append(span)
    with time_block(span):
        yield


def timing_of(state: Mapping[str, Any] | None) -> RolloutTiming:
    """Return the timing of a state. Without a timing, return a timing object that is not stored."""
    timing = None if state is None else state.get("timing")
    return timing if isinstance(timing, RolloutTiming) else RolloutTiming()


def format_timing(timing: Any) -> dict[str, Any]:
    """Return the timing in the format of an output record."""
    if not isinstance(timing, RolloutTiming):
        return dict(timing) if isinstance(timing, dict) else {}
    named = {"setup": timing.setup, "generation": timing.generation, "scoring": timing.scoring}
    many = {"model": timing.model, "env": timing.env}
    return {
        "start_time": timing.start_time,
        **{
            name: {"start": span.start, "end": span.end, "duration": span.duration}
            for name, span in named.items()
        },
        **{name: {"duration": spans.duration} for name, spans in many.items()},
        "total": timing.total,
        "overhead": timing.overhead,
    }
