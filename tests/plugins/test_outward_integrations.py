"""Other libraries play our environments, each the real one, in a virtual environment of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from wander_client.packages.interpreters import HERE
from wander_client.packages.uv import make_virtualenv, run_uv

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
OURS = ("sdk", "plugins/wander-integrations", "environments/tictactoe", "environments/math_tools")

AS_EVALUATED = """
import asyncio
import wander
from wander.clients import ScriptedClient

env = wander.load_environment("tictactoe", num_examples=20)
MOVES = [f"<move>{n % 9 + 1}</move>" for n in range(20)]

def evaluated(position, split, run_seed, index=0):
    example = env.dataset(split)[position]
    return asyncio.run(env.rollout(ScriptedClient(MOVES), example, run_seed=run_seed, index=index))
"""

GYMNASIUM = """
import gymnasium
from gymnasium.utils.env_checker import check_env
from wander_integrations import WanderEnv

player = WanderEnv(env, run_seed=5, render_mode="ansi")
check_env(player, skip_render_check=True)
try:
    WanderEnv(env).step("too early")
    raise SystemExit("a step before `reset` was taken")
except gymnasium.error.ResetNeeded:
    pass
assert player.reset(seed=3)[0] == player.reset(seed=3)[0]
for position in range(4):
    text, info = player.reset(options={"position": position})
    assert info["messages"] == env.dataset()[position].prompt and info["messages"][-1]["content"] in text
    ended, moves = False, iter(MOVES)
    while not ended:
        text, reward, terminated, truncated, info = player.step(next(moves))
        ended = terminated or truncated
    ours = evaluated(position, "train", 5)
    assert (reward, info["metrics"], truncated) == (ours.reward, ours.metrics, ours.truncated)
    assert player.episode.messages == [*ours.prompt, *ours.completion]
    assert text in player.render()
"""

INSPECT = """
import asyncio

from inspect_ai import eval as inspect_eval
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from wander_integrations import as_inspect_task

def answers(request, tools, choice, config):
    said = sum(message.role == "assistant" for message in request)
    output = ModelOutput.from_content("mockllm/model", MOVES[said])
    output.usage = ModelUsage(input_tokens=5, output_tokens=2, total_tokens=7)  # or it fetches a tokenizer
    return output

model = get_model("mockllm/model", custom_outputs=answers)

async def made_in_a_notebook():
    return as_inspect_task(env, limit=3, run_seed=7)


task = asyncio.run(made_in_a_notebook())
(log,) = inspect_eval(task, model=model, epochs=2, display="none", log_dir="logs")
assert log.status == "success", log.error
assert len(log.samples) == 6
for sample in log.samples:
    ours = evaluated(int(sample.id), "eval", 7, sample.epoch - 1)
    score = sample.scores["reward"]
    assert (score.value, score.metadata) == (ours.reward, ours.metrics)
    assert len(sample.messages) == len(ours.prompt) + len(ours.completion)

sums = wander.load_environment("math-tools", num_examples=5)
def calls(request, tools, choice, config):
    if any(message.role == "tool" for message in request):
        output = ModelOutput.from_content("mockllm/model", f"<answer>{request[-1].text}</answer>")
    else:
        assert {tool.name for tool in tools} == {"calculate", "prime_factors"}
        arguments = {"a": 6, "operation": "*", "b": 7}
        output = ModelOutput.for_tool_call("mockllm/model", "calculate", arguments)
    output.usage = ModelUsage(input_tokens=5, output_tokens=2, total_tokens=7)
    return output
model = get_model("mockllm/model", custom_outputs=calls, memoize=False)
(log,) = inspect_eval(as_inspect_task(sums, limit=1), model=model, display="none", log_dir="logs")
assert log.status == "success", log.error
assert [message.text for message in log.samples[0].messages if message.role == "tool"] == ["42"]
"""

OPENENV = """
import socket, threading, time
import uvicorn
from openenv.core import GenericEnvClient
from wander_integrations import as_openenv_app

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
server = uvicorn.Server(uvicorn.Config(as_openenv_app(env), port=port, log_level="warning"))
threading.Thread(target=server.run, daemon=True).start()
while not server.started:
    time.sleep(0.05)
url = f"http://127.0.0.1:{port}"
with GenericEnvClient(base_url=url).sync() as one, GenericEnvClient(base_url=url).sync() as other:
    clients = {1: one, 2: other}
    found = {place: client.reset(seed=5, position=place, split="eval") for place, client in clients.items()}
    assert found[1].observation["messages"] == env.dataset("eval")[1].prompt
    for move in MOVES:  # both episodes at once
        for place, client in clients.items():
            if not found[place].done:
                found[place] = client.step({"content": move})
    for place, last in found.items():
        ours = evaluated(place, "eval", 5)
        assert (last.done, last.reward, last.observation["metrics"]) == (True, ours.reward, ours.metrics)
        assert clients[place].state()["step_count"] == len(ours.turns)
