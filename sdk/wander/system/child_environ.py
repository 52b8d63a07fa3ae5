"""The environment variables of child processes: few, and named where a process is started.

A child may run untrusted code, or pass its variables to a program that does. uv substitutes variables in the
addresses that a requirement names, and a build or an environment can read any variable. So nothing is
inherited, and variables that may contain a password are not passed on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

ALWAYS = ("PATH", "HOME", "LANG", "TMPDIR")
"""Variables that every child gets."""
HUB_JOB = "WANDER_HUB_JOB"
"""Variable that a hub sets to 1 for its jobs. Packages then come only from the configured indexes, because an
address from an untrusted package must not cause requests to machines that only the hub can reach. Sandboxes
with the hub's user id use no resources that the kernel counts per user."""
LOCALE = ("LC_ALL", "LC_CTYPE", "LANGUAGE", "TZ")
NETWORK = (
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
)
"""Certificates and proxies, for programs that use the network."""
_CREDENTIALS = re.compile(r"://[^/\s]*@|^[^/\s:]+:[^/\s@]*@")


def child_environ(*names: str, asked: Iterable[str] = (), **more: str) -> dict[str, str]:
    """Return the variables of a child: `ALWAYS`, those of `names` that are set, and `more`.

    A variable that contains a URL with a user name or a password is left out, unless its name is in `asked`.
    """
    inherited = {name: os.environ[name] for name in (*ALWAYS, *names) if name in os.environ}
    safe = {name: value for name, value in inherited.items() if not has_credentials(value)}
    return {**safe, **{name: os.environ[name] for name in asked if name in os.environ}, **more}


def has_credentials(value: str) -> bool:
    """Return whether a variable contains a URL with a user name or a password."""
    return _CREDENTIALS.search(value) is not None
