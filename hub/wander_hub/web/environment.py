"""Gathers the data for the page of an environment."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache

from markupsafe import Markup
from sqlalchemy import Select, bindparam
from sqlalchemy.orm import Session
from wander.types import EnvironmentInfo, Rollout
from wander.wire import EnvironmentSummary, Leaderboard, LeaderboardRow, RunManifest, VersionDetail
from wander.wire.transfers import SealedSetInfo
from wander.wire.untrusted_text import MANIFEST_HEAD, ROLLOUT, read_record
from wander.wire.verification import Difficulty, HubCheck, HubLearning

from wander_hub.attestations.verification import Attester, list_attesters
from wander_hub.database import READER, now
from wander_hub.environments import repository as environment_repository
from wander_hub.environments import service as environments
from wander_hub.environments.models import Environment
from wander_hub.environments.readme import Heading, list_headings, place
from wander_hub.environments.repository import KEPT_STATEMENTS, ListedVersion
from wander_hub.identity import Identity
from wander_hub.leaderboards import service as leaderboards
from wander_hub.leaderboards.filters import BoardFilter
from wander_hub.lifecycle.locks import list_packages
from wander_hub.rights import rights
from wander_hub.runs import repository as run_repository
from wander_hub.runs.chunks import rollout_at
from wander_hub.runs.models import Run, RunChunk
from wander_hub.sealed import service as sealed
from wander_hub.storage import Storage, spare_missing
from wander_hub.verification import service as verification
from wander_hub.verification import version_checks
from wander_hub.verification.difficulty import measure_difficulty
from wander_hub.web import charts
from wander_hub.web.board import common_axis
from wander_hub.web.run import transcript
from wander_hub.web.source import color_blocks
from wander_hub.web.visit import Visit

_RECENT_RUNS, _BEST_ROWS = 10, 5
_DAYS = 30
"""Days of downloads in the chart."""
_MOST_MESSAGES = 12
"""Maximum number of messages of the recorded rollout on the page."""


@dataclass(frozen=True)
class SampleRollout:
    """The beginning of a recorded rollout."""

    row: LeaderboardRow
    reward: float | None
    messages: list[transcript.ShownMessage]
    parts: list[transcript.RewardPart]
    more: int
    """Number of messages that are left out."""


@dataclass(frozen=True)
class EnvironmentView:
    """Data for the page of an environment."""

    summary: EnvironmentSummary
    listed: bool
    """False for a plain package, which cannot be evaluated."""
    version: VersionDetail
    versions: list[ListedVersion]
    readme_html: str
    headings: list[Heading]
    """Headings of the README."""
    sample: SampleRollout | None
    """A recorded rollout of the best result."""
    sample_lost: bool
    """Whether the recorded rollout cannot be shown because a file is missing from the storage."""
    info: EnvironmentInfo | None
    """The environment's description of itself in the newest run of this version. None without a run."""
    board: Leaderboard
    axis: tuple[float, float]
    """Range of values that covers all intervals of the board."""
    evaluations: list[run_repository.ListedRun]
    """Newest evaluations of it."""
    training: list[run_repository.ListedRun]
    """Newest training runs on it."""
    digest: str
    """SHA-256 of the wheel, or an empty string without a wheel."""
    locked: tuple[tuple[str, str], ...]
    """The packages of its lock file with their versions."""
    attesters: list[Attester]
    """The workflows that attested files of the version."""
    hub_check: HubCheck | None
    """The result of the hub's own check of the version."""
    learning: HubLearning | None
    """The hub's proof of learning for the version."""
    learning_chart: Markup
    """Curve of the proof of learning; empty without one."""
    difficulty: Difficulty | None
    """Solve rates of the version's examples. None if a file is missing from the storage."""
    sealed_sets: list[SealedSetInfo]
    """Sealed task sets of all of its versions."""
    status_reason: str | None
    successor: str | None
    downloads: list[int]
    """Downloads per day, oldest day first."""
    maintained: bool
    """Whether the visitor may change its settings."""


