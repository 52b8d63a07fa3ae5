"""How an evaluation on the command line asks its endpoint, and how it tells of that."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_endpoint import chat_endpoint
from command_line import Wander
from wander.evals.run.runner import Progress
from wander.types import Usage
from wander_client.evaluate.progress import rate_limit_note


def test_model_calls_are_counted_and_printed(wander: Wander, folder: Path) -> None:
    words = ("-n", "4", "--concurrency", "2", "--set", "max_rollouts=3")
    with chat_endpoint(lambda messages: "x") as endpoint:
        asked = ("eval", str(folder), "-m", "echo", "-b", endpoint.base_url, *words)
        told = wander(*asked)
        data = wander(*asked, "--json").data
    assert told.status == 0, told.err
    assert "calls   4\n" in told.out
    assert "2 concurrent calls" in told.err
    assert data["endpoints"] == {"calls": 4, "retries": 0, "refusals": 0, "paused_seconds": 0.0, "cached": 0}


def test_a_call_limit_below_one_is_rejected(wander: Wander, folder: Path) -> None:
    result = wander("eval", str(folder), "-m", "scripted:say_env:solver", "--set", "max_rollouts=0")
    assert result.status == 2


@pytest.mark.parametrize(
    ("rate", "paused", "words"),
    [
        (None, 0.0, ""),
        (12.4, 0.2, "  rate-limited: 12 calls/s"),
        (1.0, 0.0, "  rate-limited: 1 calls/s"),
        (0.2, 0.0, "  rate-limited: 12 calls/min"),
        (0.001, 0.0, "  rate-limited: 1 calls/min"),
        (0.5, 19.6, "  rate-limited: waiting 20 s"),
    ],
)
def test_progress_shows_a_rate_limit(rate: float | None, paused: float, words: str) -> None:
    progress = Progress(
        done=1,
        total=9,
        failed=0,
        retried=0,
        in_flight=1,
        reward_mean=None,
        usage=Usage(),
        seconds=1.0,
        rate=rate,
        paused_seconds=paused,
    )
    assert rate_limit_note(progress) == words
