"""Data that client and hub exchange: the run record, and the hub's JSON requests and answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wander.lazy import lazy_names

if TYPE_CHECKING:
    from wander.wire.boards import BoardInfo, BoardSettings, Leaderboard, LeaderboardRow
    from wander.wire.environments import (
        TOKEN_SCOPES,
        ArtifactInfo,
        CheckFinding,
        CheckSummary,
        EnvironmentDetail,
        EnvironmentPage,
        EnvironmentSummary,
        FileInfo,
        HealthStatus,
        LockInfo,
        Page,
        Problem,
        ProjectStatus,
        Role,
        RolloutPage,
        RolloutRow,
        RunDetail,
        RunPage,
        TokenInfo,
        TokenScope,
        UploadWarning,
        VerificationLevel,
        VersionDetail,
    )
    from wander.wire.run_record import (
        RUN_SCHEMA,
        EndpointUse,
        EnvironmentPin,
        Histogram,
        MetricSummary,
        ModelPin,
        Platform,
        RunManifest,
        RunSummary,
        SandboxPin,
        Spending,
        TokenPrices,
        Unlocked,
    )

__all__ = [
    "RUN_SCHEMA",
    "TOKEN_SCOPES",
    "ArtifactInfo",
    "BoardInfo",
    "BoardSettings",
    "CheckFinding",
    "CheckSummary",
    "EndpointUse",
    "EnvironmentDetail",
    "EnvironmentPage",
    "EnvironmentPin",
    "EnvironmentSummary",
    "FileInfo",
    "HealthStatus",
    "Histogram",
    "Leaderboard",
    "LeaderboardRow",
    "LockInfo",
    "MetricSummary",
    "ModelPin",
    "Page",
    "Platform",
    "Problem",
    "ProjectStatus",
    "Role",
    "RolloutPage",
    "RolloutRow",
    "RunDetail",
    "RunManifest",
    "RunPage",
    "RunSummary",
    "SandboxPin",
    "Spending",
    "TokenInfo",
    "TokenPrices",
    "TokenScope",
    "Unlocked",
    "UploadWarning",
    "VerificationLevel",
    "VersionDetail",
]

__getattr__, __dir__ = lazy_names(__name__)
