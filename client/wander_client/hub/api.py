"""The hub's HTTP API: one method per route, with wire models, and errors with the hub's stable codes.

Nothing here prints or reads settings. The transport can be replaced, so that tests call the hub application
without a socket.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar, overload
from urllib.parse import unquote

import httpx
from pydantic import BaseModel, ValidationError
from wander.system.proxies import find_proxy
from wander.types import Rollout
from wander.wire import (
    EnvironmentDetail,
    EnvironmentPage,
    EnvironmentSummary,
    Leaderboard,
    LeaderboardRow,
    Problem,
    RolloutPage,
    RolloutRow,
    RunDetail,
    RunPage,
    VersionDetail,
)
from wander.wire.changes import Whoami
from wander.wire.package_index import IndexFile, IndexPage, IndexRoot, PassedPage
from wander.wire.verification import (
    RunEvidence,
    VerificationInfo,
    VerificationList,
    VerificationRequest,
)

from wander_client.credentials import Credential
from wander_client.errors import ClientError, LoginRequired, NotFound, Unavailable, UsageError
from wander_client.hub.connection import (
    MOST_PAGES,
    REQUEST_ID_HEADER,
    HubAnswer,
    HubConnection,
    Limits,
    StreamedResponse,
    hub_fault,
    read_pages,
    read_rows,
)
from wander_client.names import EnvironmentName, environment_path, is_same_release, quote_part, run_path

RETRY_STATUSES = frozenset({429, 502, 503, 504})
ATTEMPTS = 3
LONGEST_WAIT = 5.0
"""Seconds to wait at most. If `Retry-After` is longer, the user decides when to retry."""
INDEX_JSON = "application/vnd.pypi.simple.v1+json"
"""The format of package index pages that this client reads (PEP 691)."""
_AS_JSON = {"Accept": INDEX_JSON}

PAGE = 200
"""Rows per page when all pages are read."""
ERROR_BYTES = 1 << 20
LARGEST_FILE = 4 << 30
"""Size limit of a file in bytes if the hub does not state its size."""
LARGEST_RECORD = 1 << 38
"""Size limit of a run's rollouts in bytes. A million rollouts with long conversations need less."""
LEFT_FREE = 256 << 20
"""Bytes of the disk that downloads leave free."""
_LOOK_EVERY = 64 << 20
_SECONDS = re.compile(r"\d{1,6}(?:\.\d{1,6})?")
"""The format of `Retry-After` that is supported."""

Model = TypeVar("Model", bound=BaseModel)


@contextlib.contextmanager
def open_hub(
    url: str,
    credential: Credential | None,
    *,
    login: bool = False,
    transport: httpx.BaseTransport | None = None,
) -> Iterator[HubApi]:
    """Yield the hub's API. With `login=True`, a missing token raises an error before any request."""
    if login:
        require_token(url, credential)
    token = credential.token if credential else None
    with contextlib.closing(HubApi(url, token, transport=transport)) as hub:
        yield hub


def require_token(url: str, credential: Credential | None) -> None:
    """Raise `LoginRequired` if the user has not logged in to a hub."""
    if credential is None:
        hint = f"run `wander login --hub {url}`, or set `WANDER_TOKEN`"
        raise LoginRequired(f"no token for `{url}`", hint=hint)


