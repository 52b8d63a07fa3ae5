"""`wander.sft`, `wander.train` and a trainer of one's own, from Python, on the bundled tic-tac-toe."""

from __future__ import annotations

from pathlib import Path

import pytest
import wander
from wander.errors import ConfigError
from wander_client.errors import ClientError, UsageError

TICTACTOE = Path(__file__).parents[2] / "environments" / "tictactoe"
SECTIONS = {
    "batch": {"rollouts": 8, "group_size": 4, "rows_at_once": 8},
    "sampling": {"max_tokens": 8},
    "output": {"rollouts_every": 1, "fixed_prompts": 0},
}


@pytest.fixture
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def env(home):
    with wander.load(TICTACTOE, num_examples=16, num_groups=4, progress=False) as loaded:
        yield loaded


@pytest.fixture
def wander_command(request):
    return request.getfixturevalue("wander")


@pytest.fixture
def teacher(env):
    return env.evaluate_sync("scripted:tictactoe.players:optimal", split="train", n=16)


@pytest.fixture
def tiny(teacher, home):
    from wander.models import TinySize, create_tiny

    size = TinySize.of_width(32, 1, 330)
    return create_tiny([[*one.prompt, *one.completion] for one in teacher.rollouts], home / "tiny", size=size)


@pytest.mark.full
@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore:.*cut short by a limit")
def test_a_teacher_a_student_and_grpo(env, teacher, tiny, home):
    tuned = wander.sft(teacher, model=tiny, out="sft", steps=2, min_reward=0.0, progress=False)
    assert (tuned.model, tuned.steps) == (Path("sft/model"), 2)
    trained = wander.train(env, SECTIONS, model=tuned.model, steps=2, schedule={"learning_rate": 1e-3})
    assert [entry["step"] for entry in trained.history] == [1, 2]
    assert trained.path.parent == home / "runs"
    assert trained.manifest.environment.arguments == {"num_examples": 16, "num_groups": 4}
    assert "in the last step" in trained._repr_html_()
    assert trained.plot().to_dict()["vconcat"]
    after = env.evaluate_sync(trained.checkpoint, n=2, sampling={"max_tokens": 8})
    assert after.summary.rollouts == 2
    with pytest.raises(UsageError, match="is finished"):
        wander.train(env, resume=trained, progress=False)
    with pytest.raises(UsageError, match="cannot change `steps`"):
        wander.train(env, resume=trained, steps=3)


PHASES = """
[[phases]]
name = "games"
kind = "rollouts"
[phases.rollouts]
model = "scripted:tictactoe.players:optimal"
examples = 4
[[phases]]
name = "last"
kind = "grpo"
[phases.schedule]
steps = 4
"""


@pytest.mark.full
@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore:.*cut short by a limit")
async def test_train_runs_a_file_with_phases_like_the_command(env, tiny, home, wander_command):
    (home / "phases.toml").write_text(PHASES)
    fewer = {"last": {"schedule": {"steps": 1}}}  # while a loop runs, as in a notebook
    trained = wander.train(env, "phases.toml", model=tiny, out="run", phases=fewer, **SECTIONS)
    assert trained.phases == {"games": Path("run/1-games"), "last": Path("run/2-last")}
    assert (trained.path, trained.checkpoint) == (Path("run/2-last"), Path("run/model"))
    assert ([entry["step"] for entry in trained.history], trained.result.steps) == ([1], 1)
    assert trained.manifest.environment.arguments == env.arguments
    assert wander.Run(trained.phases["games"]).summary.rollouts == 4
    assert wander.train(env, resume="run").checkpoint == trained.checkpoint, "all is done already"
    assert wander_command("train", "--resume", "run").status == 0


@pytest.mark.full
@pytest.mark.usefixtures("one_thread")
def test_a_model_in_memory_is_evaluated_directly(env, tiny):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny), AutoTokenizer.from_pretrained(tiny)
    model.train()
    run = env.evaluate_sync(model, tokenizer=tokenizer, n=2, sampling={"max_tokens": 4})
    assert (run.model, run.summary.rollouts, model.training) == ("tiny", 2, True)
    assert run.manifest.model.weights_sha256 is None, "they may have changed since they were read"
    with pytest.raises(UsageError, match="requires its tokenizer"):
        env.evaluate_sync(model, n=2)


@pytest.mark.full
@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:You are using .rollout_func.")
def test_a_custom_trainer_plays_the_environment(env, tiny, home):
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    rollouts = env.rollout_func(max_tokens=6)
    played = []

    def watched(prompts, trainer):
        found = rollouts(prompts, trainer)
        played.append(found)
        return found

    before = AutoModelForCausalLM.from_pretrained(tiny)
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(tiny),
        processing_class=AutoTokenizer.from_pretrained(tiny, padding_side="left"),
        args=GRPOConfig(
            str(home / "own"), num_generations=4, per_device_train_batch_size=8, max_steps=2,
            learning_rate=1e-2, max_completion_length=16, report_to=[], use_cpu=True, save_strategy="no",
        ),
        train_dataset=env.train_dataset(8),
        rollout_func=watched,
        reward_funcs=env.reward_func,
    )  # fmt: skip
    trainer.train()
    assert len(played) == 2
    for step in played:
        assert len(step["environment_reward"]) == 8
        assert all(reward is not None for reward in step["environment_reward"])
        for ids, mask in zip(step["completion_ids"], step["env_mask"], strict=True):
            assert len(ids) == len(mask)
        groups = [tuple(map(tuple, step["prompt_ids"][n : n + 4])) for n in (0, 4)]
        assert all(len(set(group)) == 1 for group in groups), "a group plays one example"
    assert any(0 in mask for step in played for mask in step["env_mask"]), (
        "the environment's turns are masked"
    )
    assert trainer.state.global_step == 2
    assert type(before) is type(trainer.accelerator.unwrap_model(trainer.model))


def test_invalid_settings_are_reported(env, home):
    with pytest.raises(ConfigError, match="stps"):
        wander.train(env, model="smollm2", schedule={"stps": 3}, progress=False)
    with pytest.raises(UsageError, match="`sandbox` is set by the loaded environment"):
        wander.train(env, model="smollm2", sandbox=True)
    with pytest.raises(ConfigError, match="`batch` is not a section"):
        wander.train(env, model="smollm2", batch=64)
    (home / "phases.toml").write_text('[[phases]]\nkind = "grpo"\n[phases.model]\npath = "smollm2"\n')
    with pytest.raises(UsageError, match="does not apply to a training with phases") as steps:
        wander.train(env, "phases.toml", steps=3)
    assert 'phases={"grpo": {"schedule": {"steps": 3}}}' in steps.value.hint
    (home / "games.toml").write_text('[[phases]]\nkind = "rollouts"\n[phases.rollouts]\nmodel = "smollm2"\n')
    with pytest.raises(UsageError, match=r"no phase of `games\.toml` is GRPO"):
        wander.train(env, "games.toml")
    with pytest.raises(UsageError, match="`out` is missing"):
        wander.sft("rows.jsonl", model="smollm2")
    run = env.evaluate_sync("scripted:tictactoe.players:random", n=2)
    with pytest.raises(ClientError, match="all 2 rollouts were dropped"):
        wander.sft(run, model="smollm2", out="sft", min_reward=5.0, progress=False)
    assert not (home / "sft").exists()
