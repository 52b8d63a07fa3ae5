"""Tracks what the code of each rollout is doing, so that code that never returns can be named.

A hanging rollout looks like a slow one. All places where the author's code runs (hooks, tools, reward
functions) therefore record their names in an `Activity`, and a thread regularly checks for activities that
have not changed for a long time. It is a thread because hanging synchronous code also blocks the event loop.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from wander.types import Record

PLAY = "play"
"""Name of the place outside of all others: the loop of a rollout."""
_LONGEST_TICK = 5.0
_NAMED = 3
"""Maximum number of examples named in a notice."""


class Silence(Record):
    """Rollouts that have been in the same place of the environment's code for a long time."""

    place: str
    """Name of the hook, tool or reward function."""
    examples: list[str]
    """Ids of the examples. Empty for code that does not belong to a rollout."""
    seconds: float

    def __str__(self) -> str:
        if not self.examples:
            return f"`{self.place}` of the environment has been running for {self.seconds:.0f} s"
        named = ", ".join(f"`{example}`" for example in self.examples[:_NAMED])
        more = len(self.examples) - _NAMED
        which = f"example {named}" if len(self.examples) == 1 else f"examples {named}"
        which += f" and {more} more" if more > 0 else ""
        verb = "has" if len(self.examples) == 1 else "have"
        return f"{which} {verb} been in `{self.place}` for {self.seconds:.0f} s"


@dataclass(frozen=True)
class Notices:
    """Settings for reporting rollouts without progress."""

    tell: Callable[[Silence], None]
    """Callback for a report. May be called in a separate thread."""
    seconds: float
    """Seconds without progress after which a rollout is reported."""


class Activity:
    """Current position in the code that plays a request."""

    __slots__ = ("calls", "example_id", "moves", "places", "scoring_seconds")

    def __init__(self, example_id: str | None, place: str = PLAY) -> None:
        self.example_id = example_id
        self.places = [place]
        """Places that were entered and not left, innermost last."""
        self.calls = 0
        """Number of model calls in flight, during which the environment is expected to wait."""
        self.moves = 0
        """Counter that increases with every event."""
        self.scoring_seconds = 0.0
        """Total seconds that synchronous reward functions blocked everything else."""

    def enter(self, place: str) -> None:
        """Record that the code of a place is running, until `leave` with the same name."""
        self.moves += 1
        self.places.append(place)

    def leave(self, place: str) -> None:
        """Record that the code of a place has returned."""
        self.moves += 1
        self.places.remove(place)


ACTIVITY: ContextVar[Activity | None] = ContextVar("wander_activity", default=None)
"""Activity of the request whose code is running, or None if nobody watches."""


class at:
    """Records that a block runs the code of a place."""

    __slots__ = ("activity", "place")

    def __init__(self, place: str) -> None:
        self.place = place
        self.activity = ACTIVITY.get()

    def __enter__(self) -> Activity | None:
        if self.activity is not None:
            self.activity.enter(self.place)
        return self.activity

    def __exit__(self, *_: object) -> None:
        if self.activity is not None:
            self.activity.leave(self.place)


class model_call:
    """Records that a block waits for a model, which has its own limits."""

    __slots__ = ("activity",)

    def __init__(self) -> None:
        self.activity = ACTIVITY.get()

    def __enter__(self) -> None:
        if self.activity is not None:
            self.activity.calls += 1

    def __exit__(self, *_: object) -> None:
        if self.activity is not None:
            self.activity.calls -= 1
            self.activity.moves += 1


class SilenceWatch:
    """Checks activities from a thread. Reports each place where an activity stays too long, once."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices
        self._activities: set[Activity] = set()
        self._seen: dict[Activity, tuple[int, float, bool]] = {}
        """Number of moves of each activity, when it last changed, and whether this was reported."""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, activity: Activity) -> None:
        """Watch an activity until it is removed."""
        self._activities.add(activity)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="wander-silence", daemon=True)
            self._thread.start()

    def remove(self, activity: Activity) -> None:
        """Stop watching an activity."""
        self._activities.discard(activity)

    def stop(self) -> None:
        """Stop the thread."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(min(_LONGEST_TICK, self._notices.seconds / 4)):
            for silence in self.look(time.monotonic()):
                self._notices.tell(silence)

    def look(self, now: float) -> list[Silence]:
        """Return the silences to report now."""
        before, self._seen = self._seen, {}
        overdue: defaultdict[str, list[Activity]] = defaultdict(list)
        longest: defaultdict[str, float] = defaultdict(float)
        for activity in list(self._activities):
            moves, places = activity.moves, list(activity.places)
            known, since, is_reported = before.get(activity, (-1, now, False))
            if moves != known or activity.calls:
                since, is_reported = now, False
            elif places and not is_reported and now - since >= self._notices.seconds:
                is_reported = True
                overdue[places[-1]].append(activity)
                longest[places[-1]] = max(longest[places[-1]], now - since)
            self._seen[activity] = (moves, since, is_reported)
        return [
            Silence(
                place=place,
                examples=sorted(
                    {activity.example_id for activity in activities if activity.example_id is not None}
                ),
                seconds=longest[place],
            )
            for place, activities in overdue.items()
        ]
