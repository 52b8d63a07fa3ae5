"""`--serve vllm`: a server for a model that runs as long as the evaluation.

    async with serve(context, "./checkpoint", ServeChoice(), log_path=path) as server:
        server.base_url, server.model

It listens on a free port of the loopback interface, in its own session behind a guard
(`wander_client.models.server_guard`). The guard stops the server and all its processes: at the end, on
Ctrl-C, and when this process is killed.
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
"""Prefixes of environment variables that drivers and libraries of a model's server read."""
_SECRET = re.compile(r"TOKEN(?!IZER)|KEY|SECRET|PASSWORD|CREDENTIAL")
_FETCHING = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Variables with the token for gated Hugging Face models."""
_ASK_VERSION = """
import importlib.metadata, importlib.util, json
found = importlib.util.find_spec("vllm") is not None
names = importlib.metadata.packages_distributions().get("vllm", []) if found else []
print(json.dumps([found, {name: importlib.metadata.version(name) for name in sorted(set(names))}]))
"""


@dataclass(frozen=True)
class ServeChoice:
    """The server of a model, with its options."""

    engine: Literal["vllm"] = "vllm"
    arguments: tuple[str, ...] = ()
    """Additional command-line arguments."""
    python: str | None = None
    """Path of the Python with vLLM; None means `serve_python` of the settings, else this Python."""
    timeout: float = START_SECONDS
    """Time limit for starting, in seconds."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables to add to its environment."""


@dataclass(frozen=True)
class ModelServer:
    """A running server."""

    base_url: str
    model: str
    """Name of the model on the server."""
    described: dict[str, Any]
    """Engine, version and arguments, for the manifest."""
    why_ended: Callable[[], ClientError | None]
    """Returns why the server stopped, with the end of its log; None while it runs."""


@contextlib.asynccontextmanager
async def serve(
    context: Invocation, model: str, choice: ServeChoice, *, log_path: Path, template: str | None = None
) -> AsyncIterator[ModelServer]:
    """Serve a checkpoint folder or a model's name while the block runs, with `template` as its chat template.

    Raises `ClientError` with the end of the log if vLLM is missing or the server exits before it responds,
    and `Unavailable` if it takes too long.
    """
    from wander.models.loading import require_no_code

    require_no_code(model)
    _require_no_remote_code(choice.arguments)
    python = _python_of(choice, context)
    versions = await _find_vllm(python)
    name = _name_of(model)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [python, "-m", _ENGINE, "--model", model]
    # These arguments must come last, because the last value of an option wins.
    command += [*choice.arguments, "--served-model-name", name, "--host", "127.0.0.1", "--port", str(port)]
    log_path.parent.mkdir(parents=True, exist_ok=True)
    if template is not None:
        file = log_path.with_suffix(".jinja")
        file.write_text(template, encoding="utf-8")
        command += ["--chat-template", str(file)]
    process = await _Guarded.start(command, log_path, _variables(model, choice))
    described = {"engine": choice.engine, "versions": versions, "arguments": list(choice.arguments)}

    def why_ended() -> ClientError | None:
        reason = f"the server of `{name}` exited with status {process.ended}"
        return None if process.ended is None else _explain_failure(reason, log_path)

    server = ModelServer(f"http://127.0.0.1:{port}/v1", name, described, why_ended)
    try:
        await _wait_until_healthy(context.output, server, port, choice, log_path)
        yield server
        if process.ended:
            context.output.warn(f"the server of `{name}` exited early; log: `{log_path}`")
    finally:
        await process.stop()
        if template is not None:
            file.unlink(missing_ok=True)


def _python_of(choice: ServeChoice, context: Invocation) -> str:
    return os.path.expanduser(choice.python or context.settings.serve_python or sys.executable)


def _variables(model: str, choice: ServeChoice) -> dict[str, str]:
    """Return the additional variables, with the token that vLLM needs to download a model."""
    names = () if os.path.exists(model) else _FETCHING
    return {**{name: os.environ[name] for name in names if name in os.environ}, **dict(choice.environment)}


def server_environ(**more: str) -> dict[str, str]:
    """Return the environment of a model's server: variables of drivers and libraries, without keys."""
    names = [name for name in os.environ if name.startswith(_LIBRARIES) and not _SECRET.search(name.upper())]
    folders = ("LD_LIBRARY_PATH", "PYTHONPATH", "XDG_CACHE_HOME", "USER")
    return child_environ(*LOCALE, *NETWORK, *names, *folders, **more)


