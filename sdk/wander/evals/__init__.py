"""Evaluate environments, store and replay runs, and compute their statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wander.lazy import lazy_names

if TYPE_CHECKING:
    from wander.evals.exhaustive import WalkPlan, WalkResult, walk
    from wander.evals.replay import replay_run
    from wander.evals.run.plan import EvaluationPlan
    from wander.evals.run.runner import EvaluationResult, Progress, evaluate
    from wander.evals.stats.bootstrap import bootstrap_interval
    from wander.evals.stats.comparison import Comparison, compare_runs, detectable_difference
    from wander.evals.stats.intervals import wilson_interval
    from wander.evals.stats.pass_at_k import pass_at_k, pass_hat_k
    from wander.evals.stats.summary import summarize
    from wander.evals.store.folder import RunFolder
    from wander.evals.store.schema import record_schema

__all__ = [
    "Comparison",
    "EvaluationPlan",
    "EvaluationResult",
    "Progress",
    "RunFolder",
    "WalkPlan",
    "WalkResult",
    "bootstrap_interval",
    "compare_runs",
    "detectable_difference",
    "evaluate",
    "pass_at_k",
    "pass_hat_k",
    "record_schema",
    "replay_run",
    "summarize",
    "walk",
    "wilson_interval",
]

__getattr__, __dir__ = lazy_names(__name__)
