"""A hub for programs, with the commands `search`, `info`, `publish`, `install`, `post`... as methods."""

from __future__ import annotations

import contextlib
import html
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, overload

from wander.wire import EnvironmentSummary, RunDetail, VersionDetail
from wander.wire.changes import Whoami
from wander.wire.environments import wanted_visibility
from wander.wire.models import ModelRevision, parse_model
from wander.wire.verification import LevelSought, VerificationInfo, VerificationRequest

from wander_client.context import CommonOptions, Invocation
from wander_client.credentials import Credential
from wander_client.environments.published import PublishedEnvironment, describe
from wander_client.environments.sandbox import builder_of, choose_policy
from wander_client.failures import validate
from wander_client.hub.api import HubApi, require_token
from wander_client.hub.transfer import Publication
from wander_client.hub.verification import require_played, require_posted, watch_verification
from wander_client.names import parse_name
from wander_client.packages.store import EnvironmentStore, Installed
from wander_client.python.background import called_from_python
from wander_client.python.output import PythonOutput
from wander_client.python.run import Run
from wander_client.runs.board_text import cell_of, columns_of, protocol_text, title_of
from wander_client.runs.lookup import find_run, run_folder

if TYPE_CHECKING:
    import httpx
    from wander.wire import BoardInfo, Leaderboard, LeaderboardRow
    from wander.wire.boards import ModelElsewhere

RunLike = str | os.PathLike[str]
"""A run's folder, its ID, or the beginning of its ID. A `Run` counts as its folder."""


@dataclass(frozen=True)
class Board(Sequence["LeaderboardRow"]):
    """The rows of a leaderboard, the best first. Notebooks show it as a table."""

    leaderboard: Leaderboard
    """The board as the hub returned it."""

    @property
    def name(self) -> str | None:
        """Name of the board, or None if the version has no runs."""
        return self.leaderboard.board

    @property
    def protocol(self) -> str:
        """Properties that all rows share: split, examples, rollouts, arguments, limits."""
        return protocol_text(self.leaderboard)

    @property
    def others(self) -> list[BoardInfo]:
        """Largest other boards of the version, for `hub.leaderboard(environment, board=...)`."""
        return self.leaderboard.others

    @property
    def elsewhere(self) -> list[ModelElsewhere]:
        """Models that are only on other boards of the environment, and why they cannot be compared."""
        return self.leaderboard.elsewhere

    def __len__(self) -> int:
        return len(self.leaderboard.rows)

    @overload
    def __getitem__(self, index: int) -> LeaderboardRow: ...
    @overload
    def __getitem__(self, index: slice) -> list[LeaderboardRow]: ...
    def __getitem__(self, index: int | slice) -> LeaderboardRow | list[LeaderboardRow]:
        return self.leaderboard.rows[index]

    def __repr__(self) -> str:
        best = f", {self[0].reward_mean:.4f} by {self[0].model}" if self else ""
        shown = self.leaderboard
        others = f"; {shown.boards - 1} more boards in `others`" if shown.boards > 1 else ""
        version = f"{shown.owner}/{shown.name}@{shown.version}"
        return f"<Board {self.name or 'without runs'} of {version}: {len(self)} rows{best}{others}>"

    def _repr_html_(self) -> str:
        shown = self.leaderboard
        columns = columns_of(shown)
        head = "".join(f"<th>{html.escape(title_of(shown, column))}</th>" for column in columns)
        rows = [[html.escape(str(cell_of(row, column))) for column in columns] for row in self]
        body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
        version = f"{shown.owner}/{shown.name} {shown.version}"
        title = html.escape(f"{version}, board {self.name}: {self.protocol}" if self.name else version)
        return f"<table><caption>{title}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class Session(Invocation):
    """A session with a hub. It keeps connections open, and a new login applies from the next call."""

    def __init__(
        self,
        url: str | None,
        token: str | None,
        transport: httpx.BaseTransport | None = None,
        *,
        progress: bool = True,
    ) -> None:
        given = None if token is None else Credential(token, "given")
        output = PythonOutput(progress=progress)
        super().__init__(CommonOptions(mode="quiet", hub=url), output, transport, given=given)
        self._connections: dict[str | None, HubApi] = {}
        self._lock = Lock()

    def _open(self, credential: Credential | None, *, login: bool) -> AbstractContextManager[HubApi]:
        if login:
            require_token(self.settings.hub, credential)
        token = credential.token if credential else None
        with self._lock:
            if token not in self._connections:
                self._connections[token] = HubApi(self.settings.hub, token, transport=self._transport)
            return contextlib.nullcontext(self._connections[token])

    def close(self) -> None:
        """Close the connections. The next call opens new connections."""
        with self._lock:
            while self._connections:
                self._connections.popitem()[1].close()


