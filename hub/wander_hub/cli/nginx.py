"""The nginx configuration for a hub: public files from the disk at once, others when the hub agrees."""

from __future__ import annotations

from string import Template

from wander_hub.http.answers import IMMUTABLE
from wander_hub.http.middleware import BROWSER_HEADERS
from wander_hub.index.public_files import FOLDER
from wander_hub.settings import Settings

ACCEL_PREFIX = "/_objects/"
VARIABLES = {"WANDER_HUB_PUBLIC_FILES": "true", "WANDER_HUB_ACCEL_PREFIX": ACCEL_PREFIX}
"""What the hub has to be told, since it relies on this nginx."""

_HEAD = """\
# For /etc/nginx/conf.d/. Every request has to come through this nginx, and the hub has to run with
#   ${variables}
# nginx's user needs to read ${data}.
"""
_SERVERS = """\
upstream wander_hub {
    server ${upstream};
    keepalive 32;
}
server {
    listen ${listen};
    server_name ${name};
${tls}
    client_max_body_size 0;  # the hub has its own limits
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_set_header Host $$http_host;
    proxy_set_header X-Forwarded-Proto $$scheme;
    proxy_set_header X-Forwarded-For $$proxy_add_x_forwarded_for;
    proxy_request_buffering off;

    location / {
        proxy_pass http://wander_hub;
    }
    # What anybody may download has a link here; the hub removes it before it hides a file.
    location ~ ^(?:/[a-z0-9-]+)?/files/[a-z0-9-]+/[^/]+$$ {
        root ${public};
        types { }
        default_type application/octet-stream;
${headers}
        open_file_cache off;
        log_not_found off;
        error_page 403 404 = @hub;
    }
    location @hub {
        proxy_pass http://wander_hub;
    }
    # The hub sends nginx here once it has checked who asks.
    location ${accel} {
        internal;
        alias "${objects}/";
        add_header X-Content-Type-Options nosniff;
    }
}
"""
_TLS = """\
    ssl_certificate     /etc/ssl/${name}.pem;  # yours
    ssl_certificate_key /etc/ssl/private/${name}.key;
"""


def configuration(settings: Settings, *, name: str, listen: str, upstream: str) -> str:
    """Return the configuration for a hub that answers at `upstream` on the same machine."""
    data = settings.data.absolute()
    headers = {**BROWSER_HEADERS, "Cache-Control": IMMUTABLE}
    scheme = "https" if "ssl" in listen.split() else "http"
    address = settings.public_url or (f"{scheme}://{name}" if name != "_" else None)
    variables = VARIABLES | ({"WANDER_HUB_PUBLIC_URL": address} if address else {})
    given = {
        "variables": " ".join(f"{key}={value}" for key, value in variables.items()),
        "data": str(data),
        "upstream": upstream,
        "listen": listen,
        "name": name,
        "tls": Template(_TLS).substitute(name=name) if "ssl" in listen.split() else "",
        "public": _quote(str(data / FOLDER)),
        "headers": "\n".join(f"        add_header {key} {_quote(value)};" for key, value in headers.items()),
        "accel": ACCEL_PREFIX,
        "objects": str(data / "objects"),
    }
    return Template(_HEAD + _SERVERS).substitute(given)


def _quote(text: str) -> str:
    return f'"{text}"'
