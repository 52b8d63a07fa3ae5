"""`wander env export --to tinker`: a recipe of the cookbook plays our rollouts with our rewards.

The cookbook is a hundred megabytes: the suite plays the adapter on stand-ins with the signatures that the
cookbook documents, and the slow test on the cookbook itself.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from command_line import Wander
from tictactoe.players import careless
from wander import ScriptedClient
from wander.clients.base import ModelRequest

TICTACTOE = str(Path(__file__).parents[2] / "environments" / "tictactoe")
NEEDED = ("tinker", "chz", "blobfile", "cloudpickle", "pyrage", "termcolor", "tiktoken", "tml-renderers")
"""What the cookbook imports and Wander does not bring."""

STAND_INS = {
    "chz.py": "import dataclasses\n\nchz = dataclasses.dataclass(frozen=True, kw_only=True)\n",
    "tinker_cookbook/renderers.py": """
def get_text_content(message):
    return message["content"]

def get_renderer(name, tokenizer):
    return name, tokenizer
""",
    "tinker_cookbook/tokenizer_utils.py": "def get_tokenizer(model_name):\n    return model_name\n",
    "tinker_cookbook/rl/types.py": """
class Env: ...
class EnvGroupBuilder: ...
class RLDataset: ...
class RLDatasetBuilder: ...
""",
    "tinker_cookbook/rl/message_env.py": """
import dataclasses
from tinker_cookbook.rl.types import Env

@dataclasses.dataclass
class MessageStepResult:
    reward: float
    episode_done: bool
    next_messages: list
    metrics: dict = dataclasses.field(default_factory=dict)

class MessageEnv: ...

@dataclasses.dataclass
class EnvFromMessageEnv(Env):
    renderer: object
    message_env: MessageEnv
""",
}

UNDER_THE_COOKBOOK = """
import asyncio

import tictactoe_tinker
from tictactoe.players import careless
from tinker_cookbook import renderers
from tinker_cookbook.tokenizer_utils import get_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from wander import ScriptedClient
from wander.clients.base import ModelRequest

letters = sorted(pre_tokenizers.ByteLevel.alphabet())
letter = Tokenizer(models.BPE(vocab={each: number for number, each in enumerate(letters)}, merges=[]))
letter.pre_tokenizer, letter.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
PreTrainedTokenizerFast(tokenizer_object=letter).save_pretrained("letters")
tokenizer = get_tokenizer("letters")
renderer = renderers.get_renderer("role_colon", tokenizer)

async def main():
    builder = tictactoe_tinker.WanderDatasetBuilder(
        model_name="letters", renderer_name="role_colon", batch_size=2, group_size=3, examples=5,
        test_examples=4, run_seed=5,
    )
    train, test = await builder()
    assert (len(train), len(await train.get_batch(1)[0].make_envs())) == (2, 3)
    for group in [*test.get_batch(0), *test.get_batch(1)]:
        [env] = await group.make_envs()
        seen, _ = await env.initial_observation()
        episode, said, done, total = env.message_env.episode, [], False, 0.0
        while not done:
            assert seen.to_ints() == renderer.build_generation_prompt(list(episode.messages)).to_ints()
            asked = ModelRequest(rollout_id="x", turn=0, messages=list(episode.messages), seed=len(said))
            said.append(careless(asked))
            step = await env.step(tokenizer.encode(f" {said[-1]}\\n\\nUser:", add_special_tokens=False))
            seen, done, total = step.next_observation, step.episode_done, total + step.reward
        ours = tictactoe_tinker.environment()
        again = await ours.rollout(ScriptedClient(said), ours.dataset("eval")[group.place], run_seed=5)
        assert again.reward == total, (again.reward, total)
        assert [*again.prompt, *again.completion] == episode.messages
        assert again.metrics.items() <= step.metrics.items()
        print(group.place, "same")

asyncio.run(main())
"""


@pytest.fixture
def adapter(wander: Wander, home: Path) -> Path:
    """The exported package."""
    assert wander("env", "export", TICTACTOE, "--to", "tinker", "--out", "adapter").status == 0
    return home / "adapter"


async def test_the_adapter_plays_the_rollouts_of_an_evaluation(
    adapter: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in STAND_INS.items():
        (home / "library" / name).parent.mkdir(parents=True, exist_ok=True)
        (home / "library" / name).write_text(text)
    monkeypatch.syspath_prepend(home / "library")
    monkeypatch.syspath_prepend(adapter)
    module = importlib.import_module("tictactoe_tinker")
    builder = module.WanderDatasetBuilder(
        model_name="m", renderer_name="r", batch_size=2, group_size=3, examples=5, test_examples=4, run_seed=5
    )
    train, test = await builder()
    assert (len(train), len(await train.get_batch(1)[0].make_envs())) == (2, 3)
    rewards = set()
    for group in [*test.get_batch(0), *test.get_batch(1)]:
        [env] = await group.make_envs()
        assert env.renderer == ("r", "m")
        messages, said, total, done = await env.message_env.initial_observation(), [], 0.0, False
        while not done:
            asked = ModelRequest(rollout_id="x", turn=0, messages=messages, seed=len(said))
            said.append(careless(asked))
            step = await env.message_env.step({"role": "assistant", "content": said[-1]})
            messages, done, total = step.next_messages, step.episode_done, total + step.reward
        example = module.environment().dataset("eval")[group.place]
        again = await module.environment().rollout(ScriptedClient(said), example, run_seed=5)
        assert (again.reward, again.metrics) == (total, step.metrics)
        assert [*again.prompt, *again.completion] == messages
        rewards.add(total)
    assert len(rewards) > 1, "they do not all end alike"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_cookbook_plays_the_rollouts_of_an_evaluation(adapter: Path, home: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", home / "venv"], check=True)
    python = home / "venv" / "bin" / "python"
    place = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    # Beside what is installed here: PyTorch and Transformers need not come a second time.
    beside = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (Path(place.stdout.strip()) / "beside.pth").write_text(beside)
    install = [python, "-m", "pip", "install", "-q"]
    subprocess.run([*install, "--no-deps", "tinker-cookbook>=0.6"], check=True)
    subprocess.run([*install, *NEEDED], check=True)
    played = subprocess.run(
        [python, "-c", UNDER_THE_COOKBOOK],
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(adapter)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert played.stdout.splitlines() == [f"{place} same" for place in range(4)], played.stderr
