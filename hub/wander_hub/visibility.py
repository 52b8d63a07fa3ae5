"""Who sees an environment or a model: everybody, everybody who is signed in, or those with a role alone.

What is internal is marked private too: whoever knows nothing of internal ones, such as a hub of an older
release on the same database, shows too little of them and never too much.
"""

from __future__ import annotations

from typing import get_args

from sqlalchemy import false
from sqlalchemy.orm import Mapped, mapped_column
from wander.wire.environments import Visibility, marks_of, visibility_of

LEVELS: tuple[Visibility, ...] = get_args(Visibility)
"""From what most may see to what fewest may."""


class HasVisibility:
    """The columns of something that not everybody may see."""

    private: Mapped[bool] = mapped_column(default=False)
    """Strangers do not see that it exists, and unless it is `internal` only those with a role do."""
    internal: Mapped[bool] = mapped_column(default=False, server_default=false())
    """With `private`: everybody who is signed in sees it."""

    @property
    def visibility(self) -> Visibility:
        """Who sees it."""
        return visibility_of(self.private, internal=self.private and self.internal)

    @visibility.setter
    def visibility(self, wanted: Visibility) -> None:
        self.private, self.internal = marks_of(wanted)


def narrower(one: Visibility, two: Visibility) -> Visibility:
    """Return the one that fewer may see."""
    return max(one, two, key=LEVELS.index)
