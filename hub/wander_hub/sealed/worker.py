"""The workers' part: check sealed sets, play them, and open them when their time has come.

Examples and rollouts are only in the memory of the worker and in files in memory. Errors are texts that are
written here, chosen by an error's code, because the message of an error may quote an example.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial, wraps
from pathlib import Path
from typing import Any, NamedTuple

import zstandard
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, joinedload, undefer
from wander.wire import RunDetail, RunSummary
from wander.wire.models import SCHEME
from wander.wire.postings import ROLLOUTS
from wander.wire.transfers import commitment_of

from wander_hub.accounts import repository as accounts
from wander_hub.audit import Origin
from wander_hub.database import Database, now
from wander_hub.environments.models import Environment, Version
from wander_hub.http.boundary import Context
from wander_hub.http.problems import HubProblem
from wander_hub.identity import HUB
from wander_hub.jobs import (
    Handler,
    JobCanceled,
    JobContext,
    JobPostponed,
    JobRefused,
    JobUnfinished,
    JobWorker,
    LeaseLost,
    TableQueue,
    worker_name,
)
from wander_hub.models import service as models
from wander_hub.posting.arrival import post_whole
from wander_hub.posting.reading import lines_that_count
from wander_hub.rights.tokens import identity_of_user
from wander_hub.runs import manifest as manifests
from wander_hub.runs.manifest import PinnedRun
from wander_hub.sealed import memory, service
from wander_hub.sealed.cipher import MOST_PLAIN_BYTES, SealKeeper, WrongKey, seal, unseal
from wander_hub.sealed.models import SealedPlay, SealedSet
from wander_hub.settings import MIB, Settings
from wander_hub.storage import Storage
from wander_hub.verification.program import MODELS, OF_THE_PACKAGE, ClientProgram
from wander_hub.verification.worker import client_program

logger = logging.getLogger("wander_hub")

_PASSED_ON = (JobCanceled, JobPostponed, JobRefused, JobUnfinished, LeaseLost, SQLAlchemyError)
"""Exceptions whose message contains nothing of a set."""
_TEXTS = {
    "authentication_failed": "the endpoint refused the key",
    "endpoint_unreachable": "the endpoint could not be reached",
    "model_not_found": "the endpoint does not have this model",
    "invalid_response": "the endpoint's answer is not a chat completion",
    "unsupported_parameter": "the endpoint refused a sampling parameter",
    "rate_limited": "the endpoint's rate limit was reached",
    "all_failed": "every rollout failed",
    "no_examples": "the set has no examples that can be played",
}
"""Public texts for the codes of errors."""
_MODEL_TEXTS = _TEXTS | {
    "model_not_found": "the hub cannot load the model",
    "config_error": "the hub cannot load the model",
    "missing_extra": "the hub lacks a library that the model needs",
}
"""The same for models that the hub runs."""
_KEY_GONE = "the endpoint's key is gone because the hub restarted or failed; submit the play again"
_MOST_BYTES = 64 * MIB
"""Maximum size of the encrypted rollouts of a play."""
_KEY_VARIABLE = "WANDER_SEALED_KEY"
"""Variable with the submitter's key. `OPENAI_API_KEY` would also pay for the calls of the environment's own
code, such as a judge's, which would send hidden answers to an account of the submitter."""
_OFFLINE = {"HF_HUB_OFFLINE": "1"}
"""Variables that keep libraries of models from downloading anything."""
_NETWORKS = "WANDER_ENDPOINT_NETWORKS"
"""Variable that limits the addresses to which `wander` connects (`wander.clients.transport`)."""
_LENGTH = struct.Struct(">Q")

Work = Callable[[Session], None]


