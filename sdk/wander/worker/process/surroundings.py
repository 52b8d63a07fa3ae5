"""What a process sees of its machine, drawn for every sandboxed worker and for every replay.

A result must not depend on it. A sandboxed evaluation draws like a replay, so an environment cannot tell from
its surroundings which of the two it is in. The clock is left alone: a clock that is wrong shows in the time
of any file that is written, and would be wrong in an evaluation too.
"""

from __future__ import annotations

import secrets
import subprocess
from functools import cache

from wander.wire.verification import Surroundings

_HASH_SEEDS = 1 << 32
_QUARTERS = range(-12 * 4, 14 * 4 + 1)
"""Differences from UTC that are somewhere in use, in quarters of an hour."""


def draw_surroundings(*, confined: bool) -> Surroundings:
    """Draw what nobody can know before; only a confined process has a host name of its own."""
    quarters = secrets.choice(_QUARTERS)
    hours, minutes = divmod(abs(quarters) * 15, 60)
    east = quarters >= 0
    return Surroundings(
        hash_seed=1 + secrets.randbelow(_HASH_SEEDS - 1),  # 0 means no seed at all
        # POSIX counts westwards; the name is that of zones without letters, such as `+0330`.
        time_zone=f"<{'+' if east else '-'}{hours:02}{minutes:02}>{'-' if east else ''}{hours}:{minutes:02}",
        locale=secrets.choice(_find_locales()),
        host_name=f"host-{secrets.token_hex(4)}" if confined else None,
    )


def surrounding_variables(surroundings: Surroundings) -> dict[str, str]:
    """Return the environment variables that make a process see them."""
    return {
        "PYTHONHASHSEED": str(surroundings.hash_seed),
        "TZ": surroundings.time_zone,
        "LANG": surroundings.locale,
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
