"""The hub's own packages, under the owner `wander`: the SDK, the client, the classic API, and the plugins.

With them, a machine that can reach only this hub and a package mirror can install the command (`pip install
--index-url HUB/wander/index/ wander-client`). A hub in a source checkout builds the wheels (reproducibly: the
same sources give the same bytes); an installed hub repacks them from the installed files. While a version is
under development, its wheel changes and the newest build is served: these are the only files on a hub that
are ever replaced.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from sqlalchemy.orm import Session

from wander_hub.accounts import repository as accounts
from wander_hub.accounts.service import new_owner
from wander_hub.database import Database
from wander_hub.http.problems import HubProblem
from wander_hub.identity import HUB
from wander_hub.names import BUNDLED_OWNER
from wander_hub.settings import Settings
from wander_hub.storage import Storage, digest_of
from wander_hub.upload import checks, service
from wander_hub.upload.schemas import Upload

logger = logging.getLogger("wander_hub")

BUNDLED_DISTRIBUTIONS = (
    *("wander-sdk", "wander-compat", "wander-client", "verifiers"),
    *("wander-integrations", "wander-ray"),
)
_BUILD = """
import os, sys, traceback
from hatchling.build import build_wheel
for name, source in zip(sys.argv[2::2], sys.argv[3::2]):
    try:
        os.chdir(source)
        build_wheel(os.path.join(sys.argv[1], name))
    except Exception:
        traceback.print_exc()
"""
"""Program that builds all wheels. One process for each would take four times as long."""
_EPOCH = (2020, 2, 2, 0, 0, 0)
_NOT_SHIPPED = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"}


def publish_bundled(database: Database, storage: Storage, settings: Settings) -> list[str]:
    """Publish the packages installed together with the hub; return the names of the new files."""
    fresh: list[str] = []
    installed: dict[str, Distribution] = {}
    for name in BUNDLED_DISTRIBUTIONS:
        try:
            installed[name] = distribution(name)
        except PackageNotFoundError as error:
            logger.warning("this hub cannot offer `%s`: %s", name, error)
    sources = {name: source for name, one in installed.items() if (source := source_folder(one)) is not None}
    if sources:  # takes up to 20 s, before the hub listens
        logger.info("building the packages that this hub offers: %s", ", ".join(sources))
    with tempfile.TemporaryDirectory(prefix="wander-hub-") as folder:
        complaint = _build(sources, folder) if sources else ""
        for name, packed in installed.items():
            place = Path(folder, name)
            try:
                wheel = _pack(packed, place) if name not in sources else next(place.glob("*.whl"), None)
                if wheel is None:
                    logger.warning("this hub cannot offer `%s`: %s", name, complaint[-2000:])
                else:
                    fresh += _publish(wheel, database, storage, settings)
            except (FileNotFoundError, HubProblem) as error:
                logger.warning("this hub cannot offer `%s`: %s", name, error)
    return fresh


def ensure_owner(session: Session) -> None:
    """Create the owner of the hub's own packages, so that nobody else can take its name."""
    if accounts.owner_named(session, BUNDLED_OWNER) is None:
        new_owner(session, BUNDLED_OWNER)


def _build(sources: Mapping[str, Path], folder: str) -> str:
    """Build the wheel of each source folder in a folder of its name; return what the builds complained of."""
    words = [word for name, source in sources.items() for word in (name, str(source))]
    command = [sys.executable, "-c", _BUILD, folder, *words]
    return subprocess.run(command, check=False, capture_output=True, text=True).stderr  # noqa: S603 - our own


def source_folder(installed: Distribution) -> Path | None:
    """Return the source folder of an editable installation, or None for an ordinary installation."""
    text = installed.read_text("direct_url.json")
    if text is None:
        return None
    origin = json.loads(text)
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return Path(url2pathname(urlsplit(origin["url"]).path))


def _pack(installed: Distribution, folder: Path) -> Path:
    """Repack the files listed in RECORD into a wheel; scripts are left out, since installers create them."""
    name = installed.metadata["Name"].replace("-", "_")
    stem = f"{name}-{installed.version}"
    folder.mkdir(exist_ok=True)
    wheel = folder / f"{stem}-py3-none-any.whl"
    rows: list[str] = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(installed.files or [], key=str):
            if ".." in file.parts or file.suffix == ".pyc" or file.name in _NOT_SHIPPED:
                continue
            content = Path(str(file.locate())).read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.append(f"{file.as_posix()},sha256={digest},{len(content)}")
            archive.writestr(zipfile.ZipInfo(file.as_posix(), _EPOCH), content, zipfile.ZIP_DEFLATED)
        record = f"{stem}.dist-info/RECORD"
        listing = "\n".join([*rows, f"{record},,", ""])
        archive.writestr(zipfile.ZipInfo(record, _EPOCH), listing, zipfile.ZIP_DEFLATED)
    return wheel


def _publish(wheel: Path, database: Database, storage: Storage, settings: Settings) -> list[str]:
    with wheel.open("rb") as body:
        sha256, size = digest_of(body)
        upload = Upload(BUNDLED_OWNER, wheel.name, body, size, sha256)
        package = checks.check(upload, settings, environment=False)
        storage.put(body)

    def record(session: Session) -> bool:
        owner = accounts.owner_named(session, BUNDLED_OWNER)
        assert owner is not None
        return service.publish(session, owner, [package], HUB, listed=False, replace=True).created

    return [wheel.name] if database.commit(record, HUB) else []