server.should_exit = True
"""

VALIDATED = """
import json
from pathlib import Path

from openenv.validation.policy import apply_policy, load_policy
from openenv.validation.report import ValidationReport
from openenv.validation.runner import run_validation
from openenv.validation.types import CheckStatus, Lane, Level

policy = load_policy("v2")
local = policy.entries_for_lane(Lane.LOCAL)
verdicts = {}
for file in sorted(Path("reports").iterdir()):
    report = ValidationReport.model_validate_json(file.read_text())
    ids = [result.check_id for result in report.results]
    assert sorted(ids) == sorted(local), set(ids) ^ set(local)
    assert apply_policy(report.results, policy, Lane.LOCAL) is report.verdict
    failed = [result.check_id for result in report.results if result.status is CheckStatus.FAIL]
    verdicts[file.stem] = (report.verdict.value, failed, report.manifest is not None)
checked = run_validation(Path("server"), max_level=Level.STATIC)
assert [(result.check_id, result.status.value) for result in checked.results] == [("static.manifest", "pass")]
good = ValidationReport.model_validate_json(Path("reports/tictactoe.json").read_text())
assert checked.manifest == good.manifest
print(json.dumps(verdicts))
"""

SERVED = """
import asyncio, socket, sys, threading, time
from pathlib import Path

import uvicorn
import wander
from wander.clients import ScriptedClient

sys.path.insert(0, "server")
from server.app import app

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
threading.Thread(target=server.run, daemon=True).start()
while not server.started:
    time.sleep(0.05)
env = wander.load_environment("./imported", url=f"http://127.0.0.1:{port}", text_field="content")
assert env.info.reward_range == wander.load_environment("tictactoe").info.reward_range
replies = [f"<move>{n % 9 + 1}</move>" for n in range(20)]
rollout = asyncio.run(env.rollout(ScriptedClient(replies), env.dataset()[0]))
assert rollout.failure is None and rollout.metrics["finished"] == 1.0, rollout
server.should_exit = True
print("played")
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a virtual environment with the libraries and with what is ours."""
    place = tmp_path_factory.mktemp("libraries")
    make_virtualenv(place, HERE.path)
    found = place / "bin" / "python"
    ours = [word for name in OURS for word in ("--editable", str(ROOT / name))]
    wanted = ["gymnasium>=1.2", "inspect-ai", "openenv", *ours]
    run_uv(
        ["pip", "install", "--quiet", "--python", str(found), *wanted],
        doing="installing the libraries",
    )
    return found


@pytest.mark.parametrize("script", [GYMNASIUM, INSPECT, OPENENV], ids=["gymnasium", "inspect", "openenv"])
def test_the_other_library_plays_the_same_rollouts_as_an_evaluation(
    python: Path, tmp_path: Path, script: str
) -> None:
    code = f"{AS_EVALUATED}\n{script}\nprint('same')"
    done = subprocess.run(
        [str(python), "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.stdout.endswith("same\n"), done.stderr[-4000:]


def run_wander(*words: str, folder: Path) -> str:
    """Run the command in a folder and return what it prints; checks that fail end with status 1."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "wander"), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode in (0, 1), done.stderr[-4000:]
    return done.stdout


def test_openenv_exports_can_be_imported_again(python: Path, tmp_path: Path) -> None:
    broken = ROOT / "tests" / "sdk" / "broken_environments"
    for name in ("tictactoe", "math_tools"):
        shutil.copytree(ROOT / "environments" / name, tmp_path / name)
    for name in ("clock", "does_not_load"):
        (tmp_path / name).mkdir()
        shutil.copy(broken / f"{name}.py", tmp_path / name)
    (tmp_path / "reports").mkdir()
    for name in ("tictactoe", "math_tools", "clock", "does_not_load"):
        report = run_wander("check", f"./{name}", "--report", "openenv", folder=tmp_path)
        (tmp_path / "reports" / f"{name}.json").write_text(report)
    run_wander("env", "export", "./tictactoe", "--to", "openenv", "--out", "server", folder=tmp_path)
    verdicts = json.loads(run_script(python, VALIDATED, tmp_path))
    assert verdicts["math_tools"] == ["warn", [], True]
    assert verdicts["tictactoe"] == ["fail", ["semantic.oracle_max"], True], "its best players draw"
    assert verdicts["clock"][0] == "fail"
    assert {"runtime.episode_determinism", "semantic.replayability"} <= set(verdicts["clock"][1])
    assert verdicts["does_not_load"][::2] == ["fail", False]
    assert {"static.manifest", "runtime.startup"} <= set(verdicts["does_not_load"][1])
    run_wander("env", "import", "openenv", "server", "--out", "imported", folder=tmp_path)
    assert run_script(python, SERVED, tmp_path) == "played\n"


def run_script(python: Path, script: str, folder: Path) -> str:
    """Run a script in a folder and return what it prints."""
    done = subprocess.run(
        [str(python), "-c", script], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