def discreet(work: Callable[[Any, JobContext], Work]) -> Callable[[Any, JobContext], Work]:
    """Replace unexpected exceptions, whose messages may quote examples, by one that names only their type."""

    @wraps(work)
    def do(handler: Any, context: JobContext) -> Work:
        try:
            return work(handler, context)
        except _PASSED_ON:
            raise
        except WrongKey as error:
            raise JobPostponed(str(error)) from None
        except OSError as error:  # such as a full disk
            raise JobPostponed(f"the hub failed with a system error ({error.errno})") from None
        except Exception as error:  # noqa: BLE001 - its message must not be logged
            kind = type(error).__name__
        raise JobRefused(f"the hub failed with an internal error ({kind})")

    return do


class _Loaded(NamedTuple):
    """A set as a job needs it."""

    id: int
    state: str
    commitment: str
    opens_at: datetime
    wrapped_key: bytes | None
    content: bytes | None
    version_id: int
    label: str


@dataclass(frozen=True)
class _Sets:
    """Access to sealed sets for the handlers of their jobs."""

    database: Database
    keeper: SealKeeper

    def load(self, set_id: int) -> _Loaded:
        """Read a set."""
        environment = joinedload(SealedSet.version).joinedload(Version.environment)
        options = [undefer(SealedSet.content), environment.joinedload(Environment.owner)]
        with self.database.read(HUB) as session:
            found = session.get_one(SealedSet, set_id, options=options)
            version = found.version
            return _Loaded(
                *(found.id, found.state, found.commitment, found.opens_at, found.wrapped_key, found.content),
                *(version.id, f"{version.environment.label}@{version.version}"),
            )

    def key(self, loaded: _Loaded) -> bytes:
        """Return the data key of a set."""
        if loaded.wrapped_key is None:
            raise JobRefused("the set is open, or it was refused")
        return self.keeper.unwrap(loaded.wrapped_key, loaded.commitment)

    def file(self, loaded: _Loaded) -> bytes:
        """Return the decrypted file of a sealed set, after comparing it with the commitment."""
        content = unseal(self.key(loaded), loaded.content or b"", f"set {loaded.commitment}")
        if commitment_of(content) != loaded.commitment:
            raise JobRefused("the stored examples do not match the commitment")
        return content


@dataclass(frozen=True)
class SetChecker:
    """Job handler that loads a new set into its environment."""

    sets: _Sets
    program: ClientProgram
    memory_bytes: int

    @discreet
    def __call__(self, context: JobContext) -> Work:
        """Check a set; return a function that stores whether the environment accepts it."""
        loaded = self.sets.load(int(context.lease.payload["set"]))
        if loaded.state != "checking":  # an administrator retried the job of a set that was refused
            return lambda session: None
        content = self.sets.file(loaded)
        with memory.memory_folder() as folder:
            words = ["seal", "check", loaded.label, str(_write(folder / "set.jsonl", content))]
            answer = self.program.answer_in_memory(
                *(context, words, loaded.version_id),
                folder=folder,
                memory_bytes=self.memory_bytes,
                variables={_NETWORKS: ""},
            )
        reason = self._refusal_of(answer, loaded.label)

        def keep(session: Session) -> None:
            checked = session.get_one(SealedSet, loaded.id)
            if reason is not None:
                service.refuse(checked, reason)
            else:
                checked.state = "sealed"

        return keep

    def _refusal_of(self, answer: dict[str, Any], label: str) -> str | None:
        """Return why the environment refuses a set, or None."""
        hint = f"`wander seal check {label} FILE` shows why"
        if (error := answer.get("error")) is not None:
            code = _code_of(error)
            if code not in OF_THE_PACKAGE or self.program.lacks_room():
                raise JobPostponed(f"the set could not be checked (`{code}`)")
            return f"the environment cannot load the set (`{code}`); {hint}"
        rows = [int(fault["row"]) for fault in answer["data"]["refused"]]
        if not rows:
            return None
        shown = ", ".join(map(str, rows[:10])) + (", ..." if len(rows) > 10 else "")
        return f"the environment cannot play {len(rows)} of the examples (rows {shown}); {hint}"


