"""The package indexes of this machine, from the settings of pip and uv, as one configuration of uv.

Addresses of indexes and proxies may hold passwords. So they reach uv in a file that only the user can read:
not in its environment, which it shows to what it builds and puts into requirements, and not in its
arguments, which everybody on the machine can see.
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
"""When one of these is set the user has configured uv itself, and pip's settings are ignored."""
_PROXIES = {"HTTP_PROXY": "http-proxy", "HTTPS_PROXY": "https-proxy"}


def uv_settings(environ: Mapping[str, str], first: str | None = None) -> dict[str, Any]:
    """Return the settings of uv for this machine; `first` is an index that is asked before all others.

    They are those of the user's and the system's `uv.toml`, with the variables of uv, or else the settings
    of pip, over them. The `uv.toml` of a project or of the working folder is not read: somebody else may
    have sent it.
    """
    found = _uv_files(environ)
    own = _from_uv(environ) if any(environ.get(name) for name in _VARIABLES) else _from_pip(environ)
    if own:
        # What the user's files say of indexes stays behind what this invocation says.
        own["index"] = [*own.get("index", []), *found.get("index", [])]
        found = {**found, **{name: value for name, value in own.items() if value}}
    if strategy := environ.get("UV_INDEX_STRATEGY"):
        found["index-strategy"] = strategy
    found["index"] = [_with_password(index, environ) for index in found.get("index", [])]
    if first is not None:
        found["index"].insert(0, {"url": first})
    if not found["index"]:
        del found["index"]
    for variable, name in _PROXIES.items():
        stated = (variable.lower(), variable, "all_proxy", "ALL_PROXY")
        if proxy := next(filter(None, map(environ.get, stated)), None):
            found[name] = proxy
    direct = (environ.get("no_proxy") or environ.get("NO_PROXY") or "").split(",")
    found["no-proxy"] = [*filter(None, (each.strip(" []") for each in direct)), "127.0.0.1", "localhost"]
    return found


def falls_through(settings: Mapping[str, Any]) -> bool:
    """Return whether uv asks further indexes for versions that the first one with a name does not have."""
    return "unsafe" in str(settings.get("index-strategy", ""))


def configured_origins(environ: Mapping[str, str]) -> set[str]:
    """Return `scheme://host:port` of every index and link folder that this machine is set to."""
    settings = uv_settings(environ)
    urls = [index["url"] for index in settings.get("index", [])] + settings.get("find-links", [])
    return {origin_of(url) for url in urls if "://" in url and urlsplit(url).hostname}


def certificates(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that names the certificates of pip's settings, which uv does not read by itself."""
    stated = pip_options(environ).get("cert")
    return {"SSL_CERT_FILE": stated[-1]} if stated and "SSL_CERT_FILE" not in environ else {}


def _from_uv(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what the variables of uv say of indexes."""
    indexes = [_named(word) for word in environ.get("UV_INDEX", "").split()]
    indexes += [{"url": word} for word in re.split(r"[\s,]+", environ.get("UV_EXTRA_INDEX_URL", "")) if word]
    default = environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL")
    if default:
        indexes.append({**_named(default), "default": True})
    links = [word for word in re.split(r"[\s,]+", environ.get("UV_FIND_LINKS", "")) if word]
    return {"index": indexes, "find-links": links}


def _named(word: str) -> dict[str, Any]:
    """Return an index as a variable states it: `URL`, or `name=URL`."""
    name, equals, url = word.partition("=")
    return {"name": name, "url": url} if equals and re.fullmatch(r"[A-Za-z0-9._-]+", name) else {"url": word}


def _from_pip(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what pip's settings say of indexes."""
    options = pip_options(environ)
    found: dict[str, Any] = {"index": [{"url": url} for url in options.get("extra-index-url", [])]}
    if found["index"]:
        # pip asks every index; uv would stop at the first that has the name, whatever versions it has.
        found["index-strategy"] = "unsafe-first-match"
    if options.get("no-index", [""])[-1].lower() in ("1", "true", "yes", "on"):
        found["no-index"] = True
    elif options.get("index-url"):
        found["index"].append({"url": options["index-url"][-1], "default": True})
    found["find-links"] = options.get("find-links", [])
    return {name: value for name, value in found.items() if value}


def _with_password(index: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return an index whose address holds what the variables of its name say."""
    name = re.sub(r"[^A-Za-z0-9]", "_", str(index.get("name", ""))).upper()
    user, password = (environ.get(f"UV_INDEX_{name}_{part}") for part in ("USERNAME", "PASSWORD"))
    parts = urlsplit(str(index.get("url", "")))
    if not name or not (user or password) or not parts.hostname:
        return dict(index)
    host = parts.netloc.rpartition("@")[2]
    place = f"{quote(user or '', safe='')}:{quote(password or '', safe='')}@{host}"
    return {**index, "url": urlunsplit(parts._replace(netloc=place))}


def _uv_files(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of the user's `uv.toml`, with those of the system below them."""
    if environ.get("UV_NO_CONFIG", "").lower() in ("1", "true"):
        return {}
    if named := environ.get("UV_CONFIG_FILE"):
        return _read(Path(named))
    home = Path(environ.get("HOME", "~")).expanduser()
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "uv" / "uv.toml"
    system = [Path(each) / "uv" / "uv.toml" for each in environ.get("XDG_CONFIG_DIRS", "").split(":") if each]
    system.append(Path("/etc/uv/uv.toml"))
    below = next((_read(path) for path in system if path.is_file()), {})
    above = _read(user) if user.is_file() else {}
    for name in below.keys() & above.keys():
        if isinstance(below[name], list) and isinstance(above[name], list):
            above[name] = [*above[name], *below[name]]
    return {**below, **above}


def _read(path: Path) -> dict[str, Any]:
    """Return the settings of a `uv.toml`, with all that it says of indexes in one form."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ClientError(
            f"`{path}` is not a configuration of uv", hint="correct it", detail=str(error)
        ) from error
    # What the table `pip` says holds for `uv pip`, which is what runs here.
    stated = {**found, **found.pop("pip", {})}
    indexes = [dict(each) for each in stated.get("index", []) if isinstance(each, dict) and "url" in each]
    indexes += [{"url": url} for url in stated.pop("extra-index-url", [])]
    if default := stated.pop("index-url", None):
        indexes.append({"url": default, "default": True})
    stated["index"] = [{**each, "url": _absolute(str(each["url"]), path)} for each in indexes]
    stated["find-links"] = [_absolute(str(each), path) for each in stated.get("find-links", [])]
    return {name: _plain(value) for name, value in stated.items()}


def _plain(value: Any) -> Any:
    """Return a value without dates, which uv reads from text too."""
    return value.isoformat() if isinstance(value, date) else value


def _absolute(place: str, file: Path) -> str:
    return place if "://" in place or place.startswith("/") else str((file.parent / place).resolve())


def pip_options(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Return pip's index options from its files and variables, each as a list of values."""
    options: dict[str, list[str]] = {}
    parser = configparser.RawConfigParser()
    for path in _pip_files(environ):
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            raise ClientError(
                f"`{path}` is not a pip configuration", hint="correct it", detail=str(error)
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
    """Yield pip's files, the weakest first, in pip's order: global, user, site, PIP_CONFIG_FILE."""
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
