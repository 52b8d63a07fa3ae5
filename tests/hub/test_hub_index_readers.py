"""Libraries that read indexes by the letter of the standards read each page, and HTML says what JSON does."""

from __future__ import annotations

import re
import warnings
from urllib.parse import urljoin

import pytest
from pypi_simple import ProjectPage, UnexpectedRepoVersionWarning
from simple_repository import parser
from wander_hub.index.negotiation import JSON_V1

ADDRESS = "http://hub.test{}"


@pytest.fixture
async def pages(hub, make_wheel) -> list[str]:
    """Pages of every kind: many files, yanked, deprecated, archived, odd characters."""
    for version in ("1.0", "1.1", "2.0rc1"):
        await hub.publish(make_wheel(name="plain", version=version, requires_python=">=3.11,<4"))
    for name in ("yanked", "deprecated", "archived"):
        await hub.publish(make_wheel(name=name))
    api, auth = "/api/v1/environments/alice/", hub.auth()
    yank = {"reason": 'wrong <b>"rewards"</b> & worse'}
    status = {"status": "deprecated", "reason": "use <plain> & be happy"}
    for path, body in (
        ("yanked/versions/0.1.0/yank", yank),
        ("deprecated/status", status),
        ("archived/status", {"status": "archived"}),
    ):
        answer = await hub.client.put(api + path, json=body, headers=auth)
        assert answer.is_success, answer.text
    return [f"/alice/simple/{name}/" for name in ("plain", "yanked", "deprecated", "archived")]


async def test_pypi_simple_reads_the_same_from_both(hub, pages):
    for path in pages:
        address, project = ADDRESS.format(path), path.split("/")[-2]
        html = ProjectPage.from_html(project, (await hub.get(path)).text, base_url=address)
        with warnings.catch_warnings():
            # it knows 1.4; the only thing that 1.5 adds is what namespaces say
            warnings.simplefilter("ignore", UnexpectedRepoVersionWarning)
            answer = await hub.get(path, headers={"Accept": JSON_V1})
            data = ProjectPage.from_json_data(answer.json(), base_url=address)
        assert html.repository_version == "1.4"
        assert data.repository_version == "1.5"
        assert html.packages
        assert len(html.packages) == len(data.packages)
        assert (html.status, html.status_reason) == (data.status, data.status_reason)
        for one, two in zip(html.packages, data.packages, strict=True):
            for name in (
                *("filename", "url", "project", "version", "package_type", "digests", "requires_python"),
                *("has_metadata", "metadata_digests", "is_yanked", "yanked_reason"),
            ):
                assert getattr(one, name) == getattr(two, name), (path, name)
            assert two.size
            assert two.upload_time is not None


async def test_simple_repository_reads_the_same_from_both(hub, pages):
    for path in pages:
        html = parser.parse_html_project_page((await hub.get(path)).text, path.split("/")[-2])
        data = parser.parse_json_project_page((await hub.get(path, headers={"Accept": JSON_V1})).text)
        assert html.name == data.name
        assert html.files
        for one, two in zip(html.files, data.files, strict=True):
            assert one.filename == two.filename
            assert one.hashes == two.hashes
            assert one.requires_python == two.requires_python
            assert urljoin(path, one.url) == urljoin(path, two.url)
            assert one.dist_info_metadata == two.dist_info_metadata
            assert (one.yanked or False) == (two.yanked or False)


async def test_index_pages_show_status_and_yanks(hub, pages):
    _, yanked, deprecated, archived = pages
    files = (await hub.get(yanked, headers={"Accept": JSON_V1})).json()["files"]
    assert {file["yanked"] for file in files} == {'wrong <b>"rewards"</b> & worse'}
    status = (await hub.get(deprecated, headers={"Accept": JSON_V1})).json()["project-status"]
    assert status == {"status": "deprecated", "reason": "use <plain> & be happy"}
    html = (await hub.get(archived)).text
    assert '<meta name="pypi:project-status" content="archived">' in html
    assert "<b>" not in (await hub.get(yanked)).text


async def test_index_pages_follow_their_standards(hub, pages):
    for path in pages:
        page = (await hub.get(path, headers={"Accept": JSON_V1})).json()
        assert page["meta"]["api-version"] == "1.5"
        assert set(page["versions"]) == {file["filename"].split("-")[1] for file in page["files"]}
        for file in page["files"]:
            assert isinstance(file["size"], int)
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", file["upload-time"])
            assert "?" not in file["url"]
            metadata = await hub.get(urljoin(ADDRESS.format(path), file["url"] + ".metadata"))
            assert metadata.status_code == 200


async def test_both_clients_read_the_root_page(hub, pages):
    html = parser.parse_html_project_list((await hub.get("/alice/simple/")).text)
    data = parser.parse_json_project_list((await hub.get("/alice/simple/", headers={"Accept": JSON_V1})).text)
    names = [one.normalized_name for one in data.projects]
    assert sorted(one.normalized_name for one in html.projects) == sorted(names)
    assert sorted(names) == ["archived", "deprecated", "plain", "yanked"]
