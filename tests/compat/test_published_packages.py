"""Packages from PyPI, unmodified: the same rollouts under our `verifiers` as under the release they are for.

    python -m pytest tests/compat/test_published_packages.py -m slow

Some minutes and 1.5 GB of packages at the first time; each release, and ours, in a virtual environment.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from compat_environments import ROOT, environment_with, wheel_of
from wander.clients.replay import ReplayClient
from wander.clients.scripted import ScriptedClient
from wander.worker.host.environment import WorkerEnvironment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SCRIPT = ROOT / "tests" / "compat" / "published_rewards.py"


@dataclass(frozen=True)
class Published:
    """An environment of a package on PyPI."""

    release: str
    """Of verifiers: the newest at the time when the package was published."""
    module: str
    function: str = "load_environment"
    arguments: dict[str, Any] = field(default_factory=dict)
    count: int = 30


PACKAGES = (
    "sophistry-bench-sprint==0.1.6",
    "staros-stardata==0.1.1",
    "falsepass==0.11.0",
    "hackbait==0.1.0",
    "reasoning-gym==0.1.25",
)
GYM = {"gym": "leg_counting", "num_train_examples": 5, "num_eval_examples": 30}
CASES = [
    Published("0.1.14", "sophistry_bench_sprint"),
    Published("0.1.14", "stardata.envs.constraint_gym"),
    Published("0.1.14", "verifiers", "ReasoningGymEnv", GYM),
    Published("0.3.1", "stardata.envs.constraint_gym"),
    Published("0.3.1", "falsepass._demo.falsepass_toy_env"),
    Published("0.3.1", "hackbait.verifiers_adapter"),
    Published("0.3.1", "verifiers", "ReasoningGymEnv", GYM),
]


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The interpreters of the real releases, and of `ours`."""
    folder = tmp_path_factory.mktemp("published")
    names = ("sdk", "compat", "compat/shim")
    sdk, compat, shim = (wheel_of(ROOT / name, folder / "wheels" / name) for name in names)
    ours = f"verifiers[rg] @ {shim.as_uri()}"
    found = {"ours": environment_with(folder / "ours", [*PACKAGES, str(sdk), str(compat), ours], [ours])}
    for release in sorted({case.release for case in CASES}):
        wanted = [*PACKAGES, f"verifiers[rg]=={release}"]
        found[release] = environment_with(folder / release, wanted)
    return found


def played(python: Path, case: Published, folder: Path) -> list[dict[str, Any]]:
    """Play an environment with written completions; returns its rollouts."""
    command = [python, SCRIPT, case.module, case.function, json.dumps(case.arguments), str(case.count)]
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    rollouts: list[dict[str, Any]] = json.loads(line.removeprefix("RESULT "))["rollouts"]
    return rollouts


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.module}-{case.release}")
def test_rollouts_and_rewards_equal_those_of_the_real_release(pythons, tmp_path, case):
    theirs = played(pythons[case.release], case, tmp_path)
    ours = played(pythons["ours"], case, tmp_path)
    assert len(theirs) == case.count
    assert len({json.dumps([each["reward"], each["metrics"]]) for each in theirs}) > 1
    assert ours == theirs


@pytest.mark.parametrize(
    "module", ["sophistry_bench_sprint", "stardata.envs.constraint_gym", "falsepass._demo.falsepass_toy_env"]
)
async def test_it_loads_runs_and_replays_in_a_worker(pythons, tmp_path, module):
    env = await WorkerEnvironment.start(pythons["ours"], module, log_path=tmp_path / "log")
    try:
        for example in await env.examples("eval", 0, 5):
            rollout = await env.rollout(ScriptedClient(lambda request: str(request.messages)), example)
            assert rollout.failure is None
            assert rollout.reward is not None
            again = await env.rollout(ReplayClient([rollout]), example)
            assert (again.completion, again.reward, again.metrics) == (
                rollout.completion,
                rollout.reward,
                rollout.metrics,
            )
    finally:
        await env.close()
