"""A hub for programs: what the commands `search`, `info`, `publish`, `install`, `post`... do, as methods."""

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
from wander_client.python.calls import Listing, Request
from wander_client.python.output import PythonOutput
from wander_client.python.run import Run
from wander_client.runs.lookup import find_run, run_folder
from wander_client.runs.ranking import board_cells, protocol_text

if TYPE_CHECKING:
    import httpx
    from wander.wire import BoardInfo, Leaderboard, LeaderboardRow
    from wander.wire.boards import ModelElsewhere

RunLike = str | os.PathLike[str]
"""A run's folder, or its id or the beginning of it; a run that `evaluate` returned is its folder."""


_COLUMNS = ("rank", "model", "reward", "interval", "level", "by", "posted")


@dataclass(frozen=True)
class Board(Sequence["LeaderboardRow"]):
    """The rows of a leaderboard, best first; a notebook shows it as a table."""

    leaderboard: Leaderboard
    """Everything that the hub says about the board."""

    @property
    def name(self) -> str | None:
        """Name of the board among those of its version; None if the version has no run."""
        return self.leaderboard.board

    @property
    def protocol(self) -> str:
        """What all rows have in common: split, examples, rollouts, arguments, limits."""
        return protocol_text(self.leaderboard)

    @property
    def others(self) -> list[BoardInfo]:
        """The busiest other boards of the version; pass one as `hub.leaderboard(environment, board=...)`."""
        return self.leaderboard.others

    @property
    def elsewhere(self) -> list[ModelElsewhere]:
        """Models that only other boards of the environment have, and why these cannot be compared."""
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
        head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(str(cells[name]))}</td>" for name in _COLUMNS) + "</tr>"
            for cells in map(board_cells, self)
        )
        version = f"{shown.owner}/{shown.name} {shown.version}"
        title = html.escape(f"{version}, board {self.name}: {self.protocol}" if self.name else version)
        return f"<table><caption>{title}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class Session(Invocation):
    """One hub for a program: connections are kept, and a login elsewhere counts from the next call on."""

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
        """Close the connections; the next call opens new ones."""
        with self._lock:
            while self._connections:
                self._connections.popitem()[1].close()


