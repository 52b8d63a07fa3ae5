"""The package index: standards, negotiation, conditional requests, ranges, and real installers."""

from __future__ import annotations

import hashlib
import re
from html.parser import HTMLParser
from urllib.parse import urljoin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wander_hub.index.negotiation import HTML_V1, JSON_V1, negotiate

PAGE = "/alice/simple/reverse-text/"
WHEEL = "/alice/files/reverse-text/reverse_text-0.1.0-py3-none-any.whl"
HTML = "text/html"
PIP = f"{JSON_V1}, {HTML_V1}; q=0.1, text/html; q=0.01"


class Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[tuple[str, dict[str, str | None]]] = []
        self._open: dict[str, str | None] | None = None

    def handle_starttag(self, tag, attrs):
        if tag == "a":
            self._open = dict(attrs)

    def handle_data(self, data):
        if self._open is not None:
            self.links.append((data, self._open))
            self._open = None


@pytest.mark.parametrize(
    ("accept", "answer"),
    [
        (None, HTML),
        ("*/*", HTML),
        ("text/*", HTML),
        ("application/*", HTML_V1),
        (PIP, JSON_V1),
        (f"{JSON_V1}, {HTML_V1};q=0.2, text/html;q=0.01", JSON_V1),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", HTML),
        (f"{JSON_V1};q=0", None),
        (f"{JSON_V1};q=0, */*;q=0.1", HTML),
        (f"text/html;level=1;q=0.5, {JSON_V1};q=0.6", JSON_V1),
        (f"{HTML};q=0.5, {HTML_V1};q=0.5", HTML),
        ("application/vnd.pypi.simple.latest+json", JSON_V1),
        ("application/vnd.pypi.simple.v2+json", None),
        ("image/png", None),
        (f"{JSON_V1};q=nonsense, text/html;q=0.1", HTML),
        ("", HTML),
        (" TEXT/HTML ; Q=1.0 ", HTML),
    ],
)
def test_the_media_type_is_negotiated(accept, answer):
    assert negotiate(accept) == answer


def test_the_format_parameter_overrides_the_accept_header():
    assert negotiate("text/html", JSON_V1) == JSON_V1
    assert negotiate("text/html", JSON_V1.replace("+", " ")) == JSON_V1
    assert negotiate(JSON_V1, "text/csv") is None


@given(st.text(max_size=200))
def test_no_accept_header_breaks_it(accept):
    assert negotiate(accept) in {None, HTML, HTML_V1, JSON_V1}


