"""Checks that `wander check` makes on an environment without a model.

Names are loaded when they are first used, because the processes of a check also import this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wander.lazy import lazy_names

if TYPE_CHECKING:
    from wander.checks.engine import check_environment
    from wander.checks.report import CHECKS, CheckReport, CheckResult

__all__ = ["CHECKS", "CheckReport", "CheckResult", "check_environment"]

__getattr__, __dir__ = lazy_names(__name__)
