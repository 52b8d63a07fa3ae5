"""Parse Python source in a process with threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

Tree = TypeVar("Tree")

_TRIES = 10
_ONE_AT_A_TIME = threading.Lock()


def parse_alone(parse: Callable[[], Tree]) -> Tree:
    """Return what a parser of Python returns, and let no other thread parse meanwhile.

    CPython 3.11 counts the nesting depth of all threads in one variable
    (https://github.com/python/cpython/issues/106905). If two threads build a syntax tree at the same
    time, one of them may fail with a `SystemError`, although its source is correct. The lock keeps our
    own parsers apart. Python itself also parses, for example when it formats a traceback, so a parse that
    ends in a `SystemError` is repeated.

    Raises: whatever the parser raises.
    """
    with _ONE_AT_A_TIME:
        for _ in range(_TRIES - 1):
            try:
                return parse()
            except SystemError:
                continue
        return parse()
