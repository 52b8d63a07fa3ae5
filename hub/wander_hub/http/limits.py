"""Limits on requests per minute, for each token and for each address without a token.

Each process counts in memory, which costs one dictionary lookup per request. Counts above a twentieth of a
budget are shared with the other processes through the database every two seconds. All processes together
therefore allow about as much as one process would, plus a twentieth each. Limits that must be exact are
quotas, which are counted in the database.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address

from sqlalchemy import BigInteger, ColumnElement, String, case, cast, delete, func, literal, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Mapped, Session, mapped_column
from starlette.responses import JSONResponse
from starlette.types import Scope

from wander_hub.database import Base, Database
from wander_hub.http.hosts import early_problem
from wander_hub.settings import Settings

AGREE_SECONDS = 2.0
"""Seconds between two exchanges with other processes."""
_WINDOW = 60
_PARTS = 20
"""A sender's count is shared once it reaches this fraction (1/20) of the budget."""
_KEPT = 5
"""Minutes after which counts are deleted."""
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_TRANSFERS = "/api/v1/transfers/"
"""Prefix of the paths for parts of uploads, which have their own budget because there are many parts."""
_LONGEST_ADDRESS = 45
_UNPROVEN = "wander.unproven"
"""Key of the scope that marks unverified credentials, and prefix of the address that they count against."""
_MOST_PROVEN = 50_000
"""Number of verified credentials that are remembered; the least recently used are forgotten first."""


class RequestCount(Base):
    """Number of requests of one token or address within one minute, summed over all processes of a hub."""

    __tablename__ = "spending"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    """Hash of the budget's name and the sender."""
    minute: Mapped[int] = mapped_column(BigInteger)
    """Minutes since 1970."""
    spent: Mapped[int] = mapped_column(BigInteger)


