"""Gathers what the pages of one rollout show: what was said, what came of it, and where to go from there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy.orm import Session
from wander.types import Rollout, Turn
from wander.wire import RolloutRow, RunDetail

from wander_hub.http.problems import HubProblem
from wander_hub.runs import explorer
from wander_hub.runs import service as runs
from wander_hub.runs.chunks import call_text, message_text
from wander_hub.runs.explorer import RolloutFilter
from wander_hub.runs.models import Run
from wander_hub.storage import Storage, spare_missing
from wander_hub.verification.tokens import find_tokenizer
from wander_hub.web.addresses import query_of
from wander_hub.web.run import transcript
from wander_hub.web.run.token_texts import find_tokenizer_file, read_texts
from wander_hub.web.run.transcript import RewardPart, ShownMessage
from wander_hub.web.visit import Visit

_NEAR_SIBLINGS = 64
_TOKENS = 2000
"""Of a turn on a page."""


@dataclass(frozen=True)
class Step:
    """Where a key and its link lead."""

    key: str
    said: str
    target: str


@dataclass(frozen=True)
class RolloutView:
    """One rollout's page."""

    run: RunDetail
    label: str
    rollout: Rollout
    number: int
    siblings: list[RolloutRow]
    messages: list[ShownMessage]
    first: int
    """Number of the first message shown."""
    omitted: int
    """Messages after those."""
    parts: list[RewardPart]
    metrics: list[RewardPart]
    steps: list[Step] = field(default_factory=list)
    asked: str = ""
    """Among which rollouts the next one is looked for, as a query."""
    back: str = ""
    """The list that it is one of."""

    @property
    def boards(self) -> list[ShownMessage]:
        """The messages of the episode that show a board, and the one that it began with."""
        start = len(self.rollout.prompt) - 1
        return [one for one in self.messages if one.grid and one.grid.heading is None and one.number >= start]


@dataclass(frozen=True)
class Token:
    """One sampled token."""

    id: int
    logprob: float
    text: str | None
    """None where no tokenizer tells."""

    @property
    def probability(self) -> float:
        """What chance it had."""
        return math.exp(min(self.logprob, 0.0))

    @property
    def shown(self) -> str:
        """The text with signs for its blanks."""
        return (self.text or "").replace(" ", "\u2423").replace("\n", "\u21b5").replace("\t", "\u21e5")


@dataclass(frozen=True)
class TurnView:
    """The tokens of one turn."""

    run: RunDetail
    label: str
    number: int
    place: int
    turn: Turn
    tokens: list[Token]
    offset: int
    total: int
    prompt: int
    """Tokens that the model saw before these."""
    mean: float | None
    """Mean log-probability of all."""
    tokenizer: str
    """What tells the texts; empty where nothing does."""
    incomplete: bool
    """Whether the store lost the tokenizer."""


def rollout(visit: Visit, run_id: str, number: int, wanted: RolloutFilter, first: int = 0) -> RolloutView:
    """Return one rollout, its messages from one on, the others of its example, and its neighbours."""
    found = runs.find(visit.session, run_id)
    whole = runs.rollout(visit.session, visit.storage, found, number)
    siblings = list_siblings(visit.session, visit.storage, found, number, whole.example_id)
    detail = runs.detail_of(found, visit.base_url)
    grid = detail.manifest.environment.info.view
    messages, omitted = transcript.list_messages(whole, first, grid)
    parts, metrics = transcript.reward_parts(whole, detail.manifest)
    asked = query_of(wanted.asked())
    return RolloutView(
        run=detail,
        label=found.environment.label,
        rollout=whole,
        number=number,
        siblings=siblings,
        messages=messages,
        first=first,
        omitted=omitted,
        parts=parts,
        metrics=metrics,
        steps=_steps(visit.session, visit.storage, found, number, siblings, wanted),
        asked=asked,
        back=f"/runs/{run_id}{asked}#rollouts",
    )


