"""Symbolic links to the public files, so that nginx can send them without involving the hub.

`DATA/public` holds one link per file at the path of its address, such as `alice/files/echo/echo-1.0.tar.gz`,
and a second link for a file of the combined index, such as `files/alice-echo/alice_echo-1.0.tar.gz`. The
owner of a name in the combined index never changes: it is the oldest owner whose namespace covers the name.

A link is removed before the change that hides its file is committed. It is created after the change that
shows the file, in its own transaction that locks the environment and checks it again. So even if a
process dies or two changes coincide, a file that must not be sent never has a link; a public file without a
link is sent by the hub.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from sqlalchemy import event, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from wander_hub import names
from wander_hub.accounts.models import Owner
from wander_hub.database import PUBLIC_FILES, Database
from wander_hub.environments.models import Environment, File
from wander_hub.identity import HUB
from wander_hub.index import repository
from wander_hub.index.namespaces import covers, namespaces_of
from wander_hub.index.schemas import IndexedProject
from wander_hub.names import BUNDLED_OWNER
from wander_hub.storage import Storage

logger = logging.getLogger("wander_hub")

FOLDER = "public"


class PublicFiles:
    """The folder of links of a hub."""

    def __init__(self, database: Database, storage: Storage, folder: Path) -> None:
        self._database = database
        self._storage = storage
        self._folder = folder

    def attach(self) -> None:
        """Make every session update the links as it changes data."""
        self._database.session_info[PUBLIC_FILES] = self

    def changed(
        self,
        session: Session,
        environment: Environment,
        offered: Mapping[str, Mapping[str, str]],
        gone: Iterable[tuple[str, str]],
    ) -> None:
        """Remove the links that will be wrong once this session is committed; new links are created after
        that.

        `offered` has the files and digests of each page of the environment, `gone` the pages it no longer
        has.
        """
        for owner, project in gone:
            for place in _places(session, owner, project):
                self._remove_but(place, {})
        for project, files in offered.items():
            for place in _places(session, environment.owner.name, project):
                self._remove_but(place, files if _is_open(environment) else {})
        if _is_open(environment):
            event.listen(session, "after_commit", lambda _: self._show_if_it_can(environment.id), once=True)

    def show(self, environment_id: int) -> None:
        """Create the missing links of an environment, if it is still public."""
        with self._database.write(HUB) as session:
            lock = select(Environment.id).where(Environment.id == environment_id)
            session.execute(lock.with_for_update(key_share=True))  # nobody can hide it until all links exist
            for path, sha256, _ in self._list_wanted(session, environment_id):
                path.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileExistsError):  # another process has created it meanwhile
                    os.symlink(self._target(path, sha256), path)

    def compare(self) -> tuple[list[Path], dict[Path, int]]:
        """Return the links that should not exist, and the missing links with their environments."""
        with self._database.read(HUB) as session:
            missing = {
                path: (sha256, environment_id) for path, sha256, environment_id in self._list_wanted(session)
            }
        wrong = []
        for folder, folders, filenames in os.walk(self._folder):
            links = [name for name in folders if Path(folder, name).is_symlink()]
            for path in (Path(folder, name) for name in [*links, *filenames]):
                sha256, _ = missing.get(path, (None, 0))
                if sha256 is not None and _target_of(path) == self._target(path, sha256):
                    del missing[path]
                else:
                    wrong.append(path)
        return wrong, {path: environment_id for path, (_, environment_id) in missing.items()}

    def repair(self) -> None:
        """Make the folder agree with the database."""
        wrong, missing = self.compare()
        for path in wrong:
            path.unlink(missing_ok=True)
        for environment_id in sorted(set(missing.values())):
            self.show(environment_id)

    def _show_if_it_can(self, environment_id: int) -> None:
        """The change is committed and does not depend on the links: the hub sends files without a link."""
        try:
            self.show(environment_id)
        except (OSError, SQLAlchemyError) as error:
            logger.warning(
                "cannot create links to files for nginx (run `wander-hub fsck --repair`): %s", error
            )

    def _list_wanted(
        self, session: Session, environment_id: int | None = None
    ) -> Iterator[tuple[Path, str, int]]:
        """Yield the path, digest and environment of every link that should exist."""
        query = select(Owner.name, File.filename, File.sha256, Environment.id).join(File.version)
        query = query.join(Environment, File.environment_id == Environment.id).join(Environment.owner)
        # Files of the hub's own packages can be replaced, so they are not linked.
        query = query.where(Owner.name != BUNDLED_OWNER, *repository.downloadable())
        if environment_id is not None:
            query = query.where(Environment.id == environment_id)
        places: dict[tuple[str, str], list[IndexedProject]] = {}
        for owner, filename, sha256, environment in session.execute(query).all():
            key = owner, names.distribution_of(filename)
            if key not in places:
                places[key] = _places(session, *key)
            for place in places[key]:
                yield self._path(place, filename), sha256, environment

    def _remove_but(self, place: IndexedProject, files: Mapping[str, str]) -> None:
        with contextlib.suppress(FileNotFoundError):  # nothing was ever offered here
            for path in self._path(place).iterdir():
                sha256 = files.get(path.name)
                if sha256 is None or _target_of(path) != self._target(path, sha256):
                    path.unlink(missing_ok=True)

    def _target(self, path: Path, sha256: str) -> str:
        content = self._storage.local_path(sha256)
        assert content is not None
        return os.path.relpath(content, path.parent)  # so that the data folder can be moved

    def _path(self, place: IndexedProject, filename: str = "") -> Path:
        return self._folder / (place.owner or "") / "files" / place.project / filename


def keep_links(database: Database, storage: Storage, folder: Path, *, wanted: bool) -> None:
    """Make the links agree with the database and keep them so; if they are not wanted, remove them all."""
    if wanted:
        links = PublicFiles(database, storage, folder)
        links.repair()
        links.attach()
    elif folder.exists():
        shutil.rmtree(folder)  # later changes would not remove links to files that they hide


def _places(session: Session, owner: str, project: str) -> list[IndexedProject]:
    """Return where an owner's project is served: in its index, and in the combined index if it has the name.

    The namespace of the hub's own packages is left to the hub, which sets how long clients may cache them.
    """
    own = IndexedProject(owner, project)
    if not covers(owner, project) or covers(BUNDLED_OWNER, project):
        return [own]
    first = repository.owner_of_namespaces(session, namespaces_of(project))
    return [own, IndexedProject(None, project)] if first == owner else [own]


def _is_open(environment: Environment) -> bool:
    hidden = environment.private or environment.deleted_at is not None
    return not hidden and environment.quarantine_reason is None and environment.owner.name != BUNDLED_OWNER


def _target_of(path: Path) -> str | None:
    with contextlib.suppress(OSError):  # not a link, or removed meanwhile
        return os.readlink(path)
    return None
