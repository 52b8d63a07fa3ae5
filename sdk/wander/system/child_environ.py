"""The environment variables that a child process gets: few, and named where it is started.

A child may run code of a stranger, or hand what it sees to a program that does. uv puts variables into the
addresses that a requirement names, and a build or an environment reads whatever it likes. So nothing is
inherited, and what may hold a password is left out of what is passed on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

ALWAYS = ("PATH", "HOME", "LANG", "TMPDIR")
"""The variables that every child gets."""
HUB_JOB = "WANDER_HUB_JOB"
"""The variable that a hub sets to 1 for its jobs. Packages then come from the configured indexes alone: an
address of a stranger must not make it ask machines that only it can reach. Sandboxes that count as its user
take nothing that the kernel counts for a user."""
LOCALE = ("LC_ALL", "LC_CTYPE", "LANGUAGE", "TZ")
NETWORK = (
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
)
"""Certificates and proxies, for programs that use the network."""
_CREDENTIALS = re.compile(r"://[^/\s]*@|^[^/\s:]+:[^/\s@]*@")


def child_environ(*names: str, asked: Iterable[str] = (), **more: str) -> dict[str, str]:
    """Return the environment of a child: `ALWAYS`, the variables `names` as far as they are set, and `more`.

    A variable that holds an address with a user name or a password is left out, unless somebody `asked` for
    it by name.
    """
    found = {name: os.environ[name] for name in (*ALWAYS, *names) if name in os.environ}
    kept = {name: value for name, value in found.items() if not has_credentials(value)}
    return {**kept, **{name: os.environ[name] for name in asked if name in os.environ}, **more}


def has_credentials(value: str) -> bool:
    """Return whether a variable holds an address with a user name or a password."""
    return _CREDENTIALS.search(value) is not None
