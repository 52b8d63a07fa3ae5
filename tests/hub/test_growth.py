"""Work on strangers' texts grows as the text does: twice the input costs at most 2.5 times the work."""

from __future__ import annotations

import contextlib
import io
import struct
import sys
import tarfile
import time
from collections.abc import Callable

import pytest
from processor_time import a_second, seconds_of
from wander.errors import ConfigError
from wander.wire import models, untrusted_text
from wander_hub.environments import browse, readme, search
from wander_hub.environments.readme import list_headings, place, render
from wander_hub.environments.schemas import EnvironmentFilter
from wander_hub.http.problems import HubProblem
from wander_hub.people import passwords
from wander_hub.web import source
from wander_hub.web.text import visible

SIZE = 2_000
"""Characters of the smaller text."""


def read_toml(text: str) -> None:
    with contextlib.suppress(untrusted_text.RefusedText):
        untrusted_text.read_toml(text.encode(), untrusted_text.LOCK)


def draw_markdown(text: str) -> None:
    page = place(render(text, "text/markdown"), "/a/b/versions/1/")
    list_headings(page)
    source.color_blocks(page)


def draw_code(text: str) -> None:
    for kind in (".py", ".json", ".toml", ".sh", ".console"):
        source._color.cache_clear()
        list(source.draw_lines(f"a{kind}", text))


WORK: dict[str, tuple[Callable[[str], object], list[str]]] = {
    "Markdown": (
        draw_markdown,
        [
            *["[", "*a **b ", "[a](b) ", "[a%d]: b\n", "| a |\n|---|\n", "<details>", "&amp;", "> ", "- a\n"],
            *[
                "https://a.b/(( ",
                "`a ",
                "$x$ ",
                "![a](b.png) ",
                "# a%d\n",
                "# a\n",
                "a\n-\n",
                "[^%d]: a\n\n[^%d] ",
            ],
            *[
                "```python\nx=1\n```\n",
                "<a href='x'>",
                "[a](../b/%%2e/c) ",
                "<img src=x ",
                "<code>",
                "http://",
            ],
        ],
    ),
    "TOML": (
        read_toml,
        [
            "a.",
            "a%d.b.c=1\n",
            "[a%d.b.c]\n",
            "[[a]]\n",
            '"a".',
            "a%d={b={c=1}}\n",
            "#\n",
            "a=[[",
            "[[a]]\nb.c=1\n",
        ],
    ),
    "code": (
        draw_code,
        [
            "a",
            "([{",
            "'",
            '"',
            '"""',
            "f'{",
            "\\",
            "@a\n",
            "def a(",
            "x=1\n",
            "$(",
            "<<a\n",
            '{"a":',
            "[1,",
            "$ a\n",
        ],
    ),
    "hidden characters": (visible, ["\0", "\0\1", "a\0", "\u202e<", "\ufeff ", "\ud800"]),
}


def make(unit: str, size: int) -> str:
    parts = [unit.replace("%d", str(number)).replace("%%", "%") for number in range(size // len(unit))]
    return "".join(parts)


def count_calls(work: Callable[[str], object], text: str) -> int:
    """Return how many functions were called: seconds would be those of a busy machine."""
    calls = 0

    def step(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(step)
    try:
        work(text)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.full
@pytest.mark.parametrize("kind", WORK)
def test_work_grows_linearly_with_the_text(kind: str):
    work, units = WORK[kind]
    for unit in units:
        work(make(unit, 100))  # what is imported once is not counted
        small, large = (count_calls(work, make(unit, size)) for size in (SIZE, 2 * SIZE))
        assert large <= 2.5 * small + 100, (unit, small, large)


@pytest.mark.parametrize("unit", ["a", "ab", "password", "19", "qwerty", "aA1!", "p4$$w0rd", "20201112"])
def test_the_password_check_reads_a_limited_part(unit: str):
    passwords._fault("an ordinary passphrase", "alice")
    small, large = (
        count_calls(lambda text: passwords._fault(text, "alice"), (unit * passwords.LONGEST)[:size])
        for size in (passwords._LOOKED_AT, passwords.LONGEST)
    )
    assert large <= 2.5 * small + 100


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"[a{number}.b.c.d.e]\n" for number in range(10_000)),
        "".join(f'"=".a{number}."b".c=1\n' for number in range(10_000)),
        "".join(f'x{number}."\\\\".a.b.c."y"=1\n' for number in range(10_000)),
        "a={" + ",".join(f"b{number}.c.d=1" for number in range(15_000)) + "}",
    ],
)
def test_dotted_keys_in_toml_are_limited(text: str):
    with pytest.raises(untrusted_text.RefusedText) as refused:
        untrusted_text.read_toml(text.encode(), untrusted_text.LOCK)
    assert refused.value.too_large


