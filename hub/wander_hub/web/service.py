"""Gathers what each page shows, from the services that the API uses."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session
from wander.wire import RunDetail
from wander.wire.models import ModelRevision
from wander.wire.postings import LinkedRun

from wander_hub.environments.readme import place
from wander_hub.identity import Identity
from wander_hub.models import service as models
from wander_hub.runs import repository as run_repository
from wander_hub.runs import service as runs
from wander_hub.web.source.files import colour_blocks

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


def model(
    session: Session, base_url: str, owner: str, name: str, word: str, caller: Identity | None
) -> ModelView:
    """Return a revision of a model, with the runs whose weights are those of its digest."""
    found = models.find(session, owner, name)
    described = models.describe(session, found, base_url)
    shown = models.find_revision(session, found, word)
    evaluations = run_repository.evaluations_of(session, [shown.weights_sha256], _RECENT_RUNS)
    return ModelView(
        revision=models.describe_revision(shown, base_url),
        revisions=described.revisions,
        latest=described.latest,
        card_html=colour_blocks(place(shown.card_html, None)),
        trained_by=runs.makers_of(session, shown.weights_sha256),
        runs=[runs.detail_of(one, base_url) for one in evaluations],
        maintained=caller is not None and caller.may_as_owner("maintain", found.owner_id),
        managed=caller is not None and caller.may_as_owner("manage", found.owner_id),
        visibility=found.visibility,
    )
