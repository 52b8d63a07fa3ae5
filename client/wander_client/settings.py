"""Settings of the command. The order is: flag, WANDER_* variable, the user's settings file, default.

If none of the first three names a hub and you are logged in to exactly one hub, that hub is used.

The settings file is `settings.toml` in the platform's config folder, or in the folder `WANDER_CONFIG_DIR`:

    hub = "https://hub.example.org"      # or one of the names below
    sandbox = true                       # run every environment in the sandbox; false: run none
    serve_python = "/opt/vllm/bin/python"  # Python with vLLM, for `--serve vllm`
    reasoning = "drop"                   # do not send models their earlier reasoning
    notice_seconds = 120                 # report rollouts without progress for this long
    [prices]                             # USD per million tokens
    "my-model" = { prompt = 0.15, completion = 0.60 }
    [hubs]
    work = "https://wander.example.org"
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from wander_client.credentials import CredentialStore
from wander_client.errors import ClientError, UsageError

_HOMES = {"config": "~/.config", "data": "~/.local/share", "cache": "~/.cache", "state": "~/.local/state"}
NOTICE_SECONDS = 120.0
DEFAULT_HUB = "http://127.0.0.1:8600"
"""Copy of `wander.errors.DEFAULT_HUB`, whose import would triple the time of a short command."""


@dataclass(frozen=True)
class Settings:
    """The resolved settings of a command."""

    hub: str
    """Base URL of the hub, without a trailing slash."""
    hub_origin: str
    """Origin of the URL: a flag, a variable, a file or the default."""
    token_hub: str
    """Hub that the token in `WANDER_TOKEN` belongs to: the hub that is used without `--hub`."""
    config_dir: Path
    """Folder of the credentials and the user's settings file."""
    data_dir: Path
    """Folder of installed environments and pulled models."""
    cache_dir: Path
    state_dir: Path
    """Folder of crash logs, and of the key that signs this user's records."""
    runs_dir: Path
    """Folder for runs. The default is `runs` in the working directory."""
    hubs: dict[str, str] = field(default_factory=dict)
    """Hub URLs by the names in the user's file."""
    sandbox: bool | None = None
    """Whether environments run in the sandbox if the command line does not choose.

    If None, environments from a hub do, if this machine supports it (`wander_client.environments.sandbox`).
    """
    serve_python: str | None = None
    """Path of the Python with vLLM, for `wander eval --serve vllm`."""
    reasoning: str | None = None
    """Default of the setting `reasoning` of `wander eval`: whether models get their earlier reasoning."""
    notice_seconds: float = NOTICE_SECONDS
    """Seconds without progress after which a rollout is reported."""
    prices: Mapping[str, object] = field(default_factory=dict)
    """Prices by model, in USD per million tokens: `{prompt = 0.15, completion = 0.60, cached = 0.08}`. They
    come before those of the shipped table."""


