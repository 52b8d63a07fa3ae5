"""Gathers the data for the page of a run: its numbers, and the rollouts that match the reader's filters."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import Field
from wander.types import canonical_json
from wander.wire import ArtifactInfo, MetricSummary, RolloutRow, RunDetail, RunManifest
from wander.wire.postings import RunLinks
from wander.wire.verification import RunEvidence

from wander_hub.leaderboards.models import HiddenRun
from wander_hub.leaderboards.repository import find_hiding
from wander_hub.posting.service import is_own
from wander_hub.rights import rights
from wander_hub.runs import explorer
from wander_hub.runs import service as runs
from wander_hub.runs.explorer import RolloutQuery, RunBreakdown
from wander_hub.runs.exports import MOST_EXPORTED
from wander_hub.runs.models import Run
from wander_hub.storage import spare_missing
from wander_hub.verification import evidence
from wander_hub.web.addresses import query_of
from wander_hub.web.run.overlay import phases_of
from wander_hub.web.run.replays import Replays, list_replays
from wander_hub.web.run.training import TrainingView, describe_training
from wander_hub.web.visit import Visit

_MOST_ENDINGS = 50
"""Maximum number of stop reasons in the filter's menu. The query string accepts every stop reason."""


class RunQuery(RolloutQuery):
    """Selects the rollouts on a run's page, and the step whose samples a training run's page shows."""

    limit: int = Field(50, ge=1, le=200)
    step: int | None = Field(None, ge=0, le=2**31)

    def address(self, *, offset: int = 0, **changes: object) -> str:
        """Return the query string for the same rollouts, with changes."""
        asked = self.asked(**changes) | ({} if self.step is None else {"step": self.step})
        return query_of(asked | ({"offset": offset} if offset else {}))


@dataclass(frozen=True)
class RunView:
    """Data for the page of a run."""

    run: RunDetail
    label: str
    examples: int
    strata: list[int]
    """The strata of its examples."""
    rows: list[RolloutRow]
    matching: int
    query: RunQuery
    weights: dict[str, float]
    metrics: dict[str, MetricSummary]
    """Metrics in the environment's own order of its functions."""
    command: str
    training: TrainingView | None
    replays: Replays
    evidence: RunEvidence
    links: RunLinks
    phases: list[Run]
    """The training runs that this one continued, from the first to this one."""
    breakdown: RunBreakdown
    transcripts_searched: bool
    """Whether the text search covers all messages."""
    incomplete: bool
    """Whether the page leaves out data because a file is missing from the storage."""
    hidden: HiddenRun | None
    """The record that hides the run from its leaderboard, with the reason."""
    own: bool
    """Whether the reader may withdraw it."""
    managed: bool
    """Whether the reader may hide it from its leaderboard."""
    plots: list[ArtifactInfo] = field(default_factory=list)
    """Images among its files. If an image has two formats, the smaller file."""

    @property
    def in_words(self) -> str:
        """The manifest in one or two sentences."""
        return describe(self.run.manifest, self.label, self.examples)

    @property
    def endings(self) -> list[str]:
        """Stop reasons of the rollouts, the most frequent first."""
        found = self.run.summary.stop_reasons.items()
        return [reason for reason, _ in sorted(found, key=lambda one: -one[1])[:_MOST_ENDINGS]]

    @property
    def exportable(self) -> bool:
        """False if the run has too many rollouts to export it in formats of other tools."""
        return self.run.summary.rollouts <= MOST_EXPORTED

    @property
    def searchable(self) -> bool:
        """False if the run has too many rollouts to search."""
        return self.run.summary.rollouts <= explorer.MOST_SEARCHED


