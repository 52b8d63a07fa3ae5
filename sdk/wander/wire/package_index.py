"""What indexes, locks and packages say of files: index pages (PEP 691 and 700), addresses, requirements.

Programs do more with an address than its author shows. uv puts variables of its environment where a
requirement has `${NAME}`, takes a line break for the next option, runs git for `git+https`, and sends what
stands before `@` as a password. So the hub and the client accept one plain form. Everything else is refused
where it comes in: at an upload, and again before anything is installed.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field

from wander.wire.fields import Address, Count, FileName, Line, ProjectName, Sha256, Text

_ADDRESS = re.compile(
    r"(?P<scheme>https?)://(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[A-Za-z0-9._~!+,;=%@/-]*)(?:#sha256=[0-9a-f]{64})?"
)
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,254}")
_REQUIREMENT = re.compile(r"[A-Za-z0-9 \t._<>=!~,;:@/\[\]()'\"*+%#-]{1,4000}")
_OF_HUB = re.compile(r"/([a-z0-9-]{1,39})/files/([a-z0-9-]{1,200})/[^/]+$")
MOST_CHARACTERS = 2000


class _Read(BaseModel):
    """An index may say more than is read here."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True, defer_build=True)


class FileHashes(_Read):
    """The digests of a file."""

    sha256: Sha256 | None = None


class IndexFile(_Read):
    """A file of a project."""

    filename: FileName
    url: Address
    """Absolute, or relative to the page."""
    hashes: FileHashes = FileHashes()
    size: Count | None = None
    """Bytes."""
    upload_time: Line | None = Field(default=None, alias="upload-time")
    requires_python: Line | None = Field(default=None, alias="requires-python")
    yanked: bool | Text = False
    """True or a reason for a file that installers pass over."""
    core_metadata: bool | FileHashes = Field(default=False, alias="core-metadata")
    """Whether the metadata of a wheel can be had by itself, with its digest."""


class IndexMeta(_Read):
    """What a page says of itself."""

    upstream: bool = Field(default=False, alias="_upstream")
    """Whether a hub passed the page on from the index behind it."""


class PassedPage(_Read):
    """What tells a page of the hub from one that it passed on."""

    meta: IndexMeta = IndexMeta()


class IndexPage(_Read):
    """The files of one project."""

    files: list[IndexFile]


class IndexProject(_Read):
    """A project of a list."""

    name: ProjectName


class IndexRoot(_Read):
    """The projects of an index."""

    projects: list[IndexProject]


@dataclass(frozen=True)
class FileAddress:
    """Where a file can be had, in the one form that is accepted."""

    url: str
    """Without a digest at its end."""
    origin: str
    """`https://host` or `https://host:port`."""
    path: str
    filename: str

    @property
    def host(self) -> str:
        """Host and port."""
        return self.origin.partition("://")[2]


def parse_file_address(url: str, own: Collection[str] = ()) -> FileAddress:
    """Return the parts of an address; raises `ValueError`, which says what is wrong.

    `own` are the origins (`http://host:port`) that may be asked without TLS: the hub's own.
    """
    if len(url) > MOST_CHARACTERS:
        raise ValueError(f"it has more than {MOST_CHARACTERS:,} characters")
    found = _ADDRESS.fullmatch(url)
    if found is None:
        raise ValueError(_fault_of(url))
    origin = origin_of(url)
    if int(found["port"] or 1) not in range(1, 65536):
        raise ValueError("its port does not exist")
    if found["scheme"] == "http" and origin not in own:
        raise ValueError("it begins with `http:`, and files come over https")
    parts = [unquote(part) for part in found["path"].split("/")]
    if any(part in (".", "..") or "/" in part or not part.isprintable() for part in parts):
        raise ValueError("its path holds `..`, or an encoded slash or control character")
    if not _FILE.fullmatch(parts[-1]):
        raise ValueError("it does not end with the name of a file")
    return FileAddress(url.partition("#")[0], origin, found["path"], parts[-1])


def hub_file(address: FileAddress) -> tuple[str, str] | None:
    """Return owner and project of a file that lies where hubs have files; None for any other address."""
    found = _OF_HUB.search(address.path)
    return (found[1], found[2]) if found else None


def _fault_of(url: str) -> str:
    """Say why an address has not the accepted form."""
    parts = url.partition("://")
    if not url.isprintable() or not url.isascii() or " " in url:
        return "it holds a space, a control character or one beyond ASCII"
    if not parts[1] or parts[0] not in ("http", "https"):
        return "it does not begin with `https://`"
    if "@" in parts[2].partition("/")[0]:
        return "it holds credentials: a user name or a password"
    if "?" in url:
        return "it has a query, which may hold credentials"
    return "it holds a character that no address of a file needs"


def check_requirement(text: str, url: str | None, own: Collection[str] = ()) -> None:
    """Refuse a requirement that would make an installer do something else; raises `ValueError`.

    `url` is the address that it names, as whoever parsed it found it.
    """
    if not _REQUIREMENT.fullmatch(text):
        raise ValueError("it holds a character that no requirement needs")
    if url is not None and not parse_file_address(url, own).filename.endswith(".whl"):
        raise ValueError("its address is not that of a wheel, and anything else has to be built")


def origin_of(url: str) -> str:
    """Return scheme, host and port of an address, the port only if it is not the usual one.

    Empty for what is not an address.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return ""
    if not host:
        return ""
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}" + (
        f":{port}" if port not in (None, usual) else ""
    )


def is_loopback(host: str | None) -> bool:
    """Return whether a host is this machine, by its name or its number."""
    try:
        return host == "localhost" or ip_address((host or "").strip("[]")).is_loopback
    except ValueError:
        return False
