"""What a run is worth, by uploads to a real hub that replays them in its sandbox: `docs/threat-model.md`.

One environment, one hub and a few evaluations serve all tests; each test posts runs that were changed, and
waits until the hub has replayed them.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_endpoint import ChatEndpoint, chat_endpoint
from judging_hub import Record, awaited, judging_hub, post, settled
from live_hub import LiveHub, make_token, run_hub
from machine import Machine
from sandboxes import needs_sandbox
from small_project import pyproject
from wander.evals.store.folder import RunFolder
from wander.evals.store.manifest import new_run_id

pytestmark = [pytest.mark.full, needs_sandbox]

NAME = "arena-env"
LABEL = f"admin/{NAME}"
API = f"/api/v1/environments/{LABEL}"
OPTIMAL = hashlib.sha256(b"optimal").hexdigest()
ARENA = r'''
import asyncio, gc, json, os, re, resource, sys, threading, time, urllib.request
from wander import MultiTurnEnv, Rubric, ScriptedClient
from wander.clients.base import ModelRequest
from wander.rollout.outside_calls import HEADER
from wander.rubrics.judge import JudgeRubric, judge_score

def found(completion, answer):
    own = [each["content"] for each in completion if each["role"] == "assistant"]
    return sum(answer in each for each in own) / len(own)

def words(completion):
    return float(sum(len(each["content"].split()) for each in completion))

def heard(state):
    return float(state.get("heard", 0))

def resigned(completion):
    return float(any(each["content"] == "I resign." for each in completion))

def weak(request):
    return "I resign."

def strong(request):
    return "You lose."

def strict(request):
    return '{"verdict": %d}' % ("7" in request.messages[-1]["content"])

def look(state):
    """Return what this process can see of itself and of the machine that started it."""
    names = {type(each).__name__ for each in gc.get_objects()}
    return {
        "state": sorted(map(str, state)),
        "variables": sorted(set(os.environ) - {"LC_CTYPE"}),
        "arguments": [sys.argv, sys.orig_argv],
        "first process": open("/proc/1/cmdline").read().split(chr(0)),
        "files": [__file__, sys.prefix, os.getcwd(), sorted(os.listdir("/"))],
        "mounts": [line.split()[4] for line in open("/proc/self/mountinfo")],
        "threads": sorted(each.name for each in threading.enumerate()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "limits": [resource.getrlimit(each) for each in range(16) if each != resource.RLIMIT_NOFILE],
        "user": [os.getuid(), os.getgid()],
        "classes": sorted(each for each in names if re.search("Client|Replay|Record", each)),
        "host": [sorted(vars(state["host"])), type(state["host"]._client).__name__],
    }

def ask_outside(rollout_id):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], HEADER: rollout_id}
    headers["Content-Type"] = "application/json"
    body = json.dumps({"model": "m", "messages": []}).encode()
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
        return answer.read()

async def probe(way, state, model):
    own = f"{state.example.example_id}/{state['index']}"
    if way == "judge":
        return await state["host"].recall("judge", "f" * 64)
    if way == "turn":
        return await model.complete()
    if way == "foreign turn":
        return await model.answer(ModelRequest(rollout_id="99/0", turn=0, messages=[]))
    return await asyncio.to_thread(ask_outside, "" if way == "nobody" else own)

class Arena(MultiTurnEnv):
    async def play(self, state, model):
        await super().play(state, model)
        if self.probes and state.example.example_id == "0":
            try:
                async with asyncio.timeout(60):
                    await probe(self.probes, state, model)
            except Exception:
                pass

    def env_response(self, messages, state):
        state["heard"] = state.get("heard", 0) + 1
        time.sleep(self.slow)
        for _ in range(self.loud):
            print("x" * 1_000_000)
        if self.looks:
            said = json.dumps(list(look(state).items())[int(state.example.example_id)])
            said = re.sub(r"127\.0\.0\.1\W+\d+|host-\w+", "drawn each time", said)
        else:
            said = "No, not that; think of a " + self.rng(state, len(messages)).choice(["king", "queen"])
        return [{"role": "user", "content": said}]

def load_environment(
    size=4, most=2, easy=0.5, looks=False, probes="", limit=None, players=0, judged=False, slow=0.0, loud=0
):
    asked = "Which number is meant by {}?"
    rows = [{"question": asked.format(n), "answer": str(n), "stratum": n // 2} for n in range(size)]
    rubric = Rubric([found, words, heard], weights=[1.0, 0.0, 0.0])
    if judged:
        rubric = JudgeRubric([judge_score], client=ScriptedClient(strict))
    if players:
        rubric = Rubric([resigned])
    bounds = None if judged or players else (0.0, 1.0)
    more = {"players": ["X", "O"]} if players else {}
    more |= {"timeout_seconds": limit} if limit else {}
    env = Arena(eval_dataset=rows, rubric=rubric, max_turns=most, reward_bounds=bounds, **more)
    env.looks, env.probes, env.slow, env.loud = looks, probes, slow, loud
    return env
'''


def answered(messages: list[dict[str, Any]]) -> str:
    """Answer with what was said last, and with half of a pair of surrogates if that is asked for."""
    said = str(messages[-1]["content"]) if messages else ""
    half = {"0?": "\ud83d", "1?": "\udc00", "2?": "\udc00\ud83d", "3?": "\ud800 and \ud801"}.get(
        said[-2:], ""
    )
    return f"I was told {said[-200:]}{half} and a number is {said[-2:-1]}, " + "which is so. " * 30


@dataclass
class Arenas:
    """The hub, the machine of the environment's publisher, and evaluations that were really played."""

    judge: LiveHub
    home: Machine
    model: ChatEndpoint
    mallory: str
    played: dict[str, tuple[Record, list[Record]]] = field(default_factory=dict)

    def evaluate(self, *words: object, model: str = "echo") -> tuple[Record, list[Record]]:
        """Return manifest and rollouts of an evaluation, which is played once for all tests."""
        key = " ".join(map(str, (model, *words)))
        if key not in self.played:
            asked = ("eval", LABEL, "-m", model, "-b", self.model.base_url, "--sandbox", *words)
            run = RunFolder.open(self.home.home / self.home.wander(*asked)["run_dir"])
            manifest = run.manifest.model_dump(mode="json", by_alias=True)
            rollouts = sorted(run.rollouts(), key=lambda one: int(one.example_id))
            self.played[key] = manifest, [one.model_dump(mode="json") for one in rollouts]
        manifest, rollouts = copy.deepcopy(self.played[key])
        return {**manifest, "run_id": new_run_id()}, rollouts

    def post(self, manifest: Record, rollouts: list[Record], token: str | None = None) -> str:
        """Post a run, and return its id."""
        answer = post(self.judge, manifest, rollouts, token)
        assert answer.status_code == 201, answer.text
        return str(manifest["run_id"])

    def settled(self, run_id: str) -> tuple[Record, Record]:
        """Return a run and the report of its replay, once that is there."""
        run = settled(self.judge, run_id)
        (found,) = self.judge.get(f"/api/v1/runs/{run_id}/verifications").json()["data"]
        return run, found["report"]

    def level(self, run_id: str) -> str:
        return str(self.settled(run_id)[0]["level"])


