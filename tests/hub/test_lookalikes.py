"""Names of models that look like other names carry a mark on boards and in lists."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wander_hub.names import find_odd_letter, skeleton

API = "/api/v1/environments/alice/reverse-text"
HTML = {"Accept": "text/html"}

ALIKE = [
    ("gpt-5.1", "gpt-5.l"),
    ("gpt-5.1", "gpt-5.I"),
    ("GPT-4O", "GPT-40"),
    ("gemma-3", "gernma-3"),
    ("modern", "rnodern"),
    ("ヘイズ-7B", "へイズ-7B"),
    ("工作-1", "エ作-1"),
    ("gpt一5", "gpt-5"),
    ("o1|l", "O1ll"),
]
APART = [
    ("gpt-5", "gpt-51"),
    ("gpt-5", "GPT-5"),
    ("qwen3-4b", "qwen3-8b"),
    ("通义-3", "通义-2"),
    ("a-b", "a_b"),
]


@pytest.mark.parametrize("names", ALIKE, ids=" and ".join)
def test_similar_names_have_one_skeleton(names: tuple[str, str]) -> None:
    one, other = map(skeleton, names)
    assert (one == other) is (names != ("o1|l", "O1ll")), "case is not a likeness"


@pytest.mark.parametrize("names", APART, ids=" and ".join)
def test_different_names_have_different_skeletons(names: tuple[str, str]) -> None:
    assert skeleton(names[0]) != skeleton(names[1])


@given(st.text(max_size=12))
def test_a_skeleton_looks_like_itself(name: str) -> None:
    assert skeleton(skeleton(name)) == skeleton(name)


@given(st.text(string.printable, max_size=12))
def test_ascii_letters_are_not_suspicious(name: str) -> None:
    assert find_odd_letter(name) is None


@pytest.mark.parametrize(
    "name", ["通义千问", "零一万物 Yi-34B", "ひらがな", "한국어", "ไทย", "Жди", "統一-7B", "हिन्दी"]
)
def test_names_in_other_scripts_are_not_suspicious(name: str) -> None:
    assert find_odd_letter(name) is None


@given(st.characters(min_codepoint=128))
def test_a_letter_that_is_let_in_does_not_look_like_a_letter_of_ascii(letter: str) -> None:
    if find_odd_letter(letter) is None:
        assert skeleton(letter) not in set(string.printable) - set("-")


async def post(hub: Any, run_of: Any, sha256: str, number: int, model: str, user: str = "alice") -> str:
    manifest, rollouts = run_of(sha256, run_id=f"01RUN{number:021d}", model=model)
    answer = await hub.post_run(manifest, rollouts, user=user)
    assert answer.status_code == 201, answer.text
    return str(manifest["run_id"])


async def test_similar_names_are_marked_in_all_lists(hub: Any, run_of: Any) -> None:
    sha256 = await hub.publish()
    names = ["gpt-5.1", "gpt-5.l", "GPT-40", "GPT-4O", "gemma-3", "gernma-3", "gpt-一-5", "alone"]
    for number, name in enumerate(names):
        await post(hub, run_of, sha256, number, name, "bob" if number % 2 else "alice")
    board = (await hub.get(f"{API}/leaderboard")).json()
    expected = dict(zip(names[:6], [[names[n + 1 - 2 * (n % 2)]] for n in range(6)], strict=True))
    expected |= {"gpt-一-5": ["gpt---5"], "alone": []}
    assert {row["model"]: row["looks_like"] for row in board["rows"]} == expected
    runs = (await hub.get("/api/v1/runs?environment=alice/reverse-text")).json()["data"]
    assert {one["manifest"]["model"]["name"]: one["looks_like"] for one in runs} == expected
    paths = ["/alice/reverse-text/leaderboard", "/alice/reverse-text", "/runs", f"/runs/01RUN{1:021d}"]
    for path in paths:
        page = await hub.get(path, headers=HTML)
        assert page.status_code == 200
        assert "looks like gpt-5.1" in page.text, path
    alone = await hub.get(f"/runs/01RUN{7:021d}", headers=HTML)
    assert "looks like" not in alone.text


async def test_only_runs_that_everybody_sees_give_a_mark(hub: Any, run_of: Any, make_wheel: Any) -> None:
    sha256 = await hub.publish()
    mine = await post(hub, run_of, sha256, 1, "gpt-5.1")
    theirs = await post(hub, run_of, sha256, 2, "gpt-5.l", "bob")

    async def marks() -> list[str]:
        rows = (await hub.get(f"{API}/leaderboard")).json()["rows"]
        return next(list(row["looks_like"]) for row in rows if row["run_id"] == mine)

    assert await marks() == ["gpt-5.l"]
    gone = await hub.client.delete(f"/api/v1/runs/{theirs}?reason=wrong", headers=hub.auth("bob"))
    assert gone.status_code == 200, gone.text
    assert await marks() == []
    other = await hub.publish(
        make_wheel(
            name="other",
            files={"other.py": b"def load_environment(): ...\n"},
            entry_points="[wander.environments]\nother = other:load_environment\n",
        )
    )
    manifest, rollouts = run_of(other, run_id=f"01RUN{3:021d}", model="gpt-5.I", name="other")
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    assert await marks() == [], "in another environment"
