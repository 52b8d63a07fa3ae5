"""Sealed sets: create, list, play and open them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from importlib.util import find_spec
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session, contains_eager, joinedload, selectinload, undefer
from wander.errors import ConfigError
from wander.system.addresses import is_inner, is_listed
from wander.wire import ModelPin, RunSummary
from wander.wire import transfers as wire
from wander.wire.models import parse_model
from wander.wire.transfers import NewSealedPlay, SealedSetInfo, SealedSetList, SealOpening
from wander.wire.untrusted_text import RefusedText

from wander_hub import audit
from wander_hub.database import fill, now
from wander_hub.environments import service as environments
from wander_hub.environments.models import Environment, Version
from wander_hub.environments.repository import readable
from wander_hub.http.boundary import Context
from wander_hub.http.problems import HubProblem
from wander_hub.jobs import OPEN, Job, TableQueue
from wander_hub.models import service as models
from wander_hub.models.models import Revision
from wander_hub.rights import rights
from wander_hub.runs import manifest as manifests
from wander_hub.sealed import memory
from wander_hub.sealed.cipher import SealKeeper, WrongKey, seal, sealing_off
from wander_hub.sealed.models import SealedPlay, SealedSet
from wander_hub.settings import Settings

CHECK, PLAY, OPENING = "seal-check", "seal-play", "seal-open"
"""Kinds of the jobs that load a set, play it and open it."""
MOST_SETS = 20
"""Maximum number of sets of one version."""
MOST_PLAYS = 10
"""Maximum number of plays of one user and set. The mean reward of a play tells something about the answers,
so unlimited plays would reveal them."""
_SHOWN_ROWS, _SHOWN_LETTERS = 20, 1000
_DIGITS = 4
"""Significant digits of the rewards that are shown until a set opens."""
_LONGEST = timedelta(days=3660)
_RETRIED_AFTER = timedelta(minutes=10)
_WEIGHT_BYTES = 4
"""Bytes of a parameter in memory: models are run in float32."""


def keeper_of(settings: Settings) -> SealKeeper:
    """Return what encrypts the sealed sets of a hub; raise a 404 problem if it does not keep any."""
    if settings.seal_key_file is None or settings.verification == "off" or not memory.is_available():
        raise sealing_off()
    return SealKeeper(settings.seal_key_file)


def visible(session: Session) -> Select[SealedSet]:
    """Return the base statement of every read: sets of environments that the caller may see."""
    of_version = contains_eager(SealedSet.version).contains_eager(Version.environment)
    plays = selectinload(SealedSet.plays)
    query = select(SealedSet).join(SealedSet.version).join(Version.environment).join(Environment.owner)
    return query.where(readable(session)).options(
        of_version.contains_eager(Environment.owner),
        joinedload(SealedSet.created_by),
        plays.joinedload(SealedPlay.job),
        plays.joinedload(SealedPlay.submitted_by),
        plays.joinedload(SealedPlay.run),
    )


def find(session: Session, commitment: str) -> SealedSet:
    """Return a set; raise a 404 problem if it does not exist."""
    found = session.scalar(visible(session).where(SealedSet.commitment == commitment))
    if found is None:
        hint = "`GET /api/v1/environments/OWNER/NAME/sealed` lists the sets of an environment"
        raise HubProblem(404, "set_not_found", f"there is no sealed set `{commitment[:64]}`", hint=hint)
    return found


def list_sets(session: Session, owner: str, name: str, base_url: str) -> SealedSetList:
    """Return the sets of an environment, newest first."""
    environment = environments.find(session, owner, name)
    return SealedSetList(data=[info_of(found, base_url) for found in sets_of(session, environment)])


def sets_of(session: Session, environment: Environment) -> Sequence[SealedSet]:
    """Return the sets of an environment, newest first."""
    query = visible(session).where(Version.environment_id == environment.id)
    return session.scalars(query.order_by(SealedSet.id.desc())).all()


def create(
    context: Context, place: tuple[str, str, str], content: bytes, opens_at: datetime
) -> SealedSetInfo:
    """Store a set for the environment version `place` (owner, name, version), and submit its check."""
    keeper = keeper_of(context.settings)
    owner, name, number = place
    try:
        rows = wire.read_set(content)
    except RefusedText as error:
        raise HubProblem(422, "bad_set", str(error), hint="upload it with `wander seal create`") from None
    if not now() < opens_at < now() + _LONGEST:
        detail = f"{opens_at:%Y-%m-%d %H:%M} UTC is in the past, or more than ten years from now"
        raise HubProblem(422, "bad_date", detail, hint="choose another date")
    commitment = wire.commitment_of(content)
    with context.read() as session:
        encrypted = select(SealedSet.id).where(SealedSet.wrapped_key.is_not(None)).limit(1)
        first = session.scalar(encrypted) is None
    try:
        key, wrapped = keeper.new_key(commitment, first=first)
    except WrongKey as error:
        hint = "its operator has to restore the file `WANDER_HUB_SEAL_KEY_FILE`"
        raise HubProblem(503, "seal_key_unavailable", str(error), hint=hint) from error
    ciphertext = seal(key, content, f"set {commitment}")

    def record(session: Session) -> SealedSetInfo:
        environment = rights.environment_for(session, context.caller, "publish", owner, name)
        version = environments.find_version(session, environment, number)
        if version.deleted_at is not None:
            raise HubProblem(409, "version_deleted", f"version {version.version} was deleted")
        if session.scalar(select(SealedSet.id).where(SealedSet.commitment == commitment)) is not None:
            raise HubProblem(409, "set_exists", "a set with this commitment exists", hint="seal it again")
        same = select(func.count()).select_from(SealedSet).where(SealedSet.version_id == version.id)
        if session.scalars(same).one() >= MOST_SETS:
            detail = f"a version has at most {MOST_SETS} sealed sets"
            raise HubProblem(409, "too_many_sets", detail, hint="publish a new version")
        audit.about(session, target=commitment, examples=len(rows), opens_at=opens_at.isoformat())
        added = SealedSet(
            commitment=commitment,
            version_id=version.id,
            state="checking",
            examples=len(rows),
            wrapped_key=wrapped,
            content=ciphertext,
            created_by_id=context.caller.user_id,
            created_at=now(),
            opens_at=opens_at,
        )
        session.add(added)
        session.flush()
        payload = {"set": added.id, "version_id": version.id}
        queue = TableQueue.of(context.settings, context.database)
        queue.submit(session, CHECK, f"{CHECK} {added.id}", payload, created_by=context.caller.user_id)
        return info_of(find(session, commitment), context.base_url)

    return context.commit(record)


def request_play(context: Context, commitment: str, wanted: NewSealedPlay) -> SealedSetInfo:
    """Submit a play of a set with the model of an endpoint, or with a model of the hub."""
    keeper_of(context.settings)
    if wanted.endpoint is not None:
        _check_endpoint(wanted.model, wanted.endpoint, context.settings)
    elif wanted.key is not None:
        raise HubProblem(422, "key_unused", "a key needs an endpoint", hint="name one, or leave out the key")
    else:
        _require_engine()
    key = None if wanted.key is None else memory.leave_key(wanted.key)
    options = wanted.model_dump(include={"endpoint", "rollouts", "temperature", "max_tokens"})

    def record(session: Session) -> SealedSetInfo:
        found = find(session, commitment)
        environment = found.version.environment
        if not rights.may(context.caller, "results", environment):
            raise rights.refusal(context.caller, "results", environment)
        _require_sealed(found)
        if wanted.endpoint is None:
            revision, host = find_model(session, context.settings, wanted.model), None
            model = f"{revision.model.owner.name}/{revision.model.name}@{revision.revision}"
        else:
            model, host = wanted.model, urlsplit(wanted.endpoint).netloc
        mine = select(func.count()).select_from(SealedPlay).join(SealedPlay.job)
        mine = mine.where(SealedPlay.set_id == found.id, SealedPlay.submitted_by_id == context.caller.user_id)
        counted = SealedPlay.exposed_at.is_not(None) | SealedPlay.summary.is_not(None)
        counted |= Job.state.in_(OPEN)
        if session.scalars(mine.where(counted)).one() >= MOST_PLAYS:
            raise HubProblem(
                409,
                "too_many_plays",
                f"each user may play a sealed set {MOST_PLAYS} times, to protect its answers",
                hint="wait until the set opens, then evaluate on it yourself",
            )
        audit.about(session, target=commitment, owner=environment.owner.name, model=model, host=host)
        queue = TableQueue.of(context.settings, context.database)
        payload: dict[str, Any] = {
            "version_id": found.version_id,
            "key": key,
            "model": model,
            **options,
        }
        name = f"{PLAY} {secrets.token_hex(8)}"
        job_id = queue.submit(session, PLAY, name, payload, created_by=context.caller.user_id)
        added = SealedPlay(
            set_id=found.id,
            job_id=job_id,
            submitted_by_id=context.caller.user_id,
            model=model,
            host=host,
            created_at=now(),
        )
        session.add(added)
        session.flush()
        session.expire(found, ["plays"])
        return info_of(find(session, commitment), context.base_url)

    try:
        return context.commit(record)
    except BaseException:
        if key is not None:
            memory.take_key(key)
        raise


def _check_endpoint(model: str, endpoint: str, settings: Settings) -> None:
    """Raise a problem for an endpoint that the hub must not call, or for the invalid name of a model."""
    if (fault := _address_fault(endpoint, settings)) is not None:
        hint = "name the public base URL of an OpenAI-compatible endpoint"
        raise HubProblem(422, "bad_endpoint", f"the endpoint cannot be used: {fault}", hint=hint)
    manifests.check_model(ModelPin(name=model, kind="OpenAIClient", base_url=endpoint))


def _require_engine() -> None:
    """Raise a problem if this machine cannot run models."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        hint = "name an endpoint, or ask the hub's operator to install `wander-sdk[transformers]`"
        raise HubProblem(409, "no_engine", "this hub cannot run models: PyTorch is not installed", hint=hint)


