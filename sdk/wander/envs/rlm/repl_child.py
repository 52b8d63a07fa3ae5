"""The process that runs a model's code. It imports nothing but the standard library.

Started as `python -c <this source> <memory_mb> <file_mb> <seed>`. It exchanges length-prefixed JSON with its
host over standard input, which is a socket. Standard output and error are a file that the host reads. Nothing
here is a security boundary: the host checks every message, and the sandbox (if there is one) encloses the
process.
"""

from __future__ import annotations

import ast
import errno
import io
import json
import linecache
import os
import random
import resource
import signal
import struct
import sys
import threading
import traceback
from types import FrameType
from typing import Any

CELL = "<cell "
ROOM_BYTES = 1 << 16


class CellTimeout(BaseException):
    """The cell used up its time. Not an `Exception`, so that `except Exception` does not catch it."""


class Channel:
    """Length-prefixed JSON over the socket that standard input is at the start, and then no longer."""

    def __init__(self) -> None:
        self._input = os.fdopen(os.dup(0), "rb")
        self._output = os.fdopen(os.dup(0), "wb")
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)

    def send(self, message: dict[str, Any]) -> None:
        """Write a message."""
        data = json.dumps(message).encode()
        self._output.write(struct.pack(">I", len(data)) + data)
        self._output.flush()

    def receive(self) -> dict[str, Any]:
        """Read a message. Exits the process if the host is gone."""
        header = self._input.read(4)
        if len(header) < 4:
            os._exit(0)
        message: dict[str, Any] = json.loads(self._input.read(struct.unpack(">I", header)[0]))
        return message


class Session:
    """The state of a REPL: its variables, which persist between cells."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.cells = 0
        self.final: str | None = None
        self.armed = False
        self.output = standard_output()
        self.names: dict[str, Any] = {
            "__name__": "__main__",
            "__builtins__": __builtins__,
            "llm_query": self.llm_query,
            "llm_query_batched": self.llm_query_batched,
            "FINAL": self.set_final,
            "FINAL_VAR": self.set_final_variable,
        }

    def run(self, code: str, seconds: float) -> str:
        """Run a cell and return how it ended: ok, error or timeout."""
        self.cells += 1
        self.final = None
        name = f"{CELL}{self.cells}>"
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        # Undo changes by earlier cells to standard output: a replaced or closed stream, or a full file.
        if sys.stdout is not self.output or self.output.closed or not say(""):
            self.output = standard_output()
        sys.stdout = sys.stderr = self.output
        ended = "ok"
        try:
            self.armed = True
            signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
            self._execute(code, name)
        except CellTimeout:
            ended = "timeout"
        except SystemExit as error:
            say(f"SystemExit: {error} (the REPL continues)\n")
        except BaseException as error:  # noqa: BLE001 - the model's code may raise anything
            ended = "error"
            say(format_error(error))
        finally:
            self.armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        say("")
        return ended

    def _execute(self, code: str, name: str) -> None:
        """Execute the statements. The value of a final expression is printed, as at a prompt."""
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), self.names)  # noqa: S102 - this is what a REPL is for
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), self.names)  # noqa: S307
            if value is not None:
                sys.stdout.write(f"{value!r}\n")

    def timed_out(self, signum: int, frame: FrameType | None) -> None:
        """Interrupt the running cell. Repeated every second, because the cell may catch the exception."""
        if self.armed:
            raise CellTimeout

    def llm_query(self, prompt: object, context: object = None) -> str:
        """Ask the model one question; with `context`, about that piece of text or data."""
        return self._ask([{"prompt": str(prompt), "context": context}])[0]

    def llm_query_batched(self, prompts: Any, contexts: Any = None) -> list[str]:
        """Ask the model several questions at the same time; the answers keep their order."""
        prompts = [str(prompt) for prompt in prompts]
        contexts = [None] * len(prompts) if contexts is None else list(contexts)
        if len(contexts) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts but {len(contexts)} contexts")
        return self._ask(
            [
                {"prompt": prompt, "context": context}
                for prompt, context in zip(prompts, contexts, strict=True)
            ]
        )

    def _ask(self, queries: list[dict[str, Any]]) -> list[str]:
        """Send queries to the host. The cell's clock stops while the model answers."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("ask from the main thread; `llm_query_batched` asks several things at once")
        if not queries:
            return []
        message = {"op": "query", "queries": queries}
        json.dumps(message)  # raises for values that JSON cannot represent, before the clock stops
        self.armed = False
        remaining, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            self.channel.send(message)
            answer = self.channel.receive()
        finally:
            self.armed = True
            signal.setitimer(signal.ITIMER_REAL, max(remaining, 0.001), 1.0)
        if answer.get("error") is not None:
            raise RuntimeError(answer["error"])
        replies: list[str] = answer["replies"]
        return replies

    def set_final(self, answer: object = "") -> None:
        """Set the final answer."""
        self.final = str(answer)

    def set_final_variable(self, name: Any) -> None:
        """Set the final answer to the value of a variable, given by name or as the value itself."""
        self.final = str(self.names[name] if isinstance(name, str) and name in self.names else name)

    def value(self, name: str) -> str | None:
        """Return a variable as text, or None if it does not exist."""
        try:
            return str(self.names[name]) if name in self.names else None
        except Exception as error:  # noqa: BLE001 - `__str__` may be the model's code
            return format_error(error)


