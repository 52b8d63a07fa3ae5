"""Writes a report of checks in the format of OpenEnv's RFC 008, and the manifest that it contains.

The ids, their severities and the bounds of declarations are those of OpenEnv 0.10's policy `v2`. A check of
RFC 008 that Wander does not make is reported as skipped, so the verdict is then at best `warn`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wander.checks.report import CheckReport, CheckResult
from wander.sandbox.policy import SandboxPolicy
from wander.types import EnvironmentInfo

POLICY = "v2"
TOLERANCE = 0.1
"""Share of the reward's range: a correct player must come this close to the maximum, and idle players must
stay this far below it. The loosest values that the policy allows."""

_LEVELS = {"static": 1, "runtime": 2, "semantic": 3}

SOURCES: dict[str, tuple[str, ...]] = {
    "static.layout": ("package.entry-point", "package.readme", "package.license"),
    "static.task_distribution_pinning": ("dataset.stable", "dataset.access"),
    "runtime.startup": ("load.works",),
    "runtime.reward_well_formed": ("rewards.bounds", "rewards.weights"),
    "runtime.observation_schema": ("dataset.rows", "rollout.faults"),
    "runtime.task_declaration_accuracy": ("dataset.rows", "dataset.ids"),
    "runtime.seed_control": ("dataset.stable", "sources.random", "sources.numpy", "sources.entropy"),
    "runtime.episode_determinism": ("determinism.replay",),
    "runtime.network_policy": ("sources.network",),
    "runtime.episode_isolation": ("determinism.shared", "determinism.group"),
    "runtime.oracle_containment": ("tools.answer",),
    "semantic.canary_floor": ("rewards.injection", "rewards.hacks", "rewards.judge"),
    "semantic.no_solution_leakage": ("prompt.answer", "tools.answer"),
    "semantic.verifier_determinism": ("determinism.replay",),
    "semantic.replayability": ("determinism.replay",),
}
"""Checks of RFC 008 and the checks of Wander that decide them."""

NOT_MADE = (
    "static.reproducible_build",
    "static.image_hygiene",
    "static.sbom",
    "static.oci_labels",
    "static.resource_declaration",
    "static.timeout_ceiling",
    "runtime.rubric_introspectable",
    "runtime.state_contract",
    "runtime.trajectory_record",
    "runtime.reward_attribution",
    "runtime.tool_declaration_accuracy",
    "runtime.resource_bounds",
    "semantic.verifier_portability",
    "semantic.resource_envelope",
)
"""Checks of RFC 008 that `wander check` does not make."""

WARNINGS = frozenset(
    (
        "static.image_hygiene",
        "static.layout",
        "runtime.rubric_introspectable",
        "runtime.trajectory_record",
        "runtime.reward_attribution",
    )
)
"""Checks whose failure is only a warning."""


def openenv_manifest(
    info: EnvironmentInfo, version: str | None, *, limits: SandboxPolicy, uses_network: bool
) -> dict[str, Any]:
    """Return the `name`, the `version` and the `validation` block of an environment's `openenv.yaml`.

    `limits` become the declared resources. Raises `ValueError` if the format cannot express the environment.
    """
    low, high = info.reward_range or (0.0, 1.0)
    if low >= high:
        raise ValueError(f"every reward is {low:g}, but OpenEnv needs a range")
    mebibyte = 1024 * 1024
    tasks = {"train": info.train_examples, "eval": info.eval_examples}
    return {
        "name": info.name,
        "version": version,
        "validation": {
            "reward": {
                "range": [low, high],
                "oracle_tolerance": TOLERANCE,
                "floor_margin": TOLERANCE,
            },
            "resources": {
                "cpu": 1.0,
                "memory_mb": limits.memory // mebibyte,
                "disk_mb": limits.tmp // mebibyte,
                "episode_timeout_s": info.timeout_seconds or limits.rollout,
            },
            "network": {"mode": "public" if uses_network else "no-network"},
            "capabilities": {
                "verifier": {"kind": "reward_channel"},
                "declared_task_count": {name: count for name, count in tasks.items() if count is not None},
            },
            "types": {"tags": info.tags or [info.kind]},
        },
    }


def openenv_report(
    report: CheckReport,
    *,
    version: str | None,
    source_digest: str,
    limits: SandboxPolicy,
    is_locked: bool,
    is_confined: bool,
) -> dict[str, Any]:
    """Return a report of RFC 008 (version 1) as JSON values, for the local lane and its three levels.

    `source_digest` is the SHA-256 of the checked source or wheel in hex. `is_locked` says whether the exact
    versions of all dependencies are pinned, and `is_confined` whether the environment ran in the sandbox.
    """
    manifest, reason = None, ""
    if report.info is None:
        reason = "the environment does not load, so it cannot be described"
    elif report.has_judge:
        reason = "its judge is chosen by each evaluation, so the manifest cannot pin it"
    else:
        try:
            manifest = openenv_manifest(
                report.info,
                version,
                limits=limits,
                uses_network=report.by_id("sources.network").status != "pass",
            )
        except ValueError as error:
            reason = str(error)
    results = [
        _result("static.manifest", "fail" if reason else "pass", [reason] if reason else []),
        _decide("static.dependency_pinning", is_locked, "no lock pins its dependencies"),
        _decide("runtime.host_containment", is_confined, "it was not checked in the sandbox"),
        *_reward_results(report),
        *(_derived(check_id, [report.by_id(source) for source in SOURCES[check_id]]) for check_id in SOURCES),
        *(_result(check_id, "skip", ["`wander check` does not make this check"]) for check_id in NOT_MADE),
    ]
    results.sort(key=lambda result: _LEVELS[result["check_id"].partition(".")[0]])
    return {
        "report_schema_version": "1",
        "target": report.target,
        "source_digest": source_digest,
        "signature": "openenv.yaml",
        "manifest": None if manifest is None else _normalized(manifest),
        "policy_version": POLICY,
        "lane": "local",
        "levels_run": list(_LEVELS.values()),
        "results": results,
        "verdict": _verdict(results),
    }


def _normalized(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest as reports contain it."""
    return {
        "manifest_schema_version": "1",
        "signature": "openenv.yaml",
        "name": manifest["name"],
        "version": manifest["version"],
        **manifest["validation"],
    }


