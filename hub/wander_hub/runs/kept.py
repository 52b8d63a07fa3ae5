"""What takes long to find of a run and never changes: a process keeps it, by a digest and what it is of."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

_MOST = 4_000_000
"""Numbers that are kept, of all runs."""
OF_ENTRY = 100
"""Numbers that have the room of what is known of an example, a stratum or a fault."""


class Kept:
    """What was found, the longest unused forgotten first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: OrderedDict[Any, Any] = OrderedDict()
        self._finding: dict[Any, threading.Lock] = {}
        """Held by who finds what stands under a key, so that others wait for that and find it not again."""
        self._size = 0

    def has(self, key: Any) -> bool:
        """Tell whether something is kept under a key."""
        with self._lock:
            return key in self._found

    def get(self, key: Any, find: Callable[[], Any]) -> Any:
        """Return what is kept under a key, or find it."""
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
            finding = self._finding.setdefault(key, threading.Lock())
        with finding:
            with self._lock:
                if key in self._found:
                    return self._found[key]
            try:
                found = find()
                self._keep(key, found)
            finally:
                self._finding.pop(key, None)
        return found

    def _keep(self, key: Any, found: Any) -> None:
        with self._lock:
            if key not in self._found:  # where a search failed, two that waited for it may have found it
                self._found[key] = found
                self._size += _size(found)
            while self._size > _MOST:
                self._size -= _size(self._found.popitem(last=False)[1])


def _size(found: object) -> int:
    if isinstance(found, tuple):  # of dictionaries by example
        return OF_ENTRY * (1 + sum(len(part) for part in found))
    numbers: int = len(found) if isinstance(found, array) else getattr(found, "numbers", 0)
    return OF_ENTRY + numbers


KEPT = Kept()
