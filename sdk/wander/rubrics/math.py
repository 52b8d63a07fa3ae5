"""Compares mathematical answers by their meaning. Needs the extra `math` (math-verify)."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import queue
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from wander.errors import MissingExtra, RubricError
from wander.parsers import MaybeThinkParser, Parser
from wander.rubrics.boxed import extract_boxed_answer
from wander.rubrics.math_text import clean_math
from wander.rubrics.rubric import Rubric
from wander.system.child_environ import child_environ
from wander.system.descriptors import wait_readable
from wander.types import Messages

_START_SECONDS = 120.0
"""Seconds that a process may take to load the library on a busy machine."""


class MathRubric(Rubric):
    """Rewards an answer that is mathematically equal to the example's `answer`: `1/2` equals `\\frac{2}{4}`.

    - `funcs`, `weights`: additional reward functions. `correct_answer` comes last, with weight 1.
    - `parser`: extracts the answer from the completion. The default is the last box after the reasoning.
    - `max_workers`: number of processes that compare. They start when needed, and end with the environment.
    - `timeout_seconds`: time limit for one comparison. Exceeding it is an error of the rubric, not a 0,
      because another machine might finish in time.
    - `max_characters`: maximum length of an answer. A longer one is wrong without a comparison.
    """

    def __init__(
        self,
        funcs: Sequence[Callable[..., Any]] | None = None,
        weights: Sequence[float] | None = None,
        parser: Parser | None = None,
        *,
        max_workers: int = 2,
        timeout_seconds: float = 5.0,
        max_characters: int = 2_000,
    ) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise MissingExtra("math", needed_for="`MathRubric`")
        strict = partial(extract_boxed_answer, strict=True)
        super().__init__(funcs, weights, parser or MaybeThinkParser(strict))
        self.max_characters = max_characters
        self.processes = MathProcesses(max_workers, timeout_seconds)
        self.add_reward_func(self.correct_answer)

    async def correct_answer(self, completion: Messages, answer: Any, parser: Parser) -> float:
        """Return 1.0 if the parsed completion equals the answer, otherwise 0.0."""
        response = parser.parse_answer(completion)
        response = "" if response is None else str(response).strip()
        answer = str(answer).strip()
        if not response or len(response) > self.max_characters:
            return 0.0
        response, answer = clean_math(response) or response, clean_math(answer) or answer
        if response == answer:
            return 1.0
        return float(await self.processes.equal(answer, response))

    async def close(self) -> None:
        """End the processes. A later comparison starts new ones."""
        await asyncio.to_thread(self.processes.close)


class MathProcesses:
    """A limited number of processes that compare answers. One that hangs or dies is replaced.

    They are new interpreters instead of forks, so that they are safe in any host, and they do not import the
    host's main module.
    """

    def __init__(self, count: int, timeout_seconds: float) -> None:
        self.count = count
        self.timeout_seconds = timeout_seconds
        self._threads: ThreadPoolExecutor | None = None
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._ended = weakref.finalize(self, _end_all, self._idle)

    async def equal(self, answer: str, response: str) -> bool:
        """Return whether two expressions are equal.

        Raises `RubricError` if that takes too long, causes an error in the library, or kills its process
        twice.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.count, thread_name_prefix="wander-math")
        request = {"answer": answer, "response": response}
        loop = asyncio.get_running_loop()
        reply = await loop.run_in_executor(self._threads, self._ask, request)
        if "error" in reply:
            raise RubricError(
                f"math-verify cannot compare `{response:.80}` with `{answer:.80}`: {reply['error']}"
            )
        return bool(reply["equal"])

    def close(self) -> None:
        """Wait for the current comparisons, and end all processes and threads."""
        if self._threads is not None:
            self._threads.shutdown(wait=True)
            self._threads = None
        _end_all(self._idle)

    def _ask(self, request: dict[str, str]) -> dict[str, Any]:
        """Send a request to an idle process or a new one, which is idle again once it has answered.

        A process that dies is replaced once, because something else may have killed it.
        """
        for _ in range(2):
            process = self._find_living()
            try:
                reply = _exchange(process, request, self.timeout_seconds)
            except _Died:
                _end(process)
                continue
            except BaseException:
                _end(process)
                raise
            self._idle.put(process)
            return reply
        raise RubricError(f"comparing `{request['response']:.80}` crashed two processes in a row")

    def _find_living(self) -> subprocess.Popen[bytes]:
        with suppress(queue.Empty):  # all are busy
            while True:
                process = self._idle.get_nowait()
                if process.poll() is None:
                    return process
                _end(process)
        return _start()


class _Died(Exception):
    """The process exited before it replied."""


def _start() -> subprocess.Popen[bytes]:
    """Start a process and wait until it has loaded the library."""
    process = subprocess.Popen(
        [sys.executable, "-m", "wander.rubrics.math_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_environ(PYTHONPATH=os.pathsep.join(path for path in sys.path if path)),
    )
    try:
        _read(process, _START_SECONDS, "loading math-verify")
    except _Died as error:
        _end(process)
        raise RubricError(f"math-verify cannot be loaded (exit status {process.returncode})") from error
    except BaseException:
        _end(process)
        raise
    return process


def _exchange(process: subprocess.Popen[bytes], request: dict[str, str], seconds: float) -> dict[str, Any]:
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
    except OSError as error:
        raise _Died from error
    return _read(process, seconds, f"comparing `{request['response']:.80}` with `{request['answer']:.80}`")


def _read(process: subprocess.Popen[bytes], seconds: float, doing: str) -> dict[str, Any]:
    """Return the next line of a process as an object. Raises `RubricError` if it takes too long."""
    assert process.stdout is not None
    line = b""
    deadline = time.monotonic() + seconds
    while not line.endswith(b"\n"):
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not wait_readable(process.stdout.fileno(), remaining):
            raise RubricError(f"{doing} took more than {seconds:g} s")
        piece = os.read(process.stdout.fileno(), 65536)
        if not piece:
            raise _Died
        line += piece
    reply: dict[str, Any] = json.loads(line)
    return reply


def _end_all(idle: queue.SimpleQueue[subprocess.Popen[bytes]]) -> None:
    with suppress(queue.Empty):
        while True:
            _end(idle.get_nowait())


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(OSError):  # buffered data cannot be written after the process has exited
            pipe.close()
