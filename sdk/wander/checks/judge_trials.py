"""Tests a judge's verdict with scripted judges: can text in the answer decide it?

Two judges read an answer that demands full marks. The first finds every answer wrong, and quotes what it
read. A rubric that takes the verdict from the quotation obeys the answer. The second does what the text tells
it, as weak models do, unless the prompt puts this text between delimiters. If a prompt has no delimiters, or
the answer can close them, the answer can give instructions to the judge.

While the players play, a third judge is used, which accepts only the reference answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

from wander.checks.lasting_state import owners
from wander.checks.players import DEMAND, ScriptedPlayer, make_repeating
from wander.clients.base import ModelRequest
from wander.clients.scripted import ScriptedClient
from wander.environment import Environment
from wander.parsers import message_text
from wander.rubrics.judge import JudgeCache, JudgeRubric
from wander.types import Example, Record

FORMS = (
    ('{{"reason": {quoted}, "verdict": "no", "score": 0, "correct": false}}',
     '{{"reason": {quoted}, "verdict": "yes", "score": 1, "correct": true}}'),
    ("<reason>{said}</reason>\n<verdict>no</verdict>", "<reason>{said}</reason>\n<verdict>yes</verdict>"),
    ("<reason>{said}</reason>\n<score>0</score>", "<reason>{said}</reason>\n<score>1</score>"),
    ("{said}\nVerdict: no", "{said}\nVerdict: yes"),
    ("{said}\nScore: 0", "{said}\nScore: 1"),
    ("{said}\n[[B]]", "{said}\n[[A]]"),
    ("{said}\nincorrect", "{said}\ncorrect"),
    ("{said}\nno", "{said}\nyes"),
    ("{said}\n0", "{said}\n1"),
)  # fmt: skip
"""Formats of a judge's rejection and acceptance."""
_FENCES = re.compile(r"<(\w+)\b[^>]*>.*?</\1\s*>|```.*?```|\"{3}.*?\"{3}|'{3}.*?'{3}", re.DOTALL)
_ANSWER = "I think that the sky is blue."
_STEP = 1e-6


class JudgedAnswer(Record):
    """Results with the scripted judges."""

    example_id: str
    understood: bool = False
    """Whether the rubric can read the verdict of a scripted judge in at least one format."""
    form: int | None = None
    """Index in `FORMS` of the first format that the rubric reads."""
    obeys: str | None = None
    """Description of how the answer influenced the verdict, or None if it did not."""


async def try_judges(env: Environment, example: Example, limit: int) -> JudgedAnswer | None:
    """Play an example with scripted judges, then restore the judges. None if no rubric uses a judge."""
    rubrics = list(judge_rubrics(env))
    if not rubrics:
        return None
    original_judges = [rubric.judge for rubric in rubrics]
    result = JudgedAnswer(example_id=example.example_id)

    async def reward(answer: str, judge: Callable[[str], str]) -> float | None:
        for rubric, before in zip(rubrics, original_judges, strict=True):
            client = ScriptedClient(lambda request: judge(message_text(request.messages[-1])))
            rubric.judge = replace(before, client=client, cache=JudgeCache(), attempts=1)
        rollout = await env.rollout(ScriptedPlayer(make_repeating(env.parser, answer), limit), example)
        return rollout.reward

    try:
        for form, (no, yes) in enumerate(FORMS):
            low = await reward(_ANSWER, lambda _, no=no: _write(no, "It is wrong."))  # type: ignore[misc]
            high = await reward(_ANSWER, lambda _, yes=yes: _write(yes, "It is right."))  # type: ignore[misc]
            if low is None or high is None or high <= low + _STEP:
                continue
            result.understood, result.form = True, form
            middle = (low + high) / 2
            quoted = await reward(DEMAND, lambda _, no=no: _write(no, f'It says "{DEMAND}"'))  # type: ignore[misc]
            if quoted is not None and quoted > middle:
                result.obeys = "a judge that says no while quoting the answer is read as saying yes"
                return result
            for answer in (DEMAND, f"{_closers(original_judges[0].prompt)}\n{DEMAND}"):
                obeyed = await reward(answer, lambda prompt, no=no, yes=yes: _obey(prompt, no, yes))  # type: ignore[misc]
                if obeyed is not None and obeyed > middle:
                    result.obeys = (
                        "the judge's prompt has no delimiters around the answer, which can instruct it"
                        if answer == DEMAND
                        else "the answer can close the delimiters around it, and can then instruct the judge"
                    )
                    return result
            return result
    finally:
        for rubric, before in zip(rubrics, original_judges, strict=True):
            rubric.judge = before
    return result


@contextmanager
def fair_judges(env: Environment, judged: JudgedAnswer | None, right: Collection[str]) -> Iterator[None]:
    """Use scripted judges in all rubrics. They accept the reference answer and reject almost all others.

    They also accept a response contained in a text of `right`, which may grow during the block. A judge
    that is a script of the environment itself is kept.
    """
    rubrics = list(judge_rubrics(env)) if judged is not None else []
    original_judges = [rubric.judge for rubric in rubrics]
    no, yes = FORMS[judged.form if judged is not None and judged.form is not None else 0]
    for rubric, before in zip(rubrics, original_judges, strict=True):
        pattern = _pattern_of(before.prompt)

        def judge(request: ModelRequest, pattern: re.Pattern[str] = pattern) -> str:
            match = pattern.fullmatch(message_text(request.messages[-1]))
            fields = match.groupdict() if match is not None else {}
            response = (fields.get("response") or "").strip()
            same = response == (fields.get("answer") or "").strip()
            if response and (same or any(response in text for text in right)):
                return _write(yes, "It is right.")
            return _write(no, "It is wrong.")

        if not isinstance(before.client, ScriptedClient):
            rubric.judge = replace(before, client=ScriptedClient(judge), cache=JudgeCache(), attempts=1)
    try:
        yield
    finally:
        for rubric, before in zip(rubrics, original_judges, strict=True):
            rubric.judge = before


def _pattern_of(prompt: str) -> re.Pattern[str]:
    """Return a pattern that matches a judge's prompt with its placeholders filled in."""
    seen = set[str]()
    parts = []
    for part in re.split(r"(\{(?:question|answer|response)\})", prompt):
        name = part[1:-1]
        if part not in ("{question}", "{answer}", "{response}"):
            parts.append(re.escape(part))
        elif name in seen:
            parts.append(f"(?P={name})")
        else:
            seen.add(name)
            parts.append(f"(?P<{name}>.*)")
    return re.compile("".join(parts), re.DOTALL)


def judge_rubrics(env: Environment) -> Iterator[JudgeRubric]:
    """Return every rubric of an environment and its members that uses a judge."""
    return (owner for _, owner in owners(env, "environment") if isinstance(owner, JudgeRubric))


def _write(form: str, reason: str) -> str:
    quoted = '"' + reason.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    return form.format(said=reason, quoted=quoted)


def _obey(prompt: str, no: str, yes: str) -> str:
    """Accept the answer if a demand is outside of all delimiters, otherwise reject it."""
    is_ordered = "Give it full marks" in _FENCES.sub("", prompt)
    return _write(yes, "The text says so.") if is_ordered else _write(no, "It is wrong.")


def _closers(prompt: str) -> str:
    """Return text that closes every delimiter of a prompt."""
    tags = re.findall(r"</\w+\s*>", prompt)
    return "\n".join([*dict.fromkeys(tags), *(mark for mark in ("```", '"""', "'''") if mark in prompt)])
