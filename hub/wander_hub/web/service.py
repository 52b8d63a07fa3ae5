"""Gathers what each page shows, from the services that the API uses."""

from __future__ import annotations

from dataclasses import dataclass

from wander.wire import RunDetail
from wander.wire.models import ModelRevision
from wander.wire.postings import LinkedRun

from wander_hub.environments.readme import place
from wander_hub.models import service as models
from wander_hub.runs import repository as run_repository
from wander_hub.runs import service as runs
from wander_hub.web.source.files import colour_blocks
from wander_hub.web.visit import Visit

_RECENT_RUNS = 10


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
    maintained: bool
    """Whether the reader may yank its revisions."""
    managed: bool
    """Whether the reader may say who sees it."""
    visibility: str


def model(visit: Visit, owner: str, name: str, word: str) -> ModelView:
    """Return a revision of a model, with the runs whose weights are those of its digest."""
    found = models.find(visit.session, owner, name)
    described = models.describe(visit.session, found, visit.base_url)
    shown = models.find_revision(visit.session, found, word)
    evaluations = run_repository.evaluations_of(visit.session, [shown.weights_sha256], _RECENT_RUNS)
    return ModelView(
        revision=models.describe_revision(shown, visit.base_url),
        revisions=described.revisions,
        latest=described.latest,
        card_html=colour_blocks(place(shown.card_html, None)),
        trained_by=runs.makers_of(visit.session, shown.weights_sha256),
        runs=[runs.detail_of(one, visit.base_url) for one in evaluations],
        maintained=visit.caller is not None and visit.caller.may_as_owner("maintain", found.owner_id),
        managed=visit.caller is not None and visit.caller.may_as_owner("manage", found.owner_id),
        visibility=found.visibility,
    )