@dataclass(frozen=True)
class SetPlayer:
    """Job handler that plays a set with the model of an endpoint, or with a model of the hub."""

    sets: _Sets
    program: ClientProgram
    storage: Storage
    settings: Settings
    hub_url: str

    @discreet
    def __call__(self, context: JobContext) -> Work:
        """Play a set; return a function that stores the aggregates and the encrypted rollouts."""
        database, payload = self.sets.database, context.lease.payload
        sends = payload["endpoint"] is not None
        with database.read(HUB) as session:
            play = session.scalars(select(SealedPlay).where(SealedPlay.job_id == context.lease.job_id)).one()
            play_id, set_id, exposed = play.id, play.set_id, play.exposed_at is not None
        loaded = self.sets.load(set_id)
        if loaded.state != "sealed" or loaded.opens_at <= now():
            raise JobRefused("the set opened before it was played")
        if exposed:
            raise JobRefused("the hub stopped during the play; submit it again")
        data_key, content = self.sets.key(loaded), self.sets.file(loaded)
        with memory.memory_folder() as folder:
            run = folder / "run"
            words = _words(payload, loaded.label, _write(folder / "set.jsonl", content), run)
            # The key can be taken only once, so a fault of the hub must postpone the play before this line.
            variables = self._variables(payload["key"])
            if sends:
                _mark_exposed(database, play_id, now())
            else:
                self._provide_model(play_id, payload["model"], folder)
            try:
                answer = self.program.answer_in_memory(
                    *(context, words, loaded.version_id),
                    folder=folder,
                    memory_bytes=self.settings.seal_memory_bytes,
                    variables=variables,
                )
            finally:
                if sends and not (run / "run.json").exists():  # it failed before the first question
                    _mark_exposed(database, play_id, None)
            if (error := answer.get("error")) is not None:
                code = _code_of(error)
                texts = _TEXTS if sends else _MODEL_TEXTS
                raise JobRefused(texts.get(code, f"the evaluation failed (`{code}`)"))
            manifest = (run / "run.json").read_bytes()
            with zstandard.open(run / f"{ROLLOUTS}.zst") as file:  # compressed at the end of an evaluation
                rollouts = file.read(MOST_PLAIN_BYTES + 1)
        if json.loads(manifest)["environment"].get("sealed") != loaded.commitment:
            raise JobRefused("the evaluation did not play the sealed set")
        summary = service.public_part(RunSummary.model_validate(answer["data"]["summary"]))
        packed = _LENGTH.pack(len(manifest)) + manifest + rollouts
        if len(packed) > MOST_PLAIN_BYTES:
            raise JobRefused(f"the rollouts are larger than {MOST_PLAIN_BYTES:,} bytes")
        ciphertext = seal(data_key, packed, f"play {play_id} of {loaded.commitment}")
        if len(ciphertext) > _MOST_BYTES:
            raise JobRefused(f"the rollouts are larger than {_MOST_BYTES:,} bytes")

        def keep(session: Session) -> None:
            played = session.get_one(SealedPlay, play_id)
            if session.get_one(SealedSet, set_id, with_for_update=True).state != "sealed":
                played.error = "the set opened before the play ended"
                return
            played.summary, played.content = summary, ciphertext

        return keep

    def _variables(self, key_name: str | None) -> dict[str, str]:
        """Return the variables of `wander eval`, with the submitter's key."""
        variables = {_NETWORKS: ",".join(self.settings.seal_networks)} | _OFFLINE
        if key_name is not None:
            if (key := memory.take_key(key_name)) is None:
                raise JobRefused(_KEY_GONE)
            variables[_KEY_VARIABLE] = key
        return variables

    def _provide_model(self, play_id: int, name: str, folder: Path) -> None:
        """Put the files of a model where `wander eval` finds a model that was pulled, if the submitter may
        still read it."""
        with self.sets.database.read(HUB) as session:
            play = session.get_one(SealedPlay, play_id)
            user = accounts.user_with_owners(session, play.submitted_by_id)
            submitter = identity_of_user(session, user, HUB.token)
        if submitter is None:
            raise JobRefused("the account of its submitter is disabled")
        try:
            with self.sets.database.read(submitter) as session:
                revision = service.find_model(session, self.settings, name)
                record = models.describe_revision(revision, self.hub_url)
        except HubProblem as problem:
            raise JobRefused(problem.detail) from None
        files = folder / MODELS / record.owner / record.name / record.revision
        files.mkdir(parents=True)
        files.with_suffix(".json").write_text(record.model_dump_json())
        for file in record.files:
            if (stored := self.storage.local_path(file.sha256)) is not None:
                (files / file.filename).symlink_to(stored.absolute())
                continue
            with (files / file.filename).open("wb") as copy:
                copy.writelines(self.storage.pieces(file.sha256))


