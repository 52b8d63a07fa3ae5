"""`wander.load` on a folder: the same calls in a script, while an event loop runs, and in threads."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time

import pytest
import wander
from wander.errors import ArgumentsUnfit, LoadError, MissingPlugin, ModelError
from wander.lazy import installed_name
from wander_client.errors import ClientError, NotFound, Unavailable, UsageError
from wander_client.python.background import background
from wander_integrations import Episode, EpisodeFailed

SOLVER, WRONG = "scripted:say_env:solver", "scripted:say_env:wrong"


class Solver(wander.Client):
    """Says what it is asked to."""

    model = "solver"

    async def complete(self, request):
        from wander.clients.base import ModelResponse

        text = request.messages[-1]["content"].removeprefix("say ")
        return ModelResponse(message={"role": "assistant", "content": text})


@pytest.fixture
def env(say_env):
    return say_env


def worker_processes() -> set[str]:
    """Ids of the workers of this process: its children, and forks of its warm process."""
    listed = subprocess.run(
        ["ps", "-e", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    )
    rows = [line.split(maxsplit=2) for line in listed.stdout.splitlines()]
    workers = [row for row in rows if "wander.worker" in row[2]]
    warm = {pid for pid, parent, args in workers if "warm_programs.py" in args and parent == str(os.getpid())}
    return {pid for pid, parent, _ in workers if parent in warm | {str(os.getpid())}} - warm


def test_a_handle_has_the_methods_of_a_local_environment(env):
    local = wander.load_environment(env.name)
    assert env.info.name == local.info.name == "say-env"
    dataset = env.dataset("eval")
    assert (len(dataset), dataset.length) == (8, 8)
    assert [one.answer for one in dataset] == [one.answer for one in local.dataset("eval")]
    assert dataset[3] == local.dataset("eval")[3]
    assert dataset[-1].answer == "7"
    assert [one.answer for one in dataset[6:1:-2]] == ["6", "4", "2"]
    assert dataset[8:] == []
    with pytest.raises(IndexError):
        dataset[8]
    with pytest.raises(UsageError, match='`split="test"` is unknown'):
        env.dataset("test")
    rollout = env.rollout_sync(Solver(), dataset[3])
    assert (rollout.reward, rollout.example_id) == (1.0, "3")
    assert env.rollout_sync(SOLVER, 5).completion[-1]["content"] == "5"


def test_arguments_reach_the_environment(folder):
    with wander.load(folder, size=3, progress=False) as env:
        assert len(env.dataset()) == 3
        assert env.arguments == {"size": 3}
        assert repr(env) == f"wander.load('{folder}', size=3)"


def test_everything_works_under_asyncio_run(folder):
    async def main():
        async with wander.load(folder, progress=False) as env:
            one, many = await asyncio.gather(
                env.rollout(Solver(), env.dataset("eval")[0]), env.rollouts(Solver(), n=3, rollouts=2)
            )
            return one.reward, [(each.example_id, each.index) for each in many]

    expected = [(str(n), index) for n in range(3) for index in range(2)]
    assert asyncio.run(main()) == (1.0, expected)


async def test_blocking_calls_work_while_an_event_loop_runs(env):
    assert env.rollout_sync(Solver(), 1).reward == 1.0
    assert (await env.rollout(Solver(), 1)).reward == 1.0
    assert len(env.rollouts_sync(Solver(), n=2)) == 2


def test_threads_share_a_handle(env):
    rewards: list[float | None] = []
    threads = [
        threading.Thread(target=lambda n=n: rewards.append(env.rollout_sync(Solver(), n).reward))
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rewards == [1.0] * 6


def test_an_unreferenced_handle_stops_its_process(folder):
    before = worker_processes()
    env = wander.load(folder, progress=False)
    started = worker_processes() - before
    assert len(started) == 1
    del env
    gc.collect()
    give_up = time.monotonic() + 30
    while worker_processes() & started:
        assert time.monotonic() < give_up
        background().run(asyncio.sleep(0.05))


SCRIPT = """
import sys, wander
env = wander.load(sys.argv[1], progress=False)
print(env.rollout_sync("scripted:say_env:solver", 2).reward)
"""


def test_a_script_that_closes_nothing_exits_silently(folder):
    command = [sys.executable, "-W", "error", "-c", SCRIPT, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert (done.stdout, done.stderr, done.returncode) == ("1.0\n", "", 0)


def failure(kind, name, **options):
    with pytest.raises(kind) as caught:
        wander.load(name, progress=False, **options)
    notes = getattr(caught.value, "__notes__", [])
    if caught.value.hint:
        assert f"hint: {caught.value.hint}" in notes, "a traceback shows it"
    return caught.value


def test_errors_are_exceptions_with_hints(folder, home, monkeypatch):
    typo = failure(ArgumentsUnfit, folder, siz=3)
    assert "has no argument `siz` (did you mean `size`?)" in str(typo)
    assert "must be `int`" in str(failure(ArgumentsUnfit, folder, size="3"))
    assert failure(NotFound, "./nowhere").code == "not_found"
    assert failure(NotFound, home).code == "no_environment"
    assert "the owner is missing" in str(failure(UsageError, "say-env"))
    assert isinstance(failure(Unavailable, "alice/wordle", hub="http://127.0.0.1:9"), ClientError)
    (folder / "say_env.py").write_text("raise RuntimeError('broken')")
    assert "broken" in str(failure(LoadError, folder))


def test_loading_by_name_and_in_process_point_to_each_other(monkeypatch):
    with pytest.raises(LoadError) as caught:
        wander.load_environment("admin/mathbox")
    assert '`wander.load("admin/mathbox")`' in caught.value.hint
    monkeypatch.setattr("wander.loading.installed_environments", lambda: ["mathbox"])
    assert '`wander.load_environment("mathbox")`' in failure(UsageError, "mathbox").hint


def test_without_the_client_loading_by_name_prints_what_to_install(monkeypatch):
    monkeypatch.setenv("WANDER_HUB", "https://hub.example.org/")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
    load = installed_name("load")
    with pytest.raises(MissingPlugin, match=r"`wander\.load` comes with wander-client") as caught:
        load("alice/wordle")
    assert (
        "`pip install --index-url https://hub.example.org/wander/index/ wander-client`" in caught.value.hint
    )


class Asks(wander.Client):
    """Waits, while it is asked, for what is played on the loop that asks it."""

    model = "asks"

    def __init__(self, env):
        self.env = env

    async def complete(self, request):
        self.env.rollout_sync("scripted:say_env:solver", 0)


def test_a_client_that_would_block_its_own_loop_is_an_error(env):
    failure = env.rollout_sync(Asks(env), 0).failure
    assert "Asks.complete" in failure.message, "its own name"
    assert "this call would block the loop on which it runs" in failure.message


def test_closed_handles_and_handles_of_other_processes_raise_errors(folder):
    env = wander.load(folder, progress=False)
    child = os.fork()
    if child == 0:
        try:
            env.dataset("eval")[0]
        except UsageError as error:
            os._exit(7 if "was loaded by another process" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    env.close()
    for use in (lambda: env.dataset("eval")[0], lambda: env.evaluate_sync("scripted:say_env:solver")):
        with pytest.raises(UsageError, match="is closed"):
            use()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sandbox": "yes"}, "invalid `sandbox='yes'`"),
        ({"workers": "4"}, "`workers='4'` is not a number"),
    ],
)
def test_options_of_another_kind_are_rejected(folder, options, said):
    assert said in str(failure(UsageError, folder, **options))
    assert "the environment's name is empty" in str(failure(UsageError, ""))


def test_an_environment_loaded_by_name_is_played_step_by_step(env):
    episode = Episode(env, 3, split="eval")
    assert episode.begin()[-1]["content"] == "say 3"
    assert (episode.done, episode.reward) == (False, None)
    assert episode.step("3") == []
    assert (episode.done, episode.truncated, episode.reward) == (True, False, 1.0)
    assert [message["content"] for message in episode.messages] == ["say 3", "3"]
    with pytest.raises(ModelError, match="has ended"):
        episode.step("4")
    episode.close()
    failing = Episode(env, 0)
    failing.begin()
    with pytest.raises(EpisodeFailed, match=r"rubric: .*the reward function broke"):
        failing.step("break")
    left = Episode(env, 1)
    left.begin()
    left.close()
    assert not left.done