def show_environment(visit: Visit, owner: str, name: str, version: str) -> EnvironmentView:
    """Return everything about one version of an environment."""
    found = environments.find(visit.session, owner, name)
    label = found.label
    versions = environments.list_versions(visit.session, found)
    chosen = environments.find_version(visit.session, found, version)
    evaluations, training = run_repository.newest_of(visit.session, found.id, _RECENT_RUNS)
    detail = environments.version_detail(found, chosen, visit.base_url)
    wheels = [file.sha256 for file in detail.files if file.kind == "wheel"]
    named = None if version == "latest" else chosen.version
    board = leaderboards.leaderboard(
        *(visit.session, found, visit.base_url),
        version=named,
        versions=versions,
        wanted=BoardFilter(limit=_BEST_ROWS),
        brief=True,
    )
    sample, lost = None, set[str]()
    with spare_missing(lost):
        sample = _find_sample(visit.session, visit.storage, board)
    locked: tuple[tuple[str, str], ...] = ()
    with spare_missing(set()):  # a lost lock file shows up at its download
        locked = list_packages(visit.storage, detail.lock.sha256, detail.lock.size) if detail.lock else ()
    difficulty = None
    with spare_missing(set()):
        difficulty = measure_difficulty(visit.session, visit.storage, chosen)
    learning = version_checks.learning_info(visit.session, chosen.id)
    title = re.compile(rf'<h1(?: id="[^"]*")?>{re.escape(found.name)}</h1>\s*')
    rendered = title.sub("", chosen.readme_html, count=1)
    readme = color_blocks(place(rendered, f"/{label}/versions/{chosen.version}/"))
    return EnvironmentView(
        summary=environments.summary_of(found),
        listed=found.listed,
        version=detail,
        versions=versions,
        readme_html=readme,
        headings=list_headings(readme),
        sample=sample,
        sample_lost=bool(lost),
        info=verification.find_info(visit.session, chosen),
        board=board,
        axis=common_axis(board.rows),
        evaluations=evaluations,
        training=training,
        digest=wheels[0] if wheels else "",
        locked=locked,
        attesters=list_attesters(visit.session, environments.list_offered_files(found, chosen)),
        hub_check=version_checks.info_of(visit.session, chosen.id),
        learning=learning,
        learning_chart=_draw_learning(learning),
        difficulty=difficulty,
        sealed_sets=[sealed.info_of(one, visit.base_url) for one in sealed.sets_of(visit.session, found)],
        status_reason=environments.reason_of(found),
        successor=environments.successor_of(found),
        downloads=_count_downloads(visit.session, found),
        maintained=visit.caller is not None and rights.may(visit.caller, "maintain", found),
    )


def _draw_learning(learning: HubLearning | None) -> Markup:
    """Draw the points of a curve that have an interval."""
    curve = learning.report.curve if learning and learning.report else []
    points = [
        (point.step, point.reward, point.low, point.high)
        for point in curve
        if point.low is not None and point.high is not None
    ]
    return charts.evaluations({"held-out examples": points}) if len(points) > 1 else Markup("")


def _find_sample(session: Session, storage: Storage, board: Leaderboard) -> SampleRollout | None:
    """Return the beginning of the first rollout of the best result, or None if its rollouts are gone."""
    for row in board.rows[:1]:
        reader = session.info.get(READER)
        for brief, chunk in session.execute(_first_chunk(reader), {"run_id": row.run_id}):
            rollout = read_record(Rollout, rollout_at(storage, chunk, 0), ROLLOUT)
            manifest = read_record(RunManifest, brief, MANIFEST_HEAD)
            messages, omitted = transcript.list_messages(rollout, view=manifest.environment.info.view)
            parts, _ = transcript.reward_parts(rollout, manifest)
            shown = messages[:_MOST_MESSAGES]
            more = omitted + len(messages) - len(shown)
            return SampleRollout(row, rollout.reward, shown, parts, more)
    return None


@lru_cache(KEPT_STATEMENTS)
def _first_chunk(reader: Identity | None) -> Select[str, RunChunk]:
    """Return the statement that selects a run's brief manifest and the chunk that starts with rollout 0."""
    query = run_repository.runs_readable_by(reader).join(RunChunk, RunChunk.run_id == Run.run_id)
    query = query.where(Run.run_id == bindparam("run_id"), RunChunk.first == 0)
    return query.with_only_columns(Run.brief, RunChunk, maintain_column_froms=True)


def _count_downloads(session: Session, environment: Environment) -> list[int]:
    today = now().date()
    found = environment_repository.downloads_of(session, environment, today - timedelta(days=_DAYS - 1))
    counts = [0] * _DAYS
    for day, _, count in found:
        counts[_DAYS - 1 - max((today - day).days, 0)] += count  # another server's clock may be ahead
    return counts