def _words(payload: dict[str, Any], label: str, set_file: Path, run: Path) -> list[str]:
    """Return the command line that plays a set."""
    settings = {"set_file": str(set_file)}
    settings |= {
        f"sampling.{name}": payload[name]
        for name in ("temperature", "max_tokens")
        if payload[name] is not None
    }
    words = ["eval", label, "-n", "all", "-r", str(payload["rollouts"]), "--out", str(run)]
    if payload["endpoint"] is not None:
        words += ["-m", payload["model"], "-b", payload["endpoint"]]
        settings["key_variable"] = _KEY_VARIABLE
    else:
        words += ["-m", f"{SCHEME}{payload['model']}"]
        settings["device"] = "cpu"
    return words + [
        word for name, value in settings.items() for word in ("--set", f"{name}={json.dumps(value)}")
    ]


def _mark_exposed(database: Database, play_id: int, moment: datetime | None) -> None:
    def record(session: Session) -> None:
        session.get_one(SealedPlay, play_id).exposed_at = moment

    database.commit(record)


def _write(path: Path, content: bytes) -> Path:
    """Write a file that only this user can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    return path


def _code_of(error: dict[str, Any]) -> str:
    """Return an error's code, or `unknown` if the code could contain a part of an example."""
    code = str(error.get("code"))
    return code if code.replace("_", "").isalnum() and code.isascii() and len(code) <= 40 else "unknown"


@dataclass(frozen=True)
class SetOpener:
    """Job handler that opens a set and posts its plays as runs."""

    sets: _Sets
    storage: Storage
    settings: Settings
    hub_url: str

    @discreet
    def __call__(self, context: JobContext) -> Work:
        """Publish the examples, then the plays; return a function that marks the set as opened."""
        database = self.sets.database
        loaded = self.sets.load(int(context.lease.payload["set"]))
        if loaded.state not in ("sealed", "opening"):
            return lambda session: None
        if loaded.state == "sealed" and loaded.opens_at > now():
            raise JobPostponed("the set does not open yet")
        key = self.sets.key(loaded)
        if loaded.state == "sealed":
            content = self.sets.file(loaded)

            def publish(session: Session) -> None:
                opened = session.get_one(SealedSet, loaded.id)
                opened.state, opened.content, opened.opened_at = "opening", content, now()

            database.commit(publish)
        for play_id in self._waiting(loaded.id):
            context.check()
            self._post(play_id, key, loaded.commitment)

        def keep(session: Session) -> None:
            opened = session.get_one(SealedSet, loaded.id, with_for_update=True)
            if session.scalar(_unposted(loaded.id).limit(1)) is not None:
                raise JobUnfinished("a play ended while the set was opened")
            opened.state, opened.wrapped_key = "opened", None

        return keep

    def _waiting(self, set_id: int) -> list[int]:
        with self.sets.database.read(HUB) as session:
            return list(session.scalars(_unposted(set_id)))

    def _post(self, play_id: int, key: bytes, commitment: str) -> None:
        """Post a play as a run of its submitter. If the hub refuses the run, the play keeps the reason."""
        database = self.sets.database
        with database.read(HUB) as session:
            play = session.get_one(SealedPlay, play_id, options=[undefer(SealedPlay.content)])
            user = accounts.user_with_owners(session, play.submitted_by_id)
            identity, ciphertext = identity_of_user(session, user, HUB.token), play.content or b""
        packed = unseal(key, ciphertext, f"play {play_id} of {commitment}")
        (length,) = _LENGTH.unpack_from(packed)
        text, rollouts = packed[_LENGTH.size : _LENGTH.size + length], packed[_LENGTH.size + length :]
        run_id, error = None, None
        if identity is None:
            error = "the account of its submitter is disabled"
        else:
            origin = Origin("run.post", identity.user, detail={"sealed": commitment})
            poster = Context(
                *(identity, database, self.storage, self.settings, self.hub_url, origin), has_quota=False
            )
            try:
                run_id = _post_run(poster, text, rollouts)
            except HubProblem as problem:
                if problem.status in (503, 507):
                    raise JobPostponed(problem.detail) from None
                error = problem.detail

        def record(session: Session) -> None:
            posted = session.get_one(SealedPlay, play_id)
            posted.run_id, posted.error, posted.content = run_id, error, None

        database.commit(record)


