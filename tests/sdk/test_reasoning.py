"""Where reasoning ends and the answer begins, whatever a model or a server makes of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wander import Rubric, ScriptedClient, SingleTurnEnv
from wander.parsers import MaybeThinkParser, Parser, ThinkParser, XMLParser, answer_text
from wander.reasoning import read_reasoning, without_reasoning
from wander.rubrics.judge import read_verdict
from wander.rubrics.math import MathRubric

PAIRS = [
    ("<think>", "</think>"),
    ("<THINK>", "</Think>"),
    ('<think time="5">', "</think>"),
    ("< think >", "</ think >"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
]
DRAFT, ANSWER = "maybe \\boxed{3}? <answer>3</answer> yes", "\\boxed{5} <answer>5</answer>"
ENCLOSED = pytest.mark.parametrize(("opening", "closing"), PAIRS)


def said(text: Any, **fields: Any) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": text, **fields}]


async def solved(completion: list[dict[str, Any]]) -> float:
    rubric = MathRubric()
    try:
        assert rubric.parser is not None
        return await rubric.correct_answer(completion, "5", rubric.parser)
    finally:
        await rubric.close()


@ENCLOSED
async def test_finished_reasoning_is_not_part_of_the_answer(opening: str, closing: str) -> None:
    text = f"{opening}{DRAFT}{closing}\n{ANSWER}"
    assert without_reasoning(text).strip() == ANSWER
    for parser in (Parser(), ThinkParser(), MaybeThinkParser()):
        assert parser.parse_answer(said(text)).strip() == ANSWER
    assert XMLParser(["answer"]).parse_answer(said(text)) == "5"
    assert XMLParser(["answer"]).parse(text).answer == "5"
    assert ThinkParser().get_format_reward_func()(said(text)) == 1.0


@ENCLOSED
def test_unfinished_reasoning_leaves_no_answer(opening: str, closing: str) -> None:
    for text in (
        f"{opening}{DRAFT}",
        f"\n {opening}{DRAFT}",
        f"Sure. {opening}{DRAFT}",
        f"{ANSWER}\n{opening}{DRAFT}",
    ):
        assert without_reasoning(text) == ""
        assert Parser().parse_answer(said(text)) == ""
        assert ThinkParser().parse_answer(said(text)) == MaybeThinkParser().parse_answer(said(text)) == ""
        assert XMLParser(["answer"]).parse_answer(said(text)) is None
        assert ThinkParser().get_format_reward_func()(said(text)) == 0.0


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (f"<think>{DRAFT}", 0.0),
        ("<think>\\boxed{5}", 0.0),
        ("[THINK]\\boxed{5}", 0.0),
        ("<reasoning>\\boxed{5}", 0.0),
        ("<|channel|>analysis<|message|>\\boxed{5}", 0.0),
        ("analysisIt is \\boxed{3}assistantfinal\\boxed{5}", 1.0),
        ("\\boxed{3}</think>\\boxed{5}", 1.0),
        ("<think>\\boxed{3}</think>\\boxed{5}", 1.0),
        ("so \\boxed{5}", 1.0),
        ("the <think> tag is not needed: \\boxed{5}", 1.0),
    ],
)
async def test_math_is_read_outside_reasoning(text: str, reward: float) -> None:
    assert await solved(said(text)) == reward


@pytest.mark.parametrize("text", [f"{DRAFT}</think>\n{ANSWER}", f"{DRAFT}[/THINK]{ANSWER}"])
def test_the_opening_tag_may_be_in_the_prompt(text: str) -> None:
    assert ThinkParser().parse_answer(said(text)) == ANSWER
    assert ThinkParser().get_format_reward_func()(said(text)) == 1.0
    assert XMLParser(["answer"]).parse_answer(said(text)) == "5"


SEPARATE = [
    {"reasoning_content": DRAFT},
    {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]},
    {"thinking_blocks": [{"type": "thinking", "thinking": DRAFT, "signature": "x"}]},
]


@pytest.mark.parametrize("fields", SEPARATE)
def test_separate_reasoning_counts_as_thinking(fields: dict[str, Any]) -> None:
    completion = said(ANSWER, **fields)
    assert ThinkParser().parse_answer(completion) == ANSWER
    assert ThinkParser().get_format_reward_func()(completion) == 1.0
    assert XMLParser(["answer"]).parse_answer(completion) == "5"
    assert MaybeThinkParser().parse_answer(completion) == ANSWER
    assert ThinkParser().parse_answer(said("", **fields)) == ""
    assert ThinkParser().get_format_reward_func()(said("", **fields)) == 0.0
    assert ThinkParser().get_format_reward_func()(said(ANSWER)) == 0.0


def test_content_parts_of_reasoning_are_reasoning() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": DRAFT}]},
        {"type": "reasoning", "text": DRAFT},
        {"type": "text", "text": ANSWER},
    ]
    assert answer_text(said(parts)[0]) == ANSWER
    assert ThinkParser().parse_answer(said(parts)) == ANSWER


@pytest.mark.parametrize("tag", ["think", "reasoning"])
def test_reasoning_fields_are_read_and_rewarded(tag: str) -> None:
    parser = XMLParser([tag, "answer"])
    written = f"<{tag}>\nhm\n</{tag}>\n<answer>\n5\n</answer>"
    assert getattr(parser.parse(written), tag) == "hm"
    separate = said("<answer>\n5\n</answer>", reasoning_content="hm")
    judge = parser.get_format_reward_func()
    assert judge(said(written)) == judge(separate) == 1.0
    assert judge(said("<answer>\n5\n</answer>")) < 1.0


@pytest.mark.parametrize(
    "text",
    [
        "I write `<think>` and the answer is 5",
        'use "<think>" first: 5',
        "The <think> tag opens it. 5",
        "the <think> opens it, 5",
        "Tags such as <think>, <answer> and so on: 5",
        "5 (I was told to use <think> and </think> here)",
        "5. Close it with `</think>`",
        "5. The </think> tag ends it.",
        "```xml\n<think>\nhm\n</think>\n```\n5",
        "```\n<think>\n```\n5",
    ],
)
def test_a_tag_that_is_mentioned_neither_opens_nor_closes(text: str) -> None:
    assert without_reasoning(text) == text
    assert without_reasoning(f"<think>hm</think>{text}") == text


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>a</think>b<think>c</think>d", "d"),
        ("<think>a</think>b<think>c</think>", "b"),
        ("<think>a<think>b</think>c</think>d", "d"),
        ("<think>a <think> b</think>d", "d"),
        ("<think>I quote `</answer>` and ` alone</think>d", "d"),
        ("<think>```\nunclosed</think>d", "d"),
        ("<think>```\ncode\n```</think>```\nd\n```", "```\nd\n```"),
        ("<think><reasoning>a</reasoning>b</think>d", "d"),
        ("<think>a</thinking>b", ""),
        ("<think></think>d", "d"),
        ("<think/>d", "<think/>d"),
        ("Okay <think>maybe", ""),
        ("<|channel|>final<|message|>d<|return|>", "d"),
        (
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary to=f<|message|>{}",
            "",
        ),
        (
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>cut of",
            "cut of",
        ),
        ("the token <|channel|> is special", "the token <|channel|> is special"),
    ],
)
def test_repeated_and_nested_reasoning(text: str, answer: str) -> None:
    assert without_reasoning(text) == answer


def test_the_last_complete_tag_of_a_message_wins() -> None:
    parser = XMLParser(["answer"])
    for text, answer in {
        "<answer>4</answer> no: <answer>5</answer>": "5",
        "The <answer> tag holds it: <answer>5</answer>": "5",
        "<answer>5</answer> <answer>unfinished": "5",
        "<answer>4 <answer>5</answer>": "5",
        "<think><answer>4</answer></think><answer>5</answer>": "5",
        "<answer>5</answer><think>fine</think>": "5",
        "<think><answer>4</answer></think>": None,
    }.items():
        assert parser.parse_answer(said(text)) == parser.parse_answer(text) == answer


@pytest.mark.parametrize("text", ["<think>they agree, no?</think>\n\nyes", "no</think>yes", "Verdict: yes"])
def test_a_judge_may_think_first(text: str) -> None:
    assert read_verdict(text) == 1.0


def test_an_unfinished_judge_gave_no_verdict() -> None:
    with pytest.raises(ValueError, match="neither"):
        read_verdict("<think>yes")


async def test_a_rollout_is_scored_by_what_follows_the_reasoning() -> None:
    def exact(completion: Any, answer: str, parser: Parser) -> float:
        return float(parser.parse_answer(completion) == answer)

    env = SingleTurnEnv(eval_dataset=[{"question": "2+3?", "answer": "5"}], rubric=Rubric([exact]))
    for text, reward in {"<think>4?</think>5": 1.0, "<think>5": 0.0, "5": 1.0}.items():
        assert (await env.rollout(ScriptedClient([text]), env.dataset("eval")[0])).reward == reward


PIECES = [mark for pair in PAIRS for mark in pair]
SOUP = st.lists(
    st.sampled_from([*PIECES, "`", "```\n", "\n", " ", "a", "5.", "tag", "<answer>", "</answer>"]),
    max_size=25,
)


@given(SOUP.map("".join))
@example("<think>" * 50)
def test_any_text_is_split_into_reasoning_and_answer(text: str) -> None:
    reading = read_reasoning(text)
    assert reading.answer in text
    assert bool(reading.blocks) or reading.answer == text or "final" in text
    assert XMLParser(["answer"]).format_score(text) <= 1.0


@given(
    pair=st.sampled_from(PAIRS),
    draft=st.text(st.characters(codec="utf-8", exclude_characters="<>[]◁▷|`~"), max_size=40),
    answer=st.text(st.characters(codec="utf-8", exclude_characters="<>[]◁▷|`~\"'"), min_size=1, max_size=40),
)
def test_enclosed_reasoning_is_never_in_the_answer(pair: tuple[str, str], draft: str, answer: str) -> None:
    opening, closing = pair
    assert without_reasoning(f"{opening}{draft}{closing}\n{answer}").strip() == answer.strip()
    assert without_reasoning(f"{opening}{draft}") == ""


@pytest.mark.parametrize(
    "piece",
    ["<think>", "</think>", "a <think> b ", "< ", "<think ", "<|channel|>a<|message|>", "```\n<think>"],
)
def test_long_malformed_text_is_read_in_linear_time(piece: str) -> None:
    soup = piece * (200_000 // len(piece))
    assert read_reasoning(soup).answer in soup
