"""Gathers what the pages of a run show: its numbers, and the rollouts that a reader looks for."""

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
from wander_hub.runs.explorer import Breakdown, RolloutQuery
from wander_hub.runs.models import Run
from wander_hub.storage import spare_missing
from wander_hub.verification import evidence
from wander_hub.web.addresses import query_of
from wander_hub.web.run.overlay import phases_of
from wander_hub.web.run.replays import Replays, list_replays
from wander_hub.web.run.training import TrainingView, describe_training
from wander_hub.web.visit import Visit

_MOST_ENDINGS = 50
"""Ends of rollouts that can be chosen from; an address may name any other."""


class RunQuery(RolloutQuery):
    """Which rollouts a run's page lists; of a training run, the samples of which step it shows."""

    limit: int = Field(50, ge=1, le=200)
    step: int | None = Field(None, ge=0, le=2**31)

    def address(self, *, offset: int = 0, **changes: object) -> str:
        """Return the query that asks for the same rollouts, with changes."""
        asked = self.asked(**changes) | ({} if self.step is None else {"step": self.step})
        return query_of(asked | ({"offset": offset} if offset else {}))


@dataclass(frozen=True)
class RunView:
    """One run's page."""

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
    """In the order in which the environment declares its functions."""
    command: str
    training: TrainingView | None
    replays: Replays
    evidence: RunEvidence
    links: RunLinks
    phases: list[Run]
    """Of a training run those that it went on from, the first of them first, and itself."""
    breakdown: Breakdown
    transcripts_searched: bool
    """Whether words are looked for in all that was said."""
    incomplete: bool
    """Whether something of it is not shown, since the store has lost a file."""
    hidden: HiddenRun | None
    """Why it is kept off its board."""
    own: bool
    """Whether the reader may withdraw it."""
    managed: bool
    """Whether the reader may keep it off its board."""
    plots: list[ArtifactInfo] = field(default_factory=list)
    """Pictures among its files; of one that is there in two forms the smaller."""

    @property
    def in_words(self) -> str:
        """What the manifest says was done, in a sentence or two."""
        return describe(self.run.manifest, self.label, self.examples)

    @property
    def endings(self) -> list[str]:
        """Why rollouts ended, the most frequent first."""
        found = self.run.summary.stop_reasons.items()
        return [reason for reason, _ in sorted(found, key=lambda one: -one[1])[:_MOST_ENDINGS]]

    @property
    def searchable(self) -> bool:
        """False for a run whose rows are too many to be searched."""
        return self.run.summary.rollouts <= explorer.MOST_SEARCHED


def run(visit: Visit, run_id: str, query: RunQuery) -> RunView:
    """Return a run with one page of its rollouts; of a training run with the samples of a step."""
    found = runs.find(visit.session, run_id)
    (detail,) = runs.details_of(visit.session, [found], visit.base_url)
    lost = set[str]()
    rows, matching, breakdown = list[RolloutRow](), 0, Breakdown()
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
    """Return what a manifest says was done, in words."""
    pin, sampling = manifest.environment, manifest.sampling.given()
    each = manifest.rollouts_per_example
    what = f"{label} {pin.version}" if pin.version else label
    chosen = {"first": "the first", "strata": "drawn evenly from the strata:"}.get(
        manifest.choice, "drawn by the seed:"
    )
    many = f"{examples} example{'' if examples == 1 else 's'} of the {manifest.split} split"
    times = "once" if each == 1 else f"{each} times"
    if manifest.kind == "training":
        said = f"{manifest.model.name} was trained on {what}, {chosen} {many}."
    elif manifest.kind == "exhaustive":
        said = f"{manifest.model.name} played every line of {what} from {examples} openings."
    else:
        said = f"{manifest.model.name} played {what}: {chosen} {many}, each {times}."
    words = {"temperature": "temperature {}", "top_p": "top-p {}", "max_tokens": "at most {} tokens a turn"}
    asked = [text.format(sampling[name]) for name, text in words.items() if name in sampling]
    asked += [f"seed {manifest.seed}"] if manifest.seed else []
    said += f" Sampled with {', '.join(asked)}." if asked else ""
    for player, one in manifest.players.items():
        said += f" {player} was played by {one.name}."
    return said


def reproduce_command(manifest: RunManifest, examples: int, checkpoint: str | None = None) -> str:
    """Return the command that makes the same run again, with weights of this hub where it has them.

    The endpoint is whose it is who asks: one that a submitter names would get their prompts and key.
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
