"""Conversations beyond `compact_at`: old turns are left out, which is recorded, and every turn is learned."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from wander import LocalEnvironment, MultiTurnEnv, Rubric
from wander.clients.base import ModelRequest
from wander.clients.openai import OpenAIClient
from wander.errors import ConfigError, ContextOverflow, ModelError
from wander.evals.replay import replay_run
from wander.evals.run.runner import EvaluationPlan, evaluate
from wander.evals.store.folder import RunFolder
from wander.models.chat import ChatFormat
from wander.models.client import TransformersClient
from wander.models.compaction import drop_messages, update_conversation
from wander.models.loading import LoadedModel, load_model, weights_digest
from wander.models.policy import PolicyClient
from wander.models.sampling import end_of_turn_ids
from wander.train.config import GRPOSettings, SFTSettings
from wander.train.data import select_rows
from wander.train.grpo import train_grpo
from wander.train.records.files import read_metrics
from wander.train.rollouts.rollout_func import EnvironmentRollouts
from wander.train.rollouts.rows import trajectories_of
from wander.train.sft import IGNORED, split, tokenize_rows, train_sft
from wander.train.verify import verify_training
from wander.types import Rollout, SamplingArgs, Turn
from wander.wire import EnvironmentPin

from .conftest import PULL, bandit, length, opener_of, payoff
from .test_sequences import Watched, gradient_by_hand, settings_for, watched

__all__ = ["watched"]

CONTEXT, LIMIT, TURNS = 256, 160, 40


@pytest.fixture
def loaded(puller: Path) -> LoadedModel:
    return load_model(puller, device="cpu")


class Asking(MultiTurnEnv):
    """Goes on for forty turns, whatever the answers."""

    def env_response(self, messages: Any, state: Any) -> Any:
        return [{"role": "user", "content": f"It paid {len(state.turns) % 10}. Pull again."}]


def asking(turns: int = TURNS) -> Asking:
    rows = [{"question": f"Machine {n}. Answer <pull>lever</pull>.", "answer": ""} for n in range(6)]
    rubric = Rubric([payoff, length], [1.0, 0.01])
    return Asking(rows, max_turns=turns, parser=PULL, rubric=rubric, system_prompt="Pull.")


async def play(client: Any, folder: Path | None = None, **sampling: Any) -> list[Rollout]:
    handle = LocalEnvironment(asking())
    plan = EvaluationPlan(
        num_examples=None, sampling=SamplingArgs(max_tokens=12, temperature=0.7, **sampling), max_retries=0
    )
    pin = EnvironmentPin(name="asking", info=handle.info)
    result = await evaluate(handle, client, plan, folder, pin)
    await client.close()
    return result.rollouts


def stretches(rollout: Rollout) -> list[list[Turn]]:
    """The turns, as long as the same messages are left out."""
    return [list(turns) for _, turns in groupby(rollout.turns, key=lambda turn: turn.left_out)]


async def test_compaction_continues_a_conversation_without_context_space(
    loaded: LoadedModel,
) -> None:
    before = await play(TransformersClient(loaded))
    assert {rollout.stop_reason for rollout in before} == {"context_overflow"}
    for client in (TransformersClient(loaded), PolicyClient(loaded.model, loaded.tokenizer)):
        rollouts = await play(client, compact_at=LIMIT)
        assert {rollout.stop_reason for rollout in rollouts} == {"max_turns_reached"}
        for rollout in rollouts:
            assert (rollout.failure, len(rollout.turns)) == (None, TURNS)
            assert len(rollout.completion) == 2 * TURNS - 1, "the environment's conversation is whole"
            check_record(rollout, loaded)


def check_record(rollout: Rollout, loaded: LoadedModel) -> None:
    messages = [*rollout.prompt, *rollout.completion]
    parts = stretches(rollout)
    assert len(parts) > 2
    assert rollout.turns[0].left_out is None
    for part in parts:
        for turn in part:
            assert turn.tokens is not None
            assert len(turn.tokens.prompt_ids) + len(turn.tokens.completion_ids) <= LIMIT
            shown = drop_messages(messages[: turn.context_messages], turn.left_out)
            seen = loaded.tokenizer.decode(turn.tokens.prompt_ids)
            assert [message["role"] for message in shown[:3]] == ["system", "user", "assistant"][: len(shown)]
            assert all(message["content"] in seen for message in shown if message["role"] != "assistant")
        if (gap := part[0].left_out) is not None:
            assert gap[0] == len(rollout.prompt)
            assert messages[gap[1]]["role"] == "assistant", "turns are left out whole"
            left = sum(message["role"] == "assistant" for message in messages[slice(*gap)])
            turn_or_turns = "1 earlier turn is" if left == 1 else f"{left} earlier turns are"
            assert f"[{turn_or_turns} left out here.]" in seen
            assert part[0].tokens is not None
            assert len(part[0].tokens.prompt_ids) <= LIMIT // 2
    sequences = trajectories_of(rollout)
    assert len(sequences) == len(parts), "between compactions every turn continues the one before"
    learned = [
        token for one in sequences for token, own in zip(one.completion_ids, one.mask, strict=True) if own
    ]
    assert learned == [token for turn in rollout.turns if turn.tokens for token in turn.tokens.completion_ids]


async def test_a_compacted_run_replays_and_keeps_omitted_messages(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    await play(TransformersClient(loaded), tmp_path / "run", compact_at=LIMIT)
    folder = RunFolder.open(tmp_path / "run")
    assert folder.manifest.sampling.compact_at == LIMIT
    stored = list(folder.rollouts())
    assert any(turn.left_out for rollout in stored for turn in rollout.turns)
    report = await replay_run(LocalEnvironment(asking()), folder.manifest, stored)
    assert (report.level, report.same) == ("replayed", len(stored))
    assert "left_out" not in stored[0].turns[0].model_dump(), "turns that saw everything are stored as ever"


@pytest.fixture
def form(loaded: LoadedModel) -> ChatFormat:
    return ChatFormat(loaded.tokenizer, end_of_turn_ids(loaded.model, loaded.tokenizer))


def ask(messages: list[dict[str, Any]], turn: int, limit: int) -> ModelRequest:
    sampling = SamplingArgs(compact_at=limit, max_tokens=8)
    return ModelRequest(rollout_id="r", turn=turn, messages=messages, sampling=sampling)


def called(number: int) -> list[dict[str, Any]]:
    """A turn with two calls and their results."""
    calls = [
        {"id": f"c{number}{n}", "type": "function", "function": {"name": "pull", "arguments": "{}"}}
        for n in range(2)
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": f"paid {number}"} for call in calls]
    return [{"role": "assistant", "content": "", "tool_calls": calls}, *results]


def test_compaction_keeps_calls_with_results_and_few_shot_examples(form: ChatFormat) -> None:
    opening = [
        {"role": "system", "content": "Pull."},
        {"role": "user", "content": "Machine 0."},
        {"role": "assistant", "content": "<pull>1</pull>"},
        {"role": "user", "content": "Machine 3."},
    ]
    messages = [*opening, *(message for number in range(9) for message in called(number))]
    whole = len(form.start(messages).ids)
    conversation, _ = update_conversation(form, None, ask(messages, 9, whole - 1), 8)
    assert conversation.left_out is not None
    first, end = conversation.left_out
    assert first == len(opening), "an example in the prompt is no turn"
    assert (end - first) % 3 == 0
    assert end < len(messages)
    assert len(conversation.ids) <= whole // 2
    shown = drop_messages(messages, conversation.left_out)
    assert shown[: len(opening) - 1] == opening[:-1]
    assert shown[len(opening) - 1]["content"].startswith("Machine 3.\n\n[")
    assert form.render(shown) == form.tokenizer.decode(conversation.ids)
    # The last turn stays, however small the limit.
    least = len(form.start(drop_messages(messages, (4, len(messages) - 3))).ids)
    conversation, _ = update_conversation(form, None, ask(messages, 9, least + 1), 8)
    assert conversation.left_out == (4, len(messages) - 3)
    with pytest.raises(ContextOverflow, match=rf"its last turn have {least} tokens, and `compact_at` is"):
        update_conversation(form, None, ask(messages, 9, least), 8)
    short = len(form.start(opening).ids)
    with pytest.raises(ModelError, match=f"the conversation begins with {short} tokens, and `compact_at` is"):
        update_conversation(form, None, ask(opening, 0, short), 8)
    assert update_conversation(form, None, ask(opening, 0, short + 1), 8)[0].left_out is None


def test_compaction_keeps_few_shot_examples_of_a_player(form: ChatFormat) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Machine 0."},
        {"role": "assistant", "content": "<pull>1</pull>"},
        {"role": "user", "content": "Machine 3."},
    ]
    opening, conversation, limit = len(messages), None, 100
    for number in range(9):
        request = ask(messages, 2 * number + 1, limit).model_copy(update={"player": "right"})
        conversation, _ = update_conversation(form, conversation, request, 8)
        gap = conversation.left_out
        assert gap is None or gap[0] == opening
        said = {"role": "assistant", "content": f"<pull>{number % 4}</pull>"}
        form.append_completion(conversation, [*form.encode(said["content"]), min(form.end_ids)])
        conversation.said = said
        messages += [said, {"role": "user", "content": "It paid 0.5. Pull again."}]
    assert gap is not None


def test_removed_messages_are_not_omitted_again(form: ChatFormat) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Machine 0."}]
    for number in range(9):
        messages += [
            {"role": "assistant", "content": f"<pull>{number % 4}</pull>"},
            {"role": "user", "content": "It paid 0.5. Pull again."},
        ]
    whole = len(form.start(messages).ids)
    conversation, _ = update_conversation(form, None, ask(messages, 9, whole - 1), 8)
    assert conversation.left_out is not None
    again, begins = update_conversation(form, conversation, ask(messages[:3], 9, whole - 1), 8)
    assert (again.left_out, begins) == (None, True)
    assert again.ids == form.start(messages[:3]).ids


async def test_unsupported_compaction_is_reported_before_playing(loaded: LoadedModel, tmp_path: Path) -> None:
    endpoint = OpenAIClient("served", "http://127.0.0.1:9/v1")
    with pytest.raises(ModelError, match="`compact_at` is only for models in this process"):
        endpoint.check_sampling(SamplingArgs(compact_at=100))
    await endpoint.close()
    with pytest.raises(
        ModelError, match=f"`compact_at` is 300, but the model accepts at most {CONTEXT} tokens"
    ):
        await play(TransformersClient(loaded), tmp_path / "run", compact_at=300)
    assert not (tmp_path / "run").exists()
    settings = settings_for(Path(loaded.path or ""), sampling={"compact_at": 300})
    with pytest.raises(ModelError, match="`compact_at` is 300"):
        train_grpo(opener_of(bandit), settings, tmp_path / "trained")
    with pytest.raises(
        ValueError, match="`max_rollout_tokens` ends a conversation that `compact_at` would continue"
    ):
        GRPOSettings.model_validate(
            {"model": {"path": "x"}, "sampling": {"compact_at": 99, "max_rollout_tokens": 99}}
        )
    with pytest.raises(
        ConfigError, match="`max_rollout_tokens` ends a conversation that `compact_at` would continue"
    ):
        EnvironmentRollouts(opener_of(bandit), compact_at=99, max_rollout_tokens=99)


COMPACTED = {"compact_at": 100, "max_tokens": 8}


@pytest.mark.parametrize("loss", ["dapo", pytest.param("grpo", marks=pytest.mark.full)])
def test_every_turn_of_a_compacted_rollout_is_learned_in_its_own_context(
    puller: Path, tmp_path: Path, watched: type[Watched], loss: str
) -> None:
    settings = settings_for(puller, sampling=COMPACTED, algorithm={"loss": loss})
    train_grpo(opener_of(lambda: asking(9)), settings, tmp_path / "run")
    (step,) = watched.steps
    assert {len(rollout.turns) for rollout in step.rollouts} == {9}
    counts = [len(row.sequences) for row in step.rows]
    assert set(counts) == {1, 2}
    assert read_metrics(tmp_path / "run")[0]["sequences"] == sum(counts) / len(counts)
    expected = gradient_by_hand(puller, step, loss, 0.0)
    found = torch.stack(watched.gradients).sum(0)
    assert float(expected.abs().max()) > 1e-3
    assert float((found - expected).abs().max()) < 1e-4 * float(expected.abs().max())


@pytest.mark.full
def test_a_run_with_compaction_verifies_and_resumes_to_the_same_bits(puller: Path, tmp_path: Path) -> None:
    def make() -> MultiTurnEnv:
        return asking(9)

    settings = settings_for(
        puller,
        sampling=COMPACTED,
        schedule={"steps": 4, "max_grad_norm": 1.0},
        output={"checkpoint_every": 2},
    )
    digest = weights_digest(train_grpo(opener_of(make), settings, tmp_path / "run").model)
    assert min(entry["sequences"] for entry in read_metrics(tmp_path / "run")) > 1
    report = verify_training(tmp_path / "run", opener_of(make), steps=2)
    assert (report.compared, report.difference, report.refused) == (2, None, None)
    again = train_grpo(opener_of(make), settings, tmp_path / "run", resume=True, checkpoint=2)
    assert weights_digest(again.model) == digest


@pytest.mark.parametrize("why", ["compaction", pytest.param("template", marks=pytest.mark.full)])
async def test_fine_tuning_learns_each_turn_of_several_sequences_once(
    loaded: LoadedModel, forgetful: Path, tmp_path: Path, why: str
) -> None:
    model = loaded if why == "compaction" else load_model(forgetful, device="cpu")
    rollouts = await play(TransformersClient(model), compact_at=LIMIT if why == "compaction" else None)
    rows, report = select_rows(rollouts)
    assert report.kept == len(rollouts)
    dataset, too_long = tokenize_rows(rows, model, CONTEXT)
    assert too_long == 0
    assert all(dataset["as_sampled"])
    turns = [turn.tokens for rollout in rollouts for turn in rollout.turns if turn.tokens is not None]
    assert len(dataset) > 2 * len(rollouts)
    assert len(dataset) == (len(turns) if why == "template" else sum(map(len, map(stretches, rollouts))))
    assert sorted(set(dataset["row"])) == list(range(1, len(rollouts) + 1))
    learned = [label for labels in dataset["labels"] for label in labels if label != IGNORED]
    assert learned == [token for tokens in turns for token in tokens.completion_ids]
    contexts = {
        (*ids[:place],)
        for ids, labels in zip(dataset["input_ids"], dataset["labels"], strict=True)
        for place in range(1, len(ids))
        if labels[place] != IGNORED and labels[place - 1] == IGNORED
    }
    assert contexts == {(*tokens.prompt_ids,) for tokens in turns}

    settings = SFTSettings(
        model={"path": str(model.path), "device": "cpu"},
        batch={"rows": 4},
        schedule={"steps": 2, "eval_share": 0.4},
    )
    result = train_sft(rows, settings, tmp_path / "tuned")
    assert (result.rows, result.as_sampled, result.held_out) == (6, 6, 2)
    sides = split(dataset, 0.4, 0)
    assert not set(sides[0]["row"]) & set(sides[1]["row"]), "no sequence of what is held back is learned"
    # What one sequence is too long for is counted once, and the others are learned.
    longest = max(dataset["length"])
    cut, too_long = tokenize_rows(rows, model, longest - 1)
    assert len(cut) == len(dataset) - dataset["length"].count(longest)
    assert 1 <= too_long <= len(rollouts)
