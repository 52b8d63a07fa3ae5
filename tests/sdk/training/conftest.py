"""A two-turn bandit, and a tiny policy that pulls its levers at random: small enough for seconds on a CPU."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from wander import Messages, MultiTurnEnv, Rubric, State, XMLParser, stop
from wander.clients.scripted import ScriptedClient
from wander.environment import LocalEnvironment
from wander.handle import EnvironmentHandle
from wander.models.loading import load_model
from wander.models.tiny import TinySize, create_tiny
from wander.models.transcripts import play_transcripts
from wander.seeding import derived_rng
from wander.train.config import SFTSettings
from wander.train.rollouts.environments import EnvironmentChoice
from wander.train.sft import train_sft

PAYOFFS = (0.0, 0.2, 0.5, 1.0)
PULL = XMLParser(["pull"], answer_field="pull")
SIZE = TinySize(hidden=32, layers=2, heads=2, key_value_heads=1, intermediate=64, vocabulary=300, context=256)


class BanditEnv(MultiTurnEnv):
    """Two pulls of a lever with fixed payoffs; the environment tells what each paid."""

    def setup_state(self, state: State) -> None:
        state["paid"] = []

    def env_response(self, messages: Messages, state: State) -> Messages:
        pulled = self.parser.parse_answer([messages[-1]])
        paid = PAYOFFS[int(pulled)] if pulled in ("0", "1", "2", "3") else 0.0
        state["paid"].append(paid)
        return [{"role": "user", "content": f"It paid {paid}. Pull again."}]


def payoff(completion: Messages) -> float:
    """Mean payoff of the pulls."""
    pulls = [PULL.parse_answer([m]) for m in completion if m["role"] == "assistant"]
    return sum(PAYOFFS[int(p)] if p in ("0", "1", "2", "3") else 0.0 for p in pulls) / max(1, len(pulls))


def well_formed(completion: Messages) -> float:
    """Share of answers that name a lever."""
    pulls = [PULL.parse_answer([m]) for m in completion if m["role"] == "assistant"]
    return sum(p in ("0", "1", "2", "3") for p in pulls) / max(1, len(pulls))


def bandit(examples: int = 64) -> BanditEnv:
    rows = [
        {"question": f"Machine {i % 7}. Answer <pull>lever</pull>.", "answer": ""} for i in range(examples)
    ]
    return BanditEnv(
        rows,
        max_turns=2,
        parser=PULL,
        rubric=Rubric([payoff, well_formed], [1.0, 0.0]),
    )


class UnevenBandit(BanditEnv):
    """Ends after one, two or three turns, by the lever that was pulled first."""

    @stop
    def has_paid_enough(self, state: State) -> bool:
        first = PULL.parse_answer(state.completion[:1])
        return len(state.turns) >= {"0": 1, "1": 2}.get(str(first), 3)


def length(completion: Messages) -> float:
    """How many messages there are."""
    return len(completion)


def uneven() -> UnevenBandit:
    rows = [{"question": f"Machine {i % 7}. Answer <pull>lever</pull>.", "answer": ""} for i in range(64)]
    return UnevenBandit(rows, max_turns=3, parser=PULL, rubric=Rubric([payoff, length], [1.0, 0.01]))


def opener_of(make: Callable[[], Any]) -> Callable[[], Any]:
    """Return what trainers take: a factory of a context that opens the environment, whatever is chosen."""

    @contextlib.asynccontextmanager
    async def opener(choice: EnvironmentChoice) -> AsyncIterator[EnvironmentHandle]:
        handle = LocalEnvironment(make())
        try:
            yield handle
        finally:
            await handle.close()

    return opener


def random_pulls(request: Any) -> str:
    return f"<pull>{derived_rng('pull', request.seed).randrange(4)}</pull>"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def transcripts() -> list[Messages]:
    import asyncio

    async def played() -> list[Messages]:
        return await play_transcripts(LocalEnvironment(bandit()), ScriptedClient(random_pulls), 64)

    return asyncio.run(played())


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, transcripts: list[Messages]) -> Path:
    """An untrained tiny policy whose tokenizer knows the bandit."""
    return create_tiny(transcripts, tmp_path_factory.mktemp("models") / "tiny", seed=0, size=SIZE)


@pytest.fixture(scope="session")
def puller(tiny: Path, transcripts: list[Messages]) -> Path:
    """The tiny policy after fine-tuning on random pulls: it answers in form and prefers no lever."""
    torch.set_num_threads(1)
    settings = SFTSettings(
        model={"path": str(tiny), "device": "cpu"},
        batch={"rows": 16},
        schedule={"steps": 120, "learning_rate": 1e-2, "decay": "linear"},
    )
    rows = [
        {"messages": messages[: max(i for i, m in enumerate(messages) if m["role"] == "assistant") + 1]}
        for messages in transcripts
    ]
    return train_sft(rows, settings, tiny.parent / "puller").model


FORGETFUL = ("{{- message['content'] }}", "{{- message['content'][:1] }}")
"""Shows one letter of what the policy said before, so that each turn is sampled from a rewritten history."""


@pytest.fixture(scope="session")
def forgetful(puller: Path) -> Path:
    """The policy that pulls at random, with the forgetful template."""
    loaded = load_model(puller, device="cpu")
    template = loaded.tokenizer.chat_template
    assert template.count(FORGETFUL[0]) == 1
    loaded.tokenizer.chat_template = template.replace(*FORGETFUL)
    folder = puller.parent.parent / "forgetful"
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder
