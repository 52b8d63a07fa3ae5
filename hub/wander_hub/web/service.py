"""Gathers what each page shows, from the services that the API uses."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session
from wander.types import Rollout, canonical_json
from wander.wire import (
    ArtifactInfo,
    MetricSummary,
    RolloutRow,
    RunDetail,
    RunManifest,
)
from wander.wire.models import ModelRevision
from wander.wire.postings import LinkedRun, RunLinks
from wander.wire.verification import RunEvidence, VerificationInfo

from wander_hub.environments.readme import place
from wander_hub.models import service as models
from wander_hub.runs import repository as run_repository
from wander_hub.runs import service as runs
from wander_hub.storage import Storage
from wander_hub.verification import evidence
from wander_hub.verification import service as verification
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
        card_html=place(shown.card_html, None),
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