class HubApi:
    """The HTTP API of a hub."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        limits: Limits | None = None,
    ) -> None:
        self._connection = HubConnection(url, token, transport=transport, limits=limits)
        self.url = self._connection.url
        self.authenticated = token is not None
        self._sleep = sleep

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def whoami(self) -> Whoami:
        """Return the user and the scopes of the token."""
        return self.read("/api/v1/whoami", Whoami)

    def environments(
        self,
        query: str = "",
        *,
        owner: str | None = None,
        tag: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        **filters: Any,
    ) -> EnvironmentPage:
        """Return a page of matching environments. Filters are, for example, `kind`, `license` and `sort`."""
        params = {"q": query or None, "owner": owner, "tag": tag, "limit": limit, "cursor": cursor, **filters}
        query_params = {
            name: str(value).lower() if isinstance(value, bool) else value for name, value in params.items()
        }
        return self.read("/api/v1/environments", EnvironmentPage, query_params)

    def every_environment(self, query: str = "", **filters: Any) -> Iterator[EnvironmentSummary]:
        """Yield every matching environment, page by page."""
        return read_rows(
            self.url, lambda cursor: self.environments(query, limit=PAGE, cursor=cursor, **filters)
        )

    def environment(self, owner: str, name: str) -> EnvironmentDetail:
        """Return an environment with its newest version. Follows renames and transfers."""
        answer = self._send("GET", environment_path(owner, name))
        detail = self._parse(answer, EnvironmentDetail)
        latest, named = detail.latest, _environment_in(answer.url)
        same = named == (detail.owner, detail.name) == (latest.owner, latest.name)
        self.require(same and latest.version == detail.latest_version, f"{owner}/{name}")
        return detail

    def version(self, owner: str, name: str, version: str) -> VersionDetail:
        """Return a version with its files."""
        answer = self._send("GET", environment_path(owner, name, "versions", version))
        detail = self._parse(answer, VersionDetail)
        same = _environment_in(answer.url) == (detail.owner, detail.name)
        self.require(same and is_same_release(detail.version, version), f"{owner}/{name}@{version}")
        return detail

    def index_files(self, owner: str, project: str) -> list[IndexFile] | None:
        """Return the files of a project in an owner's package index, or None if the project is unknown."""
        path = f"/{quote_part(owner)}/simple/{quote_part(project)}/"
        try:
            return self._files_in(self._send("GET", path, headers=_AS_JSON))
        except NotFound:
            return None

    def held_files(self, owner: str, project: str) -> list[IndexFile] | None:
        """Return the files of a project that the hub itself stores for an owner's environments, or None.

        Raises `LoginRequired` if the hub needs a token to answer, because the name may be private.
        """
        path = f"/{quote_part(owner)}/index/{quote_part(project)}/"
        try:
            try:
                answer = self._send("GET", path, params={"held": True}, headers=_AS_JSON)
            except LoginRequired:
                # The owner has hidden names. If the upstream index has this name, it is not one of them.
                answer = self._send("GET", path, headers=_AS_JSON)
                if self._parse(answer, PassedPage).meta.upstream:
                    return None
        except NotFound:
            return None
        return self._files_in(answer)

    def _files_in(self, answer: HubAnswer) -> list[IndexFile]:
        """Return the files of an index page, with absolute URLs."""
        files = self._parse(answer, IndexPage).files
        return [
            file.model_copy(update={"url": self._connection.join(answer.url, file.url)}) for file in files
        ]

    def projects(self, owner: str) -> list[str]:
        """Return the names in an owner's index that the caller can see."""
        try:
            answer = self._send("GET", f"/{quote_part(owner)}/simple/", headers=_AS_JSON)
        except (NotFound, LoginRequired):
            return []
        return [project.name for project in self._parse(answer, IndexRoot).projects]

    def content(self, url: str, most: int) -> bytes:
        """Return the content of a file on the hub. Raises `Unavailable` if it has more than `most` bytes."""
        with self._stream(url) as answer:
            return b"".join(answer.pieces(most))

    def download(
        self,
        url: str,
        target: Path,
        sha256: str | None,
        *,
        size: int | None = None,
        partial: Path | None = None,
        told: Callable[[int], None] = lambda size: None,
    ) -> str:
        """Save a file and return its digest, which is checked before the file gets its name.

        `size` is the length that the hub states; more bytes are not accepted. If the download is interrupted,
        `partial` keeps the received bytes, and the next download continues from there. `told` is called with
        the number of bytes.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        path = partial
        if path is None:
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=".download-")
            os.close(handle)
            path = Path(name)
        try:
            digest = self._save(url, path, size or LARGEST_FILE, told)
        except BaseException:
            if partial is None:
                path.unlink()
            raise
        try:
            if sha256 is not None and digest != sha256:
                raise ClientError(
                    f"`{target.name}` has the digest {digest[:12]}, but the hub lists {sha256[:12]}",
                    hint="the file was changed in transit; try again, or tell the hub's operator",
                    code="digest_mismatch",
                )
            os.replace(path, target)
        finally:
            path.unlink(missing_ok=True)
        return digest

    def _save(self, url: str, path: Path, most: int, told: Callable[[int], None]) -> str:
        """Append the rest of a file to the bytes here, and return the digest of the whole file."""
        digest = hashlib.sha256()
        with path.open("a+b") as file:
            file.seek(0)
            while piece := file.read(1 << 20):
                digest.update(piece)
            size = file.tell()
            with self._stream(url, {"Range": f"bytes={size}-"} if size else {}) as answer:
                if size and answer.status != httpx.codes.PARTIAL_CONTENT:
                    digest, size = hashlib.sha256(), 0
                    file.truncate(0)
                for piece in answer.pieces(most - size):
                    require_room(file, len(piece))
                    digest.update(piece)
                    size += file.write(piece)
                    told(size)
        return digest.hexdigest()

    def absolute(self, url: str) -> str:
        """Return the absolute form of a URL in a response, which may be relative to the hub."""
        return self._connection.absolute(url)

    def run(self, run_id: str) -> RunDetail:
        """Return a posted run. Also accepts the beginning or the end of its ID."""
        detail = self.read(run_path(run_id), RunDetail)
        # The user may have passed only the beginning or the end of the ID.
        stated = detail.run_id.partition("~")[0]  # the hub appends a suffix to the IDs of private runs
        same = run_id.lower() in detail.run_id.lower() and detail.manifest.run_id.startswith(stated)
        self.require(same, run_id)
        return detail

    def runs(
        self, *, environment: str | None = None, model: str | None = None, cursor: str | None = None
    ) -> RunPage:
        """Return a page of posted runs, the newest first. `environment` is `owner/name`."""
        params = {"environment": environment, "model": model, "cursor": cursor}
        return self.read("/api/v1/runs", RunPage, params)

    def every_run(self, *, environment: str | None = None, model: str | None = None) -> Iterator[RunDetail]:
        """Yield every matching posted run, the newest first, page by page."""
        return read_rows(
            self.url, lambda cursor: self.runs(environment=environment, model=model, cursor=cursor)
        )

    def rollout_rows(self, run_id: str) -> Iterator[RolloutRow]:
        """Yield the rows of a posted run's rollouts, without messages, page by page."""
        offset = 0
        for _ in range(MOST_PAGES):
            path = run_path(run_id, "rollouts")
            page = self.read(path, RolloutPage, {"offset": offset, "limit": 1000})
            yield from page.data
            offset += len(page.data)
            if not page.data or offset >= page.total:
                return
        raise hub_fault(self.url, "returned too many pages of rollouts")

    def rollout(self, run_id: str, number: int) -> Rollout:
        """Return a rollout of a posted run, with its messages."""
        return self.read(run_path(run_id, "rollouts", str(number)), Rollout)

    def rollouts(self, run_id: str, sha256: str | None = None) -> Iterator[Rollout]:
        """Yield all rollouts of a posted run, after downloading them: servers disconnect slow readers.

        `sha256` is the digest of the rollouts that the hub states. Raises `ClientError` if it does not match.
        """
        import zstandard
        from wander.evals.store.jsonl import split_lines
        from wander.wire.postings import MAX_CHUNK_BYTES, RolloutsDigest, line_digest

        digest = RolloutsDigest()
        with tempfile.TemporaryFile() as record:
            compressor = zstandard.ZstdCompressor(1).stream_writer(record, closefd=False)
            with self._connection.stream("GET", self.url + run_path(run_id, "rollouts.jsonl")) as answer:
                self._require_success(answer)
                try:
                    with compressor:
                        for line in split_lines(answer.pieces(LARGEST_RECORD), MAX_CHUNK_BYTES):
                            require_room(record, len(line))
                            digest.add(line_digest(line))
                            compressor.write(line)
                except OverflowError:
                    fault = f"sent a rollout with more than {MAX_CHUNK_BYTES:,} bytes"
                    raise hub_fault(self.url, fault) from None
            if sha256 is not None and digest.hexdigest() != sha256:
                fault = f"sent rollouts of `{run_id}` that do not match its digest"
                raise hub_fault(self.url, fault, code="digest_mismatch")
            record.seek(0)
            for line in split_lines(zstandard.ZstdDecompressor().read_to_iter(record)):
                yield self._read_rollout(line)

    def _read_rollout(self, line: bytes) -> Rollout:
        try:
            return Rollout.model_validate_json(line)
        except ValidationError as error:
            raise hub_fault(self.url, "sent a line that is not a rollout") from error

    def request_verification(self, run_id: str, wanted: VerificationRequest) -> VerificationInfo:
        """Ask the hub to replay a run. Returns the running verification if there is one."""
        return self.change("POST", run_path(run_id, "verifications"), VerificationInfo, wanted)

    def verifications(self, run_id: str) -> list[VerificationInfo]:
        """Return all verifications of a run, the newest first."""
        return self.read(run_path(run_id, "verifications"), VerificationList).data

    def evidence(self, run_id: str) -> RunEvidence:
        """Return the evidence for a run's verification level."""
        proof = self.read(run_path(run_id, "evidence"), RunEvidence)
        self.require(run_id.lower() in proof.run_id.lower(), run_id)
        return proof

    def cancel_verification(self, number: int) -> VerificationInfo:
        """Cancel a verification."""
        return self.change("DELETE", f"/api/v1/verifications/{number}", VerificationInfo)

    def verification(self, number: int) -> VerificationInfo:
        """Return a verification with its progress or result."""
        verification = self.read(f"/api/v1/verifications/{number}", VerificationInfo)
        self.require(verification.id == number, f"verification {number}")
        return verification

    def leaderboard(
        self,
        owner: str,
        name: str,
        *,
        version: str | None = None,
        task_set: str | None = None,
        board: str | None = None,
        **wanted: Any,
    ) -> Leaderboard:
        """Return a leaderboard of an environment version: the first board, or the board of a task set or a
        name. `wanted` are the filters of the API: `runs`, `sort`, `level`, `model`, `since`, `until`,
        `stratum`, `limit`, `cursor`. Filters that are None are not sent.
        """
        wanted |= {"version": version, "task_set": task_set, "board": board}
        answer = self._send("GET", environment_path(owner, name, "leaderboard"), params=wanted)
        leaderboard = self._parse(answer, Leaderboard)
        same = _environment_in(answer.url) == (leaderboard.owner, leaderboard.name)
        requested = EnvironmentName(owner, name, version)
        self.require(same and requested.fits(leaderboard.version), f"the leaderboard of {requested}")
        return leaderboard

    def whole_leaderboard(
        self,
        owner: str,
        name: str,
        *,
        version: str | None = None,
        task_set: str | None = None,
        board: str | None = None,
        most: int | None = None,
        **wanted: Any,
    ) -> Leaderboard:
        """Return a leaderboard like `leaderboard`, with up to `most` rows, or with all rows if None."""
        selection = {"version": version, "task_set": task_set, "board": board}
        rows: list[LeaderboardRow] = []
        first: Leaderboard | None = None  # the first page also describes the board

        def fetch(cursor: str | None) -> Leaderboard:
            size = PAGE if most is None else min(most - len(rows), PAGE)
            return self.leaderboard(owner, name, limit=size, cursor=cursor, **selection, **wanted)

        for page in read_pages(self.url, fetch):
            rows += page.rows
            first = first or page
            selection = {"version": page.version, "board": page.board}
            if most is not None and len(rows) >= most:
                break
        return (first or page).model_copy(update={"rows": rows, "next": page.next})

    def require(self, fits: bool, requested: str) -> None:
        """Raise `Unavailable` if the hub's response does not match the request."""
        if not fits:
            raise hub_fault(self.url, f"sent a response that is not `{requested}`", code="wrong_answer")

    def read(self, path: str, model: type[Model], params: Mapping[str, Any] | None = None) -> Model:
        """Return the response of a route. `path` must already be quoted."""
        return self._parse(self._send("GET", path, params=params), model)

    @overload
    def change(
        self,
        method: str,
        path: str,
        model: type[Model],
        body: BaseModel | None = None,
        *,
        params: Mapping[str, Any] | None = None,
    ) -> Model: ...

    @overload
    def change(
        self, method: str, path: str, model: None, *, params: Mapping[str, Any] | None = None
    ) -> None: ...

    def change(
        self,
        method: str,
        path: str,
        model: type[Model] | None,
        body: BaseModel | None = None,
        *,
        params: Mapping[str, Any] | None = None,
    ) -> Model | None:
        """Send a change and return the response, or None if it has no body. `path` must already be quoted."""
        json = body.model_dump(mode="json") if body is not None else None
        response = self._send(method, path, json=json, params=params)
        return self._parse(response, model) if model is not None else None

    def send_bytes(
        self, method: str, path: str, content: bytes, model: type[Model], headers: Mapping[str, str]
    ) -> Model:
        """Send a change with a binary body and return the response. `path` must already be quoted."""
        kind = {"Content-Type": "application/octet-stream"}
        return self._parse(self._send(method, path, content=content, headers={**kind, **headers}), model)

    # HTTP.

    def _send(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, **options: Any
    ) -> HubAnswer:
        """Send a request. Reads are retried while the hub is busy; writes are not."""
        query_params = {name: value for name, value in (params or {}).items() if value is not None}
        attempts = ATTEMPTS if method == "GET" else 1
        for attempt in range(1, attempts + 1):
            answer = self._connection.send(method, path, params=query_params or None, **options)
            if answer.status not in RETRY_STATUSES or attempt == attempts:
                break
            stated = answer.headers.get("Retry-After", "")
            wait = float(stated) if _SECONDS.fullmatch(stated) else 0.3 * 2**attempt
            self._sleep(min(wait, LONGEST_WAIT))
        if not answer.is_success:
            raise self._error(answer)
        return answer

    @contextlib.contextmanager
    def _stream(self, url: str, headers: Mapping[str, str] | None = None) -> Iterator[StreamedResponse]:
        """Yield the response for a file, which may be on another host. Only the hub gets the token."""
        target = self.absolute(url)
        with self._connection.stream("GET", target, headers=headers, elsewhere=True) as answer:
            self._require_success(answer)
            yield answer

    def _require_success(self, answer: StreamedResponse) -> None:
        if not 200 <= answer.status < 300:
            content = b"".join(answer.pieces(ERROR_BYTES, self._connection.limits.answer_seconds))
            raise self._error(HubAnswer(answer.status, answer.headers, content, answer.url))

    def _error(self, answer: HubAnswer) -> ClientError:
        try:
            problem = Problem.model_validate_json(answer.content, extra="ignore")
        except ValidationError:
            if answer.status >= 500 or answer.status == 407:
                proxy = find_proxy(self.url)
                source = f"the hub at `{self.url}`" + (f", or the proxy {proxy}," if proxy else "")
                return Unavailable(
                    f"{source} failed ({answer.status})",
                    hint="try again in a moment",
                    code="server_error",
                    request_id=answer.headers.get(REQUEST_ID_HEADER),
                )
            return self._no_hub(answer)
        return problem_error(problem, self.url, authenticated=self.authenticated)

    def _parse(self, answer: HubAnswer, model: type[Model]) -> Model:
        try:  # a newer hub may send fields that this client does not know
            return model.model_validate_json(answer.content, extra="ignore")
        except ValidationError as error:
            raise self._no_hub(answer) from error

    def _no_hub(self, answer: HubAnswer) -> ClientError:
        return Unavailable(
            f"`{answer.url}` returned status {answer.status} in an unknown format",
            hint=f"check that `{self.url}` is a Wander hub of this version (see `wander --version`)",
            code="unexpected_answer",
            retryable=False,
            request_id=answer.headers.get(REQUEST_ID_HEADER),
        )


