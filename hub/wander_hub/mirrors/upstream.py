"""Reads another hub by its public API, and believes no more of it than what digests confirm."""

from __future__ import annotations

import hashlib
import json
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Annotated, Any, TypeVar
from urllib.parse import quote, urlencode, urljoin, urlsplit

import httpcore
from pydantic import AfterValidator, AwareDatetime, BaseModel, Field, ValidationError
from wander.wire import CheckSummary, ProjectStatus

from wander_hub import __version__
from wander_hub.http.problems import HubProblem
from wander_hub.settings import MIB, Settings
from wander_hub.webhooks.addresses import fault_of
from wander_hub.webhooks.connection import Guard, NotAllowed

_API = "/api/v1"
_PATIENCE_SECONDS, _SLOWEST = 60.0, 64 * 1024
"""An answer may take so long, and longer where it brings so many bytes in each further second."""
_LARGEST_ANSWER = 256 * MIB
_LONGEST_WAIT = 24 * 3600.0
_REDIRECTS = 3
_RUNS_AT_ONCE = 50
_MOST_ROWS = 200_000
"""Of a listing that may have no end."""
_MOST_FILES = 500
"""Of a version, all of which lie here until it is published."""
Reason = Annotated[str, AfterValidator(lambda text: " ".join(text.split())[:400])]
"""Shorter than this hub takes one, so that there is room for what it says itself."""
Answer = TypeVar("Answer", bound=BaseModel)


class UpstreamSilent(Exception):
    """The other hub cannot be asked now; `wait` is how many seconds it wants to be left alone."""

    def __init__(self, detail: str, wait: float = 0.0) -> None:
        super().__init__(detail)
        self.wait = wait


class UpstreamFile(BaseModel):
    """A file of a version, or of a run, as far as it is followed; what else a newer hub says is left out."""

    filename: str = Field(default="", max_length=255)
    name: str = Field(default="", max_length=100)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    uploaded_at: AwareDatetime | None = None


class UpstreamSource(BaseModel):
    """What is known of a version's source archive."""

    compared: list[str] = Field(default_factory=list)


class UpstreamVersion(BaseModel):
    """A version."""

    version: str
    uploaded_at: AwareDatetime
    yanked: bool = False
    yanked_reason: Reason | None = None
    deleted_at: AwareDatetime | None = None
    deleted_reason: Reason | None = None
    files: list[UpstreamFile] = Field(default_factory=list, max_length=_MOST_FILES)
    lock: UpstreamFile | None = None
    check: CheckSummary | None = None
    source: UpstreamSource | None = None


class UpstreamEnvironment(BaseModel):
    """An environment."""

    owner: str
    name: str
    updated_at: AwareDatetime
    runs: int
    private: bool = False
    internal: bool = False
    status: ProjectStatus = "active"
    status_reason: Reason | None = None
    successor: str | None = None
    all_versions: list[str] = Field(default_factory=list)


class _Withdrawal(BaseModel):
    reason: Reason


class UpstreamRun(BaseModel):
    """A run."""

    run_id: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    posted_by: str
    private: bool = False
    rollouts_sha256: str | None = None
    withdrawn: _Withdrawal | None = None
    artifacts: list[UpstreamFile] = Field(default_factory=list)


