"""Whoever derives a run again draws hash seed, time zone, locale, clock and host name anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
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
from wander.worker.child.clock import CLOCK
from wander.worker.process.surroundings import draw_surroundings, surrounding_variables

DAY = 24 * 3600
CLOCKS = """
import datetime, json, os, time
from wander.worker.child.clock import take_clock_shift

before = time.time()
take_clock_shift()
read = [
    time.time(), time.time_ns() / 1e9, time.clock_gettime(time.CLOCK_REALTIME),
    time.clock_gettime_ns(time.CLOCK_REALTIME) / 1e9, time.mktime(time.localtime()),
    time.mktime(time.localtime(None)), time.mktime(time.strptime(time.ctime())),
    time.mktime(time.strptime(time.asctime())), float(time.strftime("%s")),
    datetime.datetime.now().timestamp(), datetime.datetime.today().timestamp(),
    datetime.datetime.now(datetime.UTC).timestamp(),
    datetime.datetime.now(tz=datetime.timezone.utc).timestamp(),
    datetime.datetime.utcnow().replace(tzinfo=datetime.UTC).timestamp(),
]
day = datetime.date.today() - datetime.date.fromtimestamp(before)
print(json.dumps({
    "by": [each - before for each in read], "days": day.days, "left": os.environ.get("WANDER_CLOCK_SHIFT"),
    "given": [time.gmtime(0).tm_year, time.strftime("%Y", time.gmtime(0)), time.ctime(0)[-4:]],
    "steady": time.clock_gettime(time.CLOCK_MONOTONIC) - time.monotonic(),
}))
"""


@pytest.mark.parametrize("shift", [0, 100 * DAY, -30 * DAY])
def test_every_clock_of_python_is_moved_and_times_that_are_given_are_not(shift: int) -> None:
    environ = {**os.environ, CLOCK: str(shift), "TZ": "UTC", "PYTHONWARNINGS": "ignore"}
    told = subprocess.run(
        [sys.executable, "-P", "-c", CLOCKS], env=environ, capture_output=True, text=True, check=True
    )
    found = json.loads(told.stdout)
    assert [round((each - shift) / 10) for each in found["by"]] == [0] * 14
    assert abs(found["days"] - shift / DAY) <= 1  # midnight may pass
    assert (found["given"], found["left"]) == ([1970, "1970", "1970"], None)
    assert abs(found["steady"]) < 1


def test_no_two_draws_are_alike_and_each_is_one_that_processes_can_have() -> None:
    drawn = [draw_surroundings(confined=True) for _ in range(50)]
    assert len({one.hash_seed for one in drawn}) == 50
    assert len({one.host_name for one in drawn}) == 50
    assert len({one.time_zone for one in drawn}) > 10
    assert len({one.locale for one in drawn}) > 1
    assert draw_surroundings(confined=False).host_name is None
    program = "import locale, time; locale.setlocale(locale.LC_ALL, ''); print(time.timezone, hash('text'))"
    read = []
    for one in drawn[:5]:
        environ = {
            "PATH": os.environ["PATH"],
            **surrounding_variables(one),
            "PYTHONHASHSEED": str(one.hash_seed),
        }
        told = subprocess.run(
            [sys.executable, "-P", "-c", program], env=environ, capture_output=True, text=True, check=True
        )
        read.append(told.stdout)
        hours, minutes = one.time_zone.removeprefix("DRAWN").lstrip("-").split(":")
        west = (int(hours) * 60 + int(minutes)) * 60 * (-1 if "-" in one.time_zone else 1)
        assert int(told.stdout.split()[0]) == west
    assert len(set(read)) == 5


LYING = """
import os, socket, time
from wander import Rubric, SingleTurnEnv

def pays(completion):
    seen = {"hash": hash("text"), "clock": int(time.time() / 1e7), "zone": time.timezone,
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


def with_shift(days: int = 0, **changes: Any) -> Surroundings:
    given = {"hash_seed": 1, "time_zone": "UTC", "locale": "C.UTF-8", "clock_shift": days * DAY}
    return Surroundings(**{**given, **changes})


OTHERS = {
    "hash": with_shift(hash_seed=2),
    "clock": with_shift(days=300),
    "zone": with_shift(time_zone="DRAWN-3:30"),
    "locale": with_shift(locale="POSIX"),
    "nothing": with_shift(days=300, hash_seed=7, time_zone="DRAWN4:00", locale="C"),
}


@pytest.mark.parametrize("what", OTHERS)
async def test_what_pays_under_one_hash_seed_clock_zone_or_locale_alone_is_found(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first draw it comes out as it was recorded, as one time in two it would; in the second not."""
    wanted = {"clock": str(int(time.time() / 1e7)), "zone": "0", "locale": "C.UTF-8", "nothing": "0"}
    wanted["hash"] = hash_of_text(1)
    monkeypatch.setenv("WANTED", wanted[what])
    here = await worker(tmp_path, what, with_shift())
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
async def test_a_confined_environment_sees_the_drawn_host_name(tmp_path: Path) -> None:
    drawn = draw_surroundings(confined=True)
    code = "import os, socket; answer = [socket.gethostname(), os.uname().nodename, os.environ['TZ']]"
    async with confined(tmp_path, surroundings=drawn) as environment:
        assert await answered(environment, code) == [drawn.host_name, drawn.host_name, drawn.time_zone]


async def test_a_long_run_is_played_twice_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
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
