"""Tasks of gymnasium, reasoning-gym and textarena as environments, played with the real packages."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy
import pytest
from bundled_environments import needs_reasoning_gym
from command_line import Wander
from gymnasium import spaces
from wander import Rollout, ScriptedClient
from wander.clients.replay import TranscriptClient
from wander.errors import ConfigError, MissingExtra
from wander.evals.replay import RESCORED, first_divergence
from wander_integrations import GymnasiumEnv, NoAction, OpenEnvEnv, ReasoningGymEnv, TextArenaEnv
from wander_integrations.gymnasium import plain_text

ROOT = Path(__file__).resolve().parents[2]


async def play(env, *replies, index: int = 0, run_seed: int = 0) -> Rollout:
    return await env.rollout(ScriptedClient(replies), env.dataset("eval")[index], run_seed=run_seed)


def told(rollout: Rollout) -> list[str]:
    return [each["content"] for each in [*rollout.prompt, *rollout.completion] if each["role"] == "user"]


class Echo(gymnasium.Env):
    """Observes a dictionary, takes three bits, and pays for ones."""

    def __init__(self, text: bool = False) -> None:
        self.observation_space = spaces.Dict(
            {"coin": spaces.Discrete(2), "row": spaces.MultiBinary(3), "word": spaces.Text(9)}
        )
        self.action_space = spaces.Text(5) if text else spaces.MultiBinary(3)
        self.closed = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action):
        ones = len(action) if isinstance(action, str) else int(action.sum())
        return self._seen(), ones / 3, ones == 3, False, {}

    def _seen(self):
        row = numpy.array([1, 0, 1], dtype=numpy.int8)
        return {"coin": numpy.int64(self.np_random.integers(2)), "row": row, "word": "yes"}


async def test_gymnasium_environments_are_loaded_by_id():
    env = GymnasiumEnv("FrozenLake-v1", options={"is_slippery": False}, max_turns=9)
    right, down = "<action>right</action>", "<action>1</action>"
    rollout = await play(env, "right", "<action>9</action>", right, right, down, down, down, right)
    assert (rollout.reward, rollout.stop_reason, len(rollout.turns)) == (1.0, "game_over", 8)
    assert rollout.metrics == {"earned": 1.0, "finished": 1.0, "no_actions": 2.0}
    said = told(rollout)
    assert said[0] == "SFFF\nFHFH\nFFFH\nHFFG\nred: `S` in line 1, column 1"
    assert said[1] == said[2] == "That is no action. Answer with `left`, `down`, `right`, `up`."
    assert said[3].endswith("red: `F` in line 2, column 2")
    assert "`left`, `down`, `right`, `up`" in rollout.prompt[0]["content"]


async def test_gymnasium_follows_the_seeds_of_example_and_run():
    env = GymnasiumEnv("Blackjack-v1", reward_bounds=(-1, 1))
    hands = [await play(env, *["<action>hit</action>"] * 20, index=index) for index in range(8)]
    again = [await play(env, *["<action>hit</action>"] * 20, index=index) for index in range(8)]
    other = [await play(env, *["<action>hit</action>"] * 20, index=index, run_seed=1) for index in range(8)]
    assert [told(each) for each in hands] == [told(each) for each in again] != [told(each) for each in other]
    assert len({told(each)[0] for each in hands}) > 2
    assert {each.reward for each in hands} == {-1.0}


async def test_gymnasium_supports_nested_observations_and_several_numbers():
    env = GymnasiumEnv(Echo)
    rollout = await play(
        env,
        "<action>1 1</action>",
        "<action>1 2 1</action>",
        "<action>1, 0, 0</action>",
        "<action>1 1 1</action>",
    )
    assert told(rollout)[0].splitlines()[1:] == ["row: 1 0 1", "word: yes"]
    assert rollout.metrics["no_actions"] == 2.0
    assert rollout.reward == pytest.approx(4 / 3)
    assert "3 whole numbers, separated by blanks, from `0 0 0` to `1 1 1`" in env.system_prompt
    rollout = await play(
        GymnasiumEnv(Echo, options={"text": True}), "<action>abcdef</action>", "<action>abc</action>"
    )
    assert (rollout.reward, rollout.metrics["no_actions"]) == (1.0, 1.0)


REGISTERING = """
import gymnasium
from gymnasium.spaces import Discrete, MultiDiscrete

