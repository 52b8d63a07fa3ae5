"""TRL's `GRPOTrainer` plays our environments by tool calls (`environment_factory`)."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest
import wander
from wander.clients import ScriptedClient
from wander_integrations import trl_environment_factory, trl_reward, trl_rows

WORDS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")


def said(text):
    return [{"role": "assistant", "content": text}]


def test_tools_are_methods_with_the_schemas_of_the_environment():
    from transformers.utils import get_json_schema

    env = wander.load_environment("math-tools", num_examples=8)
    player = trl_environment_factory(env)()
    player.reset(**trl_rows(env, 2)[1])
    shown = get_json_schema(player.calculate)["function"]
    assert (shown["name"], shown["parameters"]["required"]) == ("calculate", ["a", "operation", "b"])
    assert player.calculate(a=6, operation="*", b=7) == "42"
    assert "12" in player.prime_factors(n=144) or "2" in player.prime_factors(n=144)
    answer = env.dataset()[1].answer
    assert trl_reward([said(f"<answer>{answer}</answer>")], [player]) == [1.0]
    with pytest.raises(RuntimeError, match="the episode is over"):
        player.calculate(a=1, operation="+", b=1)
    player.reset(position=0)
    assert trl_reward([[{"role": "tool", "content": "42"}]], [player]) == [None], "it was left before its end"


def test_environments_without_tools_earn_the_same_rewards():
    env = wander.load_environment("tictactoe", num_examples=8)
    moves = [f"<move>{n % 9 + 1}</move>" for n in range(20)]
    make = trl_environment_factory(env, run_seed=3)
    for number in range(3):
        player = make()
        player.reset(position=1)
        ours = asyncio.run(env.rollout(ScriptedClient(moves), env.dataset()[1], index=number, run_seed=3))
        for move in moves[: len(ours.turns) - 1]:
            player.reply(text=move)
        assert trl_reward([said(moves[len(ours.turns) - 1])], [player]) == [ours.reward]


def test_a_nullable_argument_has_its_other_type():
    class Described(wander.ToolEnv):
        """Offers a tool as a server of MCP would describe it."""

        def tools(self, state):
            either = {"anyOf": [{"type": "null"}, {"type": "number"}]}  # as pydantic writes `float | None`
            kinds = {"limit": {"type": ["integer", "null"]}, "share": either}
            parameters = {"type": "object", "properties": kinds}
            return [{"type": "function", "function": {"name": "look", "parameters": parameters}}]

    env = Described([{"question": "go"}], tools=[], rubric=wander.Rubric([]))
    parameters = inspect.signature(trl_environment_factory(env).look).parameters
    assert (parameters["limit"].annotation, parameters["share"].annotation) == (int, float)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:You are using .environment_factory.")
def test_a_trainer_takes_a_step(tmp_path):
    import trl
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    letters = Tokenizer(
        models.BPE({each: n for n, each in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=letters, additional_special_tokens=WORDS[:1], eos_token=WORDS[1], pad_token=WORDS[2]
    )
    templates = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (templates / "qwen3.jinja").read_text()  # one whose tool calls TRL can read
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 4096}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), **sizes, **heads, **ends))
    env = wander.load_environment("math-tools", num_examples=8)
    earned = []

    def watched(completions, environments, **columns):
        earned.append(trl_reward(completions, environments))
        return earned[-1]

    trainer = trl.GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=watched,
        train_dataset=trl_rows(env, 4),
        environment_factory=trl_environment_factory(env),
        args=trl.GRPOConfig(
            str(tmp_path), num_generations=2, per_device_train_batch_size=4, max_steps=1,
            max_completion_length=12, report_to=[], use_cpu=True, save_strategy="no",
        ),
    )  # fmt: skip
    trainer.train()
    assert earned == [[0.0] * 4]
    assert trainer.state.global_step == 1
