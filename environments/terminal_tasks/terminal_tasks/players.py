"""Scripted players: `expert` solves every task, `random` runs harmless commands, `idle` does nothing."""

from __future__ import annotations

from wander.clients import ModelRequest
from wander.envs import run_commands
from wander.parsers import message_text
from wander.seeding import derived_rng
from wander.types import Message

from terminal_tasks.tasks import TASKS, WORDS

LOOKS = ("ls", "pwd", "cat *", "ls -R", "wc -l *", "sh tests.sh", "sh build.sh", "head -n 2 *.csv")


def question_in(request: ModelRequest) -> str:
    """Return the last question of the user. Examples that are shown come before it."""
    return [message_text(each) for each in request.messages if each["role"] == "user"][-1]


def commands_for(question: str) -> list[str]:
    """Return commands that solve the task of a question."""
    for task in TASKS.values():
        if (fields := task.fields_in(question)) is not None:
            return task.solve(fields)
    raise ValueError(f"no task asks `{question}`")


def expert(request: ModelRequest) -> Message | str:
    """Run the next command of the solution, then stop."""
    return run_commands(*commands_for(question_in(request)))[request.turn]


def idle(request: ModelRequest) -> str:
    """Say that everything is done without running a command."""
    return "done"


def random(request: ModelRequest) -> Message | str:
    """Look around, and write random answers."""
    if request.turn >= 3:
        return "done"
    rng = derived_rng("random terminal_tasks player", request.seed)
    answer = rng.choice([rng.choice(WORDS), str(rng.randint(0, 40))])
    command = rng.choice([*LOOKS, f"echo {answer} > answer.txt", f"echo {answer} > top.txt"])
    return run_commands(command)[0]