class Dials(gymnasium.Env):
    observation_space, action_space = Discrete(1), MultiDiscrete([3, 4], start=[1, 2])

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, float(action.sum()), True, False, {}

gymnasium.register("Dials-v0", entry_point="registers_dials:Dials")
"""


async def test_gymnasium_imports_the_module_that_registers_an_environment(monkeypatch, tmp_path):
    """Numbers that its space lacks are no action, those too that its type would wrap around to one."""
    (tmp_path / "registers_dials.py").write_text(REGISTERING)
    monkeypatch.syspath_prepend(tmp_path)
    env = GymnasiumEnv("registers_dials:Dials-v0", reward_bounds=(3, 8))
    assert "from `1 2` to `3 5`" in env.system_prompt
    rollout = await play(env, "<action>0 2</action>", "<action>1 6</action>", "<action>3 5</action>")
    assert (rollout.reward, rollout.metrics["no_actions"]) == (8.0, 2.0)
    bits = GymnasiumEnv(Echo, reward_bounds=(0, 9), max_turns=1)
    assert (await play(bits, "<action>257 256 0</action>")).metrics["no_actions"] == 1.0
    with pytest.raises(ConfigError, match="needs what is not installed"):
        GymnasiumEnv("no_such_module_here:Dials-v0")


async def test_gymnasium_accepts_functions_of_the_author():
    def act(environment, text):
        if text not in ("push", "pull"):
            raise NoAction("Say push or pull.")
        return int(text == "push")

    env = GymnasiumEnv(
        "CartPole-v1",
        observe=lambda environment, observation: f"{observation[2]:+.2f}",
        act=act,
        system_prompt="Keep it up.",
        max_turns=2,
    )
    rollout = await play(env, "<action>push</action>", "<action>jump</action>")
    assert (rollout.reward, told(rollout)[2]) == (1.0, "Say push or pull.")
    assert told(rollout)[0][0] in "+-"


@pytest.mark.parametrize(
    ("name", "options", "said", "hint"),
    [
        ("FrozenLak-v1", {}, "no environment `FrozenLak-v1`", "`FrozenLake-v1`"),
        ("Nowhere-v7", {}, "no environment", "module:Name-v0"),
        ("CartPole-v1", {}, "the observations of `CartPole-v1` have no text form: `Box", "observe="),
        ("Taxi-v4", {"siz": 3}, "siz", None),
        ("LunarLander-v3", {}, "needs what is not installed", "dependencies"),
    ],
)
def test_unusable_gymnasium_environments_are_explained(name, options, said, hint):
    with pytest.raises(ConfigError, match=said) as caught:
        GymnasiumEnv(name, options=options)
    assert hint is None or hint in caught.value.hint
    with pytest.raises(ConfigError, match="the actions of `Pendulum-v1` have no text form"):
        GymnasiumEnv("Pendulum-v1", observe=lambda environment, observation: "")
    with pytest.raises(ConfigError, match=r"not the 2 of `actions`"):
        GymnasiumEnv("FrozenLake-v1", actions=["left", "right"])


def test_terminal_colors_are_written_as_words():
    assert plain_text("\n\x1b[43m \x1b[0ma\n\x1b[34;1mB\x1b[0m\n") == (
        " a\nB\nyellow: the blank in line 1, column 1\nblue: `B` in line 2, column 1"
    )


@needs_reasoning_gym
async def test_reasoning_gym_scores_as_the_library_does():
    env = ReasoningGymEnv("chain_sum", settings={"min_terms": 3, "max_terms": 3}, num_examples=30)
    for example in env.dataset("eval").examples(0, 5):
        near = f"<answer>it is {example.answer}</answer>"
        rewards = [
            (await env.rollout(ScriptedClient([said]), example)).reward
            for said in (env.gold(example), near, example.answer, "<answer>none</answer>")
        ]
        assert rewards[0] == 1.0 > rewards[1] > 0.0 == rewards[2] == rewards[3]
    questions = [{each.prompt[-1]["content"] for each in env.dataset(split)} for split in ("train", "eval")]
    assert len(questions[0] & questions[1]) < 2


@needs_reasoning_gym
async def test_reasoning_gym_mixes_tasks_by_weight():
    env = ReasoningGymEnv(
        {"leg_counting": {}, "graph_color": {"weight": 4, "num_colors": 3}}, num_examples=40
    )
    strata = [example.stratum for example in env.dataset("eval")]
    assert strata.count(1) > strata.count(0) > 0
    assert env.info.strata == 2
    for example in env.dataset("eval").examples(0, 8):
        assert (await env.rollout(ScriptedClient([env.gold(example)]), example)).reward == 1.0


@needs_reasoning_gym
async def test_an_answer_that_a_scorer_cannot_read_is_wrong():
    env = ReasoningGymEnv("prime_factorization", num_examples=3)
    rollout = await play(env, "<answer>I do not know</answer>")
    assert (rollout.reward, rollout.metrics["scorer_raised"], rollout.failure) == (0.0, 1.0, None)


@needs_reasoning_gym
@pytest.mark.parametrize(
    ("task", "settings", "said", "hint"),
    [
        ("chain_sums", {}, "no task `chain_sums`", "`chain_sum`"),
        (["chain_sum", "mazes"], {}, "no task `mazes`", "`maze`"),
        ("chain_sum", {"min_term": 3}, "no setting `min_term`", "`min_terms`"),
        ("chain_sum", {"min_terms": 0}, "must be positive", None),
        ("chain_sum,maze", {"min_terms": 3}, "of a single task", '"leg_counting"'),
        ({}, {}, "no task is named", None),
    ],
)
def test_unusable_reasoning_gym_tasks_are_explained(task, settings, said, hint):
    with pytest.raises(ConfigError, match=said) as caught:
        ReasoningGymEnv(task, settings=settings)
    assert hint is None or hint in caught.value.hint


async def test_textarena_single_player_games_are_played():
    env = TextArenaEnv("GuessTheNumber-v0")
    replies = [f"<think>[1]</think>{number}" for number in [7] * 12]
    rollout = await play(env, *replies)
    assert rollout.stop_reason == "game_over"
    assert 0 < rollout.reward <= 1
    said = told(rollout)
    assert "between 1 and 20" in said[0]
    assert said[1] in ("The target number is higher.", "The target number is lower.")
    assert "The game is over:" in said[-1]


async def test_textarena_games_are_played_by_roles():
    env = TextArenaEnv("TicTacToe-v0")
    rollout = await play(env, "[0]", "[3]", "I take [1]", "[4]", "[2]")
    assert rollout.rewards == {"player_0": 1.0, "player_1": -1.0}
    assert rollout.reward == 1.0
    second = [each for each in rollout.completion if each["player"] == "player_1"]
    assert "You are Player 1" in second[0]["content"]
    assert second[0]["content"].count("Current Board") == 1
    assert "[Player 0] [0]" in second[0]["content"]
    lost = await play(env, "[0]", "[9]", "[9]")
    assert lost.rewards == {"player_0": 1.0, "player_1": -1.0}


async def test_random_draws_at_creation_of_a_game_follow_the_seed():
    env = TextArenaEnv("Countdown-v0", settings={"numbers": None, "target": None}, max_turns=1)
    asked = []
    for index in (3, 3, 4):
        random.seed(len(asked))
        asked.append(told(await play(env, "[0 1 +]", index=index))[0])
    assert asked[0] == asked[1] != asked[2]


async def test_a_stored_game_is_rescored_without_playing():
    """As the hub does with what is not deterministic: a server of OpenEnv's, for instance."""
    for env, moves in (
        (TextArenaEnv("TicTacToe-v0"), ["[0]", "[3]", "[1]", "[4]", "[2]"]),
        (GymnasiumEnv("FrozenLake-v1", max_turns=2), ["<action>west</action>"] * 2),
    ):
        first = await play(env, *moves)
        stored = Rollout.model_validate_json(first.model_dump_json())
        again = await env.rollout(TranscriptClient([stored]), env.dataset("eval")[0])
        assert again.failure is None
        assert first_divergence(stored, again, RESCORED) is None


