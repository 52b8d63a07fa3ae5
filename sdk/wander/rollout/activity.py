"""What the code of each rollout does at the moment, so that code that never returns is named.

A rollout that hangs looks like a slow one. The places where author's code runs (hooks, tools, reward
functions) therefore note their names in an `Activity`, and a thread looks now and then which of them has not
changed for long. It is a thread because synchronous code that hangs stops the event loop too.
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
"""The place outside of all others: the loop of a rollout."""
_LONGEST_TICK = 5.0
_NAMED = 3
"""Most examples that a notice names."""


class Silence(Record):
    """Rollouts that have been in one place of the environment's code for long."""

    place: str
    """Name of the hook, the tool or the reward function."""
    examples: list[str]
    """Ids of their examples; empty for code that belongs to no rollout."""
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
    """When and to whom rollouts without progress are reported."""

    tell: Callable[[Silence], None]
    """May be called in a thread of its own."""
    seconds: float
    """Seconds without any progress after which a rollout is reported."""


class Activity:
    """Where the code is that plays one request."""

    __slots__ = ("calls", "example_id", "moves", "places", "scoring_seconds")

    def __init__(self, example_id: str | None, place: str = PLAY) -> None:
        self.example_id = example_id
        self.places = [place]
        """The places that were entered and not left, the innermost last."""
        self.calls = 0
        """Model calls under way: meanwhile the environment waits rightly."""
        self.moves = 0
        """Grows with everything that happens."""
        self.scoring_seconds = 0.0
        """Seconds for which synchronous reward functions let nothing else go on."""

    def enter(self, place: str) -> None:
        """Note that code of a place runs, until `leave` with the same name."""
        self.moves += 1
        self.places.append(place)

    def leave(self, place: str) -> None:
        """Note that it returned."""
        self.moves += 1
        self.places.remove(place)


ACTIVITY: ContextVar[Activity | None] = ContextVar("wander_activity", default=None)
"""That of the request whose code runs; None if nobody watches."""


class at:
    """Notes that the code of a place runs in a block."""

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
    """Notes that a block waits for a model, which has limits of its own."""

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
    """Looks at activities from a thread, and reports each place in which one stays for too long, once."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices
        self._activities: set[Activity] = set()
        self._seen: dict[Activity, tuple[int, float, bool]] = {}
        """Moves of each activity, since when there were no more, and whether that was reported."""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, activity: Activity) -> None:
        """Watch an activity until it is removed."""
        self._activities.add(activity)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="wander-silence", daemon=True)
            self._thread.start()

    def remove(self, activity: Activity) -> None:
        """Forget an activity."""
        self._activities.discard(activity)

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(min(_LONGEST_TICK, self._notices.seconds / 4)):
            for silence in self.look(time.monotonic()):
                self._notices.tell(silence)

    def look(self, now: float) -> list[Silence]:
        """Return what has to be reported now."""
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
                examples=sorted({each.example_id for each in activities if each.example_id is not None}),
                seconds=longest[place],
            )
            for place, activities in overdue.items()
        ]
