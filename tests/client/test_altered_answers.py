"""Every command that asks a hub, against altered answers: a result or an error of its own, and no harm.

`ALTERED_SEED` and `ALTERED_TIMES` try other values, and more of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from command_line import HubRoom, Result, Wander
from lying_hub import LyingHub, Reply
from saved_runs import write_run
from sealed_rows import keep_sealed_set
from small_models import checkpoint
from wander_client.commands import COMMANDS as ALL_COMMANDS
from wander_client.hub import connection
from wander_client.hub.connection import Limits

ESCAPES = "\x1b]0;taken\x07\x1b[2J\u202e\x9b31m\r"
VALUES: list[Any] = [
    *(None, True, -1, 10**30, 1e308, float("nan"), float("-inf"), [], {}, ""),
    *(ESCAPES, "x" * 100_000, "../../../../tmp/owned", "/etc/passwd", "-rf", "$HOME", "a/b@c", "\ud800"),
    *("9999-99-99T99:99:99Z", "0001-01-01T00:00:00Z", "http://[", "file:///etc/passwd", "0" * 64),
    *([[[]]], [None], [{}], {"a": {"b": {}}}, [ESCAPES] * 3, {ESCAPES: ESCAPES}),
]
RUN_ID = "RUN"
SEED = int(os.environ.get("ALTERED_SEED", "0"))
TIMES = int(os.environ.get("ALTERED_TIMES", "2"))
SLOW_SECONDS = 60.0
"""More than any answer is waited for here, on a machine with other work."""
SMALL = Limits(answer_bytes=1_000_000, answer_seconds=1.0, start_seconds=10.0, patience=0.5)
COMMANDS: list[list[str]] = [
    ["search"],
    ["search", "say"],
    ["env", "info", "admin/say-env"],
    ["env", "info", "admin/say-env@0.1.0"],
    ["env", "fork", "admin/say-env", "./forked"],
    ["env", "board", "admin/say-env", "x", "--pin"],
    ["env", "owner", "list", "admin/say-env"],
    ["env", "owner", "add", "admin/say-env", "bob"],
    ["env", "yank", "admin/say-env@0.1.0"],
    ["env", "deprecate", "admin/say-env"],
    ["env", "list"],
    ["leaderboard", "admin/say-env"],
    ["runs", "list", "--posted"],
    ["runs", "search", "x"],
    ["runs", "show", RUN_ID],
    ["runs", "evidence", RUN_ID],
    ["runs", "verify", RUN_ID, "--no-wait"],
    ["runs", "compare", RUN_ID, RUN_ID],
    ["runs", "replay", RUN_ID],
    ["runs", "rerun", RUN_ID],
    ["runs", "regrade", "--env", "admin/say-env@0.1.0", RUN_ID],
    ["runs", "report", RUN_ID],
    ["runs", "export", RUN_ID, "--out", "./out"],
    ["runs", "data", RUN_ID, "--out", "./out"],
    ["runs", "publish", RUN_ID],
    ["runs", "rename", RUN_ID, "a name"],
    ["runs", "withdraw", RUN_ID, "--reason", "x"],
    ["view", RUN_ID],
    ["post", "./posted"],
    ["model", "list", "admin/tiny"],
    ["model", "pull", "admin/tiny"],
    ["model", "push", "admin/tiny", "./model"],
    ["model", "yank", "admin/tiny"],
    ["model", "visibility", "admin/tiny", "private"],
    ["auth", "whoami"],
    ["auth", "token", "list"],
    ["auth", "token", "new", "x"],
    ["auth", "key", "list"],
    ["auth", "org", "list"],
    ["auth", "org", "new", "acme"],
    ["login", "--token-file", "./token"],
    ["install", "admin/say-env@0.1.0"],
    ["check", "admin/say-env"],
    ["eval", "admin/say-env", "-m", "scripted:say", "-n", "1"],
    ["train", "admin/say-env", "--model", "admin/tiny", "--dry-run"],
    ["worker", "admin/say-env"],
    ["seal", "create", "admin/say-env@0.1.0", "./examples.jsonl", "--opens", "2030-01-01"],
    ["seal", "show", "admin/say-env"],
    ["seal", "play", "admin/say-env", "-m", "x", "-b", "https://api.example.com/v1"],
    ["seal", "open", "admin/say-env"],
    ["env", "export", "admin/say-env", "--to", "skyrl", "--out", "./out"],
    ["model", "delete", "admin/tiny", "--yes"],
    ["env", "delete", "admin/say-env", "--yes"],
    ["auth", "logout"],
]
ASK_NO_HUB = {
    *("new", "runs merge", "runs plot", "runs schema", "env uninstall", "env import", "cache", "sandbox"),
    *("model new", "model tools", "model sft", "help"),
}
BUILD_FIRST = {"publish"}
"""A hub's answers come after a build of seconds."""
IN_WORKFLOWS = {"auth workflow-token"}
"""Outside of a CI workflow, no hub is asked; `test_workflow_token.py` runs it in one."""