def load_settings(hub: str | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Resolve the settings. `hub` is the value of `--hub`: a URL, or a name from the user's file."""
    environ = os.environ if environ is None else environ
    config_dir = _folder(environ, "config")
    path = config_dir / "settings.toml"
    stored = _read(path)
    hubs = stored.get("hubs", {})
    if not isinstance(hubs, dict) or not all(isinstance(url, str) for url in hubs.values()):
        raise UsageError(
            f"`hubs` in `{path}` is not a table of URLs", hint='write `[hubs]` and lines `name = "URL"`'
        )
    serve_python = environ.get("WANDER_SERVE_PYTHON") or stored.get("serve_python")
    if serve_python is not None and not isinstance(serve_python, str):
        raise UsageError(
            f"`serve_python` in `{path}` is not a path", hint='write `serve_python = "/path/python"`'
        )
    prices = stored.get("prices", {})
    if not isinstance(prices, dict):
        raise UsageError(
            f"`prices` in `{path}` is not a table",
            hint='write `[prices]` and lines `"MODEL" = { prompt = 0.15, completion = 0.60 }`',
        )
    choices = [
        (hub, "--hub"),
        (environ.get("WANDER_HUB"), "WANDER_HUB"),
        (stored.get("hub"), str(path)),
        (_only_login(config_dir), "the only login"),
        (DEFAULT_HUB, "default"),
    ]
    named = [(str(value), origin) for value, origin in choices if value]
    value, origin = named[0]
    without_flag = next(value for value, origin in named if origin != "--hub")
    return Settings(
        hub=hub_url(hubs.get(value, value)),
        hub_origin=origin,
        token_hub=hub_url(hubs.get(without_flag, without_flag)),
        config_dir=config_dir,
        data_dir=_folder(environ, "data"),
        cache_dir=_folder(environ, "cache"),
        state_dir=_folder(environ, "state"),
        runs_dir=Path(environ.get("WANDER_RUNS_DIR") or "runs").expanduser(),
        hubs={name: hub_url(url) for name, url in hubs.items()},
        sandbox=_switch(environ.get("WANDER_SANDBOX"), stored.get("sandbox"), path),
        serve_python=serve_python or None,
        reasoning=_reasoning(stored.get("reasoning"), path),
        notice_seconds=_notice_seconds(environ.get("WANDER_NOTICE_SECONDS"), stored, path),
        prices=prices,
    )


def state_folder() -> Path:
    """Return `Settings.state_dir`, even if the settings cannot be read."""
    return _folder(os.environ, "state")


def _reasoning(value: object, path: Path) -> str | None:
    if value in (None, "auto", "keep", "drop"):
        return value
    raise UsageError(f"invalid `reasoning` in `{path}`: `{value}`", hint="write `auto`, `keep` or `drop`")


def _notice_seconds(variable: str | None, stored: Mapping[str, object], path: Path) -> float:
    """Read the setting from its variable or the user's file."""
    value = variable or stored.get("notice_seconds", NOTICE_SECONDS)
    origin = "WANDER_NOTICE_SECONDS" if variable else f"`notice_seconds` in `{path}`"
    try:
        seconds = float(value) if isinstance(value, str | int | float) else math.nan
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf or isinstance(value, bool):
        raise UsageError(f"{origin} is not a number of seconds: `{value}`", hint="for example, write `120`")
    return seconds


def hub_url(value: str) -> str:
    """Normalize a hub's URL. Raises `UsageError` if it contains credentials."""
    local = re.match(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:|/|$)", value)
    scheme = "http" if local else "https"  # local hubs have no certificate
    parts = urlsplit(value if "://" in value else f"{scheme}://{value}")
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
        raise UsageError(f"`{value}` is not a hub URL", hint="for example: `--hub https://hub.example.org`")
    if "://" not in value and "." not in value and ":" not in value and value != "localhost":
        raise UsageError(
            f"no hub is named `{value}`", hint="pass its URL, or add it to `[hubs]` in `settings.toml`"
        )
    if parts.username or parts.password:
        raise UsageError("a hub URL must not contain a user or a password", hint="run `wander login` instead")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def _only_login(config_dir: Path) -> str | None:
    """Return the hub that the user is logged in to, if there is exactly one."""
    try:
        hubs = CredentialStore(config_dir, environ={}).hubs()
    except ClientError:  # raised again when a command needs a token
        return None
    return hubs[0] if len(hubs) == 1 else None


def _folder(environ: Mapping[str, str], kind: str) -> Path:
    """Return the folder of `WANDER_<KIND>_DIR`, or the platform's folder."""
    if named := environ.get(f"WANDER_{kind.upper()}_DIR"):
        return Path(named).expanduser()
    if sys.platform == "linux":  # same as platformdirs, whose import would slow down short commands
        xdg_home = environ.get(f"XDG_{kind.upper()}_HOME", "").strip()
        home = xdg_home if xdg_home.startswith("/") else _HOMES[kind]
        return Path(home).expanduser() / "wander"
    import platformdirs

    return Path(getattr(platformdirs, f"user_{kind}_path")("wander"))


def _switch(variable: str | None, stored: object, path: Path) -> bool | None:
    if variable:
        if variable.lower() not in ("0", "1", "true", "false"):
            raise UsageError(
                f"`WANDER_SANDBOX={variable}` is neither true nor false", hint="set it to 1 or 0"
            )
        return variable.lower() in ("1", "true")
    if not isinstance(stored, bool | None):
        raise UsageError(f"`sandbox` in `{path}` is neither true nor false", hint="write `sandbox = true`")
    return stored


def _read(path: Path) -> dict[str, object]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return {}
    import tomllib  # late, because most users have no such file

    try:
        return tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"`{path}` is not valid TOML: {error}", hint="fix the file, or remove it") from error
