"""What a submitter states and nobody can derive: contradictions are refused, the rest is shown as stated."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

WORDS = "The answer to this question is four, since two and two make four. " * 20
"""Some thousand letters, which no tokenizer writes in 32 tokens."""


def turn(text: str, completion: int = 0, prompt: int = 0, **changes: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    usage = {"completion_tokens": completion, "prompt_tokens": prompt}
    return {"message": message, "context_messages": 1, "usage": usage} | changes


def ids(count: int) -> dict[str, Any]:
    return {"prompt_ids": [1], "completion_ids": [1] * count, "logprobs": [-0.5] * count}


FORGERIES: dict[str, tuple[list[dict[str, Any]], tuple[int, int], int | None, str]] = {
    "one token for a long answer": (
        [turn(WORDS, 1)],
        (5, 1),
        None,
        "turn 1 has at least 31 tokens, but reports 1",
    ),
    "one token for a rollout, none for its turns": (
        [turn(WORDS)],
        (5, 1),
        None,
        "completion tokens, but it reports 1",
    ),
    "one token and one id for a long answer": (
        [turn(WORDS, 1, tokens=ids(1))],
        (5, 1),
        None,
        "but reports 1",
    ),
    "less in all than in its turns": (
        [turn("a", 9), turn("b", 9)],
        (5, 10),
        None,
        "completion tokens, but it reports 10",
    ),
    "less prompt than in its turns": ([turn("a", 9, 50)], (20, 9), None, "but it reports 20"),
    "less than its ids": (
        [turn("a", 3, tokens=ids(9))],
        (5, 3),
        None,
        "turn 1 has at least 8 tokens, but reports 3",
    ),
    "over its own limit": ([turn("a", 1), turn("b", 90)], (5, 91), 64, "turn 2 has at least 89 tokens"),
    "over its own limit by its ids": (
        [turn("a", tokens=ids(90))],
        (5, 0),
        64,
        "turn 1 has at least 89 tokens",
    ),
    "a board of its own, by its text": ([turn(WORDS)], (5, 0), 1, "turn 1 has at least 31 tokens"),
}
HONEST: dict[str, tuple[list[dict[str, Any]], tuple[int, int], int | None]] = {
    "no counts at all": ([turn(WORDS)], (0, 0), None),
    "counts of the endpoint": ([turn(WORDS, 300, 40), turn("b", 2, 350)], (390, 302), 300),
    "the end of the turn beyond the limit": ([turn("a", 65, tokens=ids(65))], (5, 65), 64),
    "the end of the turn among the ids alone": ([turn("a", 64, tokens=ids(65))], (5, 64), 64),
    "more in all than in its turns": ([turn("a", 9)], (50, 40), None),
    "an answer of blanks and rules": ([turn(" " * 500 + "=" * 500, 12)], (5, 12), None),
    "parts with a picture": (
        [
            turn("a", 2)
            | {"message": {"role": "assistant", "content": [{"type": "image", "data": "A" * 9000}]}}
        ],
        (5, 2),
        64,
    ),
}


async def post(hub: Any, run_of: Any, turns: list[Any], total: tuple[int, int], limit: int | None) -> Any:
    manifest, rollouts = run_of(await hub.publish())
    if limit is not None:
        manifest["sampling"] = {"max_tokens": limit}
        for line in rollouts:  # the other rollouts keep the limit
            line["turns"], line["usage"] = [turn("a", 1)], {"completion_tokens": 1}
    usage = {"prompt_tokens": total[0], "completion_tokens": total[1]}
    rollouts[2] |= {"turns": deepcopy(turns), "completion": [one["message"] for one in turns], "usage": usage}
    return await hub.post_run(manifest, rollouts)


@pytest.mark.parametrize("forgery", FORGERIES)
async def test_contradictory_token_counts_are_rejected(hub: Any, run_of: Any, forgery: str) -> None:
    turns, total, limit, fault = FORGERIES[forgery]
    answer = await post(hub, run_of, turns, total, limit)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_rollouts"), answer.text
    assert fault in answer.json()["detail"]
    assert answer.json()["errors"][0]["line"] == 3


@pytest.mark.parametrize("case", HONEST)
async def test_honest_counts_are_accepted(hub: Any, run_of: Any, case: str) -> None:
    answer = await post(hub, run_of, *HONEST[case])
    assert answer.status_code == 201, answer.text


ODD_NAMES = {
    "org/Qwen3\u200b-4B": "ZERO WIDTH SPACE (U+200B)",
    "org/\u202eB4-3newQ": "RIGHT-TO-LEFT OVERRIDE (U+202E)",
    "gpt-\u0430": "CYRILLIC SMALL LETTER A (U+0430)",
    "\u0421laude": "CYRILLIC CAPITAL LETTER ES (U+0421)",
    "cl\u03b1ude": "GREEK SMALL LETTER ALPHA (U+03B1)",
    "\uff47pt": "FULLWIDTH LATIN SMALL LETTER G (U+FF47)",
    "qw\u00e9n": "LATIN SMALL LETTER E WITH ACUTE (U+00E9)",
    "gpt\u20115": "NON-BREAKING HYPHEN (U+2011)",
    "gpt\u00a05": "NO-BREAK SPACE (U+00A0)",
    "gpt\u20285": "LINE SEPARATOR (U+2028)",
    "gpt\x855": "a character (U+0085)",
    "gpt\U000e00415": "TAG LATIN CAPITAL LETTER A (U+E0041)",
    "gpt\x075": "1 to 300 printable characters",
    "gpt-5 ": "1 to 300 printable characters",
    " ": "1 to 300 printable characters",
}


@pytest.mark.parametrize(
    "name",
    [*[*ODD_NAMES][:4], *(pytest.param(each, marks=pytest.mark.full) for each in [*ODD_NAMES][4:])],
)
async def test_confusable_names_are_rejected(hub: Any, run_of: Any, name: str) -> None:
    manifest, rollouts = run_of(await hub.publish(), model=name)
    answer = await hub.post_run(manifest, rollouts)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_manifest"), answer.text
    assert ODD_NAMES[name] in answer.json()["detail"]


@pytest.mark.parametrize("name", ["a", "org/Qwen3-4B (4 bit): v1.0", "通义千问-3", "ひらがな", "한국어-7B"])
async def test_other_names_are_accepted(hub: Any, run_of: Any, name: str) -> None:
    manifest, rollouts = run_of(await hub.publish(), model=name)
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    page = await hub.get(f"/runs/{manifest['run_id']}", headers={"Accept": "text/html"})
    assert "tokens in / out (self-reported)" in page.text
    assert "No level proves this" in page.text


async def test_one_token_for_an_answer_without_turns_is_rejected(hub: Any, run_of: Any) -> None:
    manifest, rollouts = run_of(await hub.publish())
    said = [{"role": "assistant", "content": WORDS}]
    rollouts[2] |= {"turns": [], "completion": said, "usage": {"completion_tokens": 1}}
    answer = await hub.post_run(manifest, rollouts)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_rollouts"), answer.text
    assert "its turns have at least 31 completion tokens, but it reports 1" in answer.json()["detail"]
