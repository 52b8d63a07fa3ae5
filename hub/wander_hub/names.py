"""Names of owners, environments and versions: rules, normal forms, confusable names and suggestions."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import Version

BUNDLED_OWNER = "wander"
"""Owner of the hub's own packages."""
RESERVED_OWNERS = frozenset(
    "_ about account accounts api assets auth blog boards compare docs environments "  # noqa: SIM905
    "explore favicon.ico files health help integrity leaderboard leaderboards "
    "legacy live llms.txt login logout me metrics models new oidc openapi openapi.json "
    "orgs owners ready robots.txt root runs schemas sealed search settings signup simple "
    "static status system tokens user users well-known www".split()
)
"""First path segments that the hub uses itself, now or in the future."""
RESERVED_ENVIRONMENTS = frozenset(
    "api files index integrity legacy leaderboard members new runs "  # noqa: SIM905
    "settings simple static tokens".split()
)
"""Second path segments that the hub uses itself, now or in the future."""

_ANY_SCRIPT = ("COMMON", "INHERITED", "LATIN", "Unknown")
"""Scripts that names may use only in ASCII."""
_RIGHT_TO_LEFT = ("R", "AL", "AN")
"""Bidirectional classes that change how the surrounding characters are displayed."""
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_OWNER = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,37}[a-z0-9])?")
_ENVIRONMENT = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,198}[a-z0-9])?")


def normalize_owner(name: str) -> str:
    """Return the stored form of an owner's name.

    Characters outside ASCII are never folded: a name with a space or a Kelvin sign does not match any owner.
    """
    return name.lower() if name.isascii() else name


def is_owner_name(name: str) -> bool:
    """Return whether a normalized name is valid for a user or an owner."""
    return _OWNER.fullmatch(name) is not None


def owner_fault(name: str) -> str | None:
    """Return what is wrong with the name of a new owner, or None if it may be used."""
    if not is_owner_name(name):
        return "is invalid: use 1 to 39 characters from a-z, 0-9 and `-`, and do not start or end with `-`"
    if name in RESERVED_OWNERS:
        return "is reserved"
    return None


def normalize_environment(name: str) -> str:
    """Return the stored form of an environment's name (PEP 503). A name outside ASCII is returned
    unchanged."""
    return canonicalize_name(name) if name.isascii() else name


def is_environment_name(name: str) -> bool:
    """Return whether a normalized name is valid for a new environment or model."""
    return _ENVIRONMENT.fullmatch(name) is not None and name not in RESERVED_ENVIRONMENTS


def normalize_version(version: str) -> str:
    """Return the stored form of a version (PEP 440).

    Raises `ValueError` if it is not a version. Spaces and line ends around it count as errors, although the
    standard lets readers strip them.
    """
    if not version.isascii() or any(map(str.isspace, version)):
        raise ValueError("it has spaces or characters outside ASCII")
    return str(Version(version))


def release_of(version: str) -> str | None:
    """Return the form that all spellings of a version share: `1` for `1.0`, `1.0.0` and `v1` (PEP 440).

    Returns None for a text that is not a version.
    """
    try:
        return canonicalize_version(normalize_version(version))
    except ValueError:
        return None


def distribution_of(filename: str) -> str:
    """Return the normalized distribution name of a valid file name."""
    wheel = filename.endswith(".whl")
    stem = filename.partition("-")[0] if wheel else filename.removesuffix(".tar.gz").rpartition("-")[0]
    return canonicalize_name(stem)


def near(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three known names that are similar to `name`, closest first."""
    return difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)


def acceptable_address(url: str) -> bool:
    """Return whether an address protects its responses from being modified in transit."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)


def find_odd_letter(name: str) -> str | None:
    """Return the first character of a name that is invisible or looks like ASCII, or None."""
    from confusable_homoglyphs.categories import alias
    from confusable_homoglyphs.confusables import is_confusable, is_mixed_script

    for character in name:
        if character.isascii():
            continue
        if not character.isprintable() or unicodedata.bidirectional(character) in _RIGHT_TO_LEFT:
            return character
        if alias(character) in _ANY_SCRIPT or unicodedata.normalize("NFKC", character) != character:
            return character
        if any(homoglyph.isascii() for homoglyph in _homoglyphs(character)):
            return character
    for word in re.split(r"[\W_]+", name):  # a stroke between ASCII letters looks like a hyphen or a bar
        if not is_mixed_script(word):
            continue
        if confusables := is_confusable(word, preferred_aliases=["latin", "common"]):
            return str(confusables[0]["character"])
    return None


def skeleton(name: str) -> str:
    """Return a form that is the same for all names that look like this name."""
    for _ in range(2):  # a prototype can consist of letters that have prototypes themselves
        name = "".join(map(_prototype, unicodedata.normalize("NFKC", name)))
    return name


@cache
def _prototype(letter: str) -> str:
    """Return the representative of all texts that look like a letter, preferably in ASCII."""
    lookalikes = [letter, *_homoglyphs(letter)]
    # Unicode lists pairs of a letter and its prototype, so the prototype occurs in the most pairs.
    prototype = min(lookalikes, key=lambda text: (-len(_homoglyphs(text)), text))
    if prototype.isascii():
        return prototype
    normalized = (unicodedata.normalize("NFKC", text) for text in [prototype, *_homoglyphs(prototype)])
    return min((text for text in normalized if text.isascii()), default=prototype)


def _homoglyphs(text: str) -> list[str]:
    from confusable_homoglyphs.confusables import confusables_data

    return [homoglyph["c"] for homoglyph in confusables_data.get(text, ())]
