"""Hash seed, time zone, locale and host name are drawn for each sandbox and each replay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sandboxes import answered, confined, needs_sandbox
from wander import LocalEnvironment, Rubric, ScriptedClient, SingleTurnEnv
from wander.evals.replay import replay_run
from wander.evals.run.runner import EvaluationPlan, evaluate
from wander.wire import EnvironmentPin
from wander.wire.verification import Surroundings
from wander.worker import WorkerEnvironment
from wander.worker.process.surroundings import draw_surroundings, surrounding_variables


def test_random_surroundings_are_unique_and_valid() -> None:
    found = [draw_surroundings(confined=True) for _ in range(50)]
    assert len({one.hash_seed for one in found}) == 50
    assert len({one.host_name for one in found}) == 50
    assert len({one.time_zone for one in found}) > 10
    assert len({one.locale for one in found}) > 1
    assert draw_surroundings(confined=False).host_name is None
    program = "import locale, time; locale.setlocale(locale.LC_ALL, ''); print(time.timezone, hash('text'))"
    read = []
    for one in found[:5]:
        environ = {
            "PATH": os.environ["PATH"],
            **surrounding_variables(one),
            "PYTHONHASHSEED": str(one.hash_seed),
        }
        told = subprocess.run(
            [sys.executable, "-P", "-c", program], env=environ, capture_output=True, text=True, check=True
        )
        read.append(told.stdout)
        name, offset = one.time_zone.removeprefix("<").split(">")
        hours, minutes = offset.lstrip("-").split(":")
        west = (int(hours) * 60 + int(minutes)) * 60 * (-1 if offset.startswith("-") else 1)
        assert int(told.stdout.split()[0]) == west
        assert name == f"{'-' if west > 0 else '+'}{abs(west) // 3600:02}{abs(west) // 60 % 60:02}"
    assert len(set(read)) == 5


LYING = """
import os, socket, time
from wander import Rubric, SingleTurnEnv

def pays(completion):
    seen = {"hash": hash("text"), "zone": time.timezone,
            "locale": os.environ["LANG"], "host": socket.gethostname(), "nothing": 0}
    return float(str(seen["WHAT"]) == os.environ.get("WANTED", "0"))

def load_environment():
    return SingleTurnEnv(eval_dataset=[{"question": str(n)} for n in range(6)], rubric=Rubric([pays]))
"""


async def worker(folder: Path, what: str, surroundings: Surroundings | None = None) -> WorkerEnvironment:
    module = folder / f"lying_{what}.py"
    module.write_text(LYING.replace("WHAT", what))
    return await WorkerEnvironment.start(
        None, None, path=module, log_path=folder / "log", environ=["WANTED"], surroundings=surroundings
    )


def hash_of_text(seed: int) -> str:
    told = [sys.executable, "-c", "print(hash('text'))"]
    return subprocess.check_output(told, env={"PYTHONHASHSEED": str(seed)}, text=True).strip()


def drawn(**changes: Any) -> Surroundings:
    given = {"hash_seed": 1, "time_zone": "UTC", "locale": "C.UTF-8"}
    return Surroundings(**{**given, **changes})


OTHERS = {
    "hash": drawn(hash_seed=2),
    "zone": drawn(time_zone="<+0330>-3:30"),
    "locale": drawn(locale="POSIX"),
    "nothing": drawn(hash_seed=7, time_zone="<-0400>4:00", locale="C"),
}


@pytest.mark.parametrize(
    "what",
    ["hash", "nothing", *(pytest.param(what, marks=pytest.mark.full) for what in ("zone", "locale"))],
)
async def test_rewards_that_depend_on_hash_seed_zone_or_locale_are_found(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first draw it comes out as it was recorded, as one time in two it would; in the second not."""
    wanted = {"zone": "0", "locale": "C.UTF-8", "nothing": "0"}
    wanted["hash"] = hash_of_text(1)
    monkeypatch.setenv("WANTED", wanted[what])
    here = await worker(tmp_path, what, drawn())
    there = await worker(tmp_path, what, OTHERS[what])
    try:
        plan = EvaluationPlan(num_examples=None, max_retries=0)
        pin = EnvironmentPin(name=here.info.name, info=here.info)
        result = await evaluate(here, ScriptedClient(lambda _: "a"), plan, None, pin)
        assert {each.reward for each in result.rollouts} == {1.0}
        report = await replay_run(here, result.manifest, result.rollouts, elsewhere=there)
        turned = await replay_run(there, result.manifest, result.rollouts, elsewhere=here)
    finally:
        await here.close()
        await there.close()
    assert (report.replayed, report.twice) == (6, 6)
    if what == "nothing":
        assert (report.level, report.same) == ("replayed", 6)
        return
    for found in (report, turned):
        assert (found.level, found.differing, found.same) == ("claimed", 6, 0)
        told = found.divergences[0].difference
        assert told.startswith("the reward is `0.0`, not `1.0` (only under some hash seeds, ")


@needs_sandbox
async def test_a_sandboxed_environment_sees_the_random_host_name(tmp_path: Path) -> None:
    given = draw_surroundings(confined=True)
    code = "import os, socket; answer = [socket.gethostname(), os.uname().nodename, os.environ['TZ']]"
    async with confined(tmp_path, surroundings=given) as environment:
        assert await answered(environment, code) == [given.host_name, given.host_name, given.time_zone]


async def test_part_of_a_long_run_is_replayed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wander.evals.replay.TWICE", 20)
    rows = [{"question": str(n)} for n in range(200)]
    env = LocalEnvironment(
        SingleTurnEnv(eval_dataset=rows, rubric=Rubric([lambda completion: 1.0]), name="one")
    )
    pin = EnvironmentPin(name="one", info=env.info)
    result = await evaluate(env, ScriptedClient(lambda _: "a"), EvaluationPlan(num_examples=None), None, pin)
    report = await replay_run(env, result.manifest, result.rollouts, elsewhere=env)
    assert (report.level, report.replayed) == ("replayed", 200)
    assert 1 <= report.twice <= 60  # binomial: 20 on average, outside of this less than once in 10^8