def find_model(session: Session, settings: Settings, word: str) -> Revision:
    """Return the revision that `owner/name[@revision]` names; raise a problem if the session's reader may not
    see it, or if it needs too much memory."""
    try:
        named = parse_model(word)
    except ConfigError as error:
        raise HubProblem(422, "bad_model", str(error), hint=error.hint) from None
    model = models.find(session, named.owner, named.name)
    revision = models.find_revision(session, model, named.revision or models.LATEST)
    most = settings.seal_memory_bytes // (2 * _WEIGHT_BYTES)
    if revision.parameters > most:
        detail = f"the model has {revision.parameters:,} parameters; this hub runs models with {most:,}"
        raise HubProblem(422, "model_too_large", detail, hint="name an endpoint that serves the model")
    return revision


def _address_fault(endpoint: str, settings: Settings) -> str | None:
    """Return what is wrong with the address of an endpoint, or None."""
    try:
        parts = urlsplit(endpoint)
        host, _port = parts.hostname, parts.port
    except ValueError:
        return "it is not a valid address"
    networks = settings.seal_networks
    if parts.scheme != "https" and not (
        parts.scheme == "http" and networks and _may_be_plain(host, networks)
    ):
        return "it must start with `https:`"
    if not host or parts.username is not None or parts.query or parts.fragment:
        return "it must have a host, but no user, no query and no fragment"
    return "it is in a private network" if is_inner(host, networks) else None


