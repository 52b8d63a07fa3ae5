"""The hub's HTTP interface: one method a route, wire models in and out, errors by the hub's stable codes.

Nothing here prints or reads settings; the transport can be injected, so tests run it against the real hub
application without a socket.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any, Protocol, TypeVar, overload
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ValidationError
from wander.types import Rollout
from wander.wire import (
    EnvironmentDetail,
    EnvironmentPage,
    EnvironmentSummary,
    Leaderboard,
    Problem,
    RolloutPage,
    RolloutRow,
    RunDetail,
    RunPage,
    VersionDetail,
)
from wander.wire.changes import Whoami
from wander.wire.verification import (
    RunEvidence,
    VerificationInfo,
    VerificationList,
    VerificationRequest,
)

from wander_client.credentials import Credential
from wander_client.errors import ClientError, LoginRequired, NotFound, Unavailable, UsageError
from wander_client.names import environment_path, quote_part, run_path

RETRY_STATUSES = frozenset({429, 502, 503, 504})
ATTEMPTS = 3
LONGEST_WAIT = 5.0
"""Seconds; a longer Retry-After is the user's decision."""
INDEX_JSON = "application/vnd.pypi.simple.v1+json"
"""The form of a package index's pages that is read here (PEP 691)."""
_AS_JSON = {"Accept": INDEX_JSON}

PAGE = 200
"""Rows of a page, where all of them are read."""
REQUEST_ID_HEADER = "X-Request-ID"
"""Names the request in the hub's log too."""

Model = TypeVar("Model", bound=BaseModel)
Row = TypeVar("Row", covariant=True)


class _IndexPage(BaseModel):
    """What is read of a page of a package index (PEP 691)."""

    files: list[dict[str, Any]]


class _Page(Protocol[Row]):
    """A page of a list, and the cursor of the next one."""

    @property
    def data(self) -> Sequence[Row]: ...
    @property
    def next(self) -> str | None: ...


@contextlib.contextmanager
def open_hub(
    url: str,
    credential: Credential | None,
    *,
    login: bool = False,
    transport: httpx.BaseTransport | None = None,
) -> Iterator[HubApi]:
    """Yield the hub's API; with `login=True` a missing token fails before anything is sent."""
    if login:
        require_token(url, credential)
    token = credential.token if credential else None
    with contextlib.closing(HubApi(url, token, transport=transport)) as hub:
        yield hub


def require_token(url: str, credential: Credential | None) -> None:
    """Raise `LoginRequired` where there is no token for a hub."""
    if credential is None:
        hint = f"run `wander login --hub {url}` or set `WANDER_TOKEN`"
        raise LoginRequired(f"no token for `{url}`", hint=hint)


