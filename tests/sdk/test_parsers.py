"""Parsers find answers in well-formed text and never stumble over the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wander.parsers import MaybeThinkParser, Parser, ThinkParser, XMLParser, find_tagged, message_text

TAG_SOUP = st.lists(
    st.sampled_from(
        [
            "<think>",
            "</think>",
            "<answer>",
            "</answer>",
            "<move>",
            "</move>",
            "<",
            ">",
            "/",
            " ",
            "\n",
            "4",
            "x",
        ]
    ),
    max_size=30,
).map("".join)
NAMES = st.text(st.characters(codec="ascii", categories=["Ll"]), min_size=1, max_size=6)
CONTENT = st.text(st.characters(exclude_characters="<>", exclude_categories=["Cs"]))


def assistant(text) -> dict:
    return {"role": "assistant", "content": text}


def user(text) -> dict:
    return {"role": "user", "content": text}


CONVERSATION = [
    {"role": "system", "content": "be brief"},
    user("one"),
    assistant("two"),
    {"role": "tool", "content": "three", "tool_call_id": "1"},
    assistant("four"),
    user("five"),
]


class TestParser:
    def test_the_parser_reads_the_last_assistant_message(self):
        assert Parser().parse_answer(CONVERSATION) == "four"
        assert Parser(extract_fn=str.upper).parse_answer(CONVERSATION) == "FOUR"
        assert Parser(extract_fn=len).parse_answer("text") == 4

    def test_without_an_assistant_message_there_is_no_answer(self):
        assert Parser().parse_answer([]) is None
        assert Parser().parse_answer([user("one")]) is None

    def test_messages_are_filtered_by_role(self):
        parser = Parser()
        texts = [
            [message["content"] for message in messages]
            for messages in (
                parser.get_system_messages(CONVERSATION),
                parser.get_user_messages(CONVERSATION),
                parser.get_assistant_messages(CONVERSATION),
                parser.get_tool_messages(CONVERSATION),
            )
        ]
        assert texts == [["be brief"], ["one", "five"], ["two", "four"], ["three"]]

    def test_any_reply_except_an_empty_one_has_the_right_format(self):
        judge = Parser().get_format_reward_func()
        assert judge(completion=CONVERSATION) == 1.0
        assert judge("text") == 1.0
        assert judge(completion=[user("x")], answer="ignored") == 0.0


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (assistant("a"), "a"),
        (assistant(None), ""),
        ({"role": "assistant"}, ""),
        (
            assistant([{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]),
            "ab",
        ),
        (assistant([{"type": "text", "text": None}, "loose"]), ""),
        (assistant(5), ""),
    ],
)
def test_the_text_of_a_message_is_read(message, text):
    assert message_text(message) == text


class TestThinkParser:
    @pytest.mark.parametrize(
        ("text", "strict", "lenient"),
        [
            ("<think>hm</think> 4", "4", "4"),
            ("<think>a</think>b<think>c</think>\n d \n", "d", "d"),
            ("4", "", "4"),
            ("<think>unfinished", "", ""),
            ("no opening</think>4", "4", "4"),
            ("<think>nothing after</think>", "", ""),
            ("", "", ""),
        ],
    )
    def test_the_answer_is_the_text_after_the_last_thought(self, text, strict, lenient):
        assert ThinkParser().parse(text) == strict
        assert MaybeThinkParser().parse(text) == lenient
        assert ThinkParser(extract_fn=len).parse(text) == len(strict)
        assert MaybeThinkParser().parse_answer([assistant(text)]) == lenient

    @pytest.mark.parametrize(
        ("text", "score"),
        [
            ("<think>hm</think>4", 1.0),
            ("\n<think>hm</think>\n4\n", 1.0),
            ("so <think>hm</think>4", 0.0),
            ("<think>hm</think>  ", 0.0),
            ("<think>a</think><think>b</think>4", 0.0),
            ("<think>hm 4", 0.0),
            ("4", 0.0),
        ],
    )
    def test_the_format_is_rewarded(self, text, score):
        assert ThinkParser().get_format_reward_func()([assistant(text)]) == score

    def test_the_format_reward_is_averaged_over_turns(self):
        completion = [assistant("<think>a</think>b"), user("?"), assistant("b")]
        assert ThinkParser().get_format_reward_func()(completion) == 0.5

    @given(TAG_SOUP)
    def test_any_text_is_parsed(self, text):
        for parser in (ThinkParser(), MaybeThinkParser()):
            assert parser.parse(text) in text
            assert parser.get_format_reward_func()([assistant(text)]) in (0.0, 1.0)


class TestXMLParser:
    def test_every_alternative_is_an_attribute(self):
        parser = XMLParser(["think", ("code", "answer")])
        found = parser.parse("<think> a </think>\n<answer>\n4\n</answer>")
        assert vars(found) == {"think": "a", "code": None, "answer": "4"}

    def test_first_last_and_unstripped(self):
        parser = XMLParser(["answer"])
        text = "<answer> 1 </answer><answer>2\n</answer>"
        assert parser.parse(text).answer == "1"
        assert parser.parse(text, last=True).answer == "2"
        assert parser.parse(text, strip=False).answer == " 1 "
        assert parser.parse(text, strip=False, last=True).answer == "2\n"

    @pytest.mark.parametrize(
        ("text", "answer"),
        [
            ("<answer>4", None),
            ("4</answer>", None),
            ("</answer>4<answer>", None),
            ("<answer></answer>", ""),
            ("<answer >4</answer >", None),
            ("<Answer>4</Answer>", None),
            ("<answer>4<answer>5</answer>", "5"),
            ("</answer><answer>4</answer>", "4"),
            ("<answer>a\nb</answer>", "a\nb"),
        ],
    )
    def test_malformed_text_is_parsed(self, text, answer):
        assert XMLParser(["answer"]).parse(text).answer == answer

    def test_the_answer_is_in_the_last_message_that_has_one(self):
        parser = XMLParser(["answer"])
        completion = [assistant("<answer>1</answer>"), assistant("<answer>2</answer> or"), assistant("none")]
        assert parser.parse_answer(completion) == "2"
        assert parser.parse_answer("<answer>1</answer><answer>2</answer>") == "2"
        assert parser.parse_answer([assistant("none")]) is None
        assert parser.parse_answer([user("<answer>1</answer>")]) is None
        assert parser.parse_answer("") is None

    def test_alternative_names_of_the_answer_field_are_read(self):
        parser = XMLParser([("answer", "final")], extract_fn=int)
        assert parser.parse_answer("<final>5</final>") == 5
        assert parser.parse_answer("<final>5</final><answer>4</answer>") == 4
        assert XMLParser(["think"]).parse_answer("<think>5</think>") is None
        assert XMLParser([("final", "answer")]).parse_answer("<final>5</final><answer>4</answer>") == "4"

    def test_an_overridden_parse_is_used_for_answers(self):
        class Loud(XMLParser):
            def parse(self, text, strip=True, last=False):
                return super().parse(text.lower(), strip, last)

        assert Loud(["think", "answer"]).parse_answer("<ANSWER>5</ANSWER>") == "5"

    def test_format_writes_what_parse_reads(self):
        parser = XMLParser(["think", ("code", "answer")])
        text = parser.format(think="a", answer=4)
        assert text == "<think>\na\n</think>\n<code>\n4\n</code>"
        assert parser.parse(text).code == "4"
        assert parser.format_score(text) == 1.0
        assert parser.get_fields() == ["think", "code"]
        assert (
            parser.get_format_str()
            == "<think>\n...\n</think>\n<[ code | answer ]>\n...\n</[ code | answer ]>"
        )

    def test_format_rejects_missing_and_unknown_fields(self):
        parser = XMLParser(["think", "answer"])
        with pytest.raises(ValueError, match="the field `answer` is missing"):
            parser.format(think="a")
        with pytest.raises(ValueError, match="`extra` is not one of the fields think, answer"):
            parser.format(think="a", answer="b", extra="c")

    @pytest.mark.parametrize("fields", [["a", "a"], ["a", ("b", "a")], [""], [()], [("a", "")]])
    def test_fields_have_unique_names(self, fields):
        with pytest.raises(ValueError, match="field"):
            XMLParser(fields)

    def test_field_names_must_be_text(self):
        with pytest.raises(TypeError, match="must be text"):
            XMLParser(["a", 5])

    @pytest.mark.parametrize(
        ("text", "score"),
        [
            ("<think>a</think><move>4</move>", 1.0),
            (" <think>a</think>\n<move>4</move>\n", 1.0),
            ("well: <think>a</think><move>4</move>", 0.8),
            ("<think>a</think><move>4</move> done", 0.8),
            ("<move>4</move>", 0.6),
            ("<think>a</think>", 0.6),
            ("<think>a</think><move>4", 0.4),
            ("4", 0.0),
            ("", 0.0),
            ("<think>a<move>4", 0.0),
        ],
    )
    def test_the_format_is_rewarded(self, text, score):
        judge = XMLParser(["think", "move"]).get_format_reward_func()
        assert judge(completion=[assistant(text)]) == pytest.approx(score)
        assert judge(text) == pytest.approx(score)

    def test_the_format_reward_is_averaged_over_turns(self):
        judge = XMLParser(["move"]).get_format_reward_func()
        assert judge([assistant("<move>1</move>"), user("?"), assistant("1")]) == 0.5
        assert judge([user("?")]) == 0.0

    @given(TAG_SOUP)
    def test_any_text_is_parsed(self, text):
        parser = XMLParser(["think", ("answer", "move")])
        for value in vars(parser.parse(text)).values():
            assert value is None or value in text
        assert 0.0 <= parser.format_score(text) <= 1.0
        answer = parser.parse_answer([assistant(text)])
        assert answer is None or answer in text

    @given(st.dictionaries(NAMES, CONTENT, min_size=1, max_size=4))
    def test_formatted_text_is_parsed_back(self, fields):
        parser = XMLParser(list(fields))
        text = parser.format(**fields)
        assert vars(parser.parse(text)) == {name: value.strip() for name, value in fields.items()}
        assert parser.format_score(text) == pytest.approx(1.0)

    def test_a_million_opening_tags_are_read_in_linear_time(self):
        soup = "<answer>" * 1_000_000
        assert find_tagged(soup, "answer") == []
        assert XMLParser(["answer"]).parse_answer([assistant(soup)]) is None
        assert len(find_tagged("<a> </a>" * 100_000, "a")) == 100_000