class RequestBudget:
    """A limit on requests per minute for each sender; 0 means no limit."""

    def __init__(self, name: str, most: int) -> None:
        self.name, self.most, self._shared_window = name, most, 0
        self._begin(0)

    def spend(self, who: str, cost: int = 1) -> bool:
        """Count a request; return False if the budget is exhausted."""
        self._start_new_window()
        self._spent[who] += cost
        return not self.most or self._left(who) >= 0

    def unshared(self) -> dict[str, int]:
        """Return the counts that other processes do not know yet, of senders above the sharing threshold."""
        self._start_new_window()
        self._shared_window = self._window
        more = {who: spent - self._shared[who] for who, spent in self._spent.items() if self.most}
        return {who: count for who, count in more.items() if count * _PARTS >= self.most}

    def merge_shared(self, shared: Mapping[str, int], totals: Mapping[str, int]) -> None:
        """Update the counts of other processes, after this process's counts were shared."""
        if self._shared_window != self._window:  # the shared counts belong to a minute that has passed
            return
        for who, count in shared.items():
            self._shared[who] += count
            self._elsewhere[who] = totals[self.key(who)] - self._shared[who]

    def key(self, who: str) -> str:
        """Return the hash that identifies a sender's count in the database."""
        return hashlib.sha256(f"{self.name} {who}".encode()).hexdigest()

    def _start_new_window(self) -> None:
        if (window := int(time.time() // _WINDOW)) != self._window:
            self._begin(window)

    def _begin(self, window: int) -> None:
        self._window = window
        self._spent, self._shared, self._elsewhere = Counter[str](), Counter[str](), Counter[str]()

    def _left(self, who: str) -> int:
        return self.most - self._spent[who] - self._elsewhere[who]

    def headers(self, who: str) -> dict[str, str]:
        """Return the headers with the remaining requests and the reset time
        (draft-ietf-httpapi-ratelimit-headers)."""
        ends = math.ceil(_WINDOW - time.time() % _WINDOW)
        left = max(0, self._left(who))
        return {
            "RateLimit-Policy": f'"{self.name}";q={self.most};w={_WINDOW}',
            "RateLimit": f'"{self.name}";r={left};t={ends}',
            "Retry-After": str(ends),
        }


class RequestLimits:
    """The budgets of one process: reading, writing, uploads and failed authentication."""

    def __init__(self, settings: Settings) -> None:
        self._reads = RequestBudget("reads", settings.reads_per_minute)
        self._writes = RequestBudget("writes", settings.writes_per_minute)
        self._uploads = RequestBudget("uploads", settings.uploads_per_minute)
        self._failures = RequestBudget("failures", settings.failures_per_minute)
        self._proven: OrderedDict[str, None] = OrderedDict()

    def unshared(self) -> list[tuple[RequestBudget, dict[str, int]]]:
        """Return the counts to share with other processes, by budget."""
        budgets = (self._reads, self._writes, self._uploads, self._failures)
        return [(budget, counts) for budget in budgets if (counts := budget.unshared())]

    def refuse(self, scope: Scope) -> JSONResponse | None:
        """Return the response if the request exceeds a limit, otherwise None."""
        address, secret = _sender(scope)
        if secret is not None and not self._failures.spend(address, 0):
            return _refusal(self._failures, address, "too many requests from this address had invalid tokens")
        budget = self._budget_for(scope)
        # Made-up credentials would each get their own budget on routes that do not verify them.
        unproven = scope[_UNPROVEN] = secret is not None and secret not in self._proven
        if unproven and not budget.spend(_UNPROVEN + address):
            detail = "too many requests from this address had unverified credentials"
            return _refusal(budget, _UNPROVEN + address, detail)
        who = secret or address
        if budget.spend(who):
            return None
        sender = "this token" if secret else "this address"
        return _refusal(budget, who, f"{sender} made more than {budget.most:,} requests in a minute")

    def note(self, scope: Scope, status: int) -> None:
        """Update the counts after a response: an invalid token counts against the sender's address."""
        address, secret = _sender(scope)
        if secret is None:
            return
        verified = scope.get("state", {}).get("identity") is not None
        if scope.get(_UNPROVEN) and (verified or status == 429):
            self._budget_for(scope).spend(_UNPROVEN + address, -1)
        if status == 401:
            self._failures.spend(address)
            self._proven.pop(secret, None)
        elif verified:
            self._proven[secret] = None
            self._proven.move_to_end(secret)
            if len(self._proven) > _MOST_PROVEN:
                self._proven.popitem(last=False)

    def _budget_for(self, scope: Scope) -> RequestBudget:
        path: str = scope["path"]
        if scope["method"] in _SAFE:
            return self._reads
        if path.startswith(_TRANSFERS) or path.rstrip("/").endswith("/legacy"):
            return self._uploads
        return self._writes


def share_spending(database: Database, unshared: list[tuple[RequestBudget, dict[str, int]]]) -> None:
    """Share this process's counts with other processes, and read theirs."""
    counts = {budget.key(who): count for budget, shared in unshared for who, count in shared.items()}
    on_postgresql = database.engine.dialect.name == "postgresql"
    minute: ColumnElement[int] = literal(int(time.time() // _WINDOW))
    if on_postgresql:  # use the database's clock, which all processes share
        minute = cast(func.floor(func.extract("epoch", func.clock_timestamp()) / _WINDOW), BigInteger)

    def add(session: Session) -> dict[str, int]:
        session.execute(delete(RequestCount).where(RequestCount.minute < minute - _KEPT))
        insert = (postgresql if on_postgresql else sqlite).insert(RequestCount)
        rows = [{"sha256": key, "minute": minute, "spent": counts[key]} for key in sorted(counts)]
        more = case((RequestCount.minute == insert.excluded.minute, RequestCount.spent), else_=0)
        values = {"minute": insert.excluded.minute, "spent": insert.excluded.spent + more}
        session.execute(insert.values(rows).on_conflict_do_update(index_elements=["sha256"], set_=values))
        spent = select(RequestCount.sha256, RequestCount.spent).where(RequestCount.sha256.in_(counts))
        return dict(session.execute(spent).all())

    totals = database.commit(add)
    for budget, shared in unshared:
        budget.merge_shared(shared, totals)


def forwarded_for(scope: Scope) -> str | None:
    """Return the address of the client whose request a proxy forwards, or None without a proxy."""
    given = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
    return given[-1].decode("latin-1").rpartition(",")[2].strip()[:_LONGEST_ADDRESS] if given else None


def sender_of(scope: Scope) -> str:
    """Return the sender's address; for IPv6, its /64 network.

    Behind a private proxy that `FORWARDED_ALLOW_IPS` does not list, the result includes the forwarded
    address, so that one visitor cannot use up the limits of all others.
    """
    host = scope["client"][0] if scope.get("client") else ""
    sender = network_of(host) if ":" in host else host
    stated = forwarded_for(scope)
    if stated is not None and stated != host and _is_private(host):
        return f"{sender} for {network_of(stated)}"
    return sender


def _is_private(host: str) -> bool:
    try:
        return ip_address(host.partition("%")[0]).is_private
    except ValueError:
        return False


def _sender(scope: Scope) -> tuple[str, str | None]:
    """Return the sender's address, and a hash of the credentials if there are any."""
    given = next((value for name, value in scope["headers"] if name == b"authorization"), None)
    secret = hashlib.blake2b(given, digest_size=16).hexdigest() if given is not None else None
    return sender_of(scope), secret


def network_of(host: str) -> str:
    """Return the unit that counts as one sender: an IPv4 address, or a /64 network of IPv6."""
    try:
        address: IPv4Address | IPv6Address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv4Address):
        return str(address)
    mapped = address.ipv4_mapped  # a hub that listens on `::` sees IPv4 senders in this form
    return str(mapped or IPv6Address(int(address) >> 64 << 64))


def _refusal(budget: RequestBudget, who: str, detail: str) -> JSONResponse:
    headers = budget.headers(who)
    setting = f"WANDER_HUB_{budget.name.upper()}_PER_MINUTE"
    hint = f"wait {headers['Retry-After']} seconds; the hub's operator can change `{setting}`"
    return early_problem(429, "Too Many Requests", "too_many_requests", detail, hint, headers)
