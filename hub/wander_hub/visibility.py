"""Visibility of environments and models: public, internal (for everyone who is signed in) or private (for
people with a role).

An internal object has both `internal` and `private` set. A query that checks only `private` therefore hides
internal objects from everyone, instead of showing them to people who may not see them.
"""

from __future__ import annotations

from typing import get_args

from sqlalchemy import false
from sqlalchemy.orm import Mapped, mapped_column
from wander.wire.environments import Visibility, marks_of, visibility_of

LEVELS: tuple[Visibility, ...] = get_args(Visibility)
"""Visibility levels, widest audience first."""


class HasVisibility:
    """Columns of an object with a visibility."""

    private: Mapped[bool] = mapped_column(default=False)
    """Whether the object is hidden from anonymous visitors. Unless it is `internal`, only people with a role
    see it."""
    internal: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether everyone who is signed in sees the object; only meaningful together with `private`."""

    @property
    def visibility(self) -> Visibility:
        """Visibility level of the object."""
        return visibility_of(self.private, internal=self.private and self.internal)

    @visibility.setter
    def visibility(self, wanted: Visibility) -> None:
        self.private, self.internal = marks_of(wanted)
