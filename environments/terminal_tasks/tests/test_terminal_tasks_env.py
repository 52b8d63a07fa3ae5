"""Every task can be solved, is not solved by doing nothing or by a guess, and is drawn from its seed."""

from __future__ import annotations

import shlex
import shutil

import pytest
from terminal_tasks import SHOWN, TerminalTasksEnv, draw, load_environment, solved, tasks
from terminal_tasks.players import commands_for, expert, idle, random
from terminal_tasks.tasks import FAULTS, LEVELS, STATS, TASKS
from wander import ReplayClient, Rubric, ScriptedClient
from wander.envs import run_commands
from wander.seeding import derived_rng

NAMES = sorted(TASKS)
SOME = {"count_requests", "fix_bug", "write_script"}
"""The tasks of `make test`: one answer, one file to repair, one to write."""
needs_box = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed: `apt install bubblewrap`"
)


def example_of(name, skip=0):
    dataset = load_environment().dataset("eval")
    found = [example for example in dataset.examples(0, 72) if example.info["task"] == name]
    return found[skip]


async def played(client, example):
    env = load_environment()
    rollout = await env.rollout(client, example)
    assert rollout.failure is None, rollout.failure
    return rollout


def test_every_task_is_reached_and_its_question_is_read_back():
    examples = load_environment().dataset("train").examples(0, 120)
    assert {example.info["task"] for example in examples} == set(TASKS)
    for example in examples:
        question = example.prompt[-1]["content"]
        matching = [name for name, task in TASKS.items() if task.fields_in(question) is not None]
        assert matching == [example.info["task"]]
        assert TASKS[example.info["task"]].fields_in(question) == draw(example.info).fields
        assert commands_for(question)


def test_no_file_of_a_task_is_a_result_already():
    for name, task in TASKS.items():
        drawn = task.draw(derived_rng("test", name))
        unchanged = {path for path, text in drawn.files.items() if drawn.expected.get(path) == text}
        assert not unchanged & {"answer.txt", "top.txt", "service.ini"}


@needs_box
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SOME else pytest.mark.full) for name in NAMES]
)
async def test_the_expert_solves_it_and_doing_nothing_does_not(name):
    for skip in (0, 1):
        example = example_of(name, skip)
        solved = await played(ScriptedClient(expert), example)
        assert solved.reward == 1.0, [message.get("content") for message in solved.completion]
        nothing = await played(ScriptedClient(idle), example)
        assert nothing.reward == 0.0


@needs_box
@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
async def test_the_random_player_does_not_solve_it_and_every_rollout_is_replayed(name):
    env = load_environment()
    for index, client in enumerate((ScriptedClient(random), ScriptedClient(expert))):
        example = example_of(name, 2)
        rollout = await played(client, example)
        assert (rollout.reward or 0) <= index
        again = await env.rollout(ReplayClient([rollout]), example)
        assert (again.reward, again.info, again.failure) == (rollout.reward, rollout.info, None)


@needs_box
async def test_a_planted_program_or_answer_elsewhere_earns_nothing(monkeypatch):
    example = example_of("count_requests")
    plant = (
        "mkdir -p /tmp/bin; for d in /tmp /root; do echo 1 > $d/answer.txt; done; export PATH=/tmp/bin:$PATH"
    )
    assert (await played(ScriptedClient(run_commands(plant)), example)).reward == 0.0
    example = example_of("write_script")
    script = draw(example.info).fields["script"]
    hang = f"echo 'sleep 600' > {script}"
    monkeypatch.setattr(tasks, "COMMAND_SECONDS", 1.0)
    assert (await played(ScriptedClient(run_commands(hang)), example)).reward == 0.0


@needs_box
async def test_passing_the_visible_test_is_not_enough():
    example = example_of("fix_bug")
    cheat = f"echo 'echo 3 -17 -3' > {draw(example.info).fields['script']}"
    rollout = await played(ScriptedClient(run_commands(cheat, "sh tests.sh")), example)
    assert rollout.completion[3]["content"] == "passed"
    assert rollout.reward == 0.0


def test_every_fault_changes_the_script():
    assert all(STATS.replace(right, wrong) != STATS for right, wrong in FAULTS)
    assert sum(map(len, LEVELS)) == 12


@needs_box
async def test_the_shown_conversations_are_what_the_expert_does():
    names = ("count_requests", "find_token", "top_words")
    for number, (name, conversation) in enumerate(zip(names, SHOWN, strict=True)):
        info = {"task": name, "seed": 10**15 + number}
        rows = [{"question": TASKS[name].question.format(**draw(info).fields), "info": info}]
        env = TerminalTasksEnv(rows, command_seconds=10.0, output_chars=2000, rubric=Rubric([solved]))
        rollout = await env.rollout(ScriptedClient(expert), env.dataset("train")[0])
        assert (rollout.reward, [*rollout.prompt, *rollout.completion]) == (1.0, conversation)


ASK_AND_RUN = """
import json, os, urllib.request
messages = [{"role": "user", "content": os.environ["WANDER_INSTRUCTION"]}]
body = json.dumps({"model": "any", "messages": messages}).encode()
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
os.system(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
"""


@needs_box
async def test_the_rollout_of_a_program_that_is_declared_deterministic_is_replayed():
    program = f"python3 -c {shlex.quote(ASK_AND_RUN)}"
    assert not load_environment(agent=program).info.deterministic
    env = load_environment(agent=program, deterministic=True)
    assert env.info.deterministic
    example = example_of("count_requests")
    command = " && ".join(commands_for(example.prompt[-1]["content"]))
    rollout = await env.rollout(ScriptedClient([command]), example)
    assert (rollout.reward, rollout.failure) == (1.0, None)
    again = await env.rollout(ReplayClient([rollout]), example)
    assert (again.reward, again.info, again.failure) == (1.0, rollout.info, None)
