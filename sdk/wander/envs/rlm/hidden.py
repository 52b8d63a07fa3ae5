"""What a model's code is not to read: the environment's own package, which may hold the answers.

That is what this process loaded environments from, and every installed package that builds on Wander or on
the classic API.
"""

from __future__ import annotations

import os
import re
from functools import cache
from importlib.metadata import distributions

from wander.modules import sources
from wander.sandbox.visible import outermost

_BUILDS_ON_US = re.compile(r"^Requires-Dist: *(?:wander[-_.](?:sdk|compat)|verifiers)\b", re.MULTILINE | re.I)


def hidden_paths() -> list[str]:
    """Return files and folders, none of them below another."""
    found = map(os.path.realpath, (*sources, *_installed()))
    return list(outermost(path for path in found if os.path.exists(path)))


@cache
def _installed() -> frozenset[str]:
    found = set()
    for package in distributions():
        if _BUILDS_ON_US.search(package.read_text("METADATA") or ""):
            for file in package.files or ():
                # A module's folder as a whole: compiled files, and what it wrote there, are not in the list.
                shared = len(file.parts) == 1 or file.parts[0] in ("..", "__pycache__")
                found.add(str(package.locate_file(file if shared else file.parts[0])))
    return frozenset(found)