def _may_be_plain(host: str | None, networks: Sequence[str]) -> bool:
    """Return whether a host may be in one of the networks: all names, which are checked at the connection,
    and addresses in them."""
    try:
        return is_listed(ip_address(host or ""), networks)
    except ValueError:
        return True


def _require_sealed(found: SealedSet) -> None:
    if found.state == "checking":
        raise HubProblem(
            409, "set_checking", "the hub is still checking the set", hint="try again in a minute"
        )
    if found.state == "refused":
        hint = "its owner can seal a corrected file"
        raise HubProblem(409, "set_refused", f"the set was refused: {found.error}", hint=hint)
    if found.state != "sealed" or found.opens_at <= now():
        hint = "evaluate on it yourself: download its file, and run `wander eval` with `--set set_file=FILE`"
        raise HubProblem(409, "set_open", "the set is open", hint=hint)


def open_earlier(context: Context, commitment: str, wanted: SealOpening) -> SealedSetInfo:
    """Set an earlier date for the opening of a set, or open it now."""
    keeper_of(context.settings)

    def record(session: Session) -> SealedSetInfo:
        found = find(session, commitment)
        environment = found.version.environment
        if not rights.may(context.caller, "publish", environment):
            raise rights.refusal(context.caller, "publish", environment)
        _require_sealed(found)
        opens_at = max(now(), wanted.opens_at or now())
        if opens_at >= found.opens_at:
            detail = f"the set opens at {found.opens_at:%Y-%m-%d %H:%M} UTC; it can only open earlier"
            raise HubProblem(
                422, "later_date", detail, hint="choose an earlier date, or no date to open it now"
            )
        audit.about(session, target=commitment, owner=environment.owner.name, opens_at=opens_at.isoformat())
        found.opens_at = opens_at
        session.flush()
        if opens_at <= now():
            submit_opening(session, TableQueue.of(context.settings, context.database), found)
        return info_of(found, context.base_url)

    return context.commit(record)