async def test_simultaneous_games_do_not_affect_each_other():
    env = TextArenaEnv("ThreeCardMonte-v0")
    alone = [told(await play(env, "[0]", index=index)) for index in range(6)]
    together = await asyncio.gather(*(play(env, "[0]", index=index) for index in range(6)))
    assert [told(rollout) for rollout in together] == alone
    assert len({"".join(each) for each in alone}) > 1


@pytest.mark.parametrize(
    ("game", "more", "said", "hint"),
    [
        ("TicTacTo-v0", {}, "no game `TicTacTo-v0`", "`TicTacToe-v0`"),
        ("GuessWho-v0", {}, "OPENROUTER_API_KEY", None),
        ("TicTacToe-v0", {"num_players": 3}, "cannot be played by 3", "num_players"),
        ("TicTacToe-v0", {"settings": {"sizes": 4}}, "sizes", None),
        ("ScorableGames-v0", {}, "lacks a file", None),
        ("Klondike-v0", {}, "syntax of another Python", "3.12"),
    ],
)
def test_unusable_textarena_games_are_explained(game, more, said, hint, monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=said) as caught:
        TextArenaEnv(game, **more)
    assert hint is None or hint in caught.value.hint


def test_missing_word_lists_are_named(monkeypatch, tmp_path):
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    monkeypatch.setattr(nltk, "download", lambda *names, **options: False)  # it would ask the internet
    with pytest.raises(ConfigError, match="the data `words` of nltk") as caught:
        TextArenaEnv("Hangman-v0")
    assert "python -m nltk.downloader words" in caught.value.hint