def run(visit: Visit, run_id: str, query: RunQuery) -> RunView:
    """Return a run with one page of its rollouts. A training run comes with the samples of a step."""
    found = runs.find(visit.session, run_id)
    (detail,) = runs.details_of(visit.session, [found], visit.base_url)
    lost = set[str]()
    rows, matching, breakdown = list[RolloutRow](), 0, RunBreakdown()
    with spare_missing(lost):
        rows, matching = explorer.list_page(
            visit.session, visit.storage, found, query, query.offset, query.limit
        )
        breakdown = explorer.break_down(visit.session, visit.storage, found)
    training = detail.manifest.kind == "training"
    weights = {one.name: one.weight for one in detail.manifest.environment.info.reward_functions}
    metrics, links = detail.summary.metrics, runs.links(visit.session, found)
    pushed = links.pushed.get(found.weights_sha256 or "")
    ordered = [name for name in dict.fromkeys([*weights, *metrics]) if name in metrics]
    return RunView(
        run=detail,
        label=found.environment.label,
        examples=found.examples,
        strata=explorer.list_strata(found.brief_manifest),
        rows=rows,
        matching=matching,
        query=query,
        weights=weights,
        metrics={name: metrics[name] for name in ordered},
        command=reproduce_command(detail.manifest, found.examples, pushed),
        training=describe_training(visit.storage, detail, query.step, lost, pushed) if training else None,
        replays=list_replays(visit.session, visit.settings, found, visit.caller),
        evidence=evidence.evidence_of(visit.session, found),
        links=links,
        phases=phases_of(visit.session, found) if training else [],
        transcripts_searched=explorer.reads_transcripts(found),
        breakdown=breakdown,
        incomplete=bool(lost),
        hidden=find_hiding(visit.session, found.run_id),
        own=visit.caller is not None and found.withdrawn_at is None and is_own(found, visit.caller),
        managed=visit.caller is not None and rights.may(visit.caller, "manage", found.environment),
        plots=_plots(detail.artifacts),
    )


def describe(manifest: RunManifest, label: str, examples: int) -> str:
    """Return a description of a manifest in one or two sentences."""
    pin, sampling = manifest.environment, manifest.sampling.given()
    repeats = manifest.rollouts_per_example
    environment = f"{label} {pin.version}" if pin.version else label
    chosen = {"first": "the first", "strata": "an even selection from all strata:"}.get(
        manifest.choice, "a random selection:"
    )
    count_of_examples = f"{examples} example{'' if examples == 1 else 's'} of the {manifest.split} split"
    times = "once" if repeats == 1 else f"{repeats} times"
    if manifest.kind == "training":
        text = f"{manifest.model.name} was trained on {environment}: {chosen} {count_of_examples}."
    elif manifest.kind == "exhaustive":
        text = f"{manifest.model.name} played every line of {environment} from {examples} openings."
    else:
        text = f"{manifest.model.name} played {environment}: {chosen} {count_of_examples}, each {times}."
    words = {"temperature": "temperature {}", "top_p": "top-p {}", "max_tokens": "at most {} tokens per turn"}
    settings = [phrase.format(sampling[name]) for name, phrase in words.items() if name in sampling]
    settings += [f"seed {manifest.seed}"] if manifest.seed else []
    text += f" Sampled with {', '.join(settings)}." if settings else ""
    for player, one in manifest.players.items():
        text += f" {one.name} played {player}."
    return text


def reproduce_command(manifest: RunManifest, examples: int, checkpoint: str | None = None) -> str:
    """Return the command that repeats a run, with the weights from this hub if it has them.

    The reader must fill in an endpoint. The submitter's endpoint would receive the reader's prompts and key.
    """
    pin, sampling = manifest.environment, manifest.sampling.given()
    model = manifest.model.name if not manifest.model.name.startswith("-") else "MODEL"
    model = f"hub:{checkpoint}" if checkpoint else model
    words = ["wander", "eval", f"{pin.owner}/{pin.name}@{pin.version}", "-m", model]
    if manifest.model.base_url:
        words += ["-b", "ENDPOINT"]
    words += ["-n", str(examples), "-r", str(manifest.rollouts_per_example)]
    if manifest.split != "eval":
        words += ["--split", manifest.split]
    if manifest.seed:
        words += ["--seed", str(manifest.seed)]
    for key, option in (("temperature", "-t"), ("max_tokens", "--max-tokens")):
        if key in sampling:
            words += [option, str(sampling.pop(key))]
    for key, value in sampling.items():
        words += ["--set", f"sampling.{key}={canonical_json(value)}"]
    for key, value in pin.changed_arguments.items():
        words += ["-a", f"{key}={canonical_json(value)}"]
    for player, other in manifest.players.items():
        words += ["--player", f"{player}={other.name}"]
    return shlex.join(words)


def _plots(artifacts: Sequence[ArtifactInfo]) -> list[ArtifactInfo]:
    drawn = [one for one in artifacts if one.media_type in ("image/png", "image/svg+xml")]
    smallest = {one.name.rpartition(".")[0]: one for one in sorted(drawn, key=lambda one: -one.size)}
    return [one for one in drawn if one in smallest.values()]
