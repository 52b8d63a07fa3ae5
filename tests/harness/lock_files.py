"""Lock files of the hub tests' environment, in the form that `wander publish` writes."""

from __future__ import annotations

from typing import Any

FILES = "https://files.pythonhosted.org/packages"
Lock = dict[str, Any]


def wheel_of(url: str, sha256: str = "a" * 64) -> dict[str, Any]:
    return {"url": url, "size": 10, "hashes": {"sha256": sha256}}


def lock_of(own_sha256: str) -> Lock:
    """Return a lock in the form that `wander publish` writes."""
    own = "http://hub.test/alice/files/reverse-text/reverse_text-0.1.0-py3-none-any.whl"
    sdk = "http://hub.test/wander/files/wander-sdk/wander_sdk-0.1.0-py3-none-any.whl"
    return {
        "lock-version": "1.0",
        "created-by": "wander",
        "requires-python": ">=3.11",
        "packages": [
            {
                "name": "numpy",
                "version": "2.1",
                "sdist": wheel_of(f"{FILES}/aa/numpy-2.1.tar.gz"),
                "wheels": [wheel_of(f"{FILES}/bb/numpy-2.1-cp311-cp311-win32.whl")],
            },
            {"name": "reverse-text", "version": "0.1.0", "wheels": [wheel_of(own, own_sha256)]},
            {"name": "wander-sdk", "version": "0.1.0", "wheels": [wheel_of(sdk)]},
        ],
    }
