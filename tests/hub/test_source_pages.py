"""Pages of source code: what a wheel installs, line by line, and what two versions changed."""

from __future__ import annotations

import io
import re
import tarfile

import pytest
from wander_hub.web import source

HTML = {"Accept": "text/html"}
DRAWN = HTML | {"Cookie": "none=1"}
"""Headers of a reader for whom no page is kept."""
MODULE = (
    b'"""Reverse."""\n\n\ndef load_environment():\n    return "</pre><script>alert(1)</script>\xe2\x80\xae"\n'
)
AT = "/alice/reverse-text"


@pytest.fixture
async def two(hub, make_wheel):
    """Two versions: a module changed in one line, one came, one went, and bytes that are no text."""
    files = {"reverse_text.py": MODULE, "gone.py": b"", "weights.bin": b"\xff\xfe" * 9, "same.json": b"{}"}
    await hub.publish(make_wheel(files=files))
    files = {
        **files,
        "reverse_text.py": MODULE + b"\nLIMIT = 3\n",
        "weights.bin": b"\xff\xfd" * 9,
        "új.py": b"A = 1\n",
    }
    del files["gone.py"]
    await hub.publish(make_wheel(version="0.2.0", files=files))
    return hub.client


async def show(client, path: str, *, headers=HTML, **options):
    answer = await client.get(AT + path, headers=headers, **options)
    assert answer.status_code == 200, answer.text
    return answer


async def test_a_version_shows_the_module_of_its_entry_point_line_by_line(two):
    text = (await show(two, "/versions/0.1.0/source")).text
    assert '<span id="L4"><a href="#L4">4</a><span class="k">def</span>' in text
    assert "<script>alert" not in text
    assert "&lt;/pre&gt;&lt;script&gt;" in text
    assert "U+202E" in text, "what reorders a line is seen"
    assert re.findall(r'href="\?file=([^"]+)"', text)[:2] == ["gone.py", "reverse_text.py"]
    latest = await show(two, "/versions/latest/source", params={"file": "reverse_text.py"})
    assert "LIMIT" in latest.text
    described = text.partition("package metadata</summary>")[2]
    assert re.findall(r'href="\?file=([^"]+)"', described)[0].endswith(".dist-info/METADATA")


async def test_every_line_of_a_file_has_its_number(two):
    text = (await show(two, "/versions/0.2.0/source")).text
    drawn = re.search(r'<pre class="source">(.*?)</pre>', text, re.DOTALL)[1]
    lines = re.findall(r'<span id="L(\d+)"><a href="#L\1">\1</a>(.*?)\n</span>', drawn, re.DOTALL)
    assert [int(number) for number, _ in lines] == list(range(1, 8))
    assert re.sub("<[^>]*>", "", lines[6][1]) == "LIMIT = 3"


async def test_binary_and_missing_files_are_explained(two, monkeypatch):
    text = (await show(two, "/versions/0.1.0/source", params={"file": "weights.bin"})).text
    assert "not text (18 B)" in text
    assert 'class="source"' not in text
    assert (
        "This file is empty" in (await show(two, "/versions/0.1.0/source", params={"file": "gone.py"})).text
    )
    missing = await two.get(f"{AT}/versions/0.1.0/source", params={"file": "../../etc/passwd"}, headers=HTML)
    assert (missing.status_code, "no file" in missing.text) == (404, True)
    near = await two.get(f"{AT}/versions/0.1.0/source", params={"file": "weight.bin"}, headers=HTML)
    assert (near.status_code, "did you mean <code>weights.bin</code>?" in near.text) == (404, True)
    monkeypatch.setattr(source, "_MOST_LINES", 2)
    assert "Only the first 2 lines" in (await show(two, "/versions/0.1.0/source")).text
    monkeypatch.setattr(source, "_MOST_BYTES", 100)
    refused = await two.get(f"{AT}/versions/0.1.0/source")
    assert (refused.status_code, "too large" in refused.text) == (413, True)