def message(visit: Visit, run_id: str, number: int, place: int) -> str:
    """Return one message whole, as text."""
    whole = runs.rollout(visit.session, visit.storage, runs.find(visit.session, run_id), number)
    said = [*whole.prompt, *whole.completion]
    if place >= len(said):
        raise HubProblem(404, "message_not_found", f"rollout {number} has {len(said)} messages")
    one = said[place]
    parts = [f"{one.get('role', '?')}:"]
    if reasoning := str(one.get("reasoning_content") or ""):
        parts.append(f"[reasoning]\n{reasoning}\n[/reasoning]")
    parts += [text] if (text := message_text(one)) else []
    for call in one.get("tool_calls") or []:
        if isinstance(call, dict):
            name, arguments = call_text(call)
            parts.append(f"[call {name}]\n{arguments}\n[/call]")
    return "\n\n".join(parts) + "\n"


def turn(visit: Visit, run_id: str, number: int, place: int, offset: int) -> TurnView:
    """Return the tokens of one turn, each with its log-probability, where the run recorded them."""
    found = runs.find(visit.session, run_id)
    whole = runs.rollout(visit.session, visit.storage, found, number)
    tokens = whole.turns[place].tokens if place < len(whole.turns) else None
    if tokens is None:
        detail = f"rollout {number} has no tokens of turn {place}"
        raise HubProblem(404, "tokens_not_found", detail, hint="only local models and trainers record them")
    pairs = list(zip(tokens.completion_ids, tokens.logprobs, strict=False))
    lost = set[str]()
    texts: Mapping[int, str] = {}
    tokenizer = ""
    with spare_missing(lost):
        texts, tokenizer = _find_texts(visit, found)
    return TurnView(
        run=runs.detail_of(found, visit.base_url),
        label=found.environment.label,
        number=number,
        place=place,
        turn=whole.turns[place],
        tokens=[Token(*pair, texts.get(pair[0])) for pair in pairs[offset : offset + _TOKENS]],
        offset=offset,
        total=len(pairs),
        prompt=len(tokens.prompt_ids),
        mean=sum(logprob for _, logprob in pairs) / len(pairs) if pairs else None,
        tokenizer=tokenizer,
        incomplete=bool(lost),
    )


def _find_texts(visit: Visit, run: Run) -> tuple[Mapping[int, str], str]:
    """Return the texts of the tokens of a run's model, and whose tokenizer tells them."""
    file = find_tokenizer_file(visit.session, run)
    if file is not None:
        texts = read_texts(file.sha256, lambda: visit.storage.read(file.sha256)).texts
        return texts, "of a model on this hub that has these weights"
    path = find_tokenizer(visit.settings.tokenizers, run.model)
    if path is None:
        return {}, ""
    texts = read_texts(f"{path} {path.stat().st_mtime_ns}", path.read_bytes).texts
    return texts, "that this hub's operator gave for the model's name"


def list_siblings(
    session: Session, storage: Storage, found: Run, number: int, example_id: str
) -> list[RolloutRow]:
    """Return the rows of an example, of which one has this number."""
    spread = min(found.rollouts_per_example, _NEAR_SIBLINGS)
    # The rollouts of one example lie within `spread` numbers of each other.
    near = range(max(0, number - spread), number + spread + 1)
    rows = runs.rows_numbered(session, storage, found, near)
    return [one for one in rows if one.example_id == example_id]


def _steps(
    session: Session,
    storage: Storage,
    found: Run,
    number: int,
    siblings: list[RolloutRow],
    wanted: RolloutFilter,
) -> list[Step]:
    """Return where one goes from a rollout, by the keys of `wander view`."""
    numbers = explorer.numbers_of(session, storage, found, wanted)
    before, following = explorer.neighbors(numbers, number, ascending=wanted.sort == "number")
    failed = explorer.numbers_of(session, storage, found, RolloutFilter(only="failed"))
    failed_before, failed_following = explorer.neighbors(failed, number, ascending=True)
    group = [one.number for one in siblings]
    first, second = explorer.neighbors(group, number, ascending=True)
    places = [
        ("[", "previous", before),
        ("]", "next", following),
        ("F", "previous failure", failed_before),
        ("f", "next failure", failed_following),
        ("S", "previous sibling", first),
        ("s", "next sibling", second),
    ]
    asked = query_of(wanted.asked())
    return [Step(key, said, f"{one}{asked}") for key, said, one in places if one is not None]
