"""Reading runs and rollouts: lists, details, and links between training runs and evaluations."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session
from wander.types import Rollout
from wander.wire import (
    ArtifactInfo,
    RolloutRow,
    RunDetail,
    RunPage,
    RunSummary,
)
from wander.wire.postings import Checkpoint, LinkedRun, RunLinks, Withdrawal
from wander.wire.untrusted_text import ROLLOUT, read_record

from wander_hub.database import fill
from wander_hub.environments import service as environments
from wander_hub.environments.schemas import Position
from wander_hub.http.problems import HubProblem
from wander_hub.models.repository import first_pushers, names_of_weights
from wander_hub.runs import chunks, repository, signing
from wander_hub.runs.models import Run, RunCheckpoint
from wander_hub.runs.order import StoredOrder
from wander_hub.runs.repository import ListedRun
from wander_hub.storage import Storage

MOST_LINKED = 50
"""Maximum number of evaluations that the page of a training run lists."""
_MOST_WEIGHTS = 500
"""Maximum number of checkpoints of a training run, the last ones, for which evaluations are searched."""


SHORTEST_BEGINNING = 6
"""Minimum number of characters of a run id's prefix."""
SHOWN = 10
"""Number of last characters of a run's id that lists show."""
_NEWEST = 10_000
"""Number of newest runs that are searched for such an ending, because no index covers endings."""


