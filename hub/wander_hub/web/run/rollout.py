"""Gathers the data for the pages of one rollout: messages, reward, tokens, and links to others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session
from wander.boxes.base import RECORD, ChangedFile, FinalState
from wander.errors import RunError
from wander.types import AGENT, Rollout, SubCall, Turn
from wander.wire import RolloutRow, RunDetail
from wander.wire.run_record import read_sub_calls

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
"""Number of tokens of a turn on a page."""
_MOST_FILES = 100
"""Maximum number of changed files of a box that a page lists."""
_MOST_HOSTS = 20
_MOST_CONVERSATIONS, _CONVERSATION_MESSAGES = 20, 40
"""Further conversations on a page, and messages of each."""


@dataclass(frozen=True)
class Step:
    """A link to another rollout, with its keyboard shortcut."""

    key: str
    label: str
    target: str


@dataclass(frozen=True)
class BoxView:
    """The box in which the model worked, as recorded."""

    image: str
    files: list[ChangedFile]
    """First changed files."""
    omitted: int
    """Number of further changed files."""
    digest: str
    hosts: list[str]
    """Hosts that the box could reach."""


def read_box(rollout: Rollout) -> BoxView | None:
    """Return the recorded box of a rollout, or None if it is invalid or missing. The record is untrusted."""
    record = rollout.info.get(RECORD)
    if not isinstance(record, dict):
        return None
    try:
        state = FinalState.model_validate(record.get("state"))
    except ValidationError:
        return None
    files, hosts = state.files[:_MOST_FILES], record.get("hosts")
    return BoxView(
        image=str(record.get("image"))[:100],
        files=files,
        omitted=len(state.files) - len(files),
        digest=state.digest[:64],
        hosts=[str(host) for host in hosts[:_MOST_HOSTS]] if isinstance(hosts, list) else [],
    )


@dataclass(frozen=True)
class Conversation:
    """A conversation of an agent program other than its main one."""

    path: str
    turn: int
    """Number of the main conversation's turn after which it began; 0 if it began before the first."""
    calls: int
    messages: list[ShownMessage]
    omitted: int
    failure: str


@dataclass(frozen=True)
class AgentView:
    """The agent program of a rollout, as recorded."""

    program: str
    exit_status: str
    calls: int
    """Number of model calls in the main conversation."""
    conversations: list[Conversation]
    """First further conversations."""
    omitted: int
    """Number of further conversations that the page leaves out."""


def read_agent(rollout: Rollout) -> AgentView | None:
    """Return the agent program of a rollout with its conversations, or None if it is invalid or missing."""
    record = rollout.info.get(AGENT)
    if not isinstance(record, dict):
        return None
    try:
        calls = read_sub_calls(rollout)
        shown = [_show_conversation(call) for call in calls[:_MOST_CONVERSATIONS]]
    except (RunError, TypeError):
        return None
    program = record.get("program")
    facts = program if isinstance(program, dict) else {}
    name = " ".join(str(facts[key])[:60] for key in ("name", "version") if key in facts)
    status = str(record.get("exit_status", "still running"))[:20]
    return AgentView(name, status, len(rollout.turns), shown, len(calls) - len(shown))


def _show_conversation(call: SubCall) -> Conversation:
    messages = [*call.prompt, *call.completion]
    shown = [
        transcript.describe_message(message, number, None, "user", None)
        for number, message in enumerate(messages[:_CONVERSATION_MESSAGES])
    ]
    failure = call.failure.message[:500] if call.failure else ""
    return Conversation(
        call.path[:20], max(call.turn + 1, 0), len(call.turns), shown, len(messages) - len(shown), failure
    )


