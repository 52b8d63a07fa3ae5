"""Nothing is lost: random lives of environments against a model, on both databases, `fsck` clean after each.

The model knows names, versions and who owns what; the hub is the real application. A publication may die at
any step of it (as its process would), and several may race for one version: exactly one wins.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from postgres_server import PostgresServer
from staged_uploads import VERSIONS as UPLOADS
from staged_uploads import announced
from wander_hub.accounts import service as accounts
from wander_hub.app import create_app
from wander_hub.database import Database
from wander_hub.fsck import check as fsck
from wander_hub.index import repository as index_repository
from wander_hub.index import service as index
from wander_hub.leaderboards import environment_listing
from wander_hub.rights.tokens import add_token
from wander_hub.settings import Settings
from wander_hub.storage import Storage
from wander_hub.transfers import repository as transfer_repository
from wander_hub.upload import service as upload_service

JSON = {"Accept": "application/vnd.pypi.simple.v1+json"}
OWNERS = ("alice", "bob")
NAMES = ("red", "blue")
VERSIONS = ("1.0", "1.1")
STEPS = {
    "the object": (Storage, "put"),
    "the version": (upload_service, "_version_for"),
    "the file": (upload_service, "_put_file"),
    "the totals": (environment_listing, "refresh"),
    "the page": (index_repository, "store_page"),
    "the list": (index, "write_root"),
}
"""Where a publication may die: before the call of each of these."""
STAGED_STEPS = STEPS | {
    "the transfer": (transfer_repository, "transfer_with_digest"),
    "the part": (transfer_repository, "drop_overlapping"),
    "the end of the transfer": (transfer_repository, "drop_parts"),
}
"""Where a staged publication may die."""


class Died(BaseException):
    """What stands for the end of the process: nothing in the hub may catch it."""


class Lives(RuleBasedStateMachine):
    """Publish, yank, delete, transfer, rename, archive, die and race."""

    make_database: Any
    make_wheel: Any

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="wander-lives-")))
        database = self.stack.enter_context(self.make_database(folder))
        hub_settings = Settings(data=folder, bundled_packages=False, max_open_transfers=1000)
        self.storage = Storage.open(None, folder / "objects")
        self.database = database
        with database.write() as session:
            people = [accounts.add_user(session, name) for name in OWNERS]
            self.tokens = {one.name: add_token(session, one, "test") for one in people}
            for owner in OWNERS:  # each may publish for the other, so that transfers are possible
                for user in people:
                    accounts.add_member(session, owner, user, "owner")
        self.app = create_app(hub_settings, database=database, storage=self.storage)
        self.loop = self.stack.enter_context(asyncio.Runner())
        self.places: dict[tuple[str, str], int] = {}
        """Where names lead, former ones included."""
        self.environments: dict[int, SimpleNamespace] = {}

    def teardown(self) -> None:
        self.stack.close()

    def send(self, *requests: tuple[str, str, dict[str, Any]]) -> list[httpx.Response]:
        """Send requests at the same time."""

        async def all_of_them() -> list[httpx.Response]:
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://hub.test") as client:
                tasks = [
                    client.request(method, path, **{"headers": self.auth(path), **options})
                    for method, path, options in requests
                ]
                return await asyncio.gather(*tasks)

        return self.loop.run(all_of_them())

    def picked(self, number: int) -> tuple[str, str]:
        known = sorted(self.places)
        places = [(owner, name) for owner in OWNERS for name in NAMES]
        return (known * 3 + places)[number % (3 * len(known) + len(places))]

    @initialize()
    def begin(self) -> None:
        """Begin with something to live with."""
        for place in (("alice", "red"), ("bob", "red")):
            (answer,) = self.send(self.upload(*place, "1.0", "one"))
            assert answer.status_code == self.published(*place, "1.0", "one")

    def auth(self, path: str) -> dict[str, str]:
        return JSON if "/simple/" in path else {"Authorization": f"Bearer {self.tokens['alice']}"}

    def upload(self, owner: str, name: str, version: str, summary: str) -> tuple[str, str, dict[str, Any]]:
        spec = self.make_wheel(name=name, version=version, summary=summary)
        body = spec.build()
        data = {":action": "file_upload", "protocol_version": "1"}
        files = {"content": (spec.wheel_name, body, "application/octet-stream")}
        return "POST", f"/{owner}/legacy/", {"data": data, "files": files}

    def staged(
        self, owner: str, name: str, version: str, summary: str
    ) -> httpx.Response | tuple[str, str, dict]:
        """Send a version's wheel; return the request that finalizes it, or the answer that refuses it."""
        spec = self.make_wheel(name=name, version=version, summary=summary)
        body = spec.build()
        wanted = announced({spec.wheel_name: body}, owner=owner, name=name, version=version)
        (opened,) = self.send(("POST", UPLOADS, {"json": wanted}))
        if opened.is_error:
            return opened
        session = opened.json()
        if not (session["parts"] or session["files"][0]["there"]):
            digest = hashlib.sha256(body).hexdigest()
            path = f"{UPLOADS}/{session['id']}/files/{spec.wheel_name}?offset=0&digest={digest}"
            (sent,) = self.send(("PUT", path, {"content": body, "headers": self.auth(UPLOADS)}))
            assert sent.status_code == 200, sent.text
        return "POST", f"{UPLOADS}/{session['id']}/finish", {}

    def published(self, owner: str, name: str, version: str, summary: str) -> int:
        """Change the model as a publication would; return the status that it must have."""
        number = self.places.get((owner, name))
        if number is None:
            number = len(self.environments)
            self.environments[number] = SimpleNamespace(
                owner=owner, name=name, versions={}, archived=False, deleted=False
            )
            self.places[owner, name] = number
        one = self.environments[number]
        if (one.owner, one.name) != (owner, name) or one.deleted or one.archived:
            return 409
        held = one.versions.get(version)
        if held is not None:
            same = held.summary == summary and held.project == name
            return 200 if same and not held.deleted else 409
        one.versions[version] = SimpleNamespace(summary=summary, project=name, yanked=False, deleted=False)
        return 200

    places_of = st.integers(0, 15)
    """Picks a place: mostly one that leads somewhere, else life would be all 404."""
    summaries = st.sampled_from(["one", "two"])
    versions = st.sampled_from(VERSIONS)

    @rule(number=places_of, version=versions, summary=summaries)
    def publish(self, number: int, version: str, summary: str) -> None:
        place = self.picked(number)
        expected = self.published(*place, version, summary)
        (answer,) = self.send(self.upload(*place, version, summary))
        assert answer.status_code == expected, answer.text

    @rule(number=places_of, version=versions)
    def race(self, number: int, version: str) -> None:
        place = self.picked(number)
        summaries = ["one", "two", "three"]
        before = self.environments.get(self.places.get(place, -1))
        new = before is None or version not in before.versions
        staged = [self.staged(*place, version, one) for one in summaries[:2]]
        refused = [one for one in staged if isinstance(one, httpx.Response)]
        requests = [one for one in staged if not isinstance(one, httpx.Response)]
        answers = [*refused, *self.send(*requests, self.upload(*place, version, summaries[2]))]
        statuses = [one.status_code for one in answers]
        assert set(statuses) <= {200, 201, 409}, [one.text for one in answers]
        if statuses != [409] * len(statuses):
            assert statuses.count(409) == len(statuses) - 1
            assert self.published(*place, version, self.shown_summary(place, version)) == 200
        else:
            assert not new or self.published(*place, version, "one") == 409

    @rule(number=places_of, version=versions, summary=summaries, step=st.sampled_from(sorted(STEPS)))
    def die(self, number: int, version: str, summary: str, step: str) -> None:
        place = self.picked(number)
        owner, name = STEPS[step]

        def stop(*_: Any, **__: Any) -> None:
            raise Died(step)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, stop)
            try:
                (answer,) = self.send(self.upload(*place, version, summary))
            except Died:
                return
        # Where nothing was to be written the step is not reached.
        assert answer.status_code == self.published(*place, version, summary), answer.text

    def shown_summary(self, place: tuple[str, str], version: str) -> str:
        (answer,) = self.send(("GET", f"/api/v1/environments/{place[0]}/{place[1]}/versions/{version}", {}))
        return str(answer.json()["summary"])

    @rule(
        number=places_of,
        version=versions,
        summary=summaries,
        step=st.sampled_from([None, *sorted(STAGED_STEPS)]),
    )
    def stage(self, number: int, version: str, summary: str, step: str | None) -> None:
        """Publish by a staged upload; it may die on the way, and the next one goes on there."""
        place = self.picked(number)
        with pytest.MonkeyPatch.context() as patch:
            if step is not None:
                owner, name = STAGED_STEPS[step]

                def stop(*_: Any, **__: Any) -> None:
                    raise Died(step)

                patch.setattr(owner, name, stop)
            try:
                outcome = self.staged(*place, version, summary)
                answer = outcome if isinstance(outcome, httpx.Response) else self.send(outcome)[0]
            except Died:
                return
        status = 200 if answer.status_code == 201 else answer.status_code
        assert status == self.published(*place, version, summary), answer.text

    @rule(number=places_of, version=versions, undo=st.booleans())
    def yank(self, number: int, version: str, undo: bool) -> None:
        place = self.picked(number)
        path = f"/api/v1/environments/{place[0]}/{place[1]}/versions/{version}/yank"
        request = ("DELETE", path, {}) if undo else ("PUT", path, {"json": {"reason": "because"}})
        (answer,) = self.send(request)
        found = self.model(place, answer)
        if found is None:
            return
        held = found.versions.get(version)
        assert answer.status_code == (404 if held is None else 410 if held.deleted else 200)
        if answer.status_code == 200:
            held.yanked = not undo

    @rule(number=places_of, version=versions)
    def delete_version(self, number: int, version: str) -> None:
        place = self.picked(number)
        path = f"/api/v1/environments/{place[0]}/{place[1]}/versions/{version}"
        (answer,) = self.send(("DELETE", path, {}))
        found = self.model(place, answer)
        if found is None:
            return
        held = found.versions.get(version)
        assert answer.status_code == (404 if held is None else 410 if held.deleted else 200)
        if answer.status_code == 200:
            held.deleted = True

    @rule(number=places_of)
    def delete_environment(self, number: int) -> None:
        place = self.picked(number)
        (answer,) = self.send(("DELETE", f"/api/v1/environments/{place[0]}/{place[1]}", {}))
        found = self.model(place, answer)
        if found is None:
            return
        assert answer.status_code == 204, answer.text
        found.deleted = True
        for held in found.versions.values():
            held.deleted = True

    @rule(number=places_of, archived=st.booleans())
    def archive(self, number: int, archived: bool) -> None:
        place = self.picked(number)
        body = {"status": "archived" if archived else "active"}
        path = f"/api/v1/environments/{place[0]}/{place[1]}/status"
        (answer,) = self.send(("PUT", path, {"json": body}))
        found = self.model(place, answer)
        if found is None:
            return
        assert answer.status_code == 200, answer.text
        found.archived = archived

    @rule(number=places_of, to=places_of)
    def move(self, number: int, to: int) -> None:
        place = self.picked(number)
        goal = [(owner, name) for owner in OWNERS for name in NAMES][to % 4]
        body = {"owner": goal[0], "name": goal[1]}
        path = f"/api/v1/environments/{place[0]}/{place[1]}/transfer"
        (answer,) = self.send(("POST", path, {"json": body}))
        found = self.model(place, answer)
        if found is None:
            return
        own = self.places[place]
        claimed = {goal}
        if goal[0] != place[0]:
            claimed |= {(goal[0], one.project) for one in found.versions.values()}
            claimed |= {(goal[0], goal[1])}
        taken = any(self.places.get(one, own) != own for one in claimed) and goal != place
        assert answer.status_code == (409 if taken else 200), answer.text
        if answer.status_code == 200:
            self.places |= dict.fromkeys(claimed, own)
            found.owner, found.name = goal

    def model(self, place: tuple[str, str], answer: httpx.Response) -> SimpleNamespace | None:
        """Return the model of a place; None where there is nothing, a tombstone or a redirect."""
        number = self.places.get(place)
        if number is None:
            assert answer.status_code == 404, answer.text
            return None
        found = self.environments[number]
        if found.deleted:
            assert answer.status_code == 410, answer.text
            return None
        if (found.owner, found.name) != place:
            assert answer.status_code == 308, answer.text
            return None
        return found

    @invariant()
    def index_tells_what_the_model_knows(self) -> None:
        for one in self.environments.values():
            if not one.versions:
                continue
            projects = {one.name} | {held.project for held in one.versions.values()}
            for project in sorted(projects):
                (answer,) = self.send(("GET", f"/{one.owner}/simple/{project}/", {}))
                assert answer.status_code == 200, (one, project, answer.text)
                shown = {
                    file["filename"].split("-")[1]: bool(file["yanked"]) for file in answer.json()["files"]
                }
                expected = {
                    version: held.yanked
                    for version, held in one.versions.items()
                    if held.project == project and not held.deleted
                }
                assert shown == expected

    @invariant()
    def objects_are_those_of_the_model(self) -> None:
        for one in self.environments.values():
            for version, held in one.versions.items():
                spec = self.make_wheel(name=held.project, version=version, summary=held.summary)
                digest = hashlib.sha256(spec.build()).hexdigest()
                needed = not held.deleted or self.is_needed_elsewhere(digest)
                assert self.storage.exists(digest) or not needed

    def is_needed_elsewhere(self, digest: str) -> bool:
        return any(
            hashlib.sha256(
                self.make_wheel(name=held.project, version=version, summary=held.summary).build()
            ).hexdigest()
            == digest
            for one in self.environments.values()
            for version, held in one.versions.items()
            if not held.deleted
        )

    @invariant()
    def everything_fits_together(self) -> None:
        assert list(fsck.find_mismatches(self.database, self.storage)) == []


