"""What is trained on is what was sampled, over ten turns and under the chat templates of real model families.

The templates are written here in the published form of each family; the tokenizer and the model are small
ones made on the spot. A random model writes odd text, which is the point: most of what it says is tokenised
differently when it is read back.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from wander import LocalEnvironment, MultiTurnEnv, Rubric, SamplingArgs
from wander.envs import AgentEnv
from wander.models.chat import ChatFormat, RewrittenHistory
from wander.models.policy import PolicyClient
from wander.models.sampling import Sample, end_of_turn_ids
from wander.train.rollouts.rows import Row, draw_one, trajectories_of
from wander.wire.run_record import read_sub_calls

TURNS = 10
SYSTEM = "You answer."

SMOLLM2 = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LFM2 = (
    "{{ bos_token }}{% set ns = namespace(system='') %}"
    "{% if messages[0]['role'] == 'system' %}"
    "{% set ns.system = messages[0]['content'] %}{% set messages = messages[1:] %}{% endif %}"
    "{% if ns.system %}{{ '<|im_start|>system\n' + ns.system + '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{% set content = message['content'] %}"
    "{% if message['role'] == 'tool' %}"
    "{% set content = '<|tool_response_start|>' + content + '<|tool_response_end|>' %}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN3 = (
    "{% set ns = namespace(last=0) %}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}{% set content = message['content'] %}"
    "{% if message['role'] == 'assistant' %}{% set reasoning = '' %}"
    "{% if '</think>' in content %}"
    "{% set reasoning = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if loop.index0 > ns.last and (loop.last or reasoning) %}"
    "{{ '<|im_start|>assistant\n<think>\n' + reasoning + '\n</think>\n\n' + content.lstrip('\n') }}"
    "{% else %}{{ '<|im_start|>assistant\n' + content }}{% endif %}{{ '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + message['role'] + '\n' + content + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SHORTENING = SMOLLM2.replace(
    "message['content'] + '<|im_end|>'",
    "(message['content'][:1] if message['role'] == 'assistant' else message['content']) + '<|im_end|>'",
)
"""Keeps one letter of what the assistant said: rewrites history whatever a model writes."""


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer():
    """Return a function that gives a byte-level tokenizer with a chat template."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    special = ["<|startoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(
        ["the answer to the question is the number of the turn " * 4, "question 0 "], trainer
    )

    def made(template):
        return PreTrainedTokenizerFast(
            tokenizer_object=raw,
            bos_token="<|startoftext|>",
            eos_token="<|im_end|>",
            pad_token="<|pad|>",
            chat_template=template,
        )

    return made


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=4096,
        eos_token_id=2,
        pad_token_id=3,
    )
    return LlamaForCausalLM(config).eval()


class Asking(MultiTurnEnv):
    """Asks ten questions, whatever the answers."""

    def env_response(self, messages, state):
        return [{"role": "user", "content": f"question {len(state.turns)} after {len(messages)} messages?"}]


def environment():
    rows = [{"question": f"question 0 of row {n}?"} for n in range(3)]
    return Asking(rows, rubric=Rubric([lambda completion: 1.0]), system_prompt=SYSTEM, max_turns=TURNS)


async def played(client, max_tokens=12):
    handle = LocalEnvironment(environment())
    examples = await handle.examples("train")
    names = [example.example_id for example in examples]
    for name in names:
        client.begin(name)
    rollouts = await asyncio.gather(
        *(
            handle.rollout(client, example, rollout_id=name, sampling=SamplingArgs(max_tokens=max_tokens))
            for name, example in zip(names, examples, strict=True)
        )
    )
    await client.close()
    assert [rollout.failure for rollout in rollouts] == [None] * len(rollouts)
    assert {len(rollout.turns) for rollout in rollouts} == {TURNS}
    return rollouts


def scored(model, trajectory):
    """Return the log-probabilities that training would compute for the policy's tokens of a sequence."""
    ids = torch.tensor([trajectory.prompt_ids + trajectory.completion_ids])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0].float(), dim=-1)
    start = len(trajectory.prompt_ids)
    return [
        logprobs[start + place - 1, token].item()
        for place, (token, own) in enumerate(zip(trajectory.completion_ids, trajectory.mask, strict=True))
        if own
    ]


def sampled_logprobs(trajectory):
    return [p for p, own in zip(trajectory.logprobs, trajectory.mask, strict=True) if own]


