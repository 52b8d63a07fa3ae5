"""`--serve vllm`: a server for a model that lives as long as the evaluation.

    async with serve(context, "./checkpoint", ServeChoice(), log_path=path) as server:
        server.base_url, server.model

It listens on a free port of loopback, in a session of its own behind a guard
(`wander_client.models.server_guard`), which ends it with everything that it started: at the end, on Ctrl-C,
and when this process is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wander.system.child_environ import LOCALE, NETWORK, child_environ

from wander_client.errors import ClientError, Unavailable, UsageError
from wander_client.models.reference import START_SECONDS
from wander_client.terminal.output import Output

if TYPE_CHECKING:
    import httpx

    from wander_client.context import Invocation

_LOOK_SECONDS = 0.25
_ENGINE = "vllm.entrypoints.openai.api_server"
_LOG_LINES = 20
_LOG_BYTES = 16_384
_LIBRARIES = (
    *("CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "UCX_", "ROCR_", "ROCM_", "HIP_", "XLA_", "OMP_", "MKL_"),
    *(
        "VLLM_",
        "HF_",
        "HUGGINGFACE_",
        "TORCH",
        "PYTORCH_",
        "TRITON_",
        "TRANSFORMERS_",
        "TOKENIZERS_",
        "SAFETENSORS_",
    ),
)
"""How the variables begin that drivers and libraries of a model's server read."""
_SECRET = re.compile(r"TOKEN(?!IZER)|KEY|SECRET|PASSWORD|CREDENTIAL")
_FETCHING = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""What Hugging Face wants to hear for a gated model."""
_ASK_VERSION = """
import importlib.metadata, importlib.util, json
found = importlib.util.find_spec("vllm") is not None
names = importlib.metadata.packages_distributions().get("vllm", []) if found else []
print(json.dumps([found, {name: importlib.metadata.version(name) for name in sorted(set(names))}]))
"""


@dataclass(frozen=True)
class ServeChoice:
    """With what a model is served."""

    engine: Literal["vllm"] = "vllm"
    arguments: tuple[str, ...] = ()
    """Further ones of its command line."""
    python: str | None = None
    """The Python that has vLLM; None means `serve_python` of the settings, else this one."""
    timeout: float = START_SECONDS
    """Seconds that it may take to start."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables added to its environment."""


@dataclass(frozen=True)
class ModelServer:
    """A server that answers."""

    base_url: str
    model: str
    """The name that it serves the model under."""
    described: dict[str, Any]
    """Engine, version and arguments, for the manifest."""
    why_ended: Callable[[], ClientError | None]
    """Tells why it does not answer any more, with the end of its log; None while it runs."""


@contextlib.asynccontextmanager
async def serve(
    context: Invocation, model: str, choice: ServeChoice, *, log_path: Path, template: str | None = None
) -> AsyncIterator[ModelServer]:
    """Serve a checkpoint folder or a model's name while the block runs, with `template` as its chat template.

    Raises `ClientError` when vLLM is missing or the server ends before it answers, with the end of its log,
    and `Unavailable` when it takes too long.
    """
    from wander.models.loading import require_no_code

    require_no_code(model)
    _require_no_remote_code(choice.arguments)
    python = choice.python or context.settings.serve_python or sys.executable
    versions = await _find_vllm(python)
    name = _name_of(model)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [python, "-m", _ENGINE, "--model", model]
    # Ours come last, where they win.
    command += [*choice.arguments, "--served-model-name", name, "--host", "127.0.0.1", "--port", str(port)]
    log_path.parent.mkdir(parents=True, exist_ok=True)
    if template is not None:
        file = log_path.with_suffix(".jinja")
        file.write_text(template, encoding="utf-8")
        command += ["--chat-template", str(file)]
    process = await _Guarded.start(command, log_path, _variables(model, choice))
    described = {"engine": choice.engine, "versions": versions, "arguments": list(choice.arguments)}

    def why_ended() -> ClientError | None:
        reason = f"the server of `{name}` ended with status {process.ended}"
        return None if process.ended is None else _explain_failure(reason, log_path)

    server = ModelServer(f"http://127.0.0.1:{port}/v1", name, described, why_ended)
    try:
        await _wait_until_healthy(context.output, server, port, choice, log_path)
        yield server
        if process.ended:
            context.output.warn(f"the server of `{name}` ended early; its log: `{log_path}`")
    finally:
        await process.stop()
        if template is not None:
            file.unlink(missing_ok=True)


def _variables(model: str, choice: ServeChoice) -> dict[str, str]:
    """Return what the choice adds, and the token with which vLLM fetches a model that is not here."""
    names = () if os.path.exists(model) else _FETCHING
    return {**{name: os.environ[name] for name in names if name in os.environ}, **dict(choice.environment)}


def server_environ(**more: str) -> dict[str, str]:
    """Return the environment of a model's server: what drivers and libraries read, and no key."""
    names = [name for name in os.environ if name.startswith(_LIBRARIES) and not _SECRET.search(name.upper())]
    folders = ("LD_LIBRARY_PATH", "PYTHONPATH", "XDG_CACHE_HOME", "USER")
    return child_environ(*LOCALE, *NETWORK, *names, *folders, **more)


