"""Work on strangers' texts grows as the text does: twice the input costs at most 2.5 times the work."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

import pytest
from wander.wire import gate
from wander_hub.environments.readme import list_headings, place, render
from wander_hub.people import passwords
from wander_hub.web.source import changes
from wander_hub.web.source import files as source

SIZE = 2_000
"""Characters of the smaller text."""


def read_toml(text: str) -> None:
    with contextlib.suppress(gate.Refused):
        gate.read_toml(text.encode(), gate.LOCK)


def draw_markdown(text: str) -> None:
    page = place(render(text, "text/markdown"), "/a/b/versions/1/")
    list_headings(page)
    source.colour_blocks(page)


def draw_code(text: str) -> None:
    for kind in (".py", ".json", ".toml", ".sh", ".console"):
        source._colour.cache_clear()
        list(source.draw_lines(f"a{kind}", text))


def compare(text: str) -> None:
    lines = text.splitlines()
    changes._list_hunks("a.txt", lines, [*lines[1:], "end"])


WORK: dict[str, tuple[Callable[[str], None], list[str]]] = {
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
    "changes": (compare, ["a\n", "a%d\n", "\n", "a\nb\n"]),
}


def make(unit: str, size: int) -> str:
    parts = [unit.replace("%d", str(number)).replace("%%", "%") for number in range(size // len(unit))]
    return "".join(parts)


def count_calls(work: Callable[[str], None], text: str) -> int:
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
def test_work_grows_as_the_text(kind: str):
    work, units = WORK[kind]
    for unit in units:
        work(make(unit, 100))  # what is imported once is not counted
        small, large = (count_calls(work, make(unit, size)) for size in (SIZE, 2 * SIZE))
        assert large <= 2.5 * small + 100, (unit, small, large)


@pytest.mark.parametrize("unit", ["a", "ab", "password", "19", "qwerty", "aA1!", "p4$$w0rd", "20201112"])
def test_the_meter_of_passwords_looks_at_a_bounded_part(unit: str):
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
def test_dotted_keys_of_toml_are_bounded(text: str):
    with pytest.raises(gate.Refused) as refused:
        gate.read_toml(text.encode(), gate.LOCK)
    assert refused.value.too_large


def test_dots_of_strings_are_not_parts_of_keys():
    urls = "".join(f'a{number} = "https://files.example.org/a.b.c-1.2.3.whl"\n' for number in range(8_000))
    assert len(gate.read_toml(urls.encode(), gate.LOCK)) == 8_000
