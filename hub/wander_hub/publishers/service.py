"""Trusted publishers: add and remove them, and exchange their identity tokens for short-lived API tokens.

The claims are documented at docs.github.com/actions, "OpenID Connect reference", and docs.gitlab.com, "ID
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
"""Additional time to remember a used token, beyond its expiry and the leeway."""
_PINNED: dict[PublisherKind, tuple[str, ...]] = {
    "github": ("repository_owner_id", "repository_id"),
    "gitlab": ("namespace_id", "project_id"),
    "oidc": (),
}
"""Claims with permanent account ids. Someone who takes over a freed name has other ids."""
_SHOWN: dict[PublisherKind, tuple[str, ...]] = {
    "github": ("repository", "sha", "ref", "job_workflow_ref", "run_id", "environment"),
    "gitlab": ("project_path", "sha", "ref", "ci_config_ref_uri", "pipeline_id", "environment"),
    "oidc": ("sub",),
}
"""Claims that are stored with a publication."""
_SUBJECT: dict[PublisherKind, str] = {"github": "repository", "gitlab": "project_path", "oidc": "sub"}
_WHOLE = (joinedload(Publisher.owner), joinedload(Publisher.created_by))


def publishers_of(session: Session, caller: Identity, owner: str) -> list[PublisherInfo]:
    """Return the publishers of an owner. For its members."""
    namespace = rights.owner_for(session, caller, "read", owner)
    return [info_of(publisher) for publisher in _of_owner(session, namespace.id)]


def add_publisher(
    session: Session, caller: Identity, owner: str, wanted: NewPublisher, issuers: dict[str, PublisherKind]
) -> PublisherInfo:
    """Trust a workflow.

    The caller must own the environment, or the owner's namespace if the environment is new or all
    environments are meant.
    """
    if "publish" not in caller.token.scopes:
        hint = "create a token with `wander auth token new NAME --scope manage --scope publish`"
        detail = "adding a publisher requires a token that has the scope `publish` as well"
        raise HubProblem(403, "token_scope", detail, hint=hint)
    name = names.normalize_environment(wanted.name) if wanted.name is not None else None
    exists = name is not None and environments.environment_named(session, names.normalize_owner(owner), name)
    if name is not None and exists:
        namespace = rights.environment_for(session, caller, "manage", owner, name).owner
    else:
        namespace = rights.owner_for(session, caller, "manage", owner)
        accounts.lock_owner(session, namespace)
    publisher = Publisher(
        owner=namespace,
        owner_id=namespace.id,
        name=name,
        kind=wanted.kind,
        issuer=_issuer(wanted, issuers),
        subject=_normal_subject(wanted.kind, wanted.subject),
        workflow=wanted.workflow,
        deployment=wanted.deployment,
        created_by=session.get_one(User, caller.user_id),
        created_at=now(),
    )
    identifying = ("name", "issuer", "subject", "workflow", "deployment")
    for known in _of_owner(session, namespace.id):
        if all(getattr(known, key) == getattr(publisher, key) for key in identifying):
            hint = "remove it on the settings page of its owner"
            raise HubProblem(409, "publisher_exists", "this publisher is already trusted", hint=hint)
    session.add(publisher)
    session.flush()
    return info_of(publisher)


def remove_publisher(session: Session, caller: Identity, owner: str, number: int) -> PublisherInfo:
    """Stop trusting a publisher and revoke its tokens."""
    namespace = rights.find_owner(session, caller, owner)
    publisher = next((known for known in _of_owner(session, namespace.id) if known.id == number), None)
    name = publisher.name if publisher is not None else None
    if name is not None and environments.environment_named(session, namespace.name, name):
        rights.environment_for(session, caller, "manage", namespace.name, name)
    else:
        rights.owner_for(session, caller, "manage", namespace.name)
    if publisher is None:
        hint = "the settings page of its owner lists the publishers"
        detail = f"`{namespace.name}` has no publisher {number}"
        raise HubProblem(404, "publisher_not_found", detail, hint=hint)
    info = info_of(publisher)
    for token in tokens_of(session, publisher.created_by.name):
        if token.claims is not None and token.claims.get("publisher") == str(publisher.id):
            token.revoked_at = token.revoked_at or now()
    session.delete(publisher)
    return info


def mint_token(
    session: Session, kind: PublisherKind, claims: dict[str, Any], owner: str | None, name: str | None
) -> MintedToken:
    """Create the API token of the publisher that verified claims identify; each identity token works once.

    Any owner may trust any workflow, so without a target, publishers of several owners may match. Each of
    them then gets a token with the same secret, and the address of the upload decides which one is used.
    """
    owner = names.normalize_owner(owner) if owner is not None else None
    name = names.normalize_environment(name) if name is not None else None
    forget_before(session, now())
    subject = _normal_subject(kind, str(claims.get(_SUBJECT[kind], "")))
    trusted_by = select(Publisher).join(Publisher.created_by).where(User.disabled_at.is_(None))
    query = trusted_by.where(Publisher.issuer == claims["iss"], Publisher.subject == subject)
    known = [
        publisher
        for publisher in session.scalars(query.order_by(Publisher.id).options(*_WHOLE))
        if owner in (None, publisher.owner.name) and (name is None or publisher.name in (None, name))
    ]
    if not known:
        raise refusal("unknown_publisher", f"no publisher matches `{subject[:200]}` of `{claims['iss']}`")
    differences = [(publisher, _difference(publisher, claims)) for publisher in known]
    fitting = [publisher for publisher, reason in differences if reason is None]
    if not fitting:
        reasons = dict.fromkeys(reason for _, reason in differences if reason)
        raise refusal("unknown_publisher", "; ".join(reasons))
    chosen = _one_of_each_owner(fitting, name)
    if not chosen or (name is not None and len(chosen) > 1):
        several = (
            "owners trust this workflow for it" if name is not None else "environments trust this workflow"
        )
        raise refusal(
            "several_publishers",
            f"several {several}, but a token is valid for only one of them: choose with `wander publish "
            "--owner OWNER`, print a token for uv and twine with `wander auth workflow-token OWNER/NAME`, or "
            "add a publisher for all environments of an owner",
        )
    _use_once(session, claims)
    shared = security.new_token() if len(chosen) > 1 else None
    created = [_token_of(session, publisher, kind, claims, shared) for publisher in chosen]
    secret, token = created[0]
    trusted = fitting[0]
    prefixes = [created_token.prefix for _, created_token in created]
    details = {"publisher": trusted.id, "subject": subject, "tokens": prefixes}
    audit.about(session, actor=trusted.created_by.name, owner=trusted.owner.name, target=name, **details)
    assert token.expires_at is not None
    return MintedToken(token=secret, expires=int(token.expires_at.timestamp()))


def _token_of(
    session: Session, publisher: Publisher, kind: PublisherKind, claims: dict[str, Any], shared: str | None
) -> tuple[str, Token]:
    pins = {claim: str(claims[claim]) for claim in _PINNED[kind] if claim in claims}
    publisher.pinned = publisher.pinned or pins
    publisher.last_used_at = now()
    label = f"{publisher.kind} {publisher.subject} {publisher.workflow or ''}".strip()
    shown = {claim: str(claims[claim])[:500] for claim in _SHOWN[kind] if claims.get(claim) not in (None, "")}
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
    """Delete the publishers of an environment that is moved or deleted; a new owner decides whom to trust."""
    session.execute(delete(Publisher).where(Publisher.owner_id == owner_id, Publisher.name == name))


def forget_before(session: Session, moment: datetime) -> None:
    """Delete expired identity tokens and the expired tokens of publishers."""
    session.execute(delete(UsedAssertion).where(UsedAssertion.expires_at < moment))
    session.execute(delete(Token).where(Token.claims.is_not(None), Token.expires_at < moment))


def _of_owner(session: Session, owner_id: int) -> Sequence[Publisher]:
    """Return all publishers of an owner, oldest first."""
    query = select(Publisher).where(Publisher.owner_id == owner_id).order_by(Publisher.id)
    return session.scalars(query.options(*_WHOLE)).all()


def info_of(publisher: Publisher) -> PublisherInfo:
    """Return the public information about a publisher."""
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
        trusted = ", ".join(f"`{url}`" for url, kind in issuers.items() if kind == wanted.kind)
        detail = f"this hub does not accept `{wanted.kind}` tokens of `{issuer}`"
        hint = f"it accepts {trusted}" if trusted else "the hub's operator can set `WANDER_HUB_OIDC_ISSUERS`"
        raise HubProblem(422, "unknown_issuer", detail, hint=hint)
    return issuer


def _one_of_each_owner(fitting: Sequence[Publisher], name: str | None) -> list[Publisher]:
    """Return for each owner the matching publisher with the fewest rights; owners with an ambiguous match are
    skipped."""
    chosen = []
    for owner in dict.fromkeys(publisher.owner_id for publisher in fitting):
        by_name = {
            publisher.name: publisher for publisher in reversed(fitting) if publisher.owner_id == owner
        }
        single = next(iter(by_name.values())) if len(by_name) == 1 else None
        serves = by_name.get(name) or by_name.get(None) or single
        chosen += [serves] if serves is not None else []
    return chosen


def _use_once(session: Session, claims: dict[str, Any]) -> None:
    """Record the use of an identity token; of two simultaneous requests, the database lets one succeed."""
    name = f"{len(claims['iss'])}:{claims['iss']}{claims['jti']}"
    until = datetime.fromtimestamp(claims["exp"], UTC) + timedelta(seconds=LEEWAY_SECONDS) + _SLACK
    try:
        with session.begin_nested():
            session.add(UsedAssertion(sha256=hashlib.sha256(name.encode()).hexdigest(), expires_at=until))
    except IntegrityError as error:
        raise refusal("token_used", "it was already used; every identity token works once") from error


def _normal_subject(kind: PublisherKind, subject: str) -> str:
    """Return the stored form of a subject. Repository names are case-insensitive."""
    return subject if kind == "oidc" else subject.lower()


def _difference(publisher: Publisher, claims: Mapping[str, Any]) -> str | None:
    """Return why claims do not match a publisher with the same issuer and subject, or None if they match."""
    if publisher.kind == "github" and claims.get("event_name") == "pull_request_target":
        return "a workflow on `pull_request_target` may run other people's code, so it may not publish"
    workflow = _workflow(publisher, claims)
    if publisher.workflow is not None and workflow != publisher.workflow:
        return f"the workflow is `{workflow or '?'}`, not `{publisher.workflow}`"
    deployment = str(claims.get("environment", ""))
    if publisher.deployment is not None and deployment.lower() != publisher.deployment.lower():
        return f"the job runs in the environment `{deployment}`, not in `{publisher.deployment}`"
    for claim, first in (publisher.pinned or {}).items():
        if str(claims.get(claim, "")) != first:
            return (
                f"`{claim}` is `{claims.get(claim, '')}`, but was `{first}` at the first use: "
                "the name now belongs to another account"
            )
    return None


def _workflow(publisher: Publisher, claims: Mapping[str, Any]) -> str | None:
    """Return the path of the running workflow if it is in the publisher's own repository, otherwise None."""
    if publisher.kind == "github":
        home, reference = f"{publisher.subject}/.github/workflows/", str(claims.get("job_workflow_ref", ""))
    else:
        host = urlsplit(publisher.issuer).netloc
        home, reference = f"{host}/{publisher.subject}//", str(claims.get("ci_config_ref_uri", ""))
    if not reference.lower().startswith(home.lower()):
        return None
    path, at, _ = reference[len(home) :].partition("@")
    return path if at else None
