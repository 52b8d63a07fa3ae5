"""The gate counts what a text can become before anything is built of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processor_time import a_second, seconds_of
from pydantic import Field
from wander.types import Record
from wander.wire import untrusted_text
from wander.wire.untrusted_text import KINDS, MIB, MOST_DEPTH, MOST_DIGITS, RefusedText, TextKind

DOCS = Path(__file__).resolve().parents[2] / "docs" / "package-index.md"
NUMBERS = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text('ab",:[]{}\\\n\u2028\U0001f600', max_size=8)
KEYS = st.text('k"\\:,', max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=40,
)


class Thing(Record):
    """A record with a list of each kind."""

    names: list[str]
    pairs: list[tuple[int, int]] = Field(default_factory=list)
    words: dict[str, int] = Field(default_factory=dict)


def count(value: Any) -> int:
    """Return the values of a JSON value, keys included."""
    if isinstance(value, dict):
        return 1 + sum(1 + count(one) for one in value.values())
    return 1 + sum(map(count, value)) if isinstance(value, list) else 1


def smallest_kind(text: bytes) -> int:
    """Return the fewest values that a kind must allow for a text."""
    low, high = 0, 4 * len(text) + 4
    while low < high:
        middle = (low + high) // 2
        try:
            TextKind("it", MIB, middle).check_json(text)
            high = middle
        except RefusedText:
            low = middle + 1
    return low


@given(VALUES, st.sampled_from([None, 1, " "]), st.booleans(), st.integers(1, 9))
def test_texts_contain_no_more_values_than_counted(value, indent, ascii_only, window):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    before, untrusted_text._WINDOW = untrusted_text._WINDOW, window
    try:
        counted = smallest_kind(text)
    finally:
        untrusted_text._WINDOW = before
    assert count(value) <= counted <= 3 * count(value) + 2
    assert untrusted_text.read_json(text, TextKind("it", MIB, counted)) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 200 + b"]" * 200,
        b'{"a":' * 70 + b"1" + b"}" * 70,
        b"[" * (MIB - 1),
        b'{"a":[' * 5000,
        b"[]" * 100_000 + b"[" * 80,
        b"9" * (MOST_DIGITS + 1),
        b"[0." + b"1" * (MOST_DIGITS + 1) + b"]",
        b"-1e" + b"0" * 500,
        b"[1e999]",
        b'{"a":-1E+400}',
        b"NaN",
        b"[Infinity]",
        b"[1,]",
        b'{"a":1',
        b'"\\ud800"',
        b"\xff\xfe[\x00]\x00",
        b"",
        b"[" + b"0," * 300_000 + b"0]",
        b"[" + b'"",' * 300_000 + b'""]',
        b'"' * (MIB - 1),
        b"\\" * (MIB - 1),
        b'"' + b'\\"' * (MIB // 2),
        b" " * MIB,
        b" " * (MIB + 1),
    ],
    ids=lambda text: repr(text[:12]),
)
def test_oversized_and_invalid_json_is_rejected_quickly(text):
    def read() -> None:
        with pytest.raises(RefusedText) as refused:
            untrusted_text.read_json(text, TextKind("it", MIB, 200_000))
        assert len(str(refused.value)) < 500

    assert seconds_of(read, tries=1) < a_second() / 2


def test_numbers_within_the_limits_are_read():
    kind = TextKind("it", MIB, 1000)
    largest = "1" + "0" * 308
    text = f'[{largest}, {largest}.5, 1e308, 1e-999, -0.0, 18446744073709551616, "NaN", "1e999"]'
    assert untrusted_text.read_json(text, kind) == json.loads(text)
    assert untrusted_text.read_json("[" * MOST_DEPTH + "]" * MOST_DEPTH, kind)


def test_invalid_lists_give_few_errors():
    kind = TextKind("it", 16 * MIB, 2_000_000)
    began = time.process_time()
    for text, place in (
        (b'{"names":[' + b"1," * 500_000 + b"1]}", "names.0"),
        (b'{"names":[],"pairs":[' + b"[]," * 100_000 + b"[]]}", "pairs.0"),
        (b'{"names":[],"words":{' + b",".join(b'"%d":""' % n for n in range(100_000)) + b"}}", ""),
        (b'{"names":[],' + b",".join(b'"%d":1' % n for n in range(100_000)) + b"}", ""),
    ):
        with pytest.raises(RefusedText) as refused:
            untrusted_text.read_record(Thing, text, kind)
        assert refused.value.place.startswith(place)
        assert not refused.value.too_large
    assert time.process_time() - began < 3 * a_second()


@pytest.mark.parametrize(
    "text",
    [
        b"a" + b".a" * 8000 + b" = 1\n",
        b"[a" + b".a" * 8000 + b"]\n",
        b"x = '\"'\n'\"'" + b".a" * 8000 + b" = 1\n",
        b"x = { a" + b" . a" * 8000 + b" = 1 }\n",
        b"\n".join(b"k%d" % n + b".a" * 300 + b" = 1" for n in range(400)),
        b"x = " + b"[" * 50_000,
        b"x = " + b"{a = " * 50_000,
        b"x = " + b"7" * 5000,
        b"x = " + b"7_" * 5000 + b"7",
        b"x = [" + b"1," * 150_000 + b"]",
        b"\n" * 150_000,
        b"x = 1\n" * 2,
        b"x = \xff",
    ],
    ids=lambda text: repr(text[:16]),
)
def test_oversized_toml_is_rejected_quickly(text):
    def read() -> None:
        with pytest.raises(RefusedText):
            untrusted_text.read_toml(text, TextKind("it", MIB, 100_000))

    assert seconds_of(read, tries=1) < a_second()


def test_ordinary_toml_is_read():
    text = (
        b'a.b.c = "1.2.3.4"\n[tool.x."y.z"]\n' + b'u = "https://files.example/a.b-1.2.3.whl"\n' + b"\n" * 99
    )
    assert untrusted_text.read_toml(text, untrusted_text.PROJECT)["a"]["b"]["c"] == "1.2.3.4"
    long = b"x = [" + b'"https://a.example/b.c.d-1.0.whl", ' * 200 + b"]\n"
    assert len(untrusted_text.read_toml(long, untrusted_text.LOCK)["x"]) == 200


def test_each_kind_of_text_has_its_name_and_limits():
    assert len({one.name for one in KINDS}) == len(KINDS)
    assert all(0 < one.most_bytes <= 64 * MIB and 0 < one.most_values <= 4_000_000 for one in KINDS)


def test_the_documentation_lists_every_kind():
    """If this fails, put the expected rows at the end of docs/package-index.md."""

    def size(number: int) -> str:
        return f"{number // MIB} MiB" if number >= MIB else f"{number // untrusted_text.KIB} KiB"

    rows = "".join(
        f"|{one.name}|{size(one.most_bytes)}|{one.most_values:,}|"
        f"{f'{one.most_nodes:,}' if one.most_nodes else 'all'}|\n"
        for one in KINDS
    )
    assert DOCS.read_text().endswith(rows), rows
