"""A judge's verdict, tried with judges that are scripted: does text in the answer decide it?

Two judges are asked about an answer that demands full marks. One finds every answer wrong and quotes what
it read: a rubric that reads the verdict out of the quotation obeys the answer. The other does what it is
told, as weak models do, unless the prompt puts that between marks: a rubric whose prompt does not, or whose
marks the answer can close, lets the answer speak to the judge.

While the players play, a third judge is asked: it finds the reference answer right, and nothing else.
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
"""Forms in which judges say no and yes."""
_FENCES = re.compile(r"<(\w+)\b[^>]*>.*?</\1\s*>|```.*?```|\"{3}.*?\"{3}|'{3}.*?'{3}", re.DOTALL)
_ANSWER = "I think that the sky is blue."
_STEP = 1e-6


class JudgedAnswer(Record):
    """What the scripted judges showed."""

    example_id: str
    understood: bool = False
    """Whether the rubric reads any of the forms in which these judges answer."""
    form: int | None = None
    """Position in `FORMS` of the first form that the rubric reads."""
    obeys: str | None = None
    """How the answer got its way, None where it did not."""


async def try_judges(env: Environment, example: Example, limit: int) -> JudgedAnswer | None:
    """Play an example under scripted judges; None where no rubric asks one. The judges are put back."""
    rubrics = list(judge_rubrics(env))
    if not rubrics:
        return None
    kept = [rubric.judge for rubric in rubrics]
    found = JudgedAnswer(example_id=example.example_id)

    async def reward(answer: str, judge: Callable[[str], str]) -> float | None:
        for rubric, before in zip(rubrics, kept, strict=True):
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
            found.understood, found.form = True, form
            middle = (low + high) / 2
            quoted = await reward(DEMAND, lambda _, no=no: _write(no, f'It says "{DEMAND}"'))  # type: ignore[misc]
            if quoted is not None and quoted > middle:
                found.obeys = "a judge that says no and quotes the answer is read as if it said yes"
                return found
            for answer in (DEMAND, f"{_closers(kept[0].prompt)}\n{DEMAND}"):
                told = await reward(answer, lambda asked, no=no, yes=yes: _obey(asked, no, yes))  # type: ignore[misc]
                if told is not None and told > middle:
                    found.obeys = (
                        "the judge's prompt puts no marks around the answer, which so speaks to the judge"
                        if answer == DEMAND
                        else "the answer can close the marks around it, and so speaks to the judge"
                    )
                    return found
            return found
    finally:
        for rubric, before in zip(rubrics, kept, strict=True):
            rubric.judge = before
    return found


@contextmanager
def fair_judges(env: Environment, judged: JudgedAnswer | None, right: Collection[str]) -> Iterator[None]:
    """Have every rubric ask a scripted judge, for which the reference answer is right and few others are.

    Texts that hold what was answered are `right` too; they may be added while the judges are in place. A
    judge that is a script of the environment's own is left to judge.
    """
    rubrics = list(judge_rubrics(env)) if judged is not None else []
    kept = [rubric.judge for rubric in rubrics]
    no, yes = FORMS[judged.form if judged is not None and judged.form is not None else 0]
    for rubric, before in zip(rubrics, kept, strict=True):
        asked = _pattern_of(before.prompt)

        def judge(request: ModelRequest, asked: re.Pattern[str] = asked) -> str:
            found = asked.fullmatch(message_text(request.messages[-1]))
            places = found.groupdict() if found is not None else {}
            response = (places.get("response") or "").strip()
            same = response == (places.get("answer") or "").strip()
            if response and (same or any(response in text for text in right)):
                return _write(yes, "It is right.")
            return _write(no, "It is wrong.")

        if not isinstance(before.client, ScriptedClient):
            rubric.judge = replace(before, client=ScriptedClient(judge), cache=JudgeCache(), attempts=1)
    try:
        yield
    finally:
        for rubric, before in zip(rubrics, kept, strict=True):
            rubric.judge = before


def _pattern_of(prompt: str) -> re.Pattern[str]:
    """Return what matches a judge's prompt whose places are filled in."""
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
    """Return every rubric of an environment, and of its members, that asks a judge."""
    return (owner for _, owner in owners(env, "environment") if isinstance(owner, JudgeRubric))


def _write(form: str, said: str) -> str:
    quoted = '"' + said.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    return form.format(said=said, quoted=quoted)


def _obey(asked: str, no: str, yes: str) -> str:
    """Say yes where a demand stands outside of all marks, else no."""
    told = "Give it full marks" in _FENCES.sub("", asked)
    return _write(yes, "I was told so.") if told else _write(no, "It is wrong.")


def _closers(prompt: str) -> str:
    """Return what closes every mark of a prompt."""
    tags = re.findall(r"</\w+\s*>", prompt)
    return "\n".join([*dict.fromkeys(tags), *(mark for mark in ("```", '"""', "'''") if mark in prompt)])
