"""The REPL of a classic `RLMEnv`: Python or bash in a separate process, with functions that call the host.

The process runs the REPL of the SDK (`wander.envs.rlm.repl`). That REPL can only send queries to the host, so
code in it calls a tool by a query whose data names the tool.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from wander.envs.rlm.repl import CellResult, Query, Repl, ReplLimits
from wander.errors import SandboxError as ReplError

from wander_compat.verifiers.errors import SandboxError

Caller = Callable[[str, list[Any], dict[str, Any]], Awaitable[Any]]
"""Callback that calls a tool by name with its arguments. The cell raises its exceptions."""

LARGEST_CONTEXT = 40 << 20
"""Maximum size of a rollout's initial files in bytes, because they are sent in one message."""

_PREPARE = """\
import base64, json, os
for _path, _content in _files.items():
    os.makedirs(os.path.dirname(_path) or ".", exist_ok=True)
    with open(_path, "wb") as _file:
        _file.write(base64.b64decode(_content))
answer = {"ready": False, "content": ""}

def _call_tool(name, args, kwargs):
    reply = json.loads(llm_query("", {"tool": name, "args": args, "kwargs": kwargs}))
    if "error" in reply:
        raise RuntimeError(reply["error"])
    return reply["result"]

def _offer(name):
    def call(*args, **kwargs):
        return _call_tool(name, list(args), kwargs)
    call.__name__ = name
    return call

for _name in _tool_names:
    globals()[_name] = _offer(_name)
"""

_PREPARE_BASH = '''
import select, signal, stat, subprocess, sys
_place = os.path.abspath(".rlm")
os.makedirs(_place, exist_ok=True)
os.mkfifo(os.path.join(_place, "requests"))
_cwd = os.getcwd()
_command = """#!%s
import json, os, sys
place, name, words = os.path.dirname(os.path.abspath(__file__)), os.path.basename(__file__), sys.argv[1:]
def read(text):
    try:
        return json.loads(text)
    except ValueError:
        return text
if words[:1] == ["--json"]:
    found = json.loads(words[1] if len(words) > 1 else sys.stdin.read())
    args, kwargs = ([], found) if isinstance(found, dict) else ([found], {})
elif name == "llm_batch":
    args, kwargs = [words], {}
else:
    args, kwargs = [read(word) for word in words], {}
own = os.path.join(place, "call-%%d" %% os.getpid())
os.mkfifo(own + "-reply")
with open(own, "w") as file:
    json.dump({"tool": name, "args": args, "kwargs": kwargs}, file)
with open(os.path.join(place, "requests"), "w") as file:
    file.write(own + "\\\\n")
with open(own + "-reply") as file:
    reply = json.load(file)
os.remove(own)
os.remove(own + "-reply")
if "error" in reply:
    sys.exit(name + ": " + reply["error"])
result = reply["result"]
print(result if isinstance(result, str) else json.dumps(result, indent=1))
""" % sys.executable
for _name in _tool_names:
    with open(os.path.join(_place, _name), "w") as _file:
        _file.write(_command)
    os.chmod(os.path.join(_place, _name), 0o755)

def _bash(code):
    global _cwd
    keep = ('printf %s "$ANSWER_READY" > "$_RLM/ready"; printf %s "$ANSWER_CONTENT" > "$_RLM/content"; '
            'pwd > "$_RLM/cwd"')
    shown = {"_RLM": _place, "ANSWER_CONTENT": answer["content"]}
    shown["PATH"] = _place + ":" + os.environ.get("PATH", "")
    shown["ANSWER_READY"] = "1" if answer["ready"] else ""
    process = subprocess.Popen(
        ["bash", "-c", "trap " + "'" + keep + "'" + " EXIT\\n" + code], cwd=_cwd,
        env={**os.environ, **shown}, stdin=subprocess.DEVNULL, start_new_session=True,
    )
    calls = os.open(os.path.join(_place, "requests"), os.O_RDWR | os.O_NONBLOCK)
    try:
        waiting = b""
        while process.poll() is None:
            if select.select([calls], [], [], 0.01)[0]:
                waiting += os.read(calls, 65536)
                *names, waiting = waiting.split(b"\\n")
                for name in names:
                    with open(name) as file:
                        asked = json.load(file)
                    reply = llm_query("", asked)
                    with open(name + b"-reply", "w") as file:
                        file.write(reply)
    finally:
        os.close(calls)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    def kept(name, default):
        try:
            with open(os.path.join(_place, name)) as file:
                return file.read()
        except OSError:
            return default
    _cwd = kept("cwd", _cwd).rstrip("\\n")
    answer.update(ready=kept("ready", "").strip().lower() in ("1", "true", "yes", "y", "on"))
    answer.update(content=kept("content", ""))
'''

