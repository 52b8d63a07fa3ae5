"""Surroundings of a process, drawn at random for every sandboxed worker and every replay.

A result must not depend on them. A sandboxed evaluation draws them like a replay, so an environment cannot
use them to tell an evaluation from a replay. The clock is not changed: a wrong clock would be visible in the
time of every file that is written, and would also be wrong in an evaluation.
"""

from __future__ import annotations

import secrets
import subprocess
from functools import cache

from wander.wire.verification import Surroundings

_HASH_SEEDS = 1 << 32
_QUARTERS = range(-12 * 4, 14 * 4 + 1)
"""Offsets from UTC that are in use somewhere, in quarters of an hour."""


def draw_surroundings(*, confined: bool) -> Surroundings:
    """Draw surroundings that nobody can predict. Only a confined process has its own host name."""
    quarters = secrets.choice(_QUARTERS)
    hours, minutes = divmod(abs(quarters) * 15, 60)
    east = quarters >= 0
    return Surroundings(
        hash_seed=1 + secrets.randbelow(_HASH_SEEDS - 1),  # 0 would disable hash randomization
        # POSIX counts westwards. The name is that of zones without letters, such as `+0330`.
        time_zone=f"<{'+' if east else '-'}{hours:02}{minutes:02}>{'-' if east else ''}{hours}:{minutes:02}",
        locale=secrets.choice(_find_locales()),
        host_name=f"host-{secrets.token_hex(4)}" if confined else None,
    )


def surrounding_variables(surroundings: Surroundings) -> dict[str, str]:
    """Return the environment variables that apply the surroundings to a process."""
    return {
        "PYTHONHASHSEED": str(surroundings.hash_seed),
        "TZ": surroundings.time_zone,
        "LANG": surroundings.locale,
    }


@cache
def _find_locales() -> list[str]:
    """Return the locales of this machine, including the universal ones."""
    try:
        process = subprocess.run(["locale", "-a"], capture_output=True, text=True, check=False)  # noqa: S607
        names = process.stdout.split()
    except OSError:
        names = []
    return sorted({"C", "C.UTF-8", "POSIX", *(name for name in names if "utf" in name.lower())})