def _unposted(set_id: int) -> Any:
    """Return the statement for the ids of plays that are not runs yet."""
    query = select(SealedPlay.id).where(SealedPlay.set_id == set_id, SealedPlay.content.is_not(None))
    return query.order_by(SealedPlay.id)


def _post_run(poster: Context, manifest: bytes, rollouts: bytes) -> str:
    """Post a run as its submitter would, and return its id."""
    pinned = PinnedRun.of(manifests.parse(manifest))
    with tempfile.TemporaryFile() as plain:
        plain.write(rollouts)
        plain.seek(0)
        lines = lines_that_count(plain, pinned)
        posted, _ = post_whole(poster, manifest, plain, lines, [], private=False)
    assert isinstance(posted, RunDetail)
    return posted.run_id


class OpeningSweep:
    """Finds sets whose time has come, and submits the jobs that open them. Deletes what killed workers
    left in memory."""

    def __init__(self, database: Database, queue: TableQueue) -> None:
        self._database, self._queue = database, queue

    def __call__(self) -> None:
        """Search once."""
        memory.sweep()
        due = select(SealedSet.id).where(
            SealedSet.state.in_(("sealed", "opening")), SealedSet.opens_at <= now()
        )
        with self._database.read(HUB) as session:
            found = session.scalars(due).all()
        for set_id in found:
            self._database.commit(partial(self._submit, set_id))

    def _submit(self, set_id: int, session: Session) -> None:
        service.submit_opening(session, self._queue, session.get_one(SealedSet, set_id))


def worker(
    settings: Settings, database: Database, storage: Storage, queue: TableQueue, hub_url: str
) -> JobWorker | None:
    """Return the worker for sealed sets, not started; None if the hub does not keep any.

    It runs on the machine of the server, because the keys of submitters reach it through files in memory.
    """
    try:
        keeper = service.keeper_of(settings)
    except HubProblem as problem:
        if settings.seal_key_file is not None:
            logger.warning("sealed sets cannot be played here: %s", problem.detail)
        return None
    sets, program = _Sets(database, keeper), client_program(settings, database, hub_url)
    handlers: dict[str, Handler] = {
        service.CHECK: SetChecker(sets, program, settings.seal_memory_bytes),
        service.PLAY: SetPlayer(sets, program, storage, settings, hub_url),
        service.OPENING: SetOpener(sets, storage, settings, hub_url),
    }
    look = OpeningSweep(database, queue)
    return JobWorker(queue, handlers, worker_name("sealed"), look=look, concurrency=settings.job_concurrency)