def _require_no_remote_code(arguments: Sequence[str]) -> None:
    """Raise `UsageError` for arguments that let vLLM run code of a model.

    vLLM accepts abbreviated options, and `--config` reads more options from a file.
    """
    for word in arguments:
        option = word.partition("=")[0].lstrip("-").replace("_", "-").lower()
        begins = word.startswith("-") and len(option) > 1 and "trust-remote-code".startswith(option)
        if begins or option.startswith(("trust-remote-code", "config")):
            raise UsageError(
                f"`{word}` could run code of the model, or read more options from a file",
                hint="remove it, or start the server yourself and pass `-b URL`",
            )


async def _find_vllm(python: str) -> dict[str, str]:
    """Return the distributions that provide vLLM in a Python, with their versions."""
    try:
        process = await asyncio.create_subprocess_exec(
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
            hint="pass the Python with vLLM: `--set serve_python=/path/to/venv/bin/python`",
            code="no_server",
        ) from error
    out, err = await process.communicate()
    try:
        has_vllm, versions = json.loads(out.splitlines()[-1])
    except (ValueError, IndexError):
        raise ClientError(
            f"`{python}` is not a working Python", detail=err.decode("utf-8", "replace")[-1000:]
        ) from None
    if has_vllm:
        return {str(name): str(version) for name, version in versions.items()}
    install = "python3 -m venv ~/vllm && ~/vllm/bin/pip install vllm"
    if python != sys.executable:
        install = f"{python} -m pip install vllm"
    raise ClientError(
        f"`--serve vllm` requires vLLM, which is not installed in `{python}`",
        hint=f"vLLM pins its own PyTorch and transformers, so it needs a virtual environment of its own: run "
        f"`{install}`, and name its Python with `--set serve_python=~/vllm/bin/python`",
        code="missing_extra",
    )


class _Guarded:
    """The guard's process, with the end of the pipe that keeps it alive."""

    def __init__(self, process: asyncio.subprocess.Process, lifeline: int) -> None:
        self._process = process
        self._lifeline: int | None = lifeline

    @classmethod
    async def start(cls, command: list[str], log_path: Path, environment: Mapping[str, str]) -> _Guarded:
        mark = f"server-{secrets.token_hex(8)}"
        guard_end, own_end = os.pipe()
        try:
            with log_path.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-P",  # the working folder must not shadow modules
                    "-m",
                    "wander_client.models.server_guard",
                    str(guard_end),
                    mark,
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=server_environ(PYTHONUNBUFFERED="1", **environment),
                    pass_fds=(guard_end,),
                    start_new_session=True,
                )
        except BaseException:
            os.close(own_end)
            raise
        finally:
            os.close(guard_end)
        return cls(process, own_end)

    @property
    def ended(self) -> int | None:
        """The server's exit status, or None while it runs."""
        return self._process.returncode

    async def stop(self) -> None:
        """Stop the server and wait until it has exited."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        # The guard kills a server that does not stop, so this wait ends, even after another Ctrl-C.
        await asyncio.shield(self._process.wait())


async def _wait_until_healthy(
    output: Output, server: ModelServer, port: int, choice: ServeChoice, log_path: Path
) -> None:
    """Wait until the server responds. Meanwhile, show the last line of its log."""
    import httpx

    loop = asyncio.get_running_loop()
    started = loop.time()
    title = f"starting {choice.engine} for {server.model}"
    output.note(f"{title}; log: {log_path}")
    with output.progress(title, None, unit="s") as bar:
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as http:
            while not await _healthy(http, port):
                seconds = loop.time() - started
                if (failure := server.why_ended()) is not None:
                    raise failure
                if seconds > choice.timeout:
                    reason = f"the server of `{server.model}` did not respond within {choice.timeout:.0f} s"
                    raise _explain_failure(reason, log_path, Unavailable)
                *_, last = ["", *log_tail(log_path).splitlines()]
                bar.update(int(seconds), last[:100])
                await asyncio.sleep(_LOOK_SECONDS)
    output.note(f"{choice.engine} is ready after {loop.time() - started:.0f} s")


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
        detail=f"end of its log:\n{tail}" if tail else "its log is empty",
        hint=f"see `{log_path}`; pass arguments to the server with `--set serve_args=--dtype=half`",
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