_LISTS = {
    "run_not_found": "run `wander runs list --posted` to list the runs of `{hub}`",
    "model_not_found": "see the models of the hub at {hub}/models",
}
"""Hints that list what a missing object may be, by the problem's code."""


def problem_error(problem: Problem, hub: str, *, authenticated: bool) -> ClientError:
    """Convert a problem response of a hub to an error, with the hub's code."""
    message = problem.detail or problem.title
    lines = [str(item.get("msg") or item.get("message") or item) for item in (problem.errors or [])[:5]]
    kind: type[ClientError] = ClientError
    default_hint: str | None = None
    if problem.status == 401:
        kind, rejected = LoginRequired, "the token was rejected; " if authenticated else ""
        default_hint = f"{rejected}run `wander login`"
    elif problem.status == 403:
        kind, default_hint = LoginRequired, "run `wander auth whoami` to see the scopes of this token"
    elif problem.status in (404, 410):
        environments = "run `wander search` to list the environments of `{hub}`"
        kind, default_hint = NotFound, _LISTS.get(problem.code, environments).format(hub=hub)
    elif problem.status == 429 or problem.status >= 500:
        kind, default_hint = Unavailable, f"try again in a moment; `{hub}/health` shows the hub's status"
    elif problem.status in (405, 406):
        kind = UsageError
    return kind(
        message or f"rejected ({problem.status})",
        hint=problem.hint or default_hint,
        code=problem.code,
        detail="\n".join(lines) or None,
        request_id=problem.request_id,
        retryable=problem.status == 429 or problem.status >= 500,
    )


def _environment_in(url: str) -> tuple[str, str] | None:
    """Return the owner and name in the URL of a response, after redirects."""
    match = re.search(r"/api/v1/environments/([^/?]+)/([^/?]+)", url)
    return (unquote(match[1]), unquote(match[2])) if match else None


def require_room(file: IO[bytes], more: int) -> None:
    """Raise `ClientError` before a download fills the disk. The check runs once per 64 MiB."""
    position = file.tell()
    if position // _LOOK_EVERY != (position + more) // _LOOK_EVERY or position == 0:
        free = os.fstatvfs(file.fileno())
        if free.f_bavail * free.f_frsize < LEFT_FREE:
            raise ClientError(
                f"the disk has less than {LEFT_FREE >> 20} MiB of free space, so the download was stopped",
                hint="run `wander cache prune` to remove unused environments",
                code="disk_full",
            )
