"""Gathers what each page shows, from the services that the API uses."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy.orm import Session
from wander.types import EnvironmentInfo, Rollout, canonical_json
from wander.wire import (
    ArtifactInfo,
    EnvironmentPage,
    EnvironmentSummary,
    Leaderboard,
    MetricSummary,
    RolloutRow,
    RunDetail,
    RunManifest,
    VersionDetail,
)
from wander.wire.environments import UsedBy
from wander.wire.models import ModelRevision
from wander.wire.postings import LinkedRun, RunLinks
from wander.wire.verification import HubCheck, RunEvidence, VerificationInfo

from wander_hub.database import now
from wander_hub.environments import browse
from wander_hub.environments import repository as environment_repository
from wander_hub.environments import service as environments
from wander_hub.environments.models import Environment
from wander_hub.environments.schemas import EnvironmentFilter
from wander_hub.leaderboards import service as leaderboards
from wander_hub.models import service as models
from wander_hub.runs import repository as run_repository
from wander_hub.runs import service as runs
from wander_hub.runs import use
from wander_hub.storage import Storage
from wander_hub.verification import evidence, version_checks
from wander_hub.verification import service as verification
from wander_hub.web.board import common_axis, find_info
from wander_hub.web.query import query_string
from wander_hub.web.training_run import TrainingView, describe_training

_RECENT_RUNS = 10
_DAYS = 30
"""Of downloads that an environment's page shows."""
_NEAR_SIBLINGS = 64


@dataclass(frozen=True)
class RolloutQuery:
    """Which rollouts of a run a page lists."""

    offset: int = 0
    limit: int = 50
    sort: str = "number"
    """number, reward or -reward."""
    only: str = "all"
    """all, scored or failed."""


@dataclass(frozen=True)
class HomeView:
    """The first page."""

    found: EnvironmentPage
    environments: int
    runs: int
    recent: list[RunDetail]
    filtered: bool
    """Not all environments were asked for, or in another order."""
    following: str | None
    """Where the next page is."""

    @property
    def listed(self) -> list[EnvironmentSummary]:
        """The environments; where nobody chose an order, those to be used go before the others."""
        found = self.found.data
        return found if self.filtered else sorted(found, key=lambda one: one.status != "active")

    @property
    def example(self) -> str:
        """An environment to begin with."""
        usable = [f"{one.owner}/{one.name}" for one in self.found.data if one.status == "active"]
        return usable[0] if usable else "OWNER/NAME"


@dataclass(frozen=True)
class EnvironmentView:
    """One environment's page."""

    summary: EnvironmentSummary
    listed: bool
    """False for a plain package, which nobody evaluates."""
    version: VersionDetail
    versions: list[VersionDetail]
    readme_html: str
    info: EnvironmentInfo | None
    """What the environment said about itself in the newest run of this version; None without a run."""
    board: Leaderboard
    axis: tuple[float, float]
    """Common to the board's intervals."""
    recent: list[RunDetail]
    training: list[RunDetail]
    """Newest training runs on it."""
    digest: str
    """SHA-256 of the wheel; empty when there is none."""
    hub_check: HubCheck | None
    """What the hub's own checks of the version came to."""
    status_reason: str | None
    successor: str | None
    parent: str | None
    mirror_of: str | None
    downloads: list[int]
    """Of the last days, the newest last."""
    used_by: UsedBy


@dataclass(frozen=True)
class RunView:
    """One run's page."""

    run: RunDetail
    label: str
    rows: list[RolloutRow]
    matching: int
    query: RolloutQuery
    weights: dict[str, float]
    metrics: dict[str, MetricSummary]
    """In the order in which the environment declares its functions."""
    command: str
    training: TrainingView | None
    verifications: list[VerificationInfo]
    evidence: RunEvidence
    links: RunLinks
    plots: list[ArtifactInfo]
    """Pictures among its files; of one that is there in two forms the smaller."""