class HubCalls:
    """What can be asked of a hub; `Hub` and `AsyncHub` have all of it."""

    @called_from_python
    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        progress: bool = True,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Name a hub; nothing is sent yet.

        - `url`: its URL, or its name in `settings.toml`. None: `WANDER_HUB`, else what the file says, else
          the only hub that is logged in to, else `http://127.0.0.1:8600`.
        - `token`: None: `WANDER_TOKEN`, else the one that `wander login` stored for this hub, else none.
        - `progress`: False says nothing while it publishes, installs and posts.
        - `transport`: carries the requests, in place of a connection.

        Raises `UsageError` for what is no hub. Every call raises `ClientError`s (`NotFound`, `LoginRequired`,
        `Unavailable`, `UsageError`) with a `code`, a `hint` and, where the hub answered, its `request_id`.
        """
        self._session = Session(url, token, transport, progress=progress)
        self.url = self._session.settings.hub
        """The hub's URL."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @Request
    def whoami(self) -> Whoami:
        """Return whose token is in use, and what it is good for."""
        with self._session.hub(login=True) as hub:
            return hub.whoami()

    @Listing
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
        sort: Literal["relevance", "updated", "newest", "runs", "downloads", "stars"] | None = None,
    ) -> Iterator[EnvironmentSummary]:
        """Yield the environments that match: of a search for words at most 200, else as many as there are."""
        filters = {"owner": owner, "tag": tag, "kind": kind, "license": license, "sort": sort}
        with self._session.hub() as hub:
            yield from hub.every_environment(query, **filters, deterministic=deterministic, checked=checked)

    @Request
    def info(self, environment: str) -> PublishedEnvironment:
        """Return what there is to know of `owner/name`, or of `owner/name@version`."""
        return describe(self._session, parse_name(environment))

    @Listing
    def versions(self, environment: str) -> Iterator[VersionDetail]:
        """Yield the versions of `owner/name`, the newest first, yanked ones included."""
        name = parse_name(environment)
        with self._session.hub() as hub:
            for version in hub.environment(name.owner, name.name).all_versions:
                yield hub.version(name.owner, name.name, version)

    @Request
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
        """Build the environment of a folder, lock its packages, check it and upload it; takes seconds.

        A version never changes: publishing the same bytes again sends nothing, other bytes raise
        `ClientError` with the code `version_exists`, and what the check faults `check_failed`.
        """
        from wander_client.packages.publish import PublishOptions, publish_folder

        wishes = PublishOptions(owner=owner, private=private, internal=internal, check=check, lock=lock)
        policy = choose_policy(None, None, default=bool(self._session.settings.sandbox))
        builder = builder_of(self._session, policy)
        published = publish_folder(self._session, Path(folder), wishes, builder).published
        assert published is not None  # only a dry run has none
        return published

    @Request
    def fork(
        self,
        environment: str,
        folder: str | os.PathLike[str] | None = None,
        *,
        owner: str | None = None,
        name: str | None = None,
    ) -> Path:
        """Begin an environment with a version of another, and return the folder of its source.

        The hub has it too, under your name or another `owner`. With a new `name`, which a fork of your own
        needs, it is in the folder alone until you publish it.
        """
        from wander_client.packages.origins.fork import fork

        place = None if folder is None else Path(folder)
        return fork(self._session, parse_name(environment), place, owner=owner, name=name).folder

    @Request
    def install(self, environment: str, *, force: bool = False, lock: bool | None = None) -> Installed:
        """Install `owner/name[@version]` into a virtual environment of its own, unless it is there.

        `lock=False` takes the newest packages in place of those that the version is locked to; None what was
        chosen last for this version, at first the lock.
        """
        from wander_client.packages.install import install

        here, no_lock = self._session, None if lock is None else not lock
        store = EnvironmentStore(here.settings.data_dir, here.output.warn)
        name, cache_dir, warn = parse_name(environment), here.settings.cache_dir, here.output.warn
        with here.hub() as hub:
            return install(hub, store, cache_dir, name, force=force, no_lock=no_lock, warn=warn)[0]

    @Request
    def post(
        self,
        run: RunLike,
        *,
        private: bool = False,
        sign: bool = False,
        name: str = "",
        incomplete: bool = False,
    ) -> RunDetail:
        """Put a run of this machine on the hub's leaderboard, with every rollout, for all to read.

        `private` shows it to those alone who have a role on the environment, `sign` takes this machine's key
        (`wander auth key new`), `name` is what lists and boards call it, `incomplete` takes a run that lacks
        rollouts. Posting again changes nothing.
        """
        from wander_client.runs import posting

        here = self._session
        folder = run_folder(here, os.fspath(run))
        with posting.pack(here, folder, incomplete=incomplete) as parcel:
            return posting.send(here, parcel, private=private, sign=sign, name=name)[0]

    @Request
    def push_model(
        self, name: str, model: str | os.PathLike[str], *, private: bool | None = None
    ) -> ModelRevision:
        """Put a trained model on the hub as `owner/name`: a checkpoint's folder, or a training run.

        The same files again send nothing, and what broke off goes on. `private` is for a new model; None
        leaves it to the owner's settings. Raises `UsageError` for what is no checkpoint.
        """
        from wander_client.training.pushing import push_model

        visibility = wanted_visibility(private, internal=False)
        return push_model(self._session, os.fspath(model), parse_model(name), visibility=visibility).made

    @Request
    def pull_model(self, name: str) -> Path:
        """Fetch `owner/name[@revision]`, digests checked, and return its folder; again sends nothing.

        `hub:owner/name` means it from then on, wherever a model is named.
        """
        from wander_client.models.pulling import pull_model

        return pull_model(self._session, parse_model(name))[0].folder

    @Request
    def leaderboard(
        self,
        environment: str,
        *,
        board: str | BoardInfo | Board | None = None,
        runs: Literal["best", "mean", "all"] = "best",
        level: str | None = None,
        model: str | None = None,
        stratum: int | None = None,
        limit: int | None = None,
    ) -> Board:
        """Return the ranked runs of `owner/name[@version]`; without a `limit`, all of them.

        - `board`: one of `others` or its name. None means the pinned board, else the busiest one. The
          result's `name` says which board it is.
        - `runs`: `"best"` shows the first run of each model and account, `"mean"` the mean of its runs,
          `"all"` every run.
        - `level`: the lowest verification level. `model`: a part of the model's name.
        - `stratum`: fills the `stratum` of each row with what the run earned on that part of the examples.
        """
        name = parse_name(environment)
        asked = board.name if isinstance(board, Board) else getattr(board, "board", board)
        wanted: dict[str, Any] = {"version": name.version, "board": asked, "runs": runs, "level": level}
        wanted |= {"model": model, "stratum": stratum}
        with self._session.hub() as hub:
            return Board(hub.whole_leaderboard(name.owner, name.name, most=limit, **wanted))

    @Request
    def run(self, run_id: str) -> Run:
        """Return a posted run by its id, or by the beginning or the end of it.

        Its rollouts are downloaded when they are first needed, and kept in the cache.
        """
        with self._session.hub() as hub:
            return Run.of_posted(self._session, hub.run(run_id))

    @Listing
    def runs(self, *, environment: str | None = None, model: str | None = None) -> Iterator[RunDetail]:
        """Yield the posted runs that you may see, the newest first; `environment` is `owner/name`.

        Their manifests are without the ids and strata of the examples, of which a run may have a million.
        """
        with self._session.hub() as hub:
            yield from hub.every_run(environment=environment, model=model)

    @Request
    def verify(
        self, run: RunLike, *, level: LevelSought = "highest", sample: int | None = None, wait: bool = True
    ) -> VerificationInfo:
        """Have the hub play a posted run again in its sandbox; its `report` says how many rollouts differ.

        `sample` plays this many rollouts, drawn at random; without `wait` it returns what is under way.
        Raises `ClientError` with the code `verification_failed` where the hub could not play it.
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

    def _close(self) -> None:
        self._session.close()


class Hub(HubCalls):
    """A hub whose calls return when they are done.

    A script, a notebook whose event loop runs, and several threads at once may use one:

        hub = wander.Hub()
        for environment in hub.search("game"):
            print(environment.owner, environment.name, environment.best_reward)
    """

    _waits: Literal[True] = True

    @property
    def aio(self) -> AsyncHub:
        """The same calls for coroutines, over the same connections."""
        other = AsyncHub.__new__(AsyncHub)
        other._session, other.url = self._session, self.url
        return other

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        self._close()

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *exc: object) -> None:
        self._close()


class AsyncHub(HubCalls):
    """The same for coroutines; `wander.Hub().aio` is one too.

    Every call is awaited, and a worker thread does it:

        async with wander_client.AsyncHub() as hub:
            board = await hub.leaderboard("acme/wordle")
            async for run in hub.runs(environment="acme/wordle"):
                print(run.manifest.model.name, run.level)
    """

    _waits: Literal[False] = False

    async def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        self._close()

    async def __aenter__(self) -> AsyncHub:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._close()