class Hub:
    """A hub whose calls block until they are done.

    Works in scripts, in notebooks with a running event loop, and in several threads at the same time:

        hub = wander.Hub()
        for environment in hub.search("game"):
            print(environment.owner, environment.name, environment.best_reward)
    """

    @called_from_python
    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        progress: bool = True,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Choose a hub. No request is sent yet.

        - `url`: URL, or a name from `settings.toml`. The default is `WANDER_HUB`, else the hub in the file,
        else the only hub
          you are logged in to, else `http://127.0.0.1:8600`.
        - `token`: the default is `WANDER_TOKEN`, else the token that `wander login` stored for this hub.
        - `progress`: False hides progress while it publishes, installs and posts.
        - `transport`: replaces the HTTP connection.
        Raises `UsageError` if `url` is not a hub URL. Every call raises `ClientError`s (`NotFound`,
        `LoginRequired`, `Unavailable`, `UsageError`) with a `code`, a `hint` and, if the hub responded, its
        `request_id`.
        """
        self._session = Session(url, token, transport, progress=progress)
        self.url = self._session.settings.hub
        """URL of the hub."""

    def __repr__(self) -> str:
        return f"<Hub {self.url}>"

    @called_from_python
    def whoami(self) -> Whoami:
        """Return the user of the token, and its scopes."""
        with self._session.hub(login=True) as hub:
            return hub.whoami()

    @called_from_python
    def search(
        self,
        query: str = "",
        *,
        owner: str | None = None,
        tag: str | None = None,
        kind: str | None = None,
        license: str | None = None,
        deterministic: bool | None = None,
        checked: bool | None = None,
        sort: Literal["relevance", "updated", "newest", "runs", "downloads"] | None = None,
    ) -> Iterator[EnvironmentSummary]:
        """Yield the matching environments. A search with words returns at most 200 of them."""
        filters = {"owner": owner, "tag": tag, "kind": kind, "license": license, "sort": sort}
        with self._session.hub() as hub:
            yield from hub.every_environment(query, **filters, deterministic=deterministic, checked=checked)

    @called_from_python
    def info(self, environment: str) -> PublishedEnvironment:
        """Return the details of `owner/name` or `owner/name@version`."""
        return describe(self._session, parse_name(environment))

    @called_from_python
    def versions(self, environment: str) -> Iterator[VersionDetail]:
        """Yield the versions of `owner/name`, the newest first, including yanked versions."""
        name = parse_name(environment)
        with self._session.hub() as hub:
            for version in hub.environment(name.owner, name.name).all_versions:
                yield hub.version(name.owner, name.name, version)

    @called_from_python
    def publish(
        self,
        folder: str | os.PathLike[str],
        *,
        owner: str | None = None,
        private: bool = False,
        internal: bool = False,
        check: bool = True,
        lock: bool = True,
    ) -> Publication:
        """Build the environment of a folder, lock its packages, check it and upload it. This takes seconds.

        Published versions never change: publishing the same files again does nothing. Changed files raise
        `ClientError` with the code `version_exists`, and failed checks with the code `check_failed`.
        """
        from wander_client.packages.publish import PublishOptions, publish_folder

        wishes = PublishOptions(owner=owner, private=private, internal=internal, check=check, lock=lock)
        policy = choose_policy(None, None, default=bool(self._session.settings.sandbox))
        builder = builder_of(self._session, policy)
        published = publish_folder(self._session, Path(folder), wishes, builder).published
        assert published is not None  # None only after a dry run
        return published

    @called_from_python
    def fork(
        self,
        environment: str,
        folder: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
    ) -> Path:
        """Copy the source of a version of an environment, under a new `name` if it is given. Returns the
        folder."""
        from wander_client.packages.origins.fork import fork

        place = None if folder is None else Path(folder)
        return fork(self._session, parse_name(environment), place, name).folder

    @called_from_python
    def install(self, environment: str, *, force: bool = False, lock: bool | None = None) -> Installed:
        """Install `owner/name[@version]` into its own virtual environment, unless it is installed.

        `lock=False` installs the newest packages instead of the locked ones. None means the last choice for
        this version, at first with the lock.
        """
        from wander_client.packages.install import install

        here, no_lock = self._session, None if lock is None else not lock
        store = EnvironmentStore(here.settings.data_dir, here.output.warn)
        name, cache_dir, warn = parse_name(environment), here.settings.cache_dir, here.output.warn
        with here.hub() as hub:
            return install(hub, store, cache_dir, name, force=force, no_lock=no_lock, warn=warn)[0]

    @called_from_python
    def post(
        self,
        run: RunLike,
        *,
        private: bool = False,
        sign: bool = False,
        name: str = "",
        incomplete: bool = False,
    ) -> RunDetail:
        """Post a run on this machine to the hub's leaderboard. Its rollouts become public.

        With `private`, only members of the environment see it. `sign` uses this machine's key (`wander auth
        key new`). `name` is shown in lists and on leaderboards. `incomplete` accepts a run with missing
        rollouts. Posting again changes nothing.
        """
        from wander_client.runs import posting

        here = self._session
        folder = run_folder(here, os.fspath(run))
        with posting.pack(here, folder, incomplete=incomplete) as parcel:
            return posting.send(here, parcel, private=private, sign=sign, name=name)[0]

    @called_from_python
    def push_model(
        self, name: str, model: str | os.PathLike[str], *, private: bool | None = None
    ) -> ModelRevision:
        """Push a trained model to the hub as `owner/name`, from a checkpoint folder or a training run.

        Pushing the same files again does nothing, and an interrupted push continues. `private` is for a new
        model; None means the owner's setting. Raises `UsageError` if `model` is not a checkpoint.
        """
        from wander_client.training.pushing import push_model

        visibility = wanted_visibility(private, internal=False)
        return push_model(self._session, os.fspath(model), parse_model(name), visibility=visibility).made

    @called_from_python
    def pull_model(self, name: str) -> Path:
        """Download `owner/name[@revision]`, check its digests, and return its folder. Uses the cache if
        possible. Afterwards, `hub:owner/name` is the name of this model everywhere.
        """
        from wander_client.models.pulling import pull_model

        return pull_model(self._session, parse_model(name))[0].folder

    @called_from_python
    def leaderboard(
        self,
        environment: str,
        *,
        board: str | BoardInfo | Board | None = None,
        runs: Literal["best", "all"] = "best",
        level: str | None = None,
        model: str | None = None,
        stratum: int | None = None,
        limit: int | None = None,
    ) -> Board:
        """Return the ranked runs of `owner/name[@version]`. Without `limit`, returns all of them.

        - `board`: a board of `others`, or its name. None means the pinned board, else the board with the most
        runs. The result's
          `name` is the name of the board.
        - `runs`: `"best"` shows the first run of each model and account, `"all"` every run.
        - `level`: minimum verification level. `model`: part of the model's name.
        - `stratum`: sets the `stratum` of each row to the reward on this part of the examples.
        """
        name = parse_name(environment)
        asked = board.name if isinstance(board, Board) else getattr(board, "board", board)
        wanted: dict[str, Any] = {"version": name.version, "board": asked, "runs": runs, "level": level}
        wanted |= {"model": model, "stratum": stratum}
        with self._session.hub() as hub:
            return Board(hub.whole_leaderboard(name.owner, name.name, most=limit, **wanted))

    @called_from_python
    def run(self, run_id: str) -> Run:
        """Return a posted run by its ID, or by the beginning or the end of its ID.

        Its rollouts are downloaded when they are first needed, and cached.
        """
        with self._session.hub() as hub:
            return Run.of_posted(self._session, hub.run(run_id))

    @called_from_python
    def runs(self, *, environment: str | None = None, model: str | None = None) -> Iterator[RunDetail]:
        """Yield the posted runs that you can see, the newest first. `environment` is `owner/name`.

        Their manifests do not contain the IDs and strata of the examples, because a run can have a million of
        them.
        """
        with self._session.hub() as hub:
            yield from hub.every_run(environment=environment, model=model)

    @called_from_python
    def verify(
        self, run: RunLike, *, level: LevelSought = "highest", sample: int | None = None, wait: bool = True
    ) -> VerificationInfo:
        """Ask the hub to replay a posted run in its sandbox. The `report` counts the rollouts that differ.

        `sample` replays a random sample of this size. Without `wait`, returns the pending verification.
        Raises `ClientError` with the code `verification_failed` if the hub could not replay the run.
        """
        hint = "levels are `highest`, `rescored` and `replayed`; a sample has at least 1 rollout"
        wanted = validate(VerificationRequest, {"level": level, "sample": sample}, hint)
        word = os.fspath(run)
        run_id = find_run(self._session, word).manifest.run_id
        with self._session.hub(login=True) as hub, require_posted(run_id, word):
            verification = hub.request_verification(run_id, wanted)
            last = [verification, *watch_verification(hub, verification)][-1] if wait else verification
        require_played(last)
        return last

    def close(self) -> None:
        """Close the connections. The next call opens new connections."""
        self._session.close()

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