@dataclass(frozen=True)
class RolloutView:
    """Data for the page of a rollout."""

    run: RunDetail
    label: str
    rollout: Rollout
    number: int
    siblings: list[RolloutRow]
    messages: list[ShownMessage]
    first: int
    """Number of the first message shown."""
    omitted: int
    """Number of messages after the shown ones."""
    parts: list[RewardPart]
    metrics: list[RewardPart]
    steps: list[Step] = field(default_factory=list)
    asked: str = ""
    """Query string of the filters that select the previous and the next rollout."""
    back: str = ""
    """Address of the list that contains the rollout."""
    box: BoxView | None = None
    """The box in which the model worked."""
    agent: AgentView | None = None
    """The agent program that played."""

    @property
    def info(self) -> dict[str, Any]:
        """The published values that the page does not show elsewhere."""
        info = {name: value for name, value in self.rollout.info.items() if name != RECORD or not self.box}
        if self.agent is not None:
            info[AGENT] = {name: value for name, value in info[AGENT].items() if name != "sub_calls"}
        return info

    @property
    def boards(self) -> list[ShownMessage]:
        """The messages of the episode that show a board, with the message before the first turn."""
        start = len(self.rollout.prompt) - 1
        return [one for one in self.messages if one.grid and one.grid.heading is None and one.number >= start]


@dataclass(frozen=True)
class SampledToken:
    """One sampled token."""

    id: int
    logprob: float
    text: str | None
    """Text of the token, or None without a tokenizer."""

    @property
    def probability(self) -> float:
        """Probability of the token."""
        return math.exp(min(self.logprob, 0.0))

    @property
    def shown(self) -> str:
        """The text with visible characters for its white space."""
        return (self.text or "").replace(" ", "\u2423").replace("\n", "\u21b5").replace("\t", "\u21e5")


@dataclass(frozen=True)
class TurnView:
    """The tokens of one turn."""

    run: RunDetail
    label: str
    number: int
    place: int
    turn: Turn
    tokens: list[SampledToken]
    offset: int
    total: int
    prompt: int
    """Number of tokens in the prompt."""
    mean: float | None
    """Mean log-probability of all sampled tokens."""
    tokenizer: str
    """Source of the tokenizer, for the page's text. Empty without a tokenizer."""
    incomplete: bool
    """Whether the tokenizer is missing from the storage."""


def rollout(visit: Visit, run_id: str, number: int, wanted: RolloutFilter, first: int = 0) -> RolloutView:
    """Return one rollout with its messages from `first` on, its siblings, and links to its neighbors."""
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
        box=read_box(whole),
        agent=read_agent(whole),
    )


def message(visit: Visit, run_id: str, number: int, place: int) -> str:
    """Return the complete message as text."""
    whole = runs.rollout(visit.session, visit.storage, runs.find(visit.session, run_id), number)
    messages = [*whole.prompt, *whole.completion]
    if place >= len(messages):
        raise HubProblem(404, "message_not_found", f"rollout {number} has {len(messages)} messages")
    one = messages[place]
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
    """Return the tokens of one turn with their log-probabilities, if the run recorded them."""
    found = runs.find(visit.session, run_id)
    whole = runs.rollout(visit.session, visit.storage, found, number)
    tokens = whole.turns[place].tokens if place < len(whole.turns) else None
    if tokens is None:
        detail = f"rollout {number} has no recorded tokens for turn {place}"
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
        tokens=[SampledToken(*pair, texts.get(pair[0])) for pair in pairs[offset : offset + _TOKENS]],
        offset=offset,
        total=len(pairs),
        prompt=len(tokens.prompt_ids),
        mean=sum(logprob for _, logprob in pairs) / len(pairs) if pairs else None,
        tokenizer=tokenizer,
        incomplete=bool(lost),
    )


def _find_texts(visit: Visit, run: Run) -> tuple[Mapping[int, str], str]:
    """Return the texts of a model's tokens, and the source of the tokenizer."""
    file = find_tokenizer_file(visit.session, run)
    if file is not None:
        texts = read_texts(file.sha256, lambda: visit.storage.read(file.sha256)).texts
        return texts, "of a model on this hub with the same weights"
    path = find_tokenizer(visit.settings.tokenizers, run.model)
    if path is None:
        return {}, ""
    texts = read_texts(f"{path} {path.stat().st_mtime_ns}", path.read_bytes).texts
    return texts, "that this hub's operator set for the model's name"


def list_siblings(
    session: Session, storage: Storage, found: Run, number: int, example_id: str
) -> list[RolloutRow]:
    """Return the rows of the example that this rollout belongs to."""
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
    """Return the links to other rollouts, with the same keys as in `wander view`."""
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
        ("S", "previous of this example", first),
        ("s", "next of this example", second),
    ]
    asked = query_of(wanted.asked())
    return [Step(key, label, f"{one}{asked}") for key, label, one in places if one is not None]