class UpstreamHub:
    """Another hub. Raises `UpstreamSilent` where it is away, a `HubProblem` where it says no to one thing."""

    def __init__(self, url: str, settings: Settings, token: str | None = None) -> None:
        self._url, self._token, self._networks = url, token, settings.mirror_networks
        self._guard = Guard(self._networks, 0.0)
        context = ssl.create_default_context() if url.startswith("https:") else None
        self._pool = httpcore.ConnectionPool(
            ssl_context=context, network_backend=self._guard, max_connections=4
        )

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def list_environments(self, owner: str) -> Iterator[UpstreamEnvironment]:
        """Yield what an owner has, as far as it is shown."""
        for row in self._rows("/environments", owner=owner, limit=200):
            yield _read(row, UpstreamEnvironment)

    def environment(self, owner: str, name: str) -> UpstreamEnvironment:
        """Return an environment."""
        path = f"{_API}/environments/{owner}/{name}"
        found = _read(self._json(path), UpstreamEnvironment)
        if (found.owner, found.name) != (owner, name):
            raise _odd(path, f"it is of `{found.owner[:80]}/{found.name[:80]}`")
        return found

    def version(self, owner: str, name: str, version: str) -> UpstreamVersion:
        """Return a version, also one that was deleted."""
        path = f"{_API}/environments/{owner}/{name}/versions/{quote(version, safe='')}"
        return _read(self._json(path), UpstreamVersion)

    def list_runs(self, owner: str, name: str, most: int | None = None) -> Iterator[UpstreamRun]:
        """Yield the runs of an environment, newest first."""
        limit = min(most or _RUNS_AT_ONCE, _RUNS_AT_ONCE)
        for row in self._rows("/runs", environment=f"{owner}/{name}", limit=limit):
            yield _read(row, UpstreamRun)

    def run(self, run_id: str) -> UpstreamRun:
        """Return a run, also one that was withdrawn."""
        return _read(self._json(f"{_API}/runs/{quote(run_id, safe='')}"), UpstreamRun)

    def fetch_file(self, path: str, into: IO[bytes], most: int, sha256: str | None = None) -> None:
        """Copy a file; refuse one of more than `most` bytes or with other bytes than its digest says."""
        digest, size, begun = hashlib.sha256(), 0, time.monotonic()
        with self._ask(path, redirects=_REDIRECTS) as pieces:
            for piece in pieces:
                size += len(piece)
                if size > most:
                    raise HubProblem(502, "too_large", f"`{path}` there is over {most:,} bytes")
                digest.update(piece)
                into.write(piece)
                self._guard.deadline = begun + _PATIENCE_SECONDS + size / _SLOWEST
        if sha256 not in (None, digest.hexdigest()):
            detail = f"`{path}` there has other bytes than its digest `{sha256}` says"
            raise HubProblem(502, "digest_mismatch", detail)
        into.seek(0)

    def _rows(self, path: str, **query: object) -> Iterator[Any]:
        cursor: object = None
        left = _MOST_ROWS
        while True:
            page = self._json(f"{_API}{path}?{urlencode(query | ({'cursor': cursor} if cursor else {}))}")
            if not isinstance(page, dict) or not isinstance(page.get("data"), list):
                raise _odd(path)
            yield from page["data"]
            if not page.get("next") or page["next"] == cursor:
                return
            left -= max(1, len(page["data"]))
            if left <= 0:
                raise _odd(path, f"it lists more than {_MOST_ROWS:,}")
            cursor = page["next"]

    def _json(self, path: str) -> Any:
        body = bytearray()
        with self._ask(path) as pieces:
            for piece in pieces:
                body += piece
                if len(body) > _LARGEST_ANSWER:
                    raise HubProblem(502, "too_large", f"`{path}` there is over {_LARGEST_ANSWER:,} bytes")
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise _odd(path) from error

    @contextmanager
    def _ask(self, path: str, redirects: int = 0) -> Iterator[Iterator[bytes]]:
        """Give the body of an answer; the token goes to the other hub alone, and not where that leads to."""
        url = f"{self._url}{path}"
        try:
            for _ in range(redirects + 1):
                if (fault := fault_of(url, http=bool(self._networks), networks=self._networks)) is not None:
                    raise UpstreamSilent(f"`{urlsplit(url).netloc}`: {fault}")
                headers = {"Host": urlsplit(url).netloc, "User-Agent": f"wander-hub/{__version__}"}
                headers |= {"Accept": "application/json, */*;q=0.5", "Accept-Encoding": "identity"}
                if self._token and urlsplit(url)[:2] == urlsplit(self._url)[:2]:
                    headers["Authorization"] = f"Bearer {self._token}"
                self._guard.deadline = time.monotonic() + _PATIENCE_SECONDS
                with self._pool.stream("GET", url, headers=list(headers.items())) as answer:
                    if answer.status == 200:
                        yield answer.iter_stream()
                        return
                    told = {name.decode().lower(): value.decode("latin-1") for name, value in answer.headers}
                    if answer.status not in (301, 302, 303, 307, 308) or not redirects:
                        raise _refusal(path, answer.status, told)
                    url = urljoin(url, told.get("location", ""))
        except NotAllowed as error:
            raise UpstreamSilent(str(error)) from error
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError) as error:
            raise UpstreamSilent(f"`{self._url}` does not answer: {error or type(error).__name__}") from error
        raise HubProblem(502, "upstream_refused", f"`{path}` there leads on and on")


def _refusal(path: str, status: int, told: dict[str, str]) -> Exception:
    if status in (401, 403, 429) or status >= 500:
        wait = told.get("retry-after", "")
        return UpstreamSilent(
            f"it answered {status}", min(float(wait), _LONGEST_WAIT) if wait.isdecimal() else 0.0
        )
    if 300 <= status < 400:
        return HubProblem(
            502, "upstream_moved", f"`{path}` there leads to `{told.get('location', '')[:300]}`"
        )
    return HubProblem(502, "upstream_refused", f"`{path}` there answered {status}")


def _read(row: Any, kind: type[Answer]) -> Answer:
    try:
        return kind.model_validate(row)
    except ValidationError as error:
        raise _odd(kind.__name__, str(error.errors()[0]["msg"])) from error


def _odd(what: str, why: str = "it is no JSON of a hub") -> HubProblem:
    return HubProblem(502, "upstream_odd", f"the answer to `{what}` there cannot be read: {why}")