def _require_no_remote_code(arguments: Sequence[str]) -> None:
    """Refuse arguments with which vLLM would run code that comes with a model.

    vLLM takes any beginning of an option for the whole, and `--config` reads further options from a file.
    """
    for word in arguments:
        option = word.partition("=")[0].lstrip("-").replace("_", "-").lower()
        begins = word.startswith("-") and len(option) > 1 and "trust-remote-code".startswith(option)
        if begins or option.startswith(("trust-remote-code", "config")):
            raise UsageError(
                f"`{word}` would run code that comes with the model, or read further options from a file",
                hint="leave it out; a server that you start yourself is named with `-b URL`",
            )


async def _find_vllm(python: str) -> dict[str, str]:
    """Return the distributions that bring vLLM to a Python, with their versions."""
    try:
        asked = await asyncio.create_subprocess_exec(
            python,
            "-c",
            _ASK_VERSION,
            env=server_environ(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise ClientError(
            f"cannot run `{python}`: {error.strerror}",
            hint="name the Python that has vLLM: `--set serve_python=/path/to/venv/bin/python`",
            code="no_server",
        ) from error
    out, err = await asked.communicate()
    try:
        has_vllm, versions = json.loads(out.splitlines()[-1])
    except (ValueError, IndexError):
        raise ClientError(
            f"`{python}` is no Python that works", detail=err.decode("utf-8", "replace")[-1000:]
        ) from None
    if has_vllm:
        return {str(name): str(version) for name, version in versions.items()}
    own = python == sys.executable
    install = "pip install 'wander-sdk[vllm]'" if own else f"{python} -m pip install vllm"
    raise ClientError(
        f"`--serve vllm` needs vLLM, which `{python}` does not have",
        hint=f"run `{install}`, or name another Python by `--set serve_python=PATH`",
        code="missing_extra",
    )


class _Guarded:
    """The guard's process, and the end of the pipe that keeps it alive."""

    def __init__(self, process: asyncio.subprocess.Process, lifeline: int) -> None:
        self._process = process
        self._lifeline: int | None = lifeline

    @classmethod
    async def start(cls, command: list[str], log_path: Path, environment: Mapping[str, str]) -> _Guarded:
        mark = f"server-{secrets.token_hex(8)}"
        theirs, ours = os.pipe()
        try:
            with log_path.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-P",  # the working folder must not shadow modules
                    "-m",
                    "wander_client.models.server_guard",
                    str(theirs),
                    mark,
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=server_environ(PYTHONUNBUFFERED="1", **environment),
                    pass_fds=(theirs,),
                    start_new_session=True,
                )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        return cls(process, ours)

    @property
    def ended(self) -> int | None:
        """The server's exit status; None while it runs."""
        return self._process.returncode

    async def stop(self) -> None:
        """End the server and wait until it is gone."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        # The guard kills what does not end in order, so this ends; also where Ctrl-C comes again meanwhile.
        await asyncio.shield(self._process.wait())


async def _wait_until_healthy(
    output: Output, server: ModelServer, port: int, choice: ServeChoice, log_path: Path
) -> None:
    """Wait until the server answers, and show what it last said meanwhile."""
    import httpx

    loop = asyncio.get_running_loop()
    began = loop.time()
    title = f"starting {choice.engine} for {server.model}"
    output.note(f"{title}; its log: {log_path}")
    with output.progress(title, None, unit="s") as bar:
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as http:
            while not await _healthy(http, port):
                seconds = loop.time() - began
                if (failure := server.why_ended()) is not None:
                    raise failure
                if seconds > choice.timeout:
                    reason = f"the server of `{server.model}` did not answer within {choice.timeout:.0f} s"
                    raise _explain_failure(reason, log_path, Unavailable)
                *_, last = ["", *log_tail(log_path).splitlines()]
                bar.update(int(seconds), last[:100])
                await asyncio.sleep(_LOOK_SECONDS)
    output.note(f"{choice.engine} answers after {loop.time() - began:.0f} s")


async def _healthy(http: httpx.AsyncClient, port: int) -> bool:
    import httpx

    try:
        return (await http.get(f"http://127.0.0.1:{port}/health")).status_code == 200
    except httpx.HTTPError:
        return False


def _explain_failure(reason: str, log_path: Path, kind: type[ClientError] = ClientError) -> ClientError:
    tail = log_tail(log_path)
    return kind(
        reason,
        detail=f"its log ends:\n{tail}" if tail else "its log is empty",
        hint=f"see `{log_path}`; `--set serve_args=--dtype=half` passes arguments to the server",
        code="server_failed",
    )


def log_tail(log_path: Path) -> str:
    """Return the last lines of a log."""
    try:
        with log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_BYTES))
            text = log.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_LOG_LINES:])


def _name_of(model: str) -> str:
    from wander.models.pulled import pulled_at

    pulled = pulled_at(Path(model))
    if pulled is not None:
        return pulled.name
    return Path(model).name if Path(model).is_dir() else model
