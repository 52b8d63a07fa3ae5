"""API tokens: create, authenticate and revoke them."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sqlalchemy import Update, select, text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, joinedload
from wander.wire import TokenInfo

from wander_hub import security
from wander_hub.accounts.models import Membership, Owner, User
from wander_hub.accounts.service import add_user
from wander_hub.database import Database, fill, now
from wander_hub.environments.models import Environment, Version
from wander_hub.http.problems import HubProblem, log_failure
from wander_hub.identity import ALL_SCOPES, Identity, outranks
from wander_hub.jobs.models import Job
from wander_hub.names import normalize_owner
from wander_hub.rights import repository
from wander_hub.rights.models import Grant, Token

_LAST_USE_PRECISION = timedelta(minutes=1)


def add_token(session: Session, user: User, name: str, **limits: Any) -> str:
    """Create a token with the limits of `make_token` and return its secret, which is not stored."""
    return make_token(session, user.id, name, **limits)[0]


def make_token(
    session: Session,
    user_id: int,
    name: str,
    *,
    scopes: Collection[str] = ALL_SCOPES,
    owner: Owner | None = None,
    environment: Environment | None = None,
    environment_name: str | None = None,
    lifetime: timedelta | None = None,
    latest: datetime | None = None,
    claims: dict[str, str] | None = None,
    parent_id: int | None = None,
    shared: str | None = None,
    version_id: int | None = None,
    job_id: int | None = None,
) -> tuple[str, Token]:
    """Create a token; return its secret, which is not stored, and its row.

    With an owner, an environment, or an owner and a name that may not exist yet, the token is limited to
    that. With a version of its environment as well, it can read that version and what the version requires,
    while the job runs. It expires after `lifetime`, and not later than `latest`. A `shared` secret belongs to
    the tokens of several owners; each token is valid at the addresses of its owner.
    """
    if (user := session.get_one(User, user_id)).disabled_at is not None:
        hint = f"an administrator can run `wander-hub user enable {user.name}`"
        raise HubProblem(409, "user_disabled", f"the user `{user.name}` is disabled", hint=hint)
    secret, moment = shared or security.new_token(), now()
    ends = [end for end in (latest, moment + lifetime if lifetime else None) if end is not None]
    token = Token(
        user_id=user_id,
        name=name,
        prefix=secret[: security.SHOWN_LENGTH],
        sha256=security.token_hash(f"{owner.name}/{secret}" if shared and owner else secret),
        scope=" ".join(scope for scope in ALL_SCOPES if scope in scopes),
        owner=owner,
        environment=environment,
        environment_name=environment_name,
        claims=claims,
        parent_id=parent_id,
        version_id=version_id,
        job_id=job_id,
        expires_at=min(ends, default=None),
        created_at=moment,
    )
    session.add(token)
    session.flush()
    return secret, token


def revoke_token(session: Session, prefix: str, *, user: str | None = None) -> Token:
    """Revoke a token and all tokens that were created with it.

    `prefix` is the part that listings show. With `user`, only that user's tokens match.
    """
    matching = [token for token in repository.tokens_of(session, user) if token.prefix == prefix]
    if len(matching) != 1:
        hint = "`wander auth token list` and `wander-hub token list` show prefixes"
        raise HubProblem(404, "token_not_found", f"no token has the prefix `{prefix[:40]}`", hint=hint)
    _end(session, matching)
    return matching[0]


def revoke_leaked(session: Session, secret: str) -> list[Token]:
    """Revoke the valid tokens with a leaked secret, and all tokens that were created with them; return the
    former."""
    if not security.well_formed(secret):
        return []
    live = [
        token
        for token in repository.tokens_with_prefix(session, secret[: security.SHOWN_LENGTH])
        if token.revoked_at is None and token.sha256 in map(security.token_hash, _spellings(token, secret))
    ]
    _end(session, live)
    return live


def _spellings(token: Token, secret: str) -> list[str]:
    """Return the texts whose hash a token may store: its secret, or a secret shared by several owners'
    tokens."""
    return [secret, *([f"{token.owner.name}/{secret}"] if token.owner else [])]


def _end(session: Session, tokens: Sequence[Token]) -> None:
    while tokens:
        for token in tokens:
            token.revoked_at = token.revoked_at or now()
        tokens = repository.tokens_made_with(session, [token.id for token in tokens])


def first_administrator(session: Session) -> str | None:
    """Add the user `admin` on an empty hub and return the secret of a new token; None if there are users."""
    user = ensure_administrator(session)
    return add_token(session, user, "first start") if user is not None else None


def ensure_administrator(session: Session) -> User | None:
    """Add and return the user `admin` on an empty hub; None if there are users."""
    anybody = select(User.id).limit(1)
    if session.scalar(anybody) is None and session.get_bind().dialect.name == "postgresql":
        session.execute(text("LOCK TABLE users IN SHARE ROW EXCLUSIVE MODE"))  # another hub may start too
    if session.scalar(anybody) is not None:
        return None
    return add_user(session, "admin", admin=True)


def authenticate(database: Database, secret: str, owner: str | None = None) -> Identity:
    """Return the caller of a token and record its use; raise a 401 problem if the token is not valid.

    The token is looked up by its hash, so the timing reveals nothing about tokens. `owner` is the owner in
    the request's address, for secrets that several owners' tokens share.
    """
    if not security.well_formed(secret):
        hint = "a token starts with `wnd_`; copy the whole token"
        raise HubProblem(401, "bad_token", "the token is malformed", hint=hint)
    sha256 = security.token_hash(secret)
    with database.read() as session:
        token = repository.token_hashed(session, sha256)
        if token is None and owner is not None:
            sha256 = security.token_hash(f"{normalize_owner(owner)}/{secret}")
            token = repository.token_hashed(session, sha256)
        if token is None or not hmac.compare_digest(token.sha256, sha256) or token.revoked_at is not None:
            raise _unknown()
        if token.expires_at is not None and token.expires_at <= now():
            hint = "create a new token with `wander auth token new`, then run `wander login`"
            raise HubProblem(401, "token_expired", "the token has expired", hint=hint)
        identity = identity_of(session, token)
    if identity is None:
        raise _unknown()
    moment = now()
    if token.last_used_at is None or moment - token.last_used_at >= _LAST_USE_PRECISION:
        record_use(database, update(Token).where(Token.id == token.id).values(last_used_at=moment))
    return identity


def record_use(database: Database, statement: Update) -> None:
    """Record the last use of a token or session. A failure is only logged: readers need no free disk."""
    try:
        with database.write() as session:
            session.execute(statement)
    except OperationalError as error:
        log_failure("cannot record the last use of a credential", error)


def _unknown() -> HubProblem:
    hint = "ask for a new token (`wander-hub token create`), then run `wander login`"
    return HubProblem(401, "bad_token", "the token is unknown or revoked", hint=hint)


def identity_of(session: Session, token: Token) -> Identity | None:
    """Return the identity of a loaded token; None if its user is disabled or its job has ended."""
    only_environment, only_new = token.environment_id, None
    reach: dict[str, Any] = {}
    if token.version_id is not None:
        job = session.get(Job, token.job_id)
        if job is not None and job.state != "running":
            return None
        only_run = job.payload.get("run_id", "") if job is not None else None
        required = _find_required(session, token.version_id)
        reach = {"only_version": token.version_id, "only_run": only_run, "required": required}
    if token.owner_id is not None and token.environment_name is not None:
        only_new = (token.owner_id, token.environment_name)
        present = (Environment.owner_id == only_new[0]) & (Environment.name == only_new[1])
        only_environment = session.scalar(select(Environment.id).where(present)) or 0
    identity = identity_of_user(
        *(session, token.user, token_info(token)),
        only_owner=token.owner_id,
        only_environment=only_environment,
        only_new=only_new,
        token_id=token.id,
        claims=token.claims,
        **reach,
    )
    if identity and token.owner is not None and only_new is not None and identity.may_begin(*only_new):
        return replace(identity, owners=tuple(sorted({*identity.owners, token.owner.name})))
    return identity


def _find_required(session: Session, version_id: int) -> frozenset[int]:
    """Return the ids of the environments of the same owner that a version requires, directly or indirectly.

    Otherwise, someone who may publish only one environment could read others by requiring them. If the
    version's uploader is not a member of the owner, the result is therefore empty.
    """
    query = select(Version).where(Version.id == version_id).options(joinedload(Version.environment))
    version = session.scalars(query).one()
    owner_id, uploader = version.environment.owner_id, version.uploaded_by_id
    members = (Membership.owner_id == owner_id) & (Membership.user_id == uploader)
    if uploader is not None and session.scalar(select(Membership.user_id).where(members)) is None:
        return frozenset()
    required: set[int] = set()
    texts = list(version.requires_dist)
    while texts:
        names = {canonicalize_name(Requirement(text).name) for text in texts}
        owned = (Environment.owner_id == owner_id) & Environment.name.in_(names)
        required_ids = set(session.scalars(select(Environment.id).where(owned))) - required
        required_ids.discard(version.environment_id)
        required |= required_ids
        needs = select(Version.requires_dist).where(Version.environment_id.in_(required_ids))
        texts = [text for requirements in session.scalars(needs) for text in requirements]
    return frozenset(required)


def identity_of_user(session: Session, user: User, token: TokenInfo, **limits: Any) -> Identity | None:
    """Return the identity of a user, loaded with memberships, within the limits of a token.

    Every identity, from a token or a cookie, is made here. Returns None for a disabled user.
    """
    if user.disabled_at is not None:
        return None
    grants = session.scalars(select(Grant).where(Grant.user_id == user.id)).all()
    identity = Identity(
        user_id=user.id,
        user=user.name,
        admin=user.admin,
        token=token,
        roles={membership.owner_id: membership.role for membership in user.memberships},
        grants={grant.environment_id: grant.role for grant in grants},
        **limits,
    )
    publishing = {
        membership.owner.name
        for membership in user.memberships
        if identity.may_as_owner("publish", membership.owner_id)
    }
    single = {grant.environment_id for grant in grants if outranks(grant.role, "reader")}
    single |= {identity.only_environment} if identity.only_environment else set()
    owners = repository.owners_of_environments(session, sorted(single))
    publishing |= {
        owner.name
        for environment_id, owner in owners.items()
        if identity.may("publish", owner.id, environment_id, private=True)
    }
    return replace(identity, owners=tuple(sorted(publishing)))


def token_info(token: Token) -> TokenInfo:
    """Return a token without its secret."""
    target = token.owner.name if token.owner else None
    if target is not None and token.environment_name is not None:
        target = f"{target}/{token.environment_name}"
    if token.environment is not None:
        target = token.environment.label
    scopes = [scope for scope in ALL_SCOPES if scope in token.scope.split()]
    return fill(TokenInfo, token, scopes=scopes, target=target, revoked=token.revoked_at is not None)