def standard_output() -> io.TextIOWrapper:
    """Reopen standard output. It is flushed after every line, to keep the order with subprocesses' output."""
    raw = io.BufferedWriter(io.FileIO(1, "w", closefd=False))
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def say(text: str) -> bool:
    """Print and flush a text, and return whether that succeeded.

    If the output file is full, its last part is removed to make room, because the newest output matters most.
    """
    for _ in range(2):
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
            return True
        except OSError as error:
            if error.errno != errno.EFBIG:
                return False
            os.ftruncate(1, max(0, os.fstat(1).st_size - ROOM_BYTES))
            text = ""  # the buffer still holds it
        except (ValueError, AttributeError):
            return False
    return False


def format_error(error: BaseException | None) -> str:
    """Return a traceback of only the cells' own frames, because library frames differ between machines."""
    if error is None:
        return ""
    try:
        shown = traceback.TracebackException.from_exception(error)
        _keep_cells(shown)
        return "".join(shown.format())
    except Exception:  # noqa: BLE001 - the model's exception class may fail to format
        return f"{type(error).__name__}\n"


def _keep_cells(shown: traceback.TracebackException | None) -> None:
    while shown is not None:
        frames = [frame for frame in shown.stack if frame.filename.startswith(CELL)]
        shown.stack = traceback.StackSummary.from_list(frames)
        _keep_cells(shown.__cause__)
        shown = shown.__context__


def serve(arguments: list[str]) -> None:
    """Handle the host's requests until it closes the channel."""
    memory_mb, file_mb, seed = (int(argument) for argument in arguments)
    channel = Channel()
    session = Session(channel)
    # Limits of this process and its children. macOS does not support a limit on address space.
    limits = {resource.RLIMIT_FSIZE: file_mb << 20, resource.RLIMIT_NOFILE: 256, resource.RLIMIT_CORE: 0}
    if sys.platform != "darwin":
        limits[resource.RLIMIT_AS] = memory_mb << 20
    for kind, value in limits.items():
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    signal.signal(signal.SIGALRM, session.timed_out)
    signal.signal(
        signal.SIGXFSZ, signal.SIG_IGN
    )  # exceeding the file limit raises OSError instead of killing the process
    threading.excepthook = lambda raised: say(format_error(raised.exc_value)) and None
    random.seed(seed)
    channel.send({"op": "ready"})
    while True:
        ask = channel.receive()
        try:
            channel.send({"op": "done", **answer(session, ask)})
        except CellTimeout:  # the alarm came after the cell ended, but before its clock stopped
            channel.send({"op": "done", "ended": "timeout", "final": None})


def answer(session: Session, ask: dict[str, Any]) -> dict[str, Any]:
    """Process a request of the host."""
    if ask["op"] == "run":
        ended = session.run(ask["code"], ask["seconds"])
        return {"ended": ended, "final": session.final}
    if ask["op"] == "load":
        session.names[ask["name"]] = ask["value"]
        return {}
    return {"value": session.value(ask["name"])}


if __name__ == "__main__":
    serve(sys.argv[1:])
