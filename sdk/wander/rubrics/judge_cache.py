"""Answers of a judge, kept by the digest of what it was asked."""

from __future__ import annotations

import asyncio
import json
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from wander.errors import ConfigError

MOST_HELD = 100_000
"""Answers in memory; the oldest make room."""


class JudgeCache:
    """Answers by digest, in memory and, given a path, in a file that other runs share.

    The file has one JSON object a line, `{"digest": ..., "answer": ...}`, and is only appended to. Requests
    that are in flight are shared too: a group of equal completions asks once. A failure is not kept.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._held: OrderedDict[str, str] = OrderedDict()
        self._asked: dict[str, asyncio.Task[str]] = {}
        self._loaded = path is None

    async def answer(self, digest: str, ask: Callable[[], Coroutine[Any, Any, str]]) -> str:
        """Return the answer with that digest, asking for it when nobody has."""
        self._load()
        if digest in self._held:
            return self._held[digest]
        task = self._asked.get(digest)
        if task is None or task.get_loop() is not asyncio.get_running_loop():
            task = asyncio.create_task(self._fetch(digest, ask))
            self._asked[digest] = task
            task.add_done_callback(lambda done: self._forget(digest, done))
        # Shielded: whoever is cancelled here may not be the only one who waits.
        return await asyncio.shield(task)

    async def _fetch(self, digest: str, ask: Callable[[], Awaitable[str]]) -> str:
        text = await ask()
        self._keep(digest, text)
        if self.path is not None:
            line = json.dumps({"digest": digest, "answer": text}, ensure_ascii=False)
            _append(self.path, line)
        return text

    def _forget(self, digest: str, task: asyncio.Task[str]) -> None:
        if self._asked.get(digest) is task:
            del self._asked[digest]
        if not task.cancelled():
            task.exception()  # seen, so that asyncio does not log it when every asker was cancelled

    def _keep(self, digest: str, text: str) -> None:
        self._held[digest] = text
        if len(self._held) > MOST_HELD:
            self._held.popitem(last=False)

    def _load(self) -> None:
        """Read the file once; a line that a crash cut short is skipped."""
        if self._loaded:
            return
        self._loaded = True
        assert self.path is not None
        if not self.path.exists():
            return
        text = self.path.read_text(encoding="utf-8", errors="replace")
        if text and not text.endswith("\n"):
            _append(self.path, "")
        for line in text.splitlines():
            try:
                entry = json.loads(line)
                self._keep(entry["digest"], entry["answer"])
            except (ValueError, KeyError, TypeError):
                continue


def _append(path: Path, line: str) -> None:
    """Append a line in one write, so that several processes may share the file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigError(f"cannot write the judge's cache `{path}`: {error.strerror or error}") from error