def submit_opening(session: Session, queue: TableQueue, due: SealedSet) -> None:
    """Submit the job that opens a set, unless it exists. If it failed or was canceled, it is tried again
    after a while, because a set must open."""
    payload = {"set": due.id, "version_id": due.version_id}
    job_id = queue.submit(session, OPENING, f"{OPENING} {due.id}", payload, created_by=due.created_by_id)
    finished = session.get_one(Job, job_id).finished_at
    if finished is not None and finished < now() - _RETRIED_AFTER:
        queue.retry(session, job_id)


def opened_file(session: Session, commitment: str) -> bytes:
    """Return the file of an opened set; raise a 404 problem while it is sealed."""
    found = find(session, commitment)
    if found.opened_at is None:
        detail = f"the set is sealed until {found.opens_at:%Y-%m-%d %H:%M} UTC"
        raise HubProblem(404, "set_sealed", detail, hint="try again after this date")
    query = select(SealedSet).where(SealedSet.id == found.id).options(undefer(SealedSet.content))
    content = session.scalars(query.execution_options(populate_existing=True)).one().content
    assert content is not None, "an opened set has its file"
    return content


def opened_rows(session: Session, commitment: str) -> list[str]:
    """Return the first examples of an opened set for its page, as JSON of limited length."""
    lines = [line.decode() for line in opened_file(session, commitment).splitlines()[1 : 1 + _SHOWN_ROWS]]
    return [line if len(line) <= _SHOWN_LETTERS else f"{line[:_SHOWN_LETTERS]}..." for line in lines]


def keep_failures(session: Session, job_ids: Sequence[int]) -> None:
    """Refuse the sets whose check failed permanently, and forget what they contain."""
    for job in session.scalars(select(Job).where(Job.id.in_(job_ids)).order_by(Job.id)).all():
        checked = session.get_one(SealedSet, int(job.payload["set"]))
        refuse(checked, job.error or "its check was canceled")


def forget_keys(session: Session, job_ids: Sequence[int]) -> None:
    """Delete the keys of plays that were canceled before a worker took them."""
    for job in session.scalars(select(Job).where(Job.id.in_(job_ids))).all():
        if job.payload["key"] is not None:
            memory.take_key(job.payload["key"])


def refuse(checked: SealedSet, reason: str) -> None:
    """Refuse a set with a public reason."""
    checked.state, checked.error = "refused", reason
    checked.content = checked.wrapped_key = None


def info_of(found: SealedSet, base_url: str) -> SealedSetInfo:
    """Return a set as the API shows it."""
    plays = sorted((_play_info(play) for play in found.plays), key=_rank)
    return fill(
        SealedSetInfo,
        found,
        owner=found.version.environment.owner.name,
        environment=found.version.environment.name,
        version=found.version.version,
        created_by=found.created_by.name,
        exposures=sum(play.exposed_at is not None for play in found.plays),
        plays=plays,
        url=f"{base_url}/sealed/{found.commitment}",
    )


def _rank(play: wire.SealedPlay) -> tuple[bool, float, int]:
    return play.reward_mean is None, -(play.reward_mean or 0.0), play.id


def _play_info(play: SealedPlay) -> wire.SealedPlay:
    # A play that did not become a run has no evidence, so its reward is not shown any more.
    summary = play.summary if play.summary is not None and play.error is None else {}
    level = play.run.level if play.run is not None else "sealed" if summary else None
    return fill(
        wire.SealedPlay,
        play,
        submitted_by=play.submitted_by.name,
        finished_at=play.job.finished_at,
        state=play.job.state,
        error=play.error or play.job.error,
        level=level,
        **summary,
    )


def public_part(summary: RunSummary) -> dict[str, Any]:
    """Return the aggregates of a play that everyone may see.

    Rewards are rounded, because the code of an environment could write hidden text into their last digits.
    """
    rewards = {name: getattr(summary, name) for name in ("reward_mean", "reward_low", "reward_high")}
    rounded = {
        name: None if value is None else float(f"{value:.{_DIGITS}g}") for name, value in rewards.items()
    }
    return {"rollouts": summary.rollouts, "failed": summary.failed, **rounded}