@pytest.mark.parametrize("template", [SMOLLM2, LFM2], ids=["SmolLM2", "LFM2"])
async def test_ten_turns_contain_exactly_the_sampled_tokens(model, tokenizer, template):
    own = tokenizer(template)
    odd = 0
    for rollout in await played(PolicyClient(model, own)):
        tokens = [turn.tokens for turn in rollout.turns]
        for before, after in pairwise(tokens):
            known = before.prompt_ids + before.completion_ids
            assert after.prompt_ids[: len(known)] == known
        (whole,) = trajectories_of(rollout)
        assert Row.of(rollout).sequences == draw_one(rollout).sequences == [whole]
        learned = [token for token, own in zip(whole.completion_ids, whole.mask, strict=True) if own]
        assert learned == [token for turn in tokens for token in turn.completion_ids]
        assert whole.prompt_ids + whole.completion_ids == tokens[-1].prompt_ids + tokens[-1].completion_ids
        for turn in rollout.turns:
            odd += own.encode(turn.message["content"], add_special_tokens=False) != [
                token for token in turn.tokens.completion_ids if token not in own.all_special_ids
            ]
        assert scored(model, whole) == pytest.approx(sampled_logprobs(whole), abs=1e-4)
    assert odd > TURNS, "re-tokenising would have given the same ids: the test proves nothing"


@pytest.mark.parametrize("template", [SMOLLM2, LFM2], ids=["SmolLM2", "LFM2"])
async def test_the_context_ends_as_the_template_renders_it(model, tokenizer, template):
    own = tokenizer(template)
    for rollout in await played(PolicyClient(model, own)):
        whole = [*rollout.prompt, *rollout.completion]
        for turn in rollout.turns[1:]:
            text = own.apply_chat_template(
                whole[: turn.context_messages], tokenize=False, add_generation_prompt=True
            )
            seen = turn.tokens.prompt_ids
            assert own.decode(seen).endswith(text[text.rindex("question ") :])


def scripted_sampling(client, say):
    """Let a client sample what `say(turn)` writes, token by token, with the end of turn."""
    end = client.format.tokenizer.eos_token_id

    def sample(requests, cache=None, ended=None):
        turn = client.turns
        client.turns += 1
        ids = [*client.format.encode(say(turn)), end]
        return [Sample(ids=ids, logprobs=[-1.0] * len(ids), finish_reason="stop") for _ in requests]

    client.turns = 0
    sampler = getattr(client, "engine", client).sampler
    sampler.sample = sample
    sampler.keeps_cache = False
    return client


async def test_a_template_that_drops_reasoning_splits_the_rollout_into_samples(model, tokenizer):
    own = tokenizer(QWEN3)
    client = scripted_sampling(
        PolicyClient(model, own), lambda turn: f"<think>\nturn {turn}\n</think>\n\nanswer {turn}"
    )
    for rollout in await played(client, max_tokens=40):
        parts = trajectories_of(rollout)
        assert len(parts) == TURNS
        assert Row.of(rollout).sequences == parts
        whole = [*rollout.prompt, *rollout.completion]
        for part, turn in zip(parts, rollout.turns, strict=True):
            shown = own.apply_chat_template(
                whole[: turn.context_messages], tokenize=False, add_generation_prompt=True
            )
            assert own.decode(part.prompt_ids) == shown
            assert "<think>" not in shown
            assert part.completion_ids == turn.tokens.completion_ids
            assert part.mask == [1] * len(part.completion_ids)


async def test_a_template_that_drops_reasoning_changes_nothing_without_reasoning(model, tokenizer):
    client = scripted_sampling(PolicyClient(model, tokenizer(QWEN3)), lambda turn: f"answer {turn}")
    for rollout in await played(client, max_tokens=40):
        (whole,) = trajectories_of(rollout)
        assert sum(whole.mask) == sum(len(turn.tokens.completion_ids) for turn in rollout.turns)


async def test_reasoning_in_one_turn_splits_only_there(model, tokenizer):
    client = scripted_sampling(
        PolicyClient(model, tokenizer(QWEN3)),
        lambda turn: ("<think>\nhm\n</think>\n\n" if turn == 4 else "") + f"answer {turn}",
    )
    for rollout in await played(client, max_tokens=40):
        first, second = trajectories_of(rollout)
        counts = [len(turn.tokens.completion_ids) for turn in rollout.turns]
        assert [sum(first.mask), sum(second.mask)] == [sum(counts[:5]), sum(counts[5:])]