def _decide(check_id: str, holds: bool, otherwise: str) -> dict[str, Any]:
    """Return a result that passes or, because nothing shows a fault, is skipped."""
    return _result(check_id, "pass" if holds else "skip", [] if holds else [otherwise])


def _reward_results(report: CheckReport) -> list[dict[str, Any]]:
    """Compare what the correct player and the idle players earned with the range of the reward."""
    low, high = (report.info.reward_range if report.info else None) or (0.0, 1.0)
    width = high - low
    gold = report.earned.get("gold")
    idle = [report.earned[player] for player in ("empty", "noop") if player in report.earned]
    results = []
    for check_id, reward, reason in (
        ("semantic.oracle_max", gold, "no rollout of a correct player was scored: override `gold(example)`"),
        ("semantic.floor_gap", max(idle, default=None), "no rollout of an idle player was scored"),
    ):
        if reward is None or width <= 0:
            results.append(_result(check_id, "skip", [reason]))
            continue
        gap = (high - reward) / width
        passes = gap <= TOLERANCE + 1e-9 if check_id == "semantic.oracle_max" else gap >= TOLERANCE
        measured = {"reward": reward, "range": [low, high], "declared_share": TOLERANCE}
        results.append(_result(check_id, "pass" if passes else "fail", [], measured=measured))
    return results


def _derived(check_id: str, sources: Sequence[CheckResult]) -> dict[str, Any]:
    """Return a result that fails if one of Wander's checks failed, and is skipped if none was made."""
    made = [source for source in sources if source.status != "skip"]
    failed = [source for source in made if source.status == "fail"]
    status = "fail" if failed else "pass" if made else "skip"
    return _result(
        check_id,
        status,
        [f"{source.id}: {source.message or source.title}" for source in failed or made or sources],
        remediation=" ".join(source.doc for source in failed) or None,
        seconds=sum(source.seconds for source in sources),
    )


def _result(
    check_id: str,
    status: str,
    evidence: list[str],
    *,
    measured: dict[str, Any] | None = None,
    remediation: str | None = None,
    seconds: float = 0.0,
) -> dict[str, Any]:
    return {
        "check_id": check_id,
        "status": status,
        "measured": measured or {},
        "evidence": evidence,
        "remediation": remediation,
        "duration_s": seconds,
    }


def _verdict(results: Sequence[dict[str, Any]]) -> str:
    """Return the verdict of the policy: a skipped check is a warning."""
    failed = {result["check_id"] for result in results if result["status"] == "fail"}
    if failed - WARNINGS:
        return "fail"
    return "warn" if failed or any(result["status"] == "skip" for result in results) else "pass"
