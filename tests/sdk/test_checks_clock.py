"""The clock of the second process of a check is moved, so that what depends on it is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from wander.checks.clock import CLOCK

DAY = 24 * 3600
CLOCKS = """
import datetime, json, os, time
from wander.checks.clock import take_clock_shift

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
def test_clocks_are_shifted_but_explicit_times_are_not(shift: int) -> None:
    environ = {**os.environ, CLOCK: str(shift), "TZ": "UTC", "PYTHONWARNINGS": "ignore"}
    told = subprocess.run(
        [sys.executable, "-P", "-c", CLOCKS], env=environ, capture_output=True, text=True, check=True
    )
    found = json.loads(told.stdout)
    assert [round((each - shift) / 10) for each in found["by"]] == [0] * 14
    assert abs(found["days"] - shift / DAY) <= 1  # midnight may pass
    assert (found["given"], found["left"]) == ([1970, "1970", "1970"], None)
    assert abs(found["steady"]) < 1