_REPORT = """\
llm_query('', {'answer': {'ready': bool(answer.get('ready')), 'content': str(answer.get('content', ''))}})
"""


class RlmShell:
    """The REPL of one rollout.

    It starts with the first code, and again after a cell that had to be killed.
    """

    def __init__(
        self,
        language: str,
        limits: ReplLimits,
        files: dict[str, str],
        tool_names: Sequence[str],
        call: Caller,
        seed: int,
    ) -> None:
        self._bash = language == "bash"
        self._call = call
        self._answer: dict[str, Any] = {"ready": False, "content": ""}
        self._repl = Repl(limits, sandbox="auto", seed=seed)
        self._repl.loaded = {"_files": files, "_tool_names": list(tool_names)}
        self._prepared = False

    async def run(self, code: str) -> tuple[CellResult, dict[str, Any]]:
        """Run code. Returns its result, and the current `answer`. Raises `SandboxError`."""
        try:
            if not self._prepared:
                made = await self._repl.run(_PREPARE + (_PREPARE_BASH if self._bash else ""), self._reply)
                if made.ended != "ok":
                    raise SandboxError(f"the REPL could not be prepared: {made.output}")
                self._prepared = True
            result = await self._repl.run(f"_bash({code!r})" if self._bash else code, self._reply)
            self._answer = {"ready": False, "content": ""}
            if result.restarted:
                self._prepared = False
            else:
                await self._repl.run(_REPORT, self._reply)
        except ReplError as error:
            raise SandboxError(str(error)) from error
        return result, self._answer

    async def close(self) -> None:
        """End the process."""
        await self._repl.close()

    async def _reply(self, queries: list[Query]) -> list[str] | str:
        """Answer a cell's query: a call of a tool, or the report of its answer."""
        replies = []
        for payload in (query.context for query in queries):
            reply: dict[str, Any] = {"error": "ask the model by `llm_batch`"}
            if isinstance(payload, dict) and isinstance(payload.get("answer"), dict):
                self._answer = payload["answer"]
                reply = {"result": None}
            elif isinstance(payload, dict) and "tool" in payload:
                try:
                    called = self._call(
                        str(payload["tool"]), payload.get("args") or [], payload.get("kwargs") or {}
                    )
                    reply = {"result": await called}
                except ReplError:
                    raise
                except Exception as error:  # noqa: BLE001 - the code receives the error, as in the releases
                    reply = {"error": f"{type(error).__name__}: {error}"}
            try:
                replies.append(json.dumps(reply))
            except TypeError:
                replies.append(json.dumps({"result": str(reply.get("result"))}))
        return replies


def read_context(info: dict[str, Any]) -> dict[str, str]:
    """Return a row's files by path, in base64: those of `context_dir`, or its `context`.

    Raises `ValueError` if the folder does not exist, contains symlinks, or has more than 40 MB.
    """
    files: dict[str, bytes] = {}
    folder, context = info.get("context_dir"), info.get("context")
    if folder:
        root = Path(str(folder))
        if not root.is_dir() or root.is_symlink():
            raise ValueError(f"`context_dir` must be a folder, got `{folder}`")
        for path in sorted(root.rglob("*")):
            if path.is_symlink():
                raise ValueError(f"`context_dir` contains a symlink, which is not allowed: `{path}`")
            if path.is_file():
                files[path.relative_to(root).as_posix()] = path.read_bytes()
    elif isinstance(context, str):
        files["context.txt"] = context.encode()
    elif context is not None:
        files["context.json"] = json.dumps(context).encode()
    size = sum(map(len, files.values()))
    if size > LARGEST_CONTEXT:
        raise ValueError(f"the context has {size:,} bytes; the limit of a REPL is {LARGEST_CONTEXT:,}")
    return {name: base64.b64encode(content).decode() for name, content in files.items()}