@pytest.mark.parametrize(
    ("module", "make"),
    [
        ("gymnasium", lambda: GymnasiumEnv("Taxi-v4")),
        ("textarena", lambda: TextArenaEnv("Nim-v0")),
        ("openenv", lambda: OpenEnvEnv("http://localhost:8000")),
    ],
)
def test_a_missing_extra_is_named(module, make, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra) as caught:
        make()
    assert caught.value.hint == f"run `pip install 'wander-integrations[{module}]'`"


@pytest.mark.full
def test_reads_of_a_bridge_are_not_blamed_on_the_environment(wander: Wander, home: Path) -> None:
    """textarena draws from the global generator, which the bridge sets and sets back."""
    (home / "cards").mkdir()
    (home / "cards/pyproject.toml").write_text(
        '[project]\nname = "cards"\nversion = "0.1.0"\ndependencies = ["wander-sdk"]\n'
        '[project.entry-points."wander.environments"]\ncards = "cards:load_environment"\n'
    )
    (home / "cards/cards.py").write_text(
        "from wander_integrations import TextArenaEnv\n\n\n"
        "def load_environment():\n    return TextArenaEnv('KuhnPoker-v0', num_examples=4)\n"
    )
    checks = wander("check", "./cards", "--json").data["checks"]
    assert {one["status"] for one in checks if one["id"] == "sources.random"} == {"pass"}, checks


@pytest.mark.slow
@pytest.mark.parametrize("library", ["inspect", "openenv"])
def test_libraries_outside_of_the_lock_use_their_own_virtualenv(library, tmp_path):
    """Needs a package index, as both pin what the lock has at other versions."""
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    python = tmp_path / "venv/bin/python"
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, str(tmp_path / "venv")], check=True)
    wanted = [str(ROOT / "sdk"), f"{ROOT / 'plugins/wander-integrations'}[{library}]"]
    subprocess.run([uv, "pip", "install", "-q", "--python", str(python), *wanted], check=True, cwd=tmp_path)
    probe = Path(__file__).parent / "library_probes" / f"{library}_probe.py"
    done = subprocess.run([str(python), str(probe)], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1:] == ["played"], done.stderr[-3000:]


PROBE = """
import asyncio, json, warnings
warnings.simplefilter("ignore")
from wander import ScriptedClient
from wander_integrations import GymnasiumEnv, ReasoningGymEnv, TextArenaEnv
envs = [GymnasiumEnv("Taxi-v4", max_turns=3), *map(TextArenaEnv, ["2048-v0", "KuhnPoker-v0", "Set-v0"])]
hashed = ("ransom_note,polynomial_multiplication", "word_ladder")
envs += [ReasoningGymEnv(task, num_examples=3) for task in hashed]
said = []
for env in envs:
    for example in env.dataset("eval").examples(0, 3):
        replies = ["<action>south</action>[up][bet]"] * 30
        rollout = asyncio.run(env.rollout(ScriptedClient(replies), example))
        said.append([example.answer, rollout.prompt, rollout.completion, rollout.rewards, rollout.metrics])
        assert rollout.failure is None, rollout.failure
print("\\n" + json.dumps(said))
"""


@needs_reasoning_gym
@pytest.mark.full
def test_hash_seeds_do_not_matter():
    said = []
    for seed in ("0", "1", "777"):
        done = subprocess.run(
            [sys.executable, "-c", PROBE],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        said.append(json.loads(done.stdout.splitlines()[-1]))
    assert said[0] == said[1] == said[2]