def test_dots_in_strings_do_not_count_as_key_parts():
    urls = "".join(f'a{number} = "https://files.example.org/a.b.c-1.2.3.whl"\n' for number in range(8_000))
    assert len(untrusted_text.read_toml(urls.encode(), untrusted_text.LOCK)) == 8_000


@pytest.mark.parametrize(
    "unit", ["\0\1", *(pytest.param(unit, marks=pytest.mark.full) for unit in ("\0", "a\0"))]
)
def test_a_text_of_hidden_characters_is_shortened_quickly(unit: str):
    text = make(unit, 1_000_000)
    assert seconds_of(lambda: visible(text)) < a_second()
    assert len(visible(text)) < 1_100_000
    assert visible("a\0\0\0b") == 'a<span class="hidden-character">U+0000 × 3</span>b'


def hostile_header(tensors: int, numbers: str) -> bytes:
    """Return a file of weights whose header names so many tensors, each of that shape."""
    named = ",".join(
        f'"a{number}":{{"dtype":"F32","shape":[{numbers}],"data_offsets":[0,0]}}' for number in range(tensors)
    )
    header = f"{{{named}}}".encode()
    return struct.pack("<Q", len(header)) + header


@pytest.mark.parametrize(
    "numbers",
    [
        "9,9,9,9,9,9,9,9",
        *(
            pytest.param(numbers, marks=pytest.mark.full)
            for numbers in ("9", "99999999999", ",".join(["99999999999"] * 200))
        ),
    ],
)
def test_reading_a_weights_header_is_linear_in_its_length(numbers: str):
    def count(body: bytes) -> None:
        with contextlib.suppress(ConfigError):
            models.count_parameters(
                {"model.safetensors": len(body)}, lambda _, start, size: body[start : start + size]
            )

    unit = len(hostile_header(2, numbers)) - len(hostile_header(1, numbers))
    small, large = (hostile_header(max(size // unit, 1), numbers) for size in (50_000, 800_000))
    count(small)
    once, sixteenfold = seconds_of(lambda: count(small), 12), seconds_of(lambda: count(large), 12)
    assert sixteenfold <= 2.5**4 * once  # objects that outgrow the processor's caches cost somewhat more each
    assert sixteenfold < 1


@pytest.mark.parametrize(
    "unit",
    [
        *["*", "`", "|a|", "|a%d| ", "- a\n", "a\n=\n", "a%d\n=====\n", ".. a::\n", "a_ ", "a%d_ ", "[1]_ "],
        *["[#]_ ", "+-+\n", "::\n\n a\n", ".. _a%d: b\n", "**a* ", "`a <b>`_ ", ":a:`b` ", "\\", "a::\n  "],
        *[".. |a%d| replace:: b\n", ".. role:: a%d\n", "> a\n  b\n", "= =\na a\n= =\n", "__ a\n", ":a: b\n"],
    ],
)
@pytest.mark.full
def test_slow_restructuredtext_is_abandoned(unit: str):
    text = make(unit, readme._MOST_RST)
    assert seconds_of(lambda: place(render(text, "text/x-rst"), "/a/b/versions/1/"), tries=1) < a_second()


@pytest.mark.parametrize(
    "unit",
    [
        *("a ", '"', "NEAR(", "\0 "),
        *(
            pytest.param(unit, marks=pytest.mark.full)
            for unit in ("a", "ab%d ", "mate ", "mat ", "*", "é", "a\u0301", "-a ", "a OR ")
        ),
    ],
)
async def test_search_time_is_linear_in_its_text(hub, make_wheel, unit: str):
    for number in range(3):
        await hub.publish(make_wheel(name=f"mate-{number}", summary="Mate in one, in letters."))
    with hub.database.read() as session:

        def find(text: str) -> None:
            session.info.clear()
            search.find(session, EnvironmentFilter(q=text), None, 20)

        find(make(unit, 100))
        small, large = (count_calls(find, make(unit, size)) for size in (SIZE, 2 * SIZE))
    assert large <= 2.5 * small + 100, (small, large)


@pytest.mark.parametrize("field", ["tag", "kind", "license"])
async def test_filter_time_is_linear_in_its_text(hub, field: str):
    await hub.publish()
    with hub.database.read() as session:

        def narrow(text: str) -> None:
            with contextlib.suppress(HubProblem):
                browse.page(session, EnvironmentFilter(**{field: text}))

        for unit in ("a", "%", "_", "a ", '"', "'", "a%d-"):
            narrow(make(unit, 100))
            small, large = (count_calls(narrow, make(unit, size)) for size in (SIZE, 2 * SIZE))
            assert large <= 2.5 * small + 100, (unit, small, large)


def wheel_with(make_wheel, version: str, members: int):
    """Return a wheel of so many modules, each of which holds its version."""
    modules = {
        f"pkg/sub{number % 50}/file{number}.py": f"x = '{version}'\n".encode() for number in range(members)
    }
    return make_wheel(version=version, files={"reverse_text.py": b"", **modules})


async def publish_source(hub, owner: str, members: int) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        metadata = b"Metadata-Version: 2.4\nName: reverse-text\nVersion: 0.2.0\nLicense-Expression: MIT\n"
        project = (
            b"[project]\nname='reverse-text'\nversion='0.2.0'\n"
            b"[project.entry-points.'wander.environments']\nreverse-text='reverse_text:load_environment'\n"
        )
        files = {"PKG-INFO": metadata, "pyproject.toml": project, "reverse_text.py": b""}
        files |= {f"pkg/sub{number % 50}/file{number}.py": b"x = 1\n" for number in range(members)}
        for path, body in files.items():
            member = tarfile.TarInfo(f"reverse_text-0.2.0/{path}")
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    answer = await hub.upload(buffer.getvalue(), "reverse_text-0.2.0.tar.gz", owner=owner, user=owner)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "most", [pytest.param(4_800, marks=pytest.mark.full), pytest.param(19_000, marks=pytest.mark.slow)]
)
async def test_archive_time_is_linear_in_its_members(hub, make_wheel, monkeypatch, most):
    """The processor time of all threads of this process, whose hub answers within it."""
    spent: dict[str, list[float]] = {}
    for members, owner in ((most // 4, "alice"), (most, "bob")):
        for version in ("0.1.0", "0.2.0"):
            await hub.publish(wheel_with(make_wheel, version, members), owner=owner)
        at = f"/{owner}/reverse-text"
        await publish_source(hub, owner, members)
        for name, path in {
            "source": "/versions/0.2.0/source",
            "source archive": "/versions/0.2.0/source?archive=source",
            "image": "/versions/0.2.0/image?file=none.png",
        }.items():
            times = []
            for _ in range(3):
                begun = time.process_time()
                answer = await hub.get(at + path, headers={"Accept": "text/html", "Cookie": "none=1"})
                times.append(time.process_time() - begun)
                assert answer.status_code == (404 if name == "image" else 200), answer.text[:300]
            spent.setdefault(name, []).append(min(times))
    for name, (small, large) in spent.items():
        assert large <= 2.5**2 * small, (name, small, large)
        assert large < a_second(), (name, small, large)
