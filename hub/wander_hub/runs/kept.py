"""A cache of results about runs that are expensive to compute and never change, by digest and filter."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

_MOST = 4_000_000
"""Capacity of the cache, in numbers of all runs."""
OF_ENTRY = 100
"""Memory of an example, a stratum or a fault, in units of one number."""


class Kept:
    """A thread-safe cache that evicts the least recently used results."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: OrderedDict[Any, Any] = OrderedDict()
        self._finding: dict[Any, threading.Lock] = {}
        """Locks by key, so that concurrent readers wait for one computation instead of repeating it."""
        self._size = 0

    def has(self, key: Any) -> bool:
        """Return whether a result is cached."""
        with self._lock:
            return key in self._found

    def get(self, key: Any, find: Callable[[], Any]) -> Any:
        """Return the cached result of a key, or compute it."""
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
                result = find()
                self._keep(key, result)
            finally:
                self._finding.pop(key, None)
        return result

    def _keep(self, key: Any, result: Any) -> None:
        with self._lock:
            if key not in self._found:  # after a failed computation, two waiting readers may both compute it
                self._found[key] = result
                self._size += _size(result)
            while self._size > _MOST:
                self._size -= _size(self._found.popitem(last=False)[1])


def _size(result: object) -> int:
    if isinstance(result, tuple):  # of dictionaries by example
        return OF_ENTRY * (1 + sum(len(part) for part in result))
    numbers: int = len(result) if isinstance(result, array) else getattr(result, "numbers", 0)
    return OF_ENTRY + numbers


KEPT = Kept()