@dataclass(frozen=True)
class ModelView:
    """One model's page, of one revision."""

    revision: ModelRevision
    revisions: list[ModelRevision]
    latest: str | None
    card_html: str
    trained_by: list[LinkedRun]
    runs: list[RunDetail]
    """Evaluations of these very weights, the newest first."""


@dataclass(frozen=True)
class RolloutView:
    """One rollout's page."""

    run: RunDetail
    label: str
    rollout: Rollout
    number: int
    siblings: list[RolloutRow]


def home(session: Session, base_url: str, wanted: EnvironmentFilter) -> HomeView:
    """Return the environments found, the hub's counts and its newest runs."""
    found = environments.list_page(session, wanted)
    asked = {
        name: getattr(wanted, name)
        for name in ("q", "tag", "kind", "deterministic", "checked", "licence", "sort")
    }
    asked = {name: "true" if value is True else value for name, value in asked.items()}
    return HomeView(
        found=found,
        filtered=any(asked.values()) or wanted.cursor is not None,
        following=query_string(**asked, cursor=found.next) if found.next else None,
        environments=browse.count_listed(session),
        runs=run_repository.count_runs(session, most=browse.COUNTED + 1),
        recent=runs.list_page(session, base_url, limit=_RECENT_RUNS).data,
    )


def environment(session: Session, base_url: str, owner: str, name: str, version: str) -> EnvironmentView:
    """Return everything about one version of an environment."""
    found = environments.find(session, owner, name)
    versions = environments.newest_first(list(environment_repository.versions_of(session, found)))
    chosen = environments.find_version(session, found, version)
    recent = runs.list_page(
        session, base_url, environment=f"{found.owner.name}/{found.name}", limit=_RECENT_RUNS
    )
    detail = environments.version_detail(found, chosen, base_url)
    wheels = [file.sha256 for file in detail.files if file.kind == "wheel"]
    board = leaderboards.leaderboard(session, found, base_url, versions=versions, brief=True)
    training = run_repository.find_training_runs(session, found.id, _RECENT_RUNS)
    return EnvironmentView(
        summary=environments.summary_of(found),
        listed=found.listed,
        version=detail,
        versions=[environments.version_detail(found, one, base_url) for one in versions],
        readme_html=chosen.readme_html.removeprefix(f"<h1>{found.name}</h1>").lstrip(),
        info=find_info(session, chosen),
        board=board,
        axis=common_axis(board.rows),
        recent=recent.data,
        training=[runs.detail_of(one, base_url) for one in training],
        digest=wheels[0] if wheels else "",
        hub_check=version_checks.info_of(session, chosen.id),
        status_reason=environments.reason_of(found),
        successor=environments.successor_of(found),
        parent=environments.parent_of(session, found),
        mirror_of=found.mirror_of,
        downloads=_downloads(session, found),
        used_by=use.used_by(session, found),
    )


def run(
    session: Session,
    storage: Storage,
    base_url: str,
    run_id: str,
    query: RolloutQuery,
    step: int | None = None,
) -> RunView:
    """Return a run with one page of its rollouts; of a training run with the samples of a step."""
    found = runs.find(session, run_id)
    detail = runs.detail_of(found, base_url)
    rows, matching = runs.read_sorted_page(
        session, storage, found, sort=query.sort, only=query.only, offset=query.offset, limit=query.limit
    )
    weights = {one.name: one.weight for one in detail.manifest.environment.info.reward_functions}
    metrics, links = detail.summary.metrics, runs.links(session, found)
    ordered = [name for name in dict.fromkeys([*weights, *metrics]) if name in metrics]
    return RunView(
        run=detail,
        label=f"{found.environment.owner.name}/{found.environment.name}",
        rows=rows,
        matching=matching,
        query=query,
        weights=weights,
        metrics={name: metrics[name] for name in ordered},
        command=reproduce_command(detail.manifest, links.pushed.get(found.weights_sha256 or "")),
        training=describe_training(storage, detail, step) if detail.manifest.kind == "training" else None,
        verifications=verification.list_page(session, run_id).data,
        evidence=evidence.evidence_of(session, run_id),
        links=links,
        plots=_plots(detail.artifacts),
    )


