"""Names: what an owner and an environment may be called, which look alike, and the close ones to suggest."""

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
"""The owner of the hub's own packages."""
RESERVED_OWNERS = frozenset(
    "_ about account accounts api assets auth blog boards compare docs environments "  # noqa: SIM905
    "explore favicon.ico feed.atom files health help integrity leaderboard leaderboards "
    "legacy live llms.txt login logout me metrics models new oidc openapi openapi.json "
    "orgs owners ready robots.txt root runs schemas search settings signup simple "
    "sitemap.xml static status system tokens user users well-known www".split()
)
"""First path segments that the hub needs itself, now or later."""
RESERVED_ENVIRONMENTS = frozenset(
    "api feed.atom files index integrity legacy leaderboard members new runs "  # noqa: SIM905
    "settings simple static tokens".split()
)
"""Second path segments that the hub needs itself, now or later."""

_ANY_SCRIPT = ("COMMON", "INHERITED", "LATIN", "Unknown")
"""Scripts of which a name has ASCII alone."""
_RIGHT_TO_LEFT = ("R", "AL", "AN")
"""Letters that change the order in which those around them are shown."""
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_OWNER = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,37}[a-z0-9])?")
_FOREIGN = re.compile(r"[a-z0-9-]{1,37}@[A-Za-z0-9.:\[\]-]{1,37}")
_ENVIRONMENT = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,198}[a-z0-9])?")


def normalise_owner(name: str) -> str:
    """Return the spelling under which an owner is stored.

    Nothing is cut off and no letter is taken for another: a name with a space or a Kelvin sign is nobody's.
    """
    return name.lower() if name.isascii() else name


def is_owner_name(name: str) -> bool:
    """Tell whether a user or an owner can have a name, which is in its normal form."""
    return _OWNER.fullmatch(name) is not None


def owner_fault(name: str) -> str | None:
    """Say what is wrong with a new owner's name; None when it may be used."""
    if not is_owner_name(name):
        return "may hold 1 to 39 of a-z, 0-9 and `-`, and neither begin nor end with `-`"
    if name in RESERVED_OWNERS:
        return "is reserved"
    return None


def is_foreign(name: str) -> bool:
    """Tell whether a name is that of another hub's user."""
    return _FOREIGN.fullmatch(name) is not None


def normalise_environment(name: str) -> str:
    """Return the spelling under which an environment is stored (PEP 503); a name beyond ASCII is nobody's."""
    return canonicalize_name(name) if name.isascii() else name


def is_environment_name(name: str) -> bool:
    """Tell whether a new environment or model may have a name, which is in its normal form."""
    return _ENVIRONMENT.fullmatch(name) is not None and name not in RESERVED_ENVIRONMENTS


def normalise_version(version: str) -> str:
    """Return the spelling under which a version is stored (PEP 440).

    Raises `ValueError` for what is none, which here includes the spaces and ends of lines around a number
    that the standard has readers cut off.
    """
    if not version.isascii() or any(map(str.isspace, version)):
        raise ValueError("it holds spaces, or characters beyond ASCII")
    return str(Version(version))


def release_of(version: str) -> str | None:
    """Return what all spellings of a version share: `1` for `1.0`, `1.0.0` and `v1` (PEP 440).

    None for a text that is not a version.
    """
    try:
        return canonicalize_version(normalise_version(version))
    except ValueError:
        return None


def distribution_of(filename: str) -> str:
    """Return the normalised name of the distribution that a checked file name belongs to."""
    wheel = filename.endswith(".whl")
    stem = filename.partition("-")[0] if wheel else filename.removesuffix(".tar.gz").rpartition("-")[0]
    return canonicalize_name(stem)


def near(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that look like the given one, closest first."""
    return difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)


def acceptable_address(url: str) -> bool:
    """Tell whether an address keeps its answers from being changed on their way."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)


def find_odd_letter(name: str) -> str | None:
    """Return a character of a name that can be taken for ASCII, or is invisible; None without one."""
    from confusable_homoglyphs.categories import alias
    from confusable_homoglyphs.confusables import is_confusable, is_mixed_script

    for one in name:
        if one.isascii():
            continue
        if not one.isprintable() or unicodedata.bidirectional(one) in _RIGHT_TO_LEFT:
            return one
        if alias(one) in _ANY_SCRIPT or unicodedata.normalize("NFKC", one) != one:
            return one
        if any(other.isascii() for other in _homoglyphs(one)):
            return one
    for word in re.split(r"[\W_]+", name):  # a stroke between letters of ASCII looks like a hyphen or a bar
        if is_mixed_script(word) and (found := is_confusable(word, preferred_aliases=["latin", "common"])):
            return str(found[0]["character"])
    return None


def skeleton(name: str) -> str:
    """Return the text that all names have that look like this one."""
    for _ in range(2):  # prototypes of some letters are texts whose own letters have prototypes
        name = "".join(map(_prototype, unicodedata.normalize("NFKC", name)))
    return name


@cache
def _prototype(letter: str) -> str:
    """Return what stands for all texts that look like a letter: ASCII if one of them is."""
    alike = [letter, *_homoglyphs(letter)]
    # Unicode lists pairs of a letter and its prototype, so the prototype has the most pairs.
    prototype = min(alike, key=lambda text: (-len(_homoglyphs(text)), text))
    if prototype.isascii():
        return prototype
    plain = (unicodedata.normalize("NFKC", one) for one in [prototype, *_homoglyphs(prototype)])
    return min((one for one in plain if one.isascii()), default=prototype)


def _homoglyphs(text: str) -> list[str]:
    from confusable_homoglyphs.confusables import confusables_data

    return [one["c"] for one in confusables_data.get(text, ())]
