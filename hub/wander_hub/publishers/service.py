"""Adds and removes trusted publishers, and trades their identity tokens for tokens of minutes.

What claims say: GitHub, docs.github.com/actions, "OpenID Connect reference"; GitLab, docs.gitlab.com, "ID
tokens".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, joinedload
from wander.wire.people import MintedToken, NewPublisher, PublisherInfo, PublisherKind

from wander_hub import audit, names, security
from wander_hub.accounts import repository as accounts
from wander_hub.accounts.models import User
from wander_hub.database import fill, now
from wander_hub.environments import repository as environments
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.publishers.identity_tokens import LEEWAY_SECONDS, refusal
from wander_hub.publishers.models import Publisher, UsedAssertion
from wander_hub.rights import rights, tokens
from wander_hub.rights.models import Token
from wander_hub.rights.repository import tokens_of

TOKEN_MINUTES = 15
_DEFAULT_ISSUERS: dict[PublisherKind, str] = {
    "github": "https://token.actions.githubusercontent.com",
    "gitlab": "https://gitlab.com",
}
_SLACK = timedelta(seconds=60)
"""Extra time for which a used token is remembered, beyond its own expiry and the leeway."""
_PINNED: dict[PublisherKind, tuple[str, ...]] = {
    "github": ("repository_owner_id", "repository_id"),
    "gitlab": ("namespace_id", "project_id"),
    "oidc": (),
}
"""Ids that stay with an account: whoever takes a freed name has others."""
_SHOWN: dict[PublisherKind, tuple[str, ...]] = {
    "github": ("repository", "sha", "ref", "job_workflow_ref", "run_id", "environment"),
    "gitlab": ("project_path", "sha", "ref", "ci_config_ref_uri", "pipeline_id", "environment"),
    "oidc": ("sub",),
}
"""Claims that are kept with what was published."""
_SUBJECT: dict[PublisherKind, str] = {"github": "repository", "gitlab": "project_path", "oidc": "sub"}
_WHOLE = (joinedload(Publisher.owner), joinedload(Publisher.created_by))


def publishers_of(session: Session, caller: Identity, owner: str) -> list[PublisherInfo]:
    """Return the publishers of an owner; for its members alone."""
    found = rights.owner_for(session, caller, "read", owner)
    return [info_of(one) for one in _of_owner(session, found.id)]


def add_publisher(
    session: Session, caller: Identity, owner: str, wanted: NewPublisher, issuers: dict[str, PublisherKind]
) -> PublisherInfo:
    """Trust a workflow.

    Who adds it must own the environment, or the owner where the environment is new or all are meant.
    """
    if "publish" not in caller.token.scopes:
        hint = "make one with `wander auth token new NAME --scope manage --scope publish`"
        detail = "a publisher publishes, which the token that adds it has to be good for"
        raise HubProblem(403, "token_scope", detail, hint=hint)
    name = names.normalize_environment(wanted.name) if wanted.name is not None else None
    exists = name is not None and environments.environment_named(session, names.normalize_owner(owner), name)
    if name is not None and exists:
        found = rights.environment_for(session, caller, "manage", owner, name).owner
    else:
        found = rights.owner_for(session, caller, "manage", owner)
        accounts.lock_owner(session, found)
    publisher = Publisher(
        owner=found,
        owner_id=found.id,
        name=name,
        kind=wanted.kind,
        issuer=_issuer(wanted, issuers),
        subject=_normal_subject(wanted.kind, wanted.subject),
        workflow=wanted.workflow,
        deployment=wanted.deployment,
        created_by=session.get_one(User, caller.user_id),
        created_at=now(),
    )
    told = ("name", "issuer", "subject", "workflow", "deployment")
    for one in _of_owner(session, found.id):
        if all(getattr(one, key) == getattr(publisher, key) for key in told):
            hint = f"`wander env publisher remove {found.name} {one.id}` ends it"
            raise HubProblem(409, "publisher_exists", "this publisher is trusted already", hint=hint)
    session.add(publisher)
    session.flush()
    return info_of(publisher)


def remove_publisher(session: Session, caller: Identity, owner: str, number: int) -> PublisherInfo:
    """Trust a publisher no more; its tokens end too."""
    found = rights.find_owner(session, caller, owner)
    publisher = next((one for one in _of_owner(session, found.id) if one.id == number), None)
    name = publisher.name if publisher is not None else None
    if name is not None and environments.environment_named(session, found.name, name):
        rights.environment_for(session, caller, "manage", found.name, name)
    else:
        rights.owner_for(session, caller, "manage", found.name)
    if publisher is None:
        hint = f"`wander env publisher list {found.name}` shows their numbers"
        raise HubProblem(404, "publisher_not_found", f"`{found.name}` has no publisher {number}", hint=hint)
    told = info_of(publisher)
    for token in tokens_of(session, publisher.created_by.name):
        if token.claims is not None and token.claims.get("publisher") == str(publisher.id):
            token.revoked_at = token.revoked_at or now()
    session.delete(publisher)
    return told


def mint_token(
    session: Session, kind: PublisherKind, claims: dict[str, Any], owner: str | None, name: str | None
) -> MintedToken:
    """Give the publisher whom verified claims name a token for what it may publish; each token works once.

    Anybody may trust any workflow, so without a target there may be publishers of several owners: then each
    gives a token of one secret, and the address of the upload says which of them is meant.
    """
    owner = names.normalize_owner(owner) if owner is not None else None
    name = names.normalize_environment(name) if name is not None else None
    forget_before(session, now())
    subject = _normal_subject(kind, str(claims.get(_SUBJECT[kind], "")))
    trusted_by = select(Publisher).join(Publisher.created_by).where(User.disabled_at.is_(None))
    query = trusted_by.where(Publisher.issuer == claims["iss"], Publisher.subject == subject)
    known = [
        one
        for one in session.scalars(query.order_by(Publisher.id).options(*_WHOLE))
        if owner in (None, one.owner.name) and (name is None or one.name in (None, name))
    ]
    if not known:
        raise refusal("unknown_publisher", f"nobody here trusts `{subject[:200]}` of `{claims['iss']}`")
    differences = [(one, _difference(one, claims)) for one in known]
    fitting = [one for one, why in differences if why is None]
    if not fitting:
        reasons = dict.fromkeys(why for _, why in differences if why)
        raise refusal("unknown_publisher", "; ".join(reasons))
    chosen = _one_of_each_owner(fitting, name)
    if not chosen or (name is not None and len(chosen) > 1):
        several = (
            "owners trust this workflow for it" if name is not None else "environments trust this workflow"
        )
        raise refusal(
            "several_publishers",
            f"several {several}, and a token is for one of them: `wander publish --owner OWNER` says which, "
            "`wander env publisher token OWNER/NAME` prints the token for uv and twine, and a publisher for "
            "the owner as a whole (`wander env publisher add OWNER ...`) serves all of its environments",
        )
    _use_once(session, claims)
    shared = security.new_token() if len(chosen) > 1 else None
    made = [_token_of(session, one, kind, claims, shared) for one in chosen]
    secret, token = made[0]
    trusted = fitting[0]
    given = {"publisher": trusted.id, "subject": subject, "tokens": [one.prefix for _, one in made]}
    audit.about(session, actor=trusted.created_by.name, owner=trusted.owner.name, target=name, **given)
    assert token.expires_at is not None
    return MintedToken(token=secret, expires=int(token.expires_at.timestamp()))


def _token_of(
    session: Session, publisher: Publisher, kind: PublisherKind, claims: dict[str, Any], shared: str | None
) -> tuple[str, Token]:
    pins = {one: str(claims[one]) for one in _PINNED[kind] if one in claims}
    publisher.pinned = publisher.pinned or pins
    publisher.last_used_at = now()
    label = f"{publisher.kind} {publisher.subject} {publisher.workflow or ''}".strip()
    shown = {one: str(claims[one])[:500] for one in _SHOWN[kind] if claims.get(one) not in (None, "")}
    return tokens.make_token(
        session,
        publisher.created_by.id,
        label[:80],
        scopes=("publish",),
        owner=publisher.owner,
        environment_name=publisher.name,
        lifetime=timedelta(minutes=TOKEN_MINUTES),
        claims={"publisher": str(publisher.id), "kind": kind, "issuer": str(claims["iss"]), **shown},
        shared=shared,
    )


def drop_of_environment(session: Session, owner_id: int, name: str) -> None:
    """Forget the publishers of an environment that goes away; its new owner chooses whom to trust."""
    session.execute(delete(Publisher).where(Publisher.owner_id == owner_id, Publisher.name == name))


def forget_before(session: Session, moment: datetime) -> None:
    """Drop what has expired: assertions, and the tokens that publishers were given."""
    session.execute(delete(UsedAssertion).where(UsedAssertion.expires_at < moment))
    session.execute(delete(Token).where(Token.claims.is_not(None), Token.expires_at < moment))


def _of_owner(session: Session, owner_id: int) -> Sequence[Publisher]:
    """Return every publisher of an owner, oldest first."""
    query = select(Publisher).where(Publisher.owner_id == owner_id).order_by(Publisher.id)
    return session.scalars(query.options(*_WHOLE)).all()


def info_of(publisher: Publisher) -> PublisherInfo:
    """Return a publisher as the outside sees it."""
    return fill(
        PublisherInfo,
        publisher,
        owner=publisher.owner.name,
        pinned=publisher.pinned or {},
        created_by=publisher.created_by.name,
    )


def _issuer(wanted: NewPublisher, issuers: dict[str, PublisherKind]) -> str:
    issuer = wanted.issuer or _DEFAULT_ISSUERS[wanted.kind]
    if issuers.get(issuer) != wanted.kind:
        trusted = ", ".join(f"`{one}`" for one, kind in issuers.items() if kind == wanted.kind)
        detail = f"this hub takes no `{wanted.kind}` tokens of `{issuer}`"
        hint = f"it knows {trusted}" if trusted else "its operator sets `WANDER_HUB_OIDC_ISSUERS`"
        raise HubProblem(422, "unknown_issuer", detail, hint=hint)
    return issuer


def _one_of_each_owner(fitting: Sequence[Publisher], name: str | None) -> list[Publisher]:
    """Return each owner's publisher that allows least and serves; one token is not for two environments."""
    chosen = []
    for owner in dict.fromkeys(one.owner_id for one in fitting):
        theirs = {one.name: one for one in reversed(fitting) if one.owner_id == owner}
        single = next(iter(theirs.values())) if len(theirs) == 1 else None
        serves = theirs.get(name) or theirs.get(None) or single
        chosen += [serves] if serves is not None else []
    return chosen


