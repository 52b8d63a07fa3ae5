"""References to files in indexes, locks and packages: index pages (PEP 691 and 700), addresses, requirements.

Installers interpret addresses in ways that can be abused. uv replaces `${NAME}` in a requirement with
environment variables, reads a line break as the start of the next option, runs git for `git+https`, and sends
the text before `@` as a password. The hub and the client therefore accept only a single plain form. They
check it when a file is uploaded, and again before anything is installed.
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
    """Base of the parsed pages, which ignores all fields that are not needed here."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True, defer_build=True)


class FileHashes(_Read):
    """The digests of a file."""

    sha256: Sha256 | None = None


class IndexFile(_Read):
    """A wheel or sdist in a project's page of the package index."""

    filename: FileName
    url: Address
    """Address of the file, absolute or relative to the page."""
    hashes: FileHashes = FileHashes()
    size: Count | None = None
    """Size in bytes."""
    upload_time: Line | None = Field(default=None, alias="upload-time")
    requires_python: Line | None = Field(default=None, alias="requires-python")
    yanked: bool | Text = False
    """True, or the reason, if installers should skip the file."""
    core_metadata: bool | FileHashes = Field(default=False, alias="core-metadata")
    """Whether the wheel's metadata can be downloaded separately, and the digest of the metadata."""


class IndexMeta(_Read):
    """The `meta` object of an index page."""

    upstream: bool = Field(default=False, alias="_upstream")
    """Whether the hub forwarded the page from its upstream index."""


class PassedPage(_Read):
    """The part of an index page that shows whether the hub forwarded it from its upstream index."""

    meta: IndexMeta = IndexMeta()


class IndexPage(_Read):
    """The files of one project."""

    files: list[IndexFile]


class IndexProject(_Read):
    """A project in the list of an index."""

    name: ProjectName


class IndexRoot(_Read):
    """The projects of an index."""

    projects: list[IndexProject]


@dataclass(frozen=True)
class FileAddress:
    """The address of a file, in the only form that is accepted."""

    url: str
    """URL without a digest at its end."""
    origin: str
    """`https://host` or `https://host:port`."""
    path: str
    filename: str

    @property
    def host(self) -> str:
        """Host and port."""
        return self.origin.partition("://")[2]


def parse_file_address(url: str, own: Collection[str] = ()) -> FileAddress:
    """Return the parts of an address; raises `ValueError` with the reason if the address is not accepted.

    `own` are the origins (`http://host:port`) that may be used without TLS because they are the hub's own.
    """
    if len(url) > MOST_CHARACTERS:
        raise ValueError(f"it has more than {MOST_CHARACTERS:,} characters")
    match = _ADDRESS.fullmatch(url)
    if match is None:
        raise ValueError(_fault_of(url))
    origin = origin_of(url)
    if int(match["port"] or 1) not in range(1, 65536):
        raise ValueError("its port is not between 1 and 65535")
    if match["scheme"] == "http" and origin not in own:
        raise ValueError("it begins with `http:`, but files must be served over https")
    parts = [unquote(part) for part in match["path"].split("/")]
    if any(part in (".", "..") or "/" in part or not part.isprintable() for part in parts):
        raise ValueError("its path contains `..`, or an encoded slash or control character")
    if not _FILE.fullmatch(parts[-1]):
        raise ValueError("it does not end with the name of a file")
    return FileAddress(url.partition("#")[0], origin, match["path"], parts[-1])


def hub_file(address: FileAddress) -> tuple[str, str] | None:
    """Return owner and project if the path has the form of a hub's file addresses, or None."""
    match = _OF_HUB.search(address.path)
    return (match[1], match[2]) if match else None


def _fault_of(url: str) -> str:
    """Return the reason why an address is not accepted."""
    parts = url.partition("://")
    if not url.isprintable() or not url.isascii() or " " in url:
        return "it contains a space, a control character or a non-ASCII character"
    if not parts[1] or parts[0] not in ("http", "https"):
        return "it does not begin with `https://`"
    if "@" in parts[2].partition("/")[0]:
        return "it contains credentials: a user name or a password"
    if "?" in url:
        return "it has a query, which may contain credentials"
    return "it contains a character that is not allowed in the address of a file"


def check_requirement(text: str, url: str | None, own: Collection[str] = ()) -> None:
    """Raise `ValueError` for a requirement that could make an installer do anything but install a wheel.

    `url` is the address that the parsed requirement contains, if any.
    """
    if not _REQUIREMENT.fullmatch(text):
        raise ValueError("it contains a character that is not allowed in a requirement")
    if url is not None and not parse_file_address(url, own).filename.endswith(".whl"):
        raise ValueError("its address is not that of a wheel, and any other file would have to be built")


def origin_of(url: str) -> str:
    """Return scheme, host and port of an address, or an empty string if it is not an address.

    The port is left out if it is the scheme's default port.
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
    """Return whether a host is this machine: `localhost` or a loopback IP address."""
    try:
        return host == "localhost" or ip_address((host or "").strip("[]")).is_loopback
    except ValueError:
        return False