def model(session: Session, base_url: str, owner: str, name: str, word: str) -> ModelView:
    """Return a revision of a model, with the runs whose weights are those of its digest."""
    found = models.find(session, owner, name)
    described = models.describe(session, found, base_url)
    shown = models.find_revision(session, found, word)
    evaluations = run_repository.evaluations_of(session, [shown.weights_sha256], _RECENT_RUNS)
    return ModelView(
        revision=models.describe_revision(shown, base_url),
        revisions=described.revisions,
        latest=described.latest,
        card_html=shown.card_html,
        trained_by=runs.makers_of(session, shown.weights_sha256),
        runs=[runs.detail_of(one, base_url) for one in evaluations],
    )


def rollout(session: Session, storage: Storage, base_url: str, run_id: str, number: int) -> RolloutView:
    """Return one rollout and the others of its example."""
    found = runs.find(session, run_id)
    whole = runs.rollout(session, storage, found, number)
    spread = min(found.rollouts_per_example, _NEAR_SIBLINGS)
    # The rollouts of one example lie within `spread` numbers of each other.
    near = range(max(0, number - spread), number + spread + 1)
    rows = runs.rows_numbered(session, storage, found, near)
    return RolloutView(
        run=runs.detail_of(found, base_url),
        label=f"{found.environment.owner.name}/{found.environment.name}",
        rollout=whole,
        number=number,
        siblings=[one for one in rows if one.example_id == whole.example_id],
    )


def list_operations(document: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the operations of an OpenAPI document by their first tag, as a page lists them."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, operations in document["paths"].items():
        for method, one in operations.items():
            asked = [each["name"] for each in one.get("parameters", ()) if each["in"] == "query"]
            described = {"method": method.upper(), "path": path, "parameters": asked}
            said = one.get("description") or one["summary"]
            described["summary"] = said.partition("\n\n")[0]
            groups.setdefault(one.get("tags", ["other"])[0], []).append(described)
    return sorted(groups.items())


def reproduce_command(manifest: RunManifest, checkpoint: str | None = None) -> str:
    """Return the command that makes the same run again, with weights of this hub where it has them.

    The endpoint is whose it is who asks: one that a submitter names would get their prompts and key.
    """
    pin, sampling = manifest.environment, manifest.sampling.given()
    model = manifest.model.name if not manifest.model.name.startswith("-") else "MODEL"
    model = f"hub:{checkpoint}" if checkpoint else model
    words = ["wander", "eval", f"{pin.owner}/{pin.name}@{pin.version}", "-m", model]
    if manifest.model.base_url:
        words += ["-b", "ENDPOINT"]
    words += ["-n", str(len(manifest.example_ids)), "-r", str(manifest.rollouts_per_example)]
    if manifest.split != "eval":
        words += ["--split", manifest.split]
    if manifest.seed:
        words += ["--seed", str(manifest.seed)]
    for key, option in (("temperature", "-t"), ("top_p", "--top-p"), ("max_tokens", "--max-tokens")):
        if key in sampling:
            words += [option, str(sampling.pop(key))]
    if sampling:
        words += ["--sampling", canonical_json(sampling)]
    if pin.arguments:
        words += ["--args", canonical_json(pin.arguments)]
    for player, other in manifest.players.items():
        words += ["--player", f"{player}={other.name}"]
    return shlex.join(words)


def _plots(artifacts: Sequence[ArtifactInfo]) -> list[ArtifactInfo]:
    drawn = [one for one in artifacts if one.media_type in ("image/png", "image/svg+xml")]
    smallest = {one.name.rpartition(".")[0]: one for one in sorted(drawn, key=lambda one: -one.size)}
    return [one for one in drawn if one in smallest.values()]


def _downloads(session: Session, environment: Environment) -> list[int]:
    today = now().date()
    found = environment_repository.downloads_of(session, environment, today - timedelta(days=_DAYS - 1))
    counts = [0] * _DAYS
    for day, _, count in found:
        counts[_DAYS - 1 - max((today - day).days, 0)] += count  # the clock of another server may be ahead
    return counts
