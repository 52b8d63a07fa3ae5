"""What a process sees of its machine, drawn anew for those that derive a run again."""

from __future__ import annotations

import secrets
import subprocess
from functools import cache

from wander.wire.verification import Surroundings
from wander.worker.child.clock import CLOCK

_HASH_SEEDS = 1 << 32
_FARTHEST = 366 * 24 * 3600
_QUARTERS = range(-12 * 4, 14 * 4 + 1)
"""Differences from UTC that are somewhere in use, in quarters of an hour."""


def draw_surroundings(*, confined: bool) -> Surroundings:
    """Draw what nobody can know before; only a confined process has a host name of its own."""
    quarters = secrets.choice(_QUARTERS)
    hours, minutes = divmod(abs(quarters) * 15, 60)
    return Surroundings(
        hash_seed=1 + secrets.randbelow(_HASH_SEEDS - 1),  # 0, which evaluations have, means no seed at all
        # POSIX counts westwards.
        time_zone=f"DRAWN{'-' if quarters > 0 else ''}{hours}:{minutes:02}",
        locale=secrets.choice(_find_locales()),
        clock_shift=secrets.randbelow(2 * _FARTHEST) - _FARTHEST,
        host_name=f"host-{secrets.token_hex(4)}" if confined else None,
    )


def surrounding_variables(surroundings: Surroundings) -> dict[str, str]:
    """Return the environment variables that make a process see them."""
    return {
        "PYTHONHASHSEED": str(surroundings.hash_seed),
        "TZ": surroundings.time_zone,
        "LANG": surroundings.locale,
        CLOCK: str(surroundings.clock_shift),
    }


@cache
def _find_locales() -> list[str]:
    """Return the locales that this machine has, those every machine has among them."""
    try:
        asked = subprocess.run(["locale", "-a"], capture_output=True, text=True, check=False)  # noqa: S607
        found = asked.stdout.split()
    except OSError:
        found = []
    return sorted({"C", "C.UTF-8", "POSIX", *(name for name in found if "utf" in name.lower())})