def test_every_command_is_tested_or_sends_no_request_to_a_hub() -> None:
    tried = {name for words in COMMANDS for name in ALL_COMMANDS if " ".join(words).startswith(name)}
    assert set(ALL_COMMANDS) - tried == ASK_NO_HUB | BUILD_FIRST | IN_WORKFLOWS


def places_in(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in JSON."""
    yield here
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places_in(each, (*here, key))


def altered(value: Any, place: tuple[Any, ...], other: Any) -> Any:
    """Return JSON with another value at a path."""
    if not place:
        return other
    changed = deepcopy(value)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = other
    return changed


@pytest.fixture
def room(
    hub: HubRoom, behind: LyingHub, home: Path, monkeypatch: pytest.MonkeyPatch, wander: Wander
) -> Callable[..., Result]:
    """The lying hub with a run and a model; runs a command against it."""
    (home / "config").mkdir()
    stored = {"tokens": {behind.url: hub.token}}
    (home / "config" / "credentials.json").write_text(json.dumps(stored))
    (home / "config" / "credentials.json").chmod(0o600)
    (home / "token").write_text(hub.token)
    for name in ("one", "two"):
        write_run(home / "runs" / name, rewards=[1.0, 0.0, 1.0])
    os.rename(home / "runs" / "two", home / "posted")
    posted = wander("post", str(home / "runs" / "one"), "--json")
    assert posted.status == 0, posted.out
    shutil.rmtree(home / "runs" / "one")  # it is asked of the hub from now on
    (home / "model").mkdir()
    for name, body in checkpoint("tiny").items():
        (home / "model" / name).write_bytes(body)
    (home / "examples.jsonl").write_text('{"question": "x"}\n')
    done = wander("model", "push", "admin/tiny", "./model", "--json")
    assert done.status == 0, done.out
    keep_sealed_set(hub.http.app.state.database, "say-env", creator="admin")  # type: ignore[attr-defined]
    ids = {RUN_ID: posted.data["run_id"]}
    return lambda *words: wander(*[ids.get(word, word) for word in words])


def snapshot(home: Path) -> set[str]:
    own = {"data", "cache", "config", "runs", "state", "hub", "built", "made", "out", "forked"}
    return {
        str(path.relative_to(home)) for path in home.rglob("*") if path.relative_to(home).parts[0] not in own
    }


def find_harm(done: Result, home: Path, before: set[str], seconds: float) -> str | None:
    """Return what is wrong with how a command ended; None for a result or an error of its own."""
    said = done.out + done.err
    if seconds > SLOW_SECONDS:
        return "it took too long"
    if "a bug in Wander" in said or '"internal"' in said:
        return f"it broke: {said[:300]}"
    if re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", said):
        return "it printed a control character"
    if left := snapshot(home) - before:
        return f"it wrote {sorted(left)[:3]}"
    return None


@pytest.mark.full
@pytest.mark.parametrize("start", [0, 1])
def test_one_altered_value_in_a_response_is_handled(
    start: int, room: Callable[..., Result], behind: LyingHub, home: Path
) -> None:
    found = []
    before = snapshot(home)
    for words in COMMANDS[start::2]:
        chance = random.Random(f"{SEED} {words}")
        answers: dict[str, Any] = {}

        def keep(reply: Reply, answers: dict[str, Any] = answers) -> Reply:
            with contextlib.suppress(TypeError, ValueError):  # files, and lines of JSON
                answers[behind.seen[-1].path] = json.loads(reply.body)
            return reply

        behind.be_honest()
        behind.alter("", keep)
        room(*words, "--json")
        cases = [(path, place) for path, body in answers.items() for place in places_in(body)]
        for path, place in chance.sample(cases, min(TIMES, len(cases))):
            other = chance.choice(VALUES)
            text = json.dumps(altered(answers[path], place, other)).encode()
            behind.be_honest()
            behind.answer(f"^{re.escape(path)}$", body=text, Content_Type="application/json")
            shutil.rmtree(home / "forked", ignore_errors=True)
            mode = chance.choice(["--json", "--plain"])
            began = time.monotonic()
            done = room(*words, mode)
            harm = find_harm(done, home, before, time.monotonic() - began)
            if harm:
                found.append(f"{' '.join(words)} {mode}: {path} {place} {other!r:.60}: {harm}")
    assert found == []


PROBLEM = {name: ESCAPES for name in ("title", "detail", "hint", "code", "request_id")}
WHOLE: dict[str, Callable[[str], Reply]] = {
    "elsewhere": lambda other: Reply(307, {"Location": f"{other}/api/v1/whoami"}, b""),
    "in a circle": lambda other: Reply(302, {"Location": "/again"}, b""),
    "escapes": lambda other: Reply(403, {}, json.dumps({**PROBLEM, "status": 403}).encode()),
    "a missing login": lambda other: Reply(401, {}, json.dumps({**PROBLEM, "status": 401}).encode()),
    "deep": lambda other: Reply(200, {}, b'{"data":' * 50_000),
    "endless": lambda other: Reply(200, {}, repeat(b'{"data": "' + b"x" * 9000)),
    "no text": lambda other: Reply(200, {}, b"\xff\xfe\x00"),
    "nothing": lambda other: Reply(200, {}, b""),
    "digits": lambda other: Reply(200, {}, b'{"status": ' + b"9" * 5000 + b"}"),
    "a page": lambda other: Reply(200, {"Content-Type": "text/html"}, b"<script>alert(1)</script>"),
}


@pytest.mark.full
def test_unexpected_responses_are_handled(
    room: Callable[..., Result],
    behind: LyingHub,
    stranger: LyingHub,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "Limits", lambda: SMALL)
    found, before = [], snapshot(home)
    for number, words in enumerate(COMMANDS):
        for what in list(WHOLE)[(number + SEED) % 5 :: 5]:
            behind.be_honest()
            behind.alter("", lambda _, what=what: WHOLE[what](stranger.url))
            shutil.rmtree(home / "forked", ignore_errors=True)
            began = time.monotonic()
            done = room(*words, ("--json", "--plain")[number % 2])
            if harm := find_harm(done, home, before, time.monotonic() - began):
                found.append(f"{' '.join(words)}: {what}: {harm}")
    assert found == []
    assert stranger.seen == []


def test_a_sealed_play_that_the_hub_does_not_list_is_the_hubs_fault(
    room: Callable[..., Result], behind: LyingHub
) -> None:
    shown = room("seal", "show", "admin/say-env", "--json")
    assert shown.data["plays"] == []
    behind.answer("/plays$", body=json.dumps(shown.data).encode(), Content_Type="application/json")
    done = room("seal", "play", "admin/say-env", "-m", "x", "-b", "https://api.example.com/v1", "--json")
    assert done.status == 5
    assert "wrong_answer" in done.out + done.err
