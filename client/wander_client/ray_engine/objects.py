"""Keeps the folders of shards in object storage, where the nodes of a cluster share no file system.

    URL/shared                          the driver's word
    URL/NUMBER/begun/ATTEMPT            says that this attempt has all that the one before had
    URL/NUMBER/ATTEMPT/FILE#GENERATION-OFFSET

A shard plays in a folder of its node, and every few seconds what is new there goes into the store: what was
appended to a file as a piece of its own, a file that was replaced as another generation. An attempt begins
with the files of the one before and writes below a name of its own, so a node that was given up, and still
plays, changes nothing in what counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander_client.errors import Unavailable, UsageError

if TYPE_CHECKING:
    from wander.evals.run.stopping import StopRequest

SCHEMES = ("s3", "gs", "az", "abfss")
VARIABLES = ("AWS_", "AZURE_STORAGE_", "GOOGLE_")
"""What the variables begin with that say where a store is and who may use it."""
_PUSH_SECONDS = 2.0
"""What a lost node has played since its last push is played again."""
_PIECE_BYTES = 32 * 1024 * 1024
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT")
_WORD = "shared"
_PIECE = re.compile(r"(.+)#(\d{6})-(\d{15})")
_TIMES = re.compile(r" in [\d.]+\S?s\b.*? +- ")
"""What an error of obstore says of the time and of its attempts."""
_APPENDED = (".jsonl", ".log")
"""Files that only grow, or are cut where a line was torn; others are replaced as a whole."""


@dataclass(frozen=True)
class _State:
    """What the store has of a file."""

    inode: int
    changed: int
    """When the file was last changed, in ns."""
    generation: int
    size: int


class SharedStore:
    """A folder in object storage that all nodes reach; its methods raise `Unavailable` where it is not."""

    def __init__(self, url: str, name: str = "", *, patient: bool = True) -> None:
        """Open it, or the folder of this name in it.

        Whoever plays already is `patient`, and waits minutes for a store that is away.
        """
        scheme, _, rest = url.partition("://")
        if scheme not in SCHEMES or rest[:1] in ("", "/"):
            raise UsageError(
                f"`{url}` is no object storage",
                hint="write `--shared s3://BUCKET/FOLDER`; a folder that all nodes see goes to `--out`",
            )
        try:
            import obstore.store
        except ImportError as error:
            raise UsageError(
                "`--shared` needs obstore",
                hint="on all nodes, with the URL of your hub, run "
                "`pip install --index-url HUB/wander/index/ 'wander-client[ray]'`",
                code="missing_extra",
            ) from error
        self.url = f"{url.rstrip('/')}/{name}" if name else url
        self._written = url
        """As whoever asked for it knows it, for errors."""
        self._obstore: Any = obstore
        plain = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
        with self._blamed():
            self._store: Any = obstore.store.from_url(
                self.url,
                retry_config={
                    "max_retries": 100 if patient else 3,
                    "retry_timeout": timedelta(seconds=180 if patient else 10),
                },
                client_options={"allow_http": plain},
            )

    def set_word(self, word: str) -> None:
        """Leave a word by which nodes know that their store is the driver's."""
        self.put(_WORD, word.encode())

    def has_word(self, word: str) -> bool:
        """Tell whether the store has this word."""
        with self._blamed():
            try:
                return bytes(self._obstore.get(self._store, _WORD).bytes()) == word.encode()
            except FileNotFoundError:
                return False

    def fetch(self, number: int, into: Path) -> None:
        """Write a shard's files, as its last attempt left them; none where it has not begun."""
        for attempt in self._attempts(number)[-1:]:
            self._fetch(attempt, into)

    def begin(self, number: int, folder: Path) -> StoredFolder:
        """Fetch what earlier attempts have played into an empty folder, and keep what comes to be there."""
        before = self._attempts(number)
        last = int(before[-1].rpartition("/")[2].partition("-")[0]) if before else 0
        name = f"{last + 1:06d}-{secrets.token_hex(4)}"
        self.fetch(number, folder)
        kept = StoredFolder(self, f"{number}/{name}", folder)
        kept.push()
        self.put(f"{number}/begun/{name}", b"")
        for attempt in before:
            self.remove([attempt.replace("/", "/begun/"), *(path for path, *_ in self.pieces(attempt))])
        return kept

    def put(self, path: str, content: Any) -> None:
        """Store an object, whole or not at all."""
        with self._blamed():
            self._obstore.put(self._store, path, content)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove objects; those that are gone already are fine."""
        with self._blamed():
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    self._obstore.delete(self._store, path)

    def clear(self) -> None:
        """Remove everything."""
        self.remove(self._list(""))

    def _list(self, folder: str) -> list[str]:
        with self._blamed():
            return [str(one["path"]) for batch in self._obstore.list(self._store, folder) for one in batch]

    def _attempts(self, number: int) -> list[str]:
        """Return the folders of the attempts that have begun, in their order."""
        return sorted(path.replace("/begun/", "/") for path in self._list(f"{number}/begun"))

    def pieces(self, attempt: str) -> list[tuple[str, str, int, int]]:
        """Return path, file, generation and offset of all that an attempt has put into the store."""
        found = [(path, _PIECE.fullmatch(path.removeprefix(f"{attempt}/"))) for path in self._list(attempt)]
        return [(path, piece[1], int(piece[2]), int(piece[3])) for path, piece in found if piece]

    def _fetch(self, attempt: str, into: Path) -> None:
        files: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
        for path, name, generation, offset in self.pieces(attempt):
            files[name].append((generation, offset, path))
        for name, pieces in files.items():
            newest = max(pieces)[0]
            target = into / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with self._blamed(), target.open("wb") as out:
                for _, _, path in sorted(each for each in pieces if each[0] == newest):
                    for block in self._obstore.get(self._store, path).stream():
                        out.write(block)

    @contextlib.contextmanager
    def _blamed(self) -> Iterator[None]:
        """Say of an error of the store which store it is."""
        try:
            yield
        except (self._obstore.exceptions.BaseError, OSError, ValueError) as error:
            raise Unavailable(
                f"cannot use the object storage `{self._written}`: {_in_words(error)}",
                hint="see that the bucket is there, and that `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, "
                "`AWS_REGION` and `AWS_ENDPOINT_URL` are those of the bucket",
                code="storage_unavailable",
            ) from error


def _in_words(error: Exception) -> str:
    """Return in a line what a store, or the way to it, said; `--debug` shows the rest."""
    first = str(error).splitlines()[0]
    if said := re.search(r"<Code>(.+?)</Code>.*?<Message>(.+?)\.?</Message>", first):
        return f"{said[2]} ({said[1]})"
    return _TIMES.sub(": ", re.sub(r"^Generic \w+ error: ", "", first))[:300]


class StoredFolder:
    """A folder of one attempt whose files are kept in a store."""

    def __init__(self, store: SharedStore, prefix: str, folder: Path) -> None:
        self._store, self._prefix, self._folder = store, prefix, folder
        self._known: dict[str, _State] = {}
        self._missing: set[str] = set()

    @contextlib.asynccontextmanager
    async def keep(self, stop: StopRequest) -> AsyncIterator[None]:
        """Push every few seconds while the block runs, and at its end; where that fails, end in order."""
        ending = asyncio.Event()

        async def keep_pushing() -> None:
            try:
                while not ending.is_set():
                    await asyncio.to_thread(self.push)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(ending.wait(), _PUSH_SECONDS)
            except BaseException:
                stop.request()
                raise

        pushing = asyncio.create_task(keep_pushing())
        try:
            yield
        finally:
            ending.set()
            await pushing
            for _ in range(2):  # what is removed is only believed the second time
                await asyncio.to_thread(self.push)

    def push(self) -> None:
        """Put into the store what is new.

        Lines are read after the manifest that may count them; nothing goes before what replaces it is there.
        """
        files = {
            str(path.relative_to(self._folder)): path
            for path in sorted(self._folder.rglob("*"))
            if path.is_file() and not path.name.startswith(".")
        }
        whole = {}
        for name, path in files.items():
            if not name.endswith(_APPENDED):
                with contextlib.suppress(FileNotFoundError):  # replaced at this moment: next time
                    if (state := self._state(name, path)) != self._known.get(name):
                        whole[name] = state, path.read_bytes()
        for name, path in files.items():
            if name.endswith(_APPENDED):
                with contextlib.suppress(FileNotFoundError):
                    self._push_growth(name, path)
        for name, (state, content) in whole.items():
            self._push_whole(name, state, content)
        missing = self._known.keys() - files.keys()
        for name in missing & self._missing:
            self._remove(name, self._known.pop(name).generation + 1)
        self._missing = missing - self._missing

    def _state(self, name: str, path: Path) -> _State:
        found, known = path.stat(), self._known.get(name)
        return _State(
            found.st_ino, found.st_mtime_ns, 0 if known is None else known.generation, found.st_size
        )

    def _push_growth(self, name: str, path: Path) -> None:
        with path.open("rb") as file:
            found, known = os.fstat(file.fileno()), self._known.get(name)
            if known is None or known.inode != found.st_ino or known.size > found.st_size:
                self._push_whole(name, _State(found.st_ino, 0, 0, 0), b"")
            known = self._known[name]
            file.seek(known.size)
            while content := file.read(_PIECE_BYTES):
                content += file.readline()
                # A line that is not whole may be taken back.
                if not (content := content[: content.rfind(b"\n") + 1]):
                    break
                self._store.put(self._path(name, known.generation, known.size), content)
                known = replace(known, size=known.size + len(content))
                self._known[name] = known

    def _push_whole(self, name: str, state: _State, content: bytes) -> None:
        known = self._known.get(name)
        generation = 0 if known is None else known.generation + 1
        self._store.put(self._path(name, generation, 0), content)
        self._known[name] = replace(state, generation=generation)
        if known is not None:
            self._remove(name, generation)

    def _remove(self, name: str, generation: int) -> None:
        """Remove what the store has of a file before a generation."""
        pieces = self._store.pieces(self._prefix)
        self._store.remove(path for path, file, at, _ in pieces if file == name and at < generation)

    def _path(self, name: str, generation: int, offset: int) -> str:
        return f"{self._prefix}/{name}#{generation:06d}-{offset:015d}"
