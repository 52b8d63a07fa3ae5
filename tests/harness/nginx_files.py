"""The nginx configuration of `deploy/nginx`, adapted as its users adapt it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

DEPLOY = Path(__file__).parents[2] / "deploy" / "nginx"


def write_configuration(folder: Path, *, listen: str, upstreams: Sequence[str], data: Path | None) -> Path:
    """Write `wander.conf` for hubs at these addresses, without TLS, and return it.

    nginx sends the files that lie in `data`; None leaves them to the hub.
    """
    text = (DEPLOY / "wander.conf").read_text()
    text = text.replace("listen 443 ssl;", f"listen {listen};")
    text = text.replace("/var/cache/wander-pages", str(folder / "pages"))
    text = re.sub(r" +ssl_\w+ .*\n", "", text)
    servers = "".join(f"    server {one};\n" for one in upstreams)
    text = re.sub(r" +server 127.0.0.1:8600;.*\n", servers, text)
    include = "    include /etc/nginx/wander-files.conf;\n"
    assert include in text
    if data is None:
        text = text.replace(include, "")
    else:
        files = (DEPLOY / "wander-files.conf").read_text().replace("/srv/wander", str(data.absolute()))
        (folder / "wander-files.conf").write_text(files)
        text = text.replace(include, f'    include "{folder / "wander-files.conf"}";\n')
    (folder / "wander.conf").write_text(text)
    return folder / "wander.conf"
