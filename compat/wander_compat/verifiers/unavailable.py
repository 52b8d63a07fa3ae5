"""Names of the classic API that need a vendor's machines: rented sandboxes, browsers, and the agents in them.

A package that only mentions such a name can be loaded: the name can be imported, subclassed and used in
`except`. Calling it, or reading one of its attributes, raises an error that says what is missing.
"""

from __future__ import annotations

import functools
from abc import ABCMeta
from typing import Any, NoReturn

from wander_compat.alias import RENTED_NAMES
from wander_compat.verifiers.errors import InfraError


@functools.cache
def unavailable(name: str, needs: str) -> type:
    """Return a placeholder class for a name that Wander does not offer."""
    base = InfraError if name.endswith(("Error", "Exception")) else object
    return _Unavailable(name, (base,), {"needs": needs, "__doc__": f"Needs {needs}."})


class _Unavailable(ABCMeta):
    """Creates classes that cannot be used, regardless of what their subclasses define."""

    needs: str

    def __call__(cls, *_: Any, **__: Any) -> NoReturn:
        raise InfraError(_message(cls))

    __iter__ = __getitem__ = __add__ = __radd__ = __call__
    """Also used for constants and lists, which are classes here."""

    def __getattr__(cls, name: str) -> NoReturn:
        raise AttributeError(name if name.startswith("__") else _message(cls))


def _message(cls: _Unavailable) -> str:
    missing = next(base.__name__ for base in cls.__mro__ if "needs" in vars(base))
    subject = f"`{missing}`" if missing == cls.__name__ else f"`{cls.__name__}` is a `{missing}`, which"
    return f"{subject} needs {cls.needs}, and Wander does not offer that"


def __getattr__(name: str) -> Any:
    if name not in RENTED_NAMES:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return unavailable(name, RENTED_NAMES[name])