async def test_source_is_read_by_whom_the_version_is_offered(two, hub):
    page = f"{AT}/versions/0.1.0/source"
    await hub.client.put(f"/api/v1/environments{AT}/visibility", json={"private": True}, headers=hub.auth())
    assert (await two.get(page, headers=HTML)).status_code == 404
    assert (await two.get(page, headers={**HTML, **hub.auth()})).status_code == 200


async def test_pages_run_only_scripts_of_the_hub(two):
    page = await show(two, "/versions/0.1.0/source")
    assert page.headers["content-security-policy"].endswith(
        "script-src http://hub.test/static/; connect-src 'self'"
    )
    loaded = re.findall(
        r'<script type="module" src="http://hub.test(/static/\w+\.js\?v=\w+)"></script>', page.text
    )
    assert [one.partition("?")[0] for one in loaded] == ["/static/wander.js", "/static/source.js"]
    for address in loaded:
        script = await two.get(address)
        assert (script.status_code, script.headers["content-type"].split(";")[0]) == (200, "text/javascript")
        assert "immutable" in script.headers["cache-control"]
    assert page.text.count("<script") == 2
    assert (await two.get("/static/templates.py")).status_code == 404


async def test_code_in_a_readme_is_colored_and_stays_text(hub, make_wheel, monkeypatch):
    code = "```python\ndef f(x): return '<script>alert(1)</script>'\n```\n"
    raw = '<pre><code class="language-python" onclick="x">def <b>g</b>(): ...</code></pre>'
    await hub.publish(make_wheel(readme=f"# Code\n\n{code}\n{raw}\n\n```sh\nls &amp; \u202e\n```\n"))
    drawn = (await show(hub.client, "")).text.partition('id="readme"')[2]
    assert '<code><span class="k">def</span> <span class="nf">f</span>(x)' in drawn
    session = source.color_blocks(
        '<pre><code class="language-console">$ A=1 wander \\\n  "x"\n&lt;b&gt;\n</code></pre>'
    )
    assert '<span class="gp">$ </span><span class="nv">A</span>=' in session
    assert '<span class="s">&#34;x&#34;</span>\n<span class="go">&lt;b&gt;</span>' in session
    assert "<script>alert" not in drawn
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in drawn
    assert '<code class="language-python">def <b>g</b>(): ...</code>' in drawn, (
        "what is not text alone is left"
    )
    assert "ls &amp;amp; \ufffd" in drawn
    monkeypatch.setattr(source, "_MOST_COLORED", 10)
    assert '<span class="k">' not in (await show(hub.client, "", headers=DRAWN)).text, "no page takes seconds"


async def test_images_of_a_package_are_shown_in_its_readme(hub, make_wheel):
    spec = make_wheel(readme="![curve](reverse_text/curve.png) ![no](gone.png)")
    spec.files = {**spec.files, "reverse_text/curve.png": b"\x89PNG\r\n", "reverse_text/x.html": b"<script>"}
    await hub.publish(spec)
    page = (await show(hub.client, "")).text
    (address,) = re.findall(r'<img src="([^"]+curve.png)" alt="curve"', page)
    assert address == f"{AT}/versions/0.1.0/image?file=reverse_text/curve.png"
    image = await hub.client.get(address)
    assert (image.content, image.headers["content-type"]) == (b"\x89PNG\r\n", "image/png")
    assert image.headers["content-security-policy"].startswith("sandbox")
    for path in ("gone.png", "reverse_text/x.html", "../curve.png"):
        answer = await hub.client.get(f"{AT}/versions/0.1.0/image", params={"file": path})
        assert answer.status_code == 404, path


def test_no_more_of_an_archive_is_unpacked_for_an_image_than_of_a_wheel(monkeypatch):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, size in (("a-1/small.png", 5), ("a-1/zeros", 10_000), ("a-1/behind.png", 5)):
            member = tarfile.TarInfo(name)
            member.size = size
            archive.addfile(member, io.BytesIO(bytes(size)))
    monkeypatch.setattr(source, "_MOST_BYTES", 9_000)
    for path, found in (("small.png", bytes(5)), ("behind.png", None)):
        packed.seek(0)
        assert source._member_of_source(packed, path) == found