async def test_both_formats_have_the_same_content(hub, make_wheel):
    for version in ("0.1.0", "0.2.0"):
        await hub.publish(make_wheel(version=version, requires_python=">=3.11,<4"))
    html = await hub.get(PAGE)
    assert html.headers["content-type"] == "text/html; charset=utf-8"
    assert '<meta name="pypi:repository-version" content="1.4">' in html.text
    anchors = Anchors()
    anchors.feed(html.text)
    answer = await hub.get(PAGE, headers={"Accept": PIP})
    assert answer.headers["content-type"] == JSON_V1
    page = answer.json()
    assert (page["meta"]["api-version"], page["name"]) == ("1.5", "reverse-text")
    assert page["versions"] == ["0.1.0", "0.2.0"]
    assert page["project-status"] == {"status": "active"}
    assert len(page["files"]) == len(anchors.links) == 2
    for (text, attributes), file in zip(anchors.links, page["files"], strict=True):
        address, _, fragment = (attributes["href"] or "").partition("#")
        assert text == file["filename"] == address.rsplit("/", 1)[1]
        assert address == file["url"]
        assert fragment == f"sha256={file['hashes']['sha256']}"
        assert attributes["data-requires-python"] == file["requires-python"] == "<4,>=3.11"
        assert attributes["data-core-metadata"] == f"sha256={file['core-metadata']['sha256']}"
        assert attributes["data-core-metadata"] == attributes["data-dist-info-metadata"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", file["upload-time"])
        body = await hub.get(urljoin(f"http://hub.test{PAGE}", file["url"]))
        assert hashlib.sha256(body.content).hexdigest() == file["hashes"]["sha256"]
        assert len(body.content) == file["size"]
        metadata = await hub.get(urljoin(f"http://hub.test{PAGE}", file["url"] + ".metadata"))
        assert hashlib.sha256(metadata.content).hexdigest() == file["core-metadata"]["sha256"]
        assert metadata.content.startswith(b"Metadata-Version: 2.4\nName: reverse-text\n")


async def test_root_lists_projects_in_both_formats(hub, make_wheel):
    empty = await hub.get("/alice/simple/", headers={"Accept": JSON_V1})
    assert empty.json()["projects"] == []
    await hub.publish()
    await hub.publish(make_wheel(name="Other.Thing"))
    html, data = await hub.get("/alice/simple/"), await hub.get("/alice/simple/", headers={"Accept": JSON_V1})
    assert [one["name"] for one in data.json()["projects"]] == ["other-thing", "reverse-text"]
    assert 'href="other-thing/">other-thing</a>' in html.text
    assert (await hub.get("/nobody/simple/")).status_code == 404


async def test_index_pages_support_conditional_requests(hub, make_wheel):
    await hub.publish()
    first = await hub.get(PAGE, headers={"Accept": PIP})
    assert first.headers["cache-control"] == "no-cache"
    assert first.headers["vary"] == "Accept, Accept-Encoding"
    assert not first.headers["etag"].startswith("W/")
    held = {"Accept": PIP, "If-None-Match": first.headers["etag"]}
    assert (await hub.get(PAGE, headers=held)).status_code == 304
    assert (await hub.get(PAGE, headers={"If-None-Match": first.headers["etag"]})).status_code == 200
    await hub.publish(make_wheel(version="0.2.0"))
    changed = await hub.get(PAGE, headers=held)
    assert changed.status_code == 200
    assert "0.2.0" in changed.text


async def test_an_unacceptable_format_is_a_406_that_lists_the_formats(hub):
    await hub.publish()
    for answer in (
        await hub.get(PAGE, headers={"Accept": "image/png"}),
        await hub.get(PAGE, params={"format": "text/csv"}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (406, "not_acceptable")
        assert JSON_V1 in answer.json()["hint"]
    chosen = await hub.get(PAGE, params={"format": JSON_V1}, headers={"Accept": "text/html"})
    assert chosen.headers["content-type"] == JSON_V1


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/alice/simple", "/alice/simple/"),
        ("/alice/simple/reverse-text", PAGE),
        ("/alice/simple/Reverse_Text/", PAGE),
        ("/alice/simple/Reverse.Text", PAGE),
        ("/alice/simple/reverse-text?format=text/html", f"{PAGE}?format=text/html"),
    ],
)
async def test_other_spellings_are_redirected(hub, path, target):
    await hub.publish()
    answer = await hub.get(path)
    assert (answer.status_code, answer.headers["location"]) == (301, target)


async def test_missing_projects_and_files_are_404(hub):
    await hub.publish()
    for path in ("/alice/simple/nothing/", "/bob/simple/reverse-text/", WHEEL + "x", "/alice/files/x/y.whl"):
        answer = await hub.get(path, headers={"Accept": "text/html"})
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"
    assert (await hub.get(WHEEL.replace(".whl", ".tar.gz.metadata"))).status_code == 404


async def test_a_file_is_immutable_and_supports_head_and_ranges(hub):
    sha256 = await hub.publish()
    whole = await hub.get(WHEEL)
    assert whole.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert whole.headers["etag"] == f'"{sha256}"'
    head = await hub.client.head(WHEEL)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(whole.content))
    assert head.headers["accept-ranges"] == "bytes"
    part = await hub.get(WHEEL, headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, whole.content[10:20])
    assert part.headers["content-range"] == f"bytes 10-19/{len(whole.content)}"
    tail = await hub.get(WHEEL, headers={"Range": "bytes=-5"})
    assert tail.content == whole.content[-5:]
    held = await hub.get(WHEEL, headers={"If-None-Match": f'"{sha256}"'})
    assert held.status_code == 304
    past = await hub.get(WHEEL, headers={"Range": f"bytes={len(whole.content)}-"})
    assert past.status_code == 416
    head = await hub.client.head(PAGE)
    assert (head.status_code, head.content) == (200, b"")


async def test_index_pages_and_files_cannot_act_in_a_browser(hub):
    await hub.publish()
    page = await hub.get(PAGE)
    assert page.headers["content-security-policy"].startswith("sandbox")
    for path in (PAGE, WHEEL, WHEEL + ".metadata"):
        assert (await hub.get(path)).headers["x-content-type-options"] == "nosniff"
