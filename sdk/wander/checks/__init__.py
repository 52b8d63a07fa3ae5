"""What `wander check` finds out about an environment, without a model.

The names are loaded when they are first used: the processes of a check import this package too.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wander.checks.engine import check_environment
    from wander.checks.report import CHECKS, CheckReport, CheckResult

_HOMES = {
    "CHECKS": "wander.checks.report",
    "CheckReport": "wander.checks.report",
    "CheckResult": "wander.checks.report",
    "check_environment": "wander.checks.engine",
}

__all__ = ["CHECKS", "CheckReport", "CheckResult", "check_environment"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module `wander.checks` has no attribute `{name}`")
    return getattr(importlib.import_module(_HOMES[name]), name)