@pytest.fixture(scope="module")
def arena(mirror: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arenas]:
    cache = tmp_path_factory.getbasetemp() / "uv-cache"
    settings = {"WANDER_HUB_CHECK_VERSIONS": "false"}
    with (
        judging_hub(tmp_path_factory.mktemp("judge"), mirror, cache, **settings) as judge,
        chat_endpoint(answered) as model,
    ):
        variables = {"UV_CACHE_DIR": str(cache), "OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "a key"}
        home = Machine(tmp_path_factory.mktemp("publisher"), judge, mirror, variables)
        folder = home.home / NAME
        folder.mkdir()
        (folder / "pyproject.toml").write_text(pyproject(NAME))
        (folder / "README.md").write_text(f"# {NAME}\n")
        (folder / "arena_env.py").write_text(ARENA)
        home.wander("publish", folder, "--no-check")
        run_hub(judge.data, "user", "add", "mallory")
        yield Arenas(judge, home, model, make_token(judge.data, "mallory"))


Change = Callable[[Record, list[Record]], object]
"""Changes the manifest and the rollouts of a run."""


def info(**changes: Any) -> Change:
    """Return what makes a manifest state something else of its environment."""
    return lambda manifest, rollouts: manifest["environment"]["info"].update(changes)


def end_by_time(manifest: Record, rollouts: list[Record]) -> None:
    one = rollouts[0]
    one["stop_reason"], one["truncated"] = "timeout_reached", True
    one["info"]["timeout_reached"] = {"turns": 1, "messages": 1}
    del one["turns"][1:], one["completion"][1:]


# A3: code of a package cannot tell that it is replayed.


def test_code_cannot_distinguish_a_replay_from_an_evaluation(arena: Arenas) -> None:
    """Each rollout tells one thing that it sees, so a single difference would make the run `claimed`."""
    manifest, rollouts = arena.evaluate("-a", "looks=true", "-a", "size=12")
    seen = dict(json.loads(one["completion"][1]["content"]) for one in rollouts)
    assert len(seen) == 12
    run, report = arena.settled(arena.post(manifest, rollouts))
    assert (run["level"], report["same"]) == ("replayed", 12), report["divergences"]


@pytest.mark.parametrize("way", ["judge", "turn", "foreign turn", "call", "nobody"])
def test_requests_beyond_the_record_end_the_rollout(arena: Arenas, way: str) -> None:
    """It catches whatever is raised and goes on, so only the host can make the rollout differ."""
    manifest, rollouts = arena.evaluate("-a", f"probes={way}")
    for one in rollouts:
        one["info"].pop("outside_calls", None)
        del one["turns"][2:], one["completion"][3:]
    run, report = arena.settled(arena.post(manifest, rollouts))
    if way == "nobody":  # which no record has at home either
        assert (run["level"], report["differing"], report["undecided"]) == ("unverifiable", 0, 1)
        return
    assert (run["level"], report["differing"], report["undecided"]) == ("claimed", 1, 0), report
    assert report["divergences"][0]["part"] == "failure"


# B1: a pin is a digest, or it is not a pin.


def against(**pin: Any) -> Change:
    return lambda manifest, rollouts: manifest.update(players={"O": pin})


PINS: dict[str, Change] = {
    "a script with weights": against(name="scripted:arena_env:weak", kind="script", weights_sha256=OPTIMAL),
    "a script's name for weights": against(name="m", kind="X", weights_sha256="scripted:arena_env:strong"),
    "weights in capitals": against(name="m", kind="X", weights_sha256=OPTIMAL.upper()),
    "weights of zeros": against(name="m", kind="X", weights_sha256="0" * 64),
    "a script of another kind": against(name="scripted:arena_env:strong", kind="X"),
    "a path for a script": against(name="scripted:../arena_env.py:strong", kind="script"),
    "a lock of zeros": lambda manifest, rollouts: manifest["environment"].update(lock_sha256="0" * 64),
    "another lock": lambda manifest, rollouts: manifest["environment"].update(lock_sha256=OPTIMAL),
    "another wheel": lambda manifest, rollouts: manifest["environment"].update(wheel_sha256=OPTIMAL),
}


@pytest.mark.parametrize("name", PINS)
def test_invalid_pins_are_rejected(arena: Arenas, name: str) -> None:
    manifest, rollouts = arena.evaluate("-a", "players=2", "--player", "O=scripted:arena_env:weak")
    PINS[name](manifest, rollouts)
    answer = post(arena.judge, manifest, rollouts)
    assert answer.status_code in (409, 422), answer.text
    assert arena.judge.get(f"/api/v1/runs/{manifest['run_id']}").status_code == 404


def test_opponents_are_replayed_or_self_reported(arena: Arenas) -> None:
    weak = ("-a", "players=2", "--player", "O=scripted:arena_env:weak")
    honest = arena.post(*arena.evaluate(*weak))
    manifest, rollouts = arena.evaluate(*weak)
    against(name="scripted:arena_env:strong", kind="script")(manifest, rollouts)
    renamed = arena.post(manifest, rollouts)
    manifest, rollouts = arena.evaluate(*weak)
    manifest["players"] = {}
    alone = arena.post(manifest, rollouts)
    stated = {}
    for name, pin in {
        "weights": {"name": "m", "kind": "X", "weights_sha256": OPTIMAL},
        "other weights": {"name": "m", "kind": "X", "weights_sha256": OPTIMAL[::-1]},
        "a name": {"name": "m", "kind": "X"},
    }.items():
        manifest, rollouts = arena.evaluate(*weak)
        against(**pin)(manifest, rollouts)
        stated[name] = arena.post(manifest, rollouts)
    still = arena.evaluate("-a", "players=2", "-a", "most=1", "--player", "O=scripted:arena_env:weak")
    against(name="m", kind="X", weights_sha256=OPTIMAL)(*still)
    never_to_move = arena.post(*still)
    assert arena.level(honest) == "replayed"
    assert arena.level(renamed) == "claimed", "the strong script says something else"
    assert arena.level(alone) == "replayed", "its words are the model's own: another board"
    for run_id in (*stated.values(), never_to_move):
        run, report = arena.settled(run_id)
        assert (run["level"], report["answered"]) == ("complete", 4), run["level_reason"]
        assert "the identity of O is self-reported" in run["level_reason"]
    found = arena.judge.get(f"{API}/leaderboard?runs=all").json()
    boards = {}
    for name in (found["board"], *(one["board"] for one in found["others"])):
        for row in arena.judge.get(f"{API}/leaderboard?runs=all&board={name}").json()["rows"]:
            boards[row["run_id"]] = name, row["players_stated_by"]
    assert boards[honest][1] is None
    assert {boards[run_id][1] for run_id in (*stated.values(), never_to_move)} == {"admin"}
    apart = [boards[run_id][0] for run_id in (honest, alone, *stated.values(), never_to_move)]
    assert len(set(apart)) == len(apart), "none of them is compared with another"


def test_rescoring_does_not_prove_messages_of_the_environment(arena: Arenas) -> None:
    """The rewards follow from these transcripts, but the script that is pinned says something else."""
    manifest, rollouts = arena.evaluate("-a", "players=2", "--player", "O=scripted:arena_env:strong")
    assert {one["reward"] for one in rollouts} == {0.0}
    for one in rollouts:
        for message in (one["completion"][-1], one["turns"][-1]["message"]):
            message["content"] = "I resign."
        one["completion"][-1].pop("player")  # so that the first player sees it, whose reward counts
        one["reward"], one["metrics"]["resigned"] = 1.0, 1.0
        one["rewards"] = {"X": 1.0, "O": 1.0}
        one["player_metrics"]["O"]["resigned"] = 1.0
    run_id = arena.post(manifest, rollouts)
    assert arena.level(run_id) == "claimed"
    for level in ("rescored", "rescored", "replayed", "rescored", "highest"):
        arena.home.run(
            "wander", "runs", "verify", run_id, "--level", level
        )  # whose exit status tells of differences
        assert settled(arena.judge, run_id)["level"] == "claimed", level
    told = [
        one["report"]["method"]
        for one in arena.judge.get(f"/api/v1/runs/{run_id}/verifications").json()["data"]
    ]
    assert sorted(told) == ["replay"] * 3 + ["rescore"] * 3


# B2: what the environment knows is not the submitter's word.

STATED: dict[str, Change] = {
    "permuted strata": lambda manifest, rollouts: manifest.update(strata=[1, 1, 0, 0]),
    "few strata": lambda manifest, rollouts: manifest.update(strata=[0, 1]),
    "a huge stratum": lambda manifest, rollouts: manifest.update(strata=[0, 0, 1, 10**18]),
    "a negative stratum": lambda manifest, rollouts: manifest.update(strata=[-1, 0, 1, 1]),
    "another summary": info(summary="The hardest of all."),
    "a view": info(view={"columns": 3, "cells": {"x": "X"}}),
    "other bounds": info(reward_bounds=[0.0, 2.0]),
    "a larger split": info(eval_examples=5),
    "a split without end": info(eval_examples=None),
    "a training split": info(train_examples=7),
    "a time limit": info(timeout_seconds=5.0),
    "more turns": info(max_turns=3),
    "an argument said to be a default": lambda manifest, rollouts: manifest["environment"].update(
        arguments={"easy": 0.9}, info=manifest["environment"]["info"] | {"defaults": {"easy": 0.9}}
    ),
    "an end by a limit that it does not have": end_by_time,
    "an end by the context": lambda manifest, rollouts: rollouts[0].update(stop_reason="context_overflow"),
}


def test_environment_facts_in_a_manifest_are_compared(arena: Arenas) -> None:
    posted = {}
    for name, change in STATED.items():
        manifest, rollouts = arena.evaluate()
        change(manifest, rollouts)
        answer = post(arena.judge, manifest, rollouts)
        assert answer.status_code in (201, 422), (name, answer.text)
        if answer.status_code == 201:
            posted[name] = manifest["run_id"]
    assert len(posted) > 5
    assert {name: arena.level(run_id) for name, run_id in posted.items()} == dict.fromkeys(posted, "claimed")


def test_endings_by_a_limit_of_the_environment_are_counted(arena: Arenas) -> None:
    manifest, rollouts = arena.evaluate("-a", "limit=600")
    honest = arena.post(manifest, rollouts)
    manifest, rollouts = arena.evaluate("-a", "limit=600")
    end_by_time(manifest, rollouts)
    said = rollouts[0]["completion"][0]["content"]
    right = float(rollouts[0]["answer"] in said)
    rollouts[0] |= {
        "reward": right,
        "metrics": {"found": right, "words": float(len(said.split())), "heard": 0.0},
    }
    cut = arena.post({**manifest, "model": {**manifest["model"], "name": "cut"}}, rollouts, arena.mallory)
    assert arena.level(honest) == "replayed"
    run, report = arena.settled(cut)
    assert run["level"] == "replayed", report["divergences"]
    assert "1 of its 4 rollouts ended because of time" in run["level_reason"]


# B3: judges.


def test_a_scripted_judge_is_called_again(arena: Arenas) -> None:
    honest = arena.post(*arena.evaluate("-a", "judged=true"))
    forged = {}
    for name, change in {
        "reward": lambda one: one.update(reward=1.0, metrics={**one["metrics"], "judge_score": 1.0}),
        "answer": lambda one: one["info"]["judge_answers"][0].update(answer='{"verdict": 1}'),
        "no answer": lambda one: one["info"].pop("judge_answers"),
        "not a script": lambda one: one["info"]["judge_answers"][0].pop("scripted"),
        "another judge": lambda one: one["info"]["judge_answers"][0].update(model="m"),
    }.items():
        manifest, rollouts = arena.evaluate("-a", "judged=true")
        change(rollouts[0])
        forged[name] = arena.post(manifest, rollouts)
    run, report = arena.settled(honest)
    assert (run["level"], report["answered"]) == ("replayed", 0)
    assert {name: arena.level(run_id) for name, run_id in forged.items()} == dict.fromkeys(forged, "claimed")


# B4, B5 and B6: boards.


def test_equal_answers_are_folded_on_boards(arena: Arenas) -> None:
    same = ({}, {"most": 2}, {"players": 0.0}, {"size": 4, "easy": 0.5}, {"looks": False, "probes": ""})
    posted = []
    for number, arguments in enumerate(same):
        manifest, rollouts = arena.evaluate()
        manifest["environment"]["arguments"] = arguments
        manifest["model"]["name"] = f"model {number}"
        posted.append(arena.post(manifest, rollouts, arena.mallory if number % 2 else None))
    for number in range(5):
        manifest, rollouts = arena.evaluate("-n", 1)
        manifest["model"]["name"] = f"GPT-5.5 Pro {number}"
        arena.post(manifest, rollouts, arena.mallory)
    assert [arena.level(run_id) for run_id in posted] == ["replayed"] * len(posted)
    board = arena.judge.get(f"{API}/leaderboard?limit=100").json()
    assert (board["examples"], board["arguments"]) == (4, {}), "the first board is the whole split"
    top = next(row for row in board["rows"] if row["run_id"] == posted[0])
    assert {one["run_id"] for one in top["folded"]} >= set(posted[1:])
    assert (top["people"], set(top["names"]) >= {f"model {n}" for n in range(5)}) == (2, True)
    assert not any("GPT" in row["model"] for row in board["rows"])
    detail = arena.judge.get(API).json()
    assert "GPT" not in detail["best_model"]


# B7: credit for weights.


def test_weights_are_self_reported(arena: Arenas) -> None:
    for number, token in enumerate([None, arena.mallory, None, arena.mallory, arena.mallory]):
        manifest, rollouts = arena.evaluate()
        manifest["model"] |= {"name": f"w{number}", "weights_sha256": OPTIMAL}
        run_id = arena.post(manifest, rollouts, token)
        links = arena.judge.get(f"/api/v1/runs/{run_id}/links").json()
        assert links["stated_by"] == ("mallory" if token else "admin")


# C2: nobody holds up the queue.


def test_slow_and_verbose_runs_do_not_block_others(arena: Arenas) -> None:
    slow, loud, short = (
        arena.evaluate(*words) for words in (("-a", "slow=0.3"), ("-a", "loud=20"), ("-n", 1))
    )
    theirs = [arena.post(*loud, arena.mallory)]
    for _ in range(3):
        theirs.append(arena.post({**slow[0], "run_id": new_run_id()}, slow[1], arena.mallory))
    assert arena.level(arena.post(*short)) == "replayed"
    found = [arena.judge.get(f"/api/v1/runs/{each}/verifications").json()["data"][0] for each in theirs]
    assert [one["state"] for one in found].count("queued") >= 1, "posted before it, by somebody else"
    assert [arena.level(each) for each in theirs] == ["replayed"] * 4


# C3: what an endpoint says is kept.


def test_halves_of_surrogate_pairs_are_kept_escaped_and_replayed(arena: Arenas) -> None:
    manifest, rollouts = arena.evaluate()
    said = [one["completion"][0]["content"] for one in rollouts]
    halves = [r"\ud83d", r"\udc00", r"\udc00\ud83d", r"\ud800 and \ud801"]
    assert [half in text for half, text in zip(halves, said, strict=True)] == [True] * 4
    run_id = arena.post(manifest, rollouts)
    run, report = arena.settled(run_id)
    assert (run["level"], report["same"]) == ("replayed", 4), report["divergences"]
    for number, half in enumerate(halves):
        kept = arena.judge.get(f"/api/v1/runs/{run_id}/rollouts/{number}").json()
        assert half in kept["completion"][0]["content"]
        assert kept["completion"][0]["content"] == said[number]


# C1: a lost process is no divergence.


def processes_below(pid: int) -> dict[int, str]:
    """Return the command lines of the processes that descend from one, by their ids."""
    parents, commands = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            stat = (folder / "stat").read_text()
            parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
            commands[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    below, found = {pid}, {}
    while new := {each for each, parent in parents.items() if parent in below} - below:
        below |= new
        found |= {each: commands[each] for each in new}
    return found


def test_a_lower_verification_request_lowers_no_level(arena: Arenas) -> None:
    """Without the state that playing leaves, the rubric says something else of each of these transcripts."""
    run_id = arena.post(*arena.evaluate())
    assert arena.level(run_id) == "replayed"
    asked = {"Authorization": f"Bearer {arena.mallory}"}
    for more in ({"level": "rescored"}, {"level": "rescored", "sample": 1}, {"level": "rescored"}):
        answer = httpx.post(f"{arena.judge.url}/api/v1/runs/{run_id}/verifications", json=more, headers=asked)
        assert answer.status_code == 201, answer.text
        assert settled(arena.judge, run_id)["level"] == "replayed"
        newest = arena.judge.get(f"/api/v1/runs/{run_id}/verifications").json()["data"][0]["report"]
        assert newest["method"] == "rescore"
        assert newest["differing"] > 0


@pytest.mark.parametrize(
    ("part", "number"),
    [
        ("inside.py", signal.SIGKILL),
        pytest.param("inside.py", signal.SIGSEGV, marks=pytest.mark.slow),
        ("bwrap", signal.SIGKILL),
        pytest.param("--stream", signal.SIGKILL, marks=pytest.mark.slow),
        ("--stream", signal.SIGTERM),
    ],
    ids=lambda each: str(getattr(each, "name", each)),
)
def test_a_lost_process_lowers_no_level(arena: Arenas, part: str, number: signal.Signals) -> None:
    run_id = arena.post(*arena.evaluate("-a", "slow=0.5"))

    def struck() -> bool | None:
        found = [pid for pid, command in processes_below(arena.judge.process.pid).items() if part in command]
        if not found:
            return None
        os.kill(max(found) if part == "inside.py" else min(found), number)
        return True

    awaited(arena.judge, struck)
    run, report = arena.settled(run_id)
    assert (run["level"], report["differing"]) == ("replayed", 0), report