@contextmanager
def sqlite_database(folder: Path, migrated: Path) -> Iterator[Database]:
    shutil.copy(migrated, folder / "hub.db")
    database = Database(f"sqlite:///{folder / 'hub.db'}")
    try:
        yield database
    finally:
        database.close()


@contextmanager
def postgres_database(server: PostgresServer) -> Iterator[Database]:
    with server.database() as url:
        database = Database(url)
        try:
            yield database
        finally:
            database.close()


@pytest.mark.full
@pytest.mark.parametrize(("kind", "lives"), [("sqlite", 8), ("postgresql", 3)])
def test_random_sequences_of_changes_lose_nothing(kind, lives, migrated_database, make_wheel, request):
    """Random lives on both databases; `WANDER_TEST_LIVES` times as many where that is set."""
    if kind == "postgresql":
        server = request.getfixturevalue("postgres")
        Lives.make_database = staticmethod(lambda folder: postgres_database(server))
    else:
        Lives.make_database = staticmethod(lambda folder: sqlite_database(folder, migrated_database))
    Lives.make_wheel = make_wheel
    run_state_machine_as_test(
        Lives,
        settings=settings(
            max_examples=lives * int(os.environ.get("WANDER_TEST_LIVES", "1")),
            stateful_step_count=16,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],  # a life is told whole; making it shorter would take minutes
            report_multiple_bugs=False,
        ),
    )