def _use_once(session: Session, claims: dict[str, Any]) -> None:
    """Note the token as used; of two requests with one token the database lets one through."""
    name = f"{len(claims['iss'])}:{claims['iss']}{claims['jti']}"
    until = datetime.fromtimestamp(claims["exp"], UTC) + timedelta(seconds=LEEWAY_SECONDS) + _SLACK
    try:
        with session.begin_nested():
            session.add(UsedAssertion(sha256=hashlib.sha256(name.encode()).hexdigest(), expires_at=until))
    except IntegrityError as error:
        raise refusal("token_used", "it was used already; every identity token works once") from error


def _normal_subject(kind: PublisherKind, subject: str) -> str:
    """Return the spelling of a subject that is stored: names of repositories have no case."""
    return subject if kind == "oidc" else subject.lower()


def _difference(publisher: Publisher, claims: Mapping[str, Any]) -> str | None:
    """Say why the claims are not those of a publisher whose issuer and subject fit; None when they are."""
    if publisher.kind == "github" and claims.get("event_name") == "pull_request_target":
        return "a workflow that runs on `pull_request_target` runs for strangers, and may not publish"
    workflow = _workflow(publisher, claims)
    if publisher.workflow is not None and workflow != publisher.workflow:
        return f"the workflow is `{workflow or '?'}`, not `{publisher.workflow}`"
    deployment = str(claims.get("environment", ""))
    if publisher.deployment is not None and deployment.lower() != publisher.deployment.lower():
        return f"the job runs in the environment `{deployment}`, not in `{publisher.deployment}`"
    for claim, first in (publisher.pinned or {}).items():
        if str(claims.get(claim, "")) != first:
            return (
                f"`{claim}` is `{claims.get(claim, '')}`, and was `{first}` at the first use: "
                "another account has taken the name"
            )
    return None


def _workflow(publisher: Publisher, claims: Mapping[str, Any]) -> str | None:
    """Return the file of the workflow that runs, when it lies in the publisher's own repository."""
    if publisher.kind == "github":
        home, reference = f"{publisher.subject}/.github/workflows/", str(claims.get("job_workflow_ref", ""))
    else:
        host = urlsplit(publisher.issuer).netloc
        home, reference = f"{host}/{publisher.subject}//", str(claims.get("ci_config_ref_uri", ""))
    if not reference.lower().startswith(home.lower()):
        return None
    path, at, _ = reference[len(home) :].partition("@")
    return path if at else None
