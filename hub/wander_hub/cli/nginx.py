"""The nginx configuration for a hub, which sends what lies on its own disk and keeps slow clients out."""

from __future__ import annotations

from collections.abc import Sequence
from string import Template

from wander.wire.postings import MAX_CHUNK_BYTES

from wander_hub.http.answers import IMMUTABLE
from wander_hub.http.middleware import BROWSER_HEADERS
from wander_hub.index.public_files import FOLDER
from wander_hub.settings import Settings

ACCEL_PREFIX = "/_objects/"
VARIABLES = {"WANDER_HUB_PUBLIC_FILES": "true", "WANDER_HUB_ACCEL_PREFIX": ACCEL_PREFIX}
"""What the hub has to be told where it relies on this nginx to send files."""

_SERVERS = """\
# For /etc/nginx/conf.d/. Every request has to come through this nginx${told}
upstream wander_hub {
${upstreams}
    keepalive 32;
}
limit_conn_zone $$binary_remote_addr zone=wander_addresses:10m;
server {
    listen ${listen};
    server_name ${name};
${tls}
    # An address opens so many connections; a head arrives within seconds, a body goes on arriving.
    limit_conn wander_addresses 100;
    limit_conn_status 429;
    client_header_timeout 10s;
    client_body_timeout 60s;
    send_timeout 60s;
    client_header_buffer_size 2k;
    large_client_header_buffers 4 16k;
    client_max_body_size ${largest};  # the most that the hub takes in a request, and room for its form
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_set_header Host $$http_host;
    proxy_set_header X-Forwarded-Proto $$scheme;
    proxy_set_header X-Forwarded-For $$proxy_add_x_forwarded_for;
    proxy_request_buffering off;
    proxy_max_temp_file_size 0;  # who reads slowly fills no disk
    proxy_connect_timeout 5s;
    proxy_read_timeout 300s;  # a large upload is checked before it is answered
    # Another process is asked when one cannot be reached or does not answer; a POST that began, never.
    proxy_next_upstream error timeout;
    proxy_next_upstream_tries 3;

    location / {
        proxy_pass http://wander_hub;
    }
${files}}
"""
_FILES = """\
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
"""
_TLS = """\
    ssl_certificate     /etc/ssl/${name}.pem;  # yours
    ssl_certificate_key /etc/ssl/private/${name}.key;
"""
_FORM_BYTES = 1024 * 1024


def configuration(settings: Settings, *, name: str, listen: str, upstreams: Sequence[str]) -> str:
    """Return the configuration for hub processes that answer at `upstreams`.

    Files under `storage_url` are sent by the hub or by the bucket; those in the data folder by nginx, which
    needs to be on the same machine then.
    """
    data = settings.data.absolute()
    local = settings.storage_url is None
    scheme = "https" if "ssl" in listen.split() else "http"
    port = listen.partition(" ")[0].rpartition(":")[2]
    usual = not port.isdecimal() or port == ("443" if scheme == "https" else "80")
    host = name if usual else f"{name}:{port}"
    address = settings.public_url or (f"{scheme}://{host}" if name != "_" else None)
    variables = (VARIABLES if local else {}) | ({"WANDER_HUB_PUBLIC_URL": address} if address else {})
    if len(upstreams) > 1:  # one may end while the others answer
        variables = {**variables, "WANDER_HUB_DRAIN_SECONDS": "5"}
    told = f", and the hub has to run with\n#   {' '.join(f'{k}={v}' for k, v in variables.items())}"
    readers = f"\n# nginx's user needs to read {data}." if local else ""
    headers = {**BROWSER_HEADERS, "Cache-Control": IMMUTABLE}
    files = {
        "public": _quote(str(data / FOLDER)),
        "headers": "\n".join(f"        add_header {key} {_quote(value)};" for key, value in headers.items()),
        "accel": ACCEL_PREFIX,
        "objects": str(data / "objects"),
    }
    return Template(_SERVERS).substitute(
        told=(told if variables else ".") + readers,
        upstreams="\n".join(f"    server {one};" for one in upstreams),
        listen=listen,
        name=name,
        tls=Template(_TLS).substitute(name=name) if scheme == "https" else "",
        largest=largest_body(settings),
        files=Template("\n" + _FILES).substitute(files) if local else "",
    )


def largest_body(settings: Settings) -> int:
    """Return the bytes of the largest request that the hub takes, in whatever way."""
    bodies = (
        *(settings.max_upload_bytes, settings.upload_chunk_bytes, settings.max_lock_bytes),
        *(settings.max_manifest_bytes, settings.max_artifact_bytes, MAX_CHUNK_BYTES),
    )
    return max(bodies) + _FORM_BYTES


def _quote(text: str) -> str:
    return f'"{text}"'
