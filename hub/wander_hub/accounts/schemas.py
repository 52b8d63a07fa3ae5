"""What the rest of the hub knows about a caller."""

from __future__ import annotations

from dataclasses import dataclass

from wander.wire import TokenInfo


@dataclass(frozen=True)
class Identity:
    """The authenticated caller of one request."""

    user_id: int
    user: str
    admin: bool
    owners: tuple[str, ...]
    """Owners this user belongs to, sorted."""
    token: TokenInfo

    def may_publish_under(self, owner: str) -> bool:
        """Tell whether the caller may publish under an owner."""
        return self.admin or owner in self.owners
