"""The package indexes of this machine, from the settings of pip and uv, as a configuration of uv.

The URLs of indexes and proxies may contain passwords. So uv reads them from a file that only the user can
read. They are not in uv's environment, which builds and requirements can read, and not in its arguments,
which all users of the machine can see.
"""

from __future__ import annotations

import configparser
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from wander.wire.package_index import origin_of

from wander_client.errors import ClientError

_VARIABLES = ("UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
"""If any of these variables is set, the user has configured uv, and pip's settings are ignored."""
_PROXIES = {"HTTP_PROXY": "http-proxy", "HTTPS_PROXY": "https-proxy"}


def uv_settings(environ: Mapping[str, str], first: str | None = None) -> dict[str, Any]:
    """Return the settings of uv for this machine. `first` is an index that is used before all others.

    They come from the `uv.toml` of the user and the system. The variables of uv, or else the settings of pip,
    override them. The `uv.toml` of a project or of the working directory is not read, because somebody else
    may have written it.
    """
    settings = _uv_files(environ)
    own = _from_uv(environ) if any(environ.get(name) for name in _VARIABLES) else _from_pip(environ)
    if own:
        # Indexes from this environment come before those from the user's files.
        own["index"] = [*own.get("index", []), *settings.get("index", [])]
        settings = {**settings, **{name: value for name, value in own.items() if value}}
    if strategy := environ.get("UV_INDEX_STRATEGY"):
        settings["index-strategy"] = strategy
    settings["index"] = [_with_password(index, environ) for index in settings.get("index", [])]
    if first is not None:
        settings["index"].insert(0, {"url": first})
    if not settings["index"]:
        del settings["index"]
    for variable, name in _PROXIES.items():
        stated = (variable.lower(), variable, "all_proxy", "ALL_PROXY")
        if proxy := next(filter(None, map(environ.get, stated)), None):
            settings[name] = proxy
    direct = (environ.get("no_proxy") or environ.get("NO_PROXY") or "").split(",")
    settings["no-proxy"] = [*filter(None, (host.strip(" []") for host in direct)), "127.0.0.1", "localhost"]
    return settings


def falls_through(settings: Mapping[str, Any]) -> bool:
    """Return whether uv also looks in later indexes for versions that the first index with a name lacks."""
    return "unsafe" in str(settings.get("index-strategy", ""))


def configured_origins(environ: Mapping[str, str]) -> set[str]:
    """Return `scheme://host:port` of every configured index and link folder."""
    settings = uv_settings(environ)
    urls = [index["url"] for index in settings.get("index", [])] + settings.get("find-links", [])
    return {origin_of(url) for url in urls if "://" in url and urlsplit(url).hostname}


def certificates(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable for the certificates in pip's settings, which uv does not read itself."""
    stated = pip_options(environ).get("cert")
    return {"SSL_CERT_FILE": stated[-1]} if stated and "SSL_CERT_FILE" not in environ else {}


def _from_uv(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the indexes from the variables of uv."""
    indexes = [_named(word) for word in environ.get("UV_INDEX", "").split()]
    indexes += [{"url": word} for word in re.split(r"[\s,]+", environ.get("UV_EXTRA_INDEX_URL", "")) if word]
    default = environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL")
    if default:
        indexes.append({**_named(default), "default": True})
    links = [word for word in re.split(r"[\s,]+", environ.get("UV_FIND_LINKS", "")) if word]
    return {"index": indexes, "find-links": links}


def _named(word: str) -> dict[str, Any]:
    """Parse an index in a variable: `URL`, or `name=URL`."""
    name, equals, url = word.partition("=")
    return {"name": name, "url": url} if equals and re.fullmatch(r"[A-Za-z0-9._-]+", name) else {"url": word}


def _from_pip(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the indexes from pip's settings."""
    options = pip_options(environ)
    settings: dict[str, Any] = {"index": [{"url": url} for url in options.get("extra-index-url", [])]}
    if settings["index"]:
        # pip looks in every index. uv would stop at the first index with the name, even if no version fits.
        settings["index-strategy"] = "unsafe-first-match"
    if options.get("no-index", [""])[-1].lower() in ("1", "true", "yes", "on"):
        settings["no-index"] = True
    elif options.get("index-url"):
        settings["index"].append({"url": options["index-url"][-1], "default": True})
    settings["find-links"] = options.get("find-links", [])
    return {name: value for name, value in settings.items() if value}


def _with_password(index: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return an index with the user and password from its variables in the URL."""
    name = re.sub(r"[^A-Za-z0-9]", "_", str(index.get("name", ""))).upper()
    user, password = (environ.get(f"UV_INDEX_{name}_{part}") for part in ("USERNAME", "PASSWORD"))
    parts = urlsplit(str(index.get("url", "")))
    if not name or not (user or password) or not parts.hostname:
        return dict(index)
    host = parts.netloc.rpartition("@")[2]
    netloc = f"{quote(user or '', safe='')}:{quote(password or '', safe='')}@{host}"
    return {**index, "url": urlunsplit(parts._replace(netloc=netloc))}


def _uv_files(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of the user's `uv.toml`, with those of the system as defaults."""
    if environ.get("UV_NO_CONFIG", "").lower() in ("1", "true"):
        return {}
    if named := environ.get("UV_CONFIG_FILE"):
        return _read(Path(named))
    home = Path(environ.get("HOME", "~")).expanduser()
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "uv" / "uv.toml"
    system = [
        Path(folder) / "uv" / "uv.toml" for folder in environ.get("XDG_CONFIG_DIRS", "").split(":") if folder
    ]
    system.append(Path("/etc/uv/uv.toml"))
    system_settings = next((_read(path) for path in system if path.is_file()), {})
    user_settings = _read(user) if user.is_file() else {}
    for name in system_settings.keys() & user_settings.keys():
        if isinstance(system_settings[name], list) and isinstance(user_settings[name], list):
            user_settings[name] = [*user_settings[name], *system_settings[name]]
    return {**system_settings, **user_settings}


def _read(path: Path) -> dict[str, Any]:
    """Return the settings of a `uv.toml`, with the indexes in a uniform format."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ClientError(
            f"`{path}` is not a valid uv configuration", hint="fix it", detail=str(error)
        ) from error
    # The table `pip` applies to `uv pip`, which is used here.
    stated = {**content, **content.pop("pip", {})}
    indexes = [dict(index) for index in stated.get("index", []) if isinstance(index, dict) and "url" in index]
    indexes += [{"url": url} for url in stated.pop("extra-index-url", [])]
    if default := stated.pop("index-url", None):
        indexes.append({"url": default, "default": True})
    stated["index"] = [{**index, "url": _absolute(str(index["url"]), path)} for index in indexes]
    stated["find-links"] = [_absolute(str(link), path) for link in stated.get("find-links", [])]
    # uv also accepts dates as text.
    return {name: value.isoformat() if isinstance(value, date) else value for name, value in stated.items()}


def _absolute(location: str, file: Path) -> str:
    return (
        location if "://" in location or location.startswith("/") else str((file.parent / location).resolve())
    )


def pip_options(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Return pip's index options from its files and variables, each as a list of values."""
    options: dict[str, list[str]] = {}
    parser = configparser.RawConfigParser()
    for path in _pip_files(environ):
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            raise ClientError(
                f"`{path}` is not a valid pip configuration", hint="fix it", detail=str(error)
            ) from error
    for section in ("global", "install"):
        if parser.has_section(section):
            options.update({name: value.split() for name, value in parser.items(section) if value})
    for name in ("index-url", "extra-index-url", "find-links", "no-index", "cert"):
        value = environ.get(f"PIP_{name.upper().replace('-', '_')}")
        if value:
            options[name] = value.split()
    return options


def _pip_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield pip's configuration files in pip's order: global, user, site, PIP_CONFIG_FILE.

    Later files win.
    """
    chosen = environ.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return
    home = Path(environ.get("HOME", "~")).expanduser()
    xdg = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    mac = sys.platform == "darwin"
    yield Path("/Library/Application Support/pip/pip.conf") if mac else Path("/etc/xdg/pip/pip.conf")
    yield from (Path("/etc/pip.conf"), home / ".pip" / "pip.conf", xdg / "pip" / "pip.conf")
    if mac:
        yield home / "Library" / "Application Support" / "pip" / "pip.conf"
    yield Path(sys.prefix) / "pip.conf"
    if chosen:
        yield Path(chosen)