async def test_every_sample_of_a_split_rollout_is_scored_on_its_tokens(model, tokenizer):
    """A cache that kept the keys and values of the old history would give other log-probabilities."""
    client = PolicyClient(model, tokenizer(SHORTENING))
    for rollout in await played(client):
        parts = trajectories_of(rollout)
        assert len(parts) > TURNS / 2
        for part in parts:
            assert scored(model, part) == pytest.approx(sampled_logprobs(part), abs=1e-4)


async def test_sequences_for_custom_trainers_depend_only_on_the_rollout(model, tokenizer):
    rollouts = await played(PolicyClient(model, tokenizer(SHORTENING)))
    assert [draw_one(rollout) for rollout in rollouts] == [draw_one(rollout) for rollout in rollouts]
    drawn = [
        draw_one(rollout.model_copy(update={"index": index})).sequences  # another member of the group
        for rollout in rollouts
        for index in range(20)
    ]
    assert {len(sequences) for sequences in drawn} == {1}
    assert len({tuple(one.completion_ids) for (one,) in drawn}) > 3


def talk(*contents):
    roles = ["user", "assistant"] * len(contents)
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]


@pytest.mark.parametrize("template", [SMOLLM2, LFM2, QWEN3], ids=["SmolLM2", "LFM2", "Qwen3"])
def test_fine_tuning_learns_every_answer_of_a_transcript_once(model, tokenizer, template):
    own = tokenizer(template)
    form = ChatFormat(own, end_of_turn_ids(model, own))
    answers = [f"<think>\nturn {turn}\n</think>\n\nanswer {turn}" for turn in range(TURNS)]
    messages = talk(*(text for turn, answer in enumerate(answers) for text in (f"question {turn}", answer)))
    samples = form.transcripts(messages)
    assert len(samples) == (TURNS if template == QWEN3 else 1)
    learned = [
        token
        for sample in samples
        for token, own_token in zip(sample.ids, sample.mask, strict=True)
        if own_token
    ]
    assert learned == [token for answer in answers for token in [*form.encode(answer), own.eos_token_id]]
    if template == QWEN3:
        context = own.decode(
            [t for t, own_token in zip(samples[-1].ids, samples[-1].mask, strict=True) if not own_token]
        )
        assert "answer 8" in context
        assert "turn 8\n</think>" not in context
        with pytest.raises(RewrittenHistory):
            form.transcript(messages)


AGENT = """
import json, os, urllib.request

def ask(messages):
    body = json.dumps({"model": "any", "messages": messages}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append({"role": "assistant", "content": message["content"]})

messages = [{"role": "user", "content": os.environ["WANDER_INSTRUCTION"]}]
for turn in range(4):
    ask(messages)
    side = [{"role": "user", "content": f"a side question {turn % 2}?"}]
    ask(side)
    messages.append({"role": "user", "content": f"question {turn + 1}?"})
ask(messages)
"""


class Program(AgentEnv):
    async def setup_box(self, box, state):
        await box.upload({"/work/agent.py": AGENT})


async def test_calls_of_an_agent_program_contain_exactly_the_sampled_tokens(model, tokenizer):
    rows = [{"question": f"question 0 of row {n}?"} for n in range(2)]
    rubric = Rubric([lambda completion: 1.0])
    handle = LocalEnvironment(Program(rows, rubric=rubric, agent="python3 agent.py"))
    client = PolicyClient(model, tokenizer(SMOLLM2))
    sampling = SamplingArgs(max_tokens=12)
    rollouts = await asyncio.gather(
        *(
            handle.rollout(client, example, rollout_id=example.example_id, sampling=sampling)
            for example in await handle.examples("train")
        )
    )
    await client.close()
    await handle.close()
    for rollout in rollouts:
        assert rollout.failure is None, rollout.failure
        assert (len(rollout.turns), len(read_sub_calls(rollout))) == (5, 4)
        sequences = trajectories_of(rollout)
        assert len(sequences) == 5  # its own conversation, and four side questions
        last = rollout.turns[-1].tokens
        assert sequences[0].prompt_ids + sequences[0].completion_ids == last.prompt_ids + last.completion_ids
        turns = [*rollout.turns, *(turn for call in read_sub_calls(rollout) for turn in call.turns)]
        learned = sum(sum(sequence.mask) for sequence in sequences)
        assert learned == sum(len(turn.tokens.completion_ids) for turn in turns)
        for sequence in sequences:
            assert sampled_logprobs(sequence) == pytest.approx(scored(model, sequence), abs=1e-4)
        assert len(Row.of(rollout).sequences) == 5