def list_page(
    session: Session,
    base_url: str,
    *,
    environment: str | None = None,
    model: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> RunPage:
    """Return one page of runs, newest first."""
    runs, following = list_newest(session, environment, model, limit, cursor)
    return RunPage(data=details_of(session, runs, base_url), next=following)


def list_newest(
    session: Session, environment: str | None, model: str | None, limit: int, cursor: str | None
) -> tuple[Sequence[Run], str | None]:
    """Return one page of runs, newest first, and the cursor of the next page."""
    query = _narrow(session, repository.visible(session), environment, model, limit, cursor)
    runs = session.scalars(query).all()
    return runs[:limit], _position_after(runs, limit)


def list_rows(
    session: Session, *, environment: str | None, model: str | None, limit: int, cursor: str | None
) -> tuple[list[ListedRun], str | None]:
    """Return one page of table rows, and the cursor of the next page."""
    query = _narrow(session, repository.listed(session), environment, model, limit, cursor)
    rows = repository.list_rows(session, query)
    return rows[:limit], _position_after(rows, limit)


def _narrow(
    session: Session,
    query: Select[Any],
    environment: str | None,
    model: str | None,
    limit: int,
    cursor: str | None,
) -> Select[Any]:
    """Return a statement for a page of runs and one more run."""
    environment_id = None
    if environment is not None:
        owner, slash, name = environment.partition("/")
        if not slash:
            raise HubProblem(422, "invalid_request", "`environment` must have the form `owner/name`")
        environment_id = environments.resolve(session, owner, name).id
    return repository.newest_first(
        query, environment_id=environment_id, model=model, limit=limit + 1, cursor=cursor
    )


def _position_after(runs: Sequence[Run | ListedRun], limit: int) -> str | None:
    return position_of(runs[limit - 1]) if len(runs) > limit else None


def position_of(run: Run | ListedRun) -> str:
    """Return the cursor of the page that begins after a run."""
    return Position(run.posted_at, run.run_id).cursor()


def find(session: Session, run_id: str) -> Run:
    """Return a run; raise a 404 problem if it does not exist."""
    run = repository.run_named(session, run_id)
    if run is None:
        raise HubProblem(404, "run_not_found", f"there is no run `{run_id[:80]}`")
    return run


def find_by_prefix(session: Session, word: str) -> Run:
    """Return the run with an id, with a unique prefix of an id, or with the unique ending that lists show of
    newer runs.

    Raises a 404 problem if there is no such run or there are several.
    """
    run = repository.run_named(session, word)
    if run is not None:
        return run
    if len(word) < SHORTEST_BEGINNING:
        return find(session, word)
    query = repository.visible(session).where(Run.run_id.startswith(word, autoescape=True))
    matches = session.scalars(query.limit(2)).all()
    if len(matches) > 1:
        detail = f"several runs start with `{word[:80]}`"
        raise HubProblem(404, "run_ambiguous", detail, hint="use more characters of the id")
    if not matches and len(word) == SHOWN:
        newest = select(Run.run_id).order_by(Run.run_id.desc()).limit(_NEWEST).subquery()
        ends = select(newest.c.run_id).where(newest.c.run_id.endswith(word, autoescape=True))
        query = repository.visible(session).where(Run.run_id.in_(ends))
        matches = session.scalars(query.limit(2)).all()
    return matches[0] if len(matches) == 1 else find(session, word)


def details_of(session: Session, runs: Sequence[Run], base_url: str) -> list[RunDetail]:
    """Return runs as lists show them, each with the names that its model name looks like."""
    names = repository.find_lookalikes(session, [run.run_id for run in runs])
    return [detail_of(run, base_url, names[run.run_id]) for run in runs]


def detail_of(run: Run, base_url: str, looks_like: Sequence[str] = ()) -> RunDetail:
    """Return a run without its examples, as lists, pages and responses show it."""
    withdrawn = None
    if run.withdrawn_at is not None:
        by = run.withdrawn_by.name if run.withdrawn_by else ""
        withdrawn = Withdrawal(at=run.withdrawn_at, by=by, reason=run.withdrawn_reason or "")
    address = f"{base_url}/api/v1/runs/{run.run_id}/artifacts"
    return fill(
        RunDetail,
        run,
        manifest=run.brief_manifest,
        looks_like=list(looks_like),
        summary=RunSummary.model_validate(run.summary),
        posted_by=run.posted_by.name,
        url=f"{base_url}/runs/{run.run_id}",
        version_deleted=run.version.deleted_at is not None,
        artifacts=[fill(ArtifactInfo, file, url=f"{address}/{file.name}") for file in run.artifacts],
        withdrawn=withdrawn,
        signature=signing.signature_of(run),
    )


def whole_detail(run: Run, base_url: str) -> bytes:
    """Return a run with its whole manifest as JSON; the manifest is copied without parsing it."""
    detail = detail_of(run, base_url).model_dump_json(by_alias=True, exclude={"manifest"})
    return b'{"manifest":' + run.manifest.encode() + b"," + detail.encode()[1:]


def read_sorted_page(
    session: Session, storage: Storage, run: Run, *, sort: str, only: str, offset: int, limit: int
) -> tuple[list[RolloutRow], int]:
    """Return a page of rows in the requested order, and the total number of matches."""
    if run.order_sha256 is None:
        return [], 0
    numbers, total = order_of(storage, run).page(sort=sort, only=only, offset=offset, limit=limit)
    return rows_numbered(session, storage, run, numbers), total


def order_of(storage: Storage, run: Run) -> StoredOrder:
    """Return the order of a run's rollouts by reward."""
    failed = int(run.summary["failed"])
    assert run.order_sha256 is not None, "a run with rollouts has their order"
    return StoredOrder(storage, run.order_sha256, scored=count_of(run) - failed, failed=failed)


def rows_numbered(session: Session, storage: Storage, run: Run, numbers: Sequence[int]) -> list[RolloutRow]:
    """Return the rows of these rollouts, in this order. Numbers that do not exist are skipped."""
    frames: dict[tuple[int, int], list[bytes]] = {}
    covering = repository.chunks_around(session, run.run_id, numbers)
    rows = []
    for number in numbers:
        index = bisect_right(covering, number, key=lambda chunk: chunk.first) - 1
        if index < 0 or number >= covering[index].first + covering[index].rollouts:
            continue
        chunk = covering[index]
        frame, line = divmod(number - chunk.first, chunks.ROWS_PER_FRAME)
        if (chunk.first, frame) not in frames:
            frames[chunk.first, frame] = chunks.row_lines(storage, chunk, frame)
        rows.append(chunks.StoredRow.parse(frames[chunk.first, frame][line]).show(number))
    return rows


def rollout(session: Session, storage: Storage, run: Run, number: int) -> Rollout:
    """Return one whole rollout."""
    return read_record(Rollout, rollout_line(session, storage, run, number), ROLLOUT)


def rollout_line(session: Session, storage: Storage, run: Run, number: int) -> bytes:
    """Return the line of a rollout as it was posted, with two small range reads."""
    chunk = repository.chunk_with(session, with_rollouts(run).run_id, number)
    if chunk is None:
        count = count_of(run)
        hint = f"numbers go from 0 to {count - 1}" if count else None
        raise HubProblem(404, "rollout_not_found", f"`{run.run_id}` has no rollout {number}", hint=hint)
    return chunks.rollout_at(storage, chunk, number - chunk.first)


def rollout_lines(session: Session, storage: Storage, run: Run) -> Iterator[bytes]:
    """Return all rollouts of a run as JSON lines, read one block at a time."""
    stored = repository.chunks_of(session, run.run_id)
    return (block for chunk in stored for block in chunks.lines_of(storage, chunk))


def count_of(run: Run) -> int:
    """Return the number of a run's rollouts."""
    return int(run.summary["rollouts"])


def with_rollouts(run: Run) -> Run:
    """Return the run; raise a 410 problem if it was withdrawn."""
    if run.withdrawn_at is not None:
        detail = f"the run `{run.run_id}` was withdrawn: {run.withdrawn_reason}"
        raise HubProblem(410, "run_withdrawn", detail, hint="its manifest and digests are still available")
    return run


def links(session: Session, run: Run) -> RunLinks:
    """Return the links of a run: from a training run to evaluations, or from an evaluation to training
    runs."""
    if run.kind != "training":
        if run.weights_sha256 is None:
            return RunLinks()
        return RunLinks(
            trained_by=makers_of(session, run.weights_sha256),
            pushed=names_of_weights(session, [run.weights_sha256]),
            stated_by=stated_by(
                *(run.posted_by_id, run.posted_by.name, run.weights_sha256),
                first_pushers(session, [run.weights_sha256]),
            ),
        )
    of_run = select(RunCheckpoint).where(RunCheckpoint.run_id == run.run_id)
    produced = session.scalars(of_run.order_by(RunCheckpoint.step)).all()
    steps = {checkpoint.weights_sha256: checkpoint.step for checkpoint in produced}
    recent = list(steps)[-_MOST_WEIGHTS:]
    query = repository.evaluations_of(repository.visible(session), recent, MOST_LINKED, kind="training")
    later = session.scalars(query).all()
    if run.weights_sha256 is not None:
        steps.setdefault(run.weights_sha256, 0)
    weights = list(steps)[-_MOST_WEIGHTS:]
    evaluations = session.scalars(
        repository.evaluations_of(repository.visible(session), weights, MOST_LINKED)
    ).all()
    return RunLinks(
        checkpoints=[fill(Checkpoint, checkpoint) for checkpoint in produced],
        evaluated_by=_link_by_step(session, evaluations, steps),
        continued_by=_link_by_step(session, [other for other in later if other.run_id != run.run_id], steps),
        pushed=names_of_weights(session, weights),
    )


def makers_of(session: Session, weights_sha256: str) -> list[LinkedRun]:
    """Return the training runs that produced these weights."""
    makers = repository.find_makers(session, weights_sha256, MOST_LINKED)
    pushers = first_pushers(session, [weights_sha256])
    return [_link(maker, step, weights_sha256, pushers) for maker, step in makers]


def _link_by_step(session: Session, runs: Sequence[Run], steps: Mapping[str, int]) -> list[LinkedRun]:
    """Return links to runs, ordered by the step at which their weights were produced."""
    weights = [(run, run.weights_sha256 or "") for run in runs]
    pushers = first_pushers(session, [digest for _, digest in weights])
    links = [_link(run, steps[digest], digest, pushers) for run, digest in weights]
    return sorted(links, key=lambda link: link.step)


def _link(run: Run, step: int, weights_sha256: str, pushers: Mapping[str, int]) -> LinkedRun:
    return fill(
        LinkedRun,
        run,
        step=step,
        weights_sha256=weights_sha256,
        environment=run.environment.label,
        stated_by=stated_by(run.posted_by_id, run.posted_by.name, weights_sha256, pushers),
    )


def stated_by(
    posted_by_id: int, posted_by: str, weights_sha256: str | None, pushers: Mapping[str, int]
) -> str | None:
    """Return the user who stated these weights in a run, or None if the same user pushed them first.

    This is shown because anyone can state the digest of someone else's weights.
    """
    return None if pushers.get(weights_sha256 or "") == posted_by_id else posted_by