class HubApi:
    """Calls one hub."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url.rstrip("/")
        self.authenticated = token is not None
        self._sleep = sleep
        headers = {"User-Agent": f"wander-client/{installed_version('wander-client')}"}
        if token is not None:
            if not token.isascii() or any(c.isspace() for c in token):
                raise LoginRequired(
                    "the token holds characters that no token has", hint="run `wander login` with a fresh one"
                )
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            transport=transport,
            timeout=httpx.Timeout(30, read=120, write=120),
            follow_redirects=True,  # an environment may have moved; a token never follows to another host
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def whoami(self) -> Whoami:
        """Return whose token is in use."""
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
        """Return a page of environments that match; filters are `kind`, `licence`, `sort` and the like."""
        params = {"q": query or None, "owner": owner, "tag": tag, "limit": limit, "cursor": cursor, **filters}
        said = {name: str(one).lower() if isinstance(one, bool) else one for name, one in params.items()}
        return self.read("/api/v1/environments", EnvironmentPage, said)

    def every_environment(self, query: str = "", **filters: Any) -> Iterator[EnvironmentSummary]:
        """Yield every environment that matches, page by page."""
        return _rows(lambda cursor: self.environments(query, limit=PAGE, cursor=cursor, **filters))

    def environment(self, owner: str, name: str) -> EnvironmentDetail:
        """Return one environment with its newest version."""
        return self.read(environment_path(owner, name), EnvironmentDetail)

    def version(self, owner: str, name: str, version: str) -> VersionDetail:
        """Return one version with its files."""
        return self.read(environment_path(owner, name, "versions", version), VersionDetail)

    def index_files(self, owner: str, project: str) -> list[dict[str, Any]] | None:
        """Return the files of a project in an owner's package index, or None when it has no such project."""
        path = f"/{quote_part(owner)}/simple/{quote_part(project)}/"
        try:
            response = self._send("GET", path, headers=_AS_JSON)
        except NotFound:
            return None
        files = self._parse(response, _IndexPage).files
        return [{**file, "url": str(response.url.join(file["url"]))} for file in files]

    def held_page(self, owner: str, project: str) -> dict[str, Any] | None:
        """Return the page of a name that the hub itself holds, for an owner's environments; None for others.

        Raises `LoginRequired` where the hub does not say: the name may be a private one.
        """
        path = f"/{quote_part(owner)}/index/{quote_part(project)}/"
        try:
            try:
                response = self._send("GET", path, params={"held": True}, headers=_AS_JSON)
            except LoginRequired:
                # A stranger to an owner with hidden names; what the index behind the hub has is none of them.
                response = self._send("GET", path, headers=_AS_JSON)
                if "_upstream" in response.json().get("meta", {}):
                    return None
        except NotFound:
            return None
        page = self._parse(response, _IndexPage)
        files = [{**file, "url": str(response.url.join(file["url"]))} for file in page.files]
        return {**response.json(), "files": files}

    def projects(self, owner: str) -> list[str]:
        """Return the names in an owner's index that the caller may see."""
        try:
            response = self._send("GET", f"/{quote_part(owner)}/simple/", headers=_AS_JSON)
        except (NotFound, LoginRequired):
            return []
        return [str(each["name"]) for each in response.json()["projects"]]

    def content(self, url: str) -> bytes:
        """Return the bytes of a small file of the hub."""
        with self._stream(url) as response:
            return response.read()

    def attach_lock(self, owner: str, name: str, version: str, content: bytes) -> VersionDetail:
        """Give a published version its `pylock.toml`."""
        path = environment_path(owner, name, "versions", version, "pylock.toml")
        headers = {"Content-Type": "application/toml"}
        return self._parse(self._send("PUT", path, content=content, headers=headers), VersionDetail)

    def download(
        self,
        url: str,
        target: Path,
        sha256: str | None,
        *,
        partial: Path | None = None,
        told: Callable[[int], None] = lambda size: None,
    ) -> str:
        """Save a file and return its digest, which is checked before the file gets its name.

        `partial` keeps what came of a file that breaks off, and a download goes on from there. `told` hears
        how many bytes are here.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        place = partial
        if place is None:
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=".download-")
            os.close(handle)
            place = Path(name)
        try:
            found = self._save(url, place, told)
        except BaseException:
            if partial is None:
                place.unlink()
            raise
        try:
            if sha256 is not None and found != sha256:
                raise ClientError(
                    f"`{target.name}` has digest {found[:12]}, not {sha256[:12]} as the hub lists",
                    hint="the file was changed on its way; try again, then tell whoever runs the hub",
                    code="digest_mismatch",
                )
            os.replace(place, target)
        finally:
            place.unlink(missing_ok=True)
        return found

    def _save(self, url: str, place: Path, told: Callable[[int], None]) -> str:
        """Write a file from where its bytes here end, and return the digest of all of them."""
        digest = hashlib.sha256()
        with place.open("a+b") as file:
            file.seek(0)
            while piece := file.read(1 << 20):
                digest.update(piece)
            size = file.tell()
            with self._stream(url, {"Range": f"bytes={size}-"} if size else {}) as response:
                if size and response.status_code != httpx.codes.PARTIAL_CONTENT:
                    digest, size = hashlib.sha256(), 0
                    file.truncate(0)
                for chunk in response.iter_bytes(1 << 16):
                    digest.update(chunk)
                    size += file.write(chunk)
                    told(size)
        return digest.hexdigest()

    def absolute(self, url: str) -> str:
        """Return the full form of a URL in an answer, which may be relative to the hub."""
        return str(httpx.URL(self.url + "/").join(url))

    def run(self, run_id: str) -> RunDetail:
        """Return a posted run."""
        return self.read(run_path(run_id), RunDetail)

    def runs(
        self, *, environment: str | None = None, model: str | None = None, cursor: str | None = None
    ) -> RunPage:
        """Return a page of posted runs, the newest first; `environment` is `owner/name`."""
        params = {"environment": environment, "model": model, "cursor": cursor}
        return self.read("/api/v1/runs", RunPage, params)

    def every_run(self, *, environment: str | None = None, model: str | None = None) -> Iterator[RunDetail]:
        """Yield every posted run that matches, the newest first, page by page."""
        return _rows(lambda cursor: self.runs(environment=environment, model=model, cursor=cursor))

    def rollout_rows(self, run_id: str) -> Iterator[RolloutRow]:
        """Yield the rows of a posted run's rollouts, without messages, page by page."""
        offset = 0
        while True:
            path = run_path(run_id, "rollouts")
            page = self.read(path, RolloutPage, {"offset": offset, "limit": 1000})
            yield from page.data
            offset += len(page.data)
            if not page.data or offset >= page.total:
                return

    def rollout(self, run_id: str, number: int) -> Rollout:
        """Return one whole rollout of a posted run."""
        return self.read(run_path(run_id, "rollouts", str(number)), Rollout)

    def rollouts(self, run_id: str) -> Iterator[Rollout]:
        """Yield every whole rollout of a posted run, once all are here: servers drop who reads slowly."""
        import zstandard
        from wander.evals.store.jsonl import split_lines

        with tempfile.TemporaryFile() as record:
            packing = zstandard.ZstdCompressor(1).stream_writer(record, closefd=False)
            with self._stream(run_path(run_id, "rollouts.jsonl")) as response, packing:
                for block in response.iter_bytes(1 << 16):
                    packing.write(block)
            record.seek(0)
            for line in split_lines(zstandard.ZstdDecompressor().read_to_iter(record)):
                yield Rollout.model_validate_json(line)

    def request_verification(self, run_id: str, wanted: VerificationRequest) -> VerificationInfo:
        """Ask the hub to replay a run; return the verification under way if there is one."""
        return self.change("POST", run_path(run_id, "verifications"), VerificationInfo, wanted)

    def verifications(self, run_id: str) -> list[VerificationInfo]:
        """Return every verification of a run, the newest first."""
        return self.read(run_path(run_id, "verifications"), VerificationList).data

    def evidence(self, run_id: str) -> RunEvidence:
        """Return what a run's level rests on."""
        return self.read(run_path(run_id, "evidence"), RunEvidence)

    def cancel_verification(self, number: int) -> VerificationInfo:
        """Cancel a verification."""
        return self.change("DELETE", f"/api/v1/verifications/{number}", VerificationInfo)

    def verification(self, number: int) -> VerificationInfo:
        """Return the progress of a verification, or its result."""
        return self.read(f"/api/v1/verifications/{number}", VerificationInfo)

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
        """Return a leaderboard of one environment version: the first, or that of a task set or a name.

        `wanted` are the filters of the API: `runs`, `sort`, `level`, `model`, `since`, `until`, `stratum`,
        `limit`, `cursor`; those that are None are left out.
        """
        chosen = {"version": version, "task_set": task_set, "board": board}
        return self.read(environment_path(owner, name, "leaderboard"), Leaderboard, chosen | wanted)

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
        """Return a leaderboard as `leaderboard` does, with up to `most` rows, for None with all."""
        which = {"version": version, "task_set": task_set, "board": board}
        size = PAGE if most is None else min(most, PAGE)
        shown = self.leaderboard(owner, name, limit=size, **which, **wanted)
        rows, following = list(shown.rows), shown.next
        which = {"version": shown.version, "board": shown.board}
        while following is not None and (most is None or len(rows) < most):
            size = PAGE if most is None else min(most - len(rows), PAGE)
            page = self.leaderboard(owner, name, limit=size, cursor=following, **which, **wanted)
            rows += page.rows
            following = page.next
        return shown.model_copy(update={"rows": rows, "next": following})

    def read(self, path: str, model: type[Model], params: Mapping[str, Any] | None = None) -> Model:
        """Return the answer of a route; `path` is already quoted."""
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
        """Send a change and return the answer, or None when it has no body; `path` is already quoted."""
        json = body.model_dump(mode="json") if body is not None else None
        response = self._send(method, path, json=json, params=params)
        return self._parse(response, model) if model is not None else None

    def send_bytes(
        self, method: str, path: str, content: bytes, model: type[Model], headers: Mapping[str, str]
    ) -> Model:
        """Send a change whose body is plain bytes and return the answer; `path` is already quoted."""
        kind = {"Content-Type": "application/octet-stream"}
        return self._parse(self._send(method, path, content=content, headers={**kind, **headers}), model)

    # the transport

    def _send(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, **options: Any
    ) -> httpx.Response:
        """Send a request; reads are retried while the hub is busy, writes never."""
        given = {name: value for name, value in (params or {}).items() if value is not None}
        attempts = ATTEMPTS if method == "GET" else 1
        for attempt in range(1, attempts + 1):
            with self._reach():
                response = self._http.request(method, path, params=given or None, **options)
            if response.status_code not in RETRY_STATUSES or attempt == attempts:
                break
            try:
                wait = float(response.headers.get("Retry-After", ""))
            except ValueError:
                wait = 0.3 * 2**attempt
            self._sleep(min(max(wait, 0.0), LONGEST_WAIT))
        if not response.is_success:
            raise self._error(response)
        return response

    @contextlib.contextmanager
    def _stream(self, url: str, headers: Mapping[str, str] | None = None) -> Iterator[httpx.Response]:
        # The token goes to the hub alone, never to a storage host that a file URL may name.
        whole = self.absolute(url)
        token = {} if _origin(whole) == _origin(self.url) else {"Authorization": ""}
        with self._reach(), self._http.stream("GET", whole, headers={**token, **(headers or {})}) as response:
            if not response.is_success:
                response.read()
                raise self._error(response)
            yield response

    @contextlib.contextmanager
    def _reach(self) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException as error:
            raise Unavailable(
                f"the hub at `{self.url}` did not answer in time",
                hint="try again in a moment",
                code="timeout",
            ) from error
        except httpx.ConnectError as error:
            raise Unavailable(
                f"nothing answers at the hub `{self.url}`",
                hint="start one with `wander-hub serve`, or name another with `--hub URL` or `WANDER_HUB`",
                code="hub_unreachable",
                detail=str(error),
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unavailable(
                f"the hub at `{self.url}` broke off: {error or type(error).__name__}",
                hint="try again in a moment",
                code="hub_unreachable",
            ) from error

    def _error(self, response: httpx.Response) -> ClientError:
        try:
            problem = Problem.model_validate_json(response.content, extra="ignore")
        except ValidationError:
            if response.status_code >= 500:
                return Unavailable(
                    f"the hub at `{self.url}` failed ({response.status_code})",
                    hint="try again in a moment",
                    code="server_error",
                    request_id=response.headers.get(REQUEST_ID_HEADER),
                )
            return self._no_hub(response)
        return problem_error(problem, self.url, authenticated=self.authenticated)

    def _parse(self, response: httpx.Response, model: type[Model]) -> Model:
        try:  # a newer hub may tell more than this client knows
            return model.model_validate_json(response.content, extra="ignore")
        except ValidationError as error:
            raise self._no_hub(response) from error

    def _no_hub(self, response: httpx.Response) -> ClientError:
        return Unavailable(
            f"`{response.url}` answered {response.status_code} in a form this client does not know",
            hint=f"is `{self.url}` a Wander hub of this version? see `wander --version`",
            code="unexpected_answer",
            retryable=False,
            request_id=response.headers.get(REQUEST_ID_HEADER),
        )


def problem_error(problem: Problem, hub: str, *, authenticated: bool) -> ClientError:
    """Return the error for a hub's problem answer; its code stays as the hub wrote it."""
    message = problem.detail or problem.title
    text = message[:1].lower() + message[1:].rstrip(".") if message else f"refused ({problem.status})"
    lines = [str(item.get("msg") or item.get("message") or item) for item in (problem.errors or [])[:5]]
    kind: type[ClientError] = ClientError
    usual: str | None = None
    if problem.status == 401:
        kind, refused = LoginRequired, "the token was refused; " if authenticated else ""
        usual = f"{refused}run `wander login`"
    elif problem.status == 403:
        kind, usual = LoginRequired, "run `wander auth whoami` to see what this token may do"
    elif problem.status in (404, 410):
        kind, usual = NotFound, f"`wander search` lists what `{hub}` has"
    elif problem.status == 429 or problem.status >= 500:
        kind, usual = Unavailable, f"try again in a moment; `{hub}/health` shows the hub's state"
    elif problem.status in (405, 406):
        kind = UsageError
    return kind(
        text,
        hint=problem.hint or usual,
        code=problem.code,
        detail="\n".join(lines) or None,
        request_id=problem.request_id,
        retryable=problem.status == 429 or problem.status >= 500,
    )


def _rows(fetch: Callable[[str | None], _Page[Row]]) -> Iterator[Row]:
    """Yield the rows of every page; `fetch` gets the cursor of a page, None for the first."""
    page = fetch(None)
    yield from page.data
    while page.next is not None:
        page = fetch(page.next)
        yield from page.data


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port
