"""Addresses for links: query strings, and the documentation of levels and statistics."""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup
from wander.wire.verification import LEVEL_FACTS

from wander_hub.audit import AuditEntry

TERMS: dict[str, str] = {
    "level": "verification",
    **{level: f"verification#{level}" for level in LEVEL_FACTS},
    "replay": "verification#replay-and-rescoring",
    "tokens": "verification#token-counts",
    "stated": "leaderboards#self-reported-values",
    "signed": "leaderboards#signed-runs",
    "digest": "leaderboards#the-digest-of-a-run",
    "withdrawn": "leaderboards#withdrawn-runs",
    "scored": "statistics#what-counts",
    "mean": "statistics#what-counts",
    "interval": "statistics#the-interval-of-the-mean",
    "pass": "statistics#passk-and-passk",
    "metric": "statistics#metrics",
    "paired": "statistics#comparing-two-runs",
    "rank": "leaderboards#ranks",
    "counted run": "leaderboards#the-first-run-counts",
    "row": "leaderboards#filter-and-sort-rows",
    "folded": "verification#runs-with-the-same-answers",
    "board": "leaderboards",
    "hidden": "leaderboards#what-owners-decide",
    "attested": "package-index#provenance",
    "check": "checks",
    "grader": "checks#rewards.gold",
    "hub check": "verification#checks-of-versions",
    "sealed set": "verification#sealed-task-sets",
    "proof of learning": "checks#proof-of-learning",
    "difficulty": "verification#difficulty-of-examples",
    "deterministic": "authoring#the-determinism-contract",
    "kind": "authoring#the-kinds",
    "reward function": "authoring#several-rewards",
    "ending": "authoring#how-a-rollout-ends",
    "stratum": "run-record#strata",
    "failure": "authoring#rewards-and-failures",
    "manifest": "run-record#the-manifest-runjson",
    "lock": "publishing#locks",
    "curve": "watching-training#plots",
    "alert": "watching-training#alerts",
    "sample": "watching-training#sample-rollouts",
    "evaluation": "watching-training#evaluations",
    "phase": "watching-training#several-phases-in-one-file",
    "checkpoint": "training#put-the-model-on-a-hub",
    "mode": "watching-training#exact-and-fast",
}
"""The part of `/docs` that explains each term."""


def address_of(term: str) -> str:
    """Return the address of the documentation of a term."""
    return f"/docs/{TERMS[term]}"


@lru_cache(1000)
def term(name: str, text: str) -> Markup:
    """Return text that links to the documentation of a term."""
    return Markup('<a class="term" href="{}">{}</a>').format(address_of(name), text)


def about(name: str, text: str) -> Markup:
    """Return a question mark that links to the documentation of a term, for text that cannot be a link."""
    return Markup('<a class="about" href="{}" aria-label="what {} means">?</a>').format(
        address_of(name), text
    )


def query_of(asked: dict[str, Any]) -> str:
    """Return a query string with a leading `?`, or an empty string. A list gives one pair per item."""
    return f"?{urlencode(asked, doseq=True)}" if asked else ""


def query_string(**values: Any) -> str:
    """Return a query string of the values that are not empty."""
    return query_of({key: value for key, value in values.items() if value not in (None, "", 0, [])})


def page_of(entry: AuditEntry) -> str:
    """Return the path of the page of an audit entry's target, or an empty string without a page."""
    target, kind = quote(entry.target, safe="/@"), entry.action.partition(".")[0]
    if kind in ("run", "verification") and not target.isdigit():
        return f"/runs/{target}"
    if kind == "sealed":
        return f"/sealed/{target}"
    if entry.target.startswith("webhook "):
        return f"/account/webhooks/{entry.target.removeprefix('webhook ')}"
    if "/" in target:
        label, _, version = target.partition("@")
        if kind == "model" or entry.detail.get("kind") == "model":
            return f"/models/{label}" + (f"/{version}" if version else "")
        return f"/{label}" + (f"/versions/{version}" if version else "")
    if kind == "user":
        return f"/system/users?q={target}"
    return f"/{target}" if target and target == entry.owner else ""
