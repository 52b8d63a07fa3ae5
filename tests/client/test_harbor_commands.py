"""`wander env import harbor` writes a project that plays, and `env export --to harbor` writes tasks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from harbor_tasks import TASK_TOML, write_task
from sandboxes import needs_sandbox
from wander import ScriptedClient
from wander.loading import find_path_factory
from wander_client.environments.location import Location
from wander_client.environments.task_export import ExportReply, export_tasks
from wander_client.errors import ClientError
from wander_integrations import HarborEnv
from wander_integrations.harbor.folder import read_task

SHELL_ENVIRONMENT = """\
from wander.boxes.base import BoxSpec
from wander.envs.sandbox import SandboxEnv, run_commands
from wander.rubrics.rubric import Rubric


class Greet(SandboxEnv):
    async def setup_box(self, box, state):
        await box.upload({"/work/name.txt": state["example"].answer, "/opt/tool": "#!/bin/sh\\necho hi\\n"})

    def gold(self, example):
        return run_commands("read name < name.txt", 'echo "Hello, $name" > out.txt')

    def harbor_tests(self, example):
        wanted = f"Hello, {example.answer}"
        return {"test.sh": f'#!/bin/bash\\n[ "$(cat out.txt)" = "{wanted}" ]\\n'
                           "echo $((1 - $?)) > /logs/verifier/reward.txt\\n"}


async def greets(box, answer):
    return (await box.exec("cat out.txt")).output.strip() == f"Hello, {answer}"


def load_environment(image=None, names=("Ada", "Bo")):
    rows = [{"question": f"Greet {name}.", "answer": name, "example_id": f"greet/{name}"} for name in names]
    box = BoxSpec(image=image, environment={"LEVEL": "1"})
    return Greet(eval_dataset=rows, box=box, rubric=Rubric([greets]), name="greet-env")
"""


@pytest.fixture
def shell_environment(home: Path) -> Path:
    folder = home / "greet_env"
    folder.mkdir()
    (folder / "greet_env.py").write_text(SHELL_ENVIRONMENT)
    return folder


def test_harbor_tasks_become_a_project(wander, home):
    write_task(home / "tasks" / "hello")
    write_task(home / "tasks" / "deep" / "other", toml=TASK_TOML.format(name="other") + "cpus = 2\n")
    write_task(home / "tasks" / "windows", toml=TASK_TOML.format(name="windows") + 'os = "windows"\n')
    write_task(home / "tasks" / "cached", {"environment/.venv/x": "x"}, toml=TASK_TOML.format(name="cached"))
    done = wander("env", "import", "harbor", "tasks", "--out", "my-tasks", "--start-from", "host", "--json")
    assert done.status == 0, done.err
    assert (done.data["name"], done.data["tasks"]) == ("my-tasks", ["acme/other", "acme/hello"])
    assert set(done.data["left_out"]) == {"acme/windows", "acme/cached"}
    assert done.data["not_honored"] == ["`environment.cpus`: the number of cores is not limited"]
    assert "left out `acme/windows`: `environment.os`: boxes run Linux" in done.out
    assert "Imported into Wander from `tasks`" in (home / "my-tasks" / "README.md").read_text()
    task = read_task(home / "my-tasks" / "my_tasks" / "tasks" / "hello")
    assert task.digest == read_task(home / "tasks" / "hello").digest
    env = find_path_factory(home / "my-tasks").build({})
    assert (env.name, env.start_from, list(env.tasks)) == ("my-tasks", "host", ["acme/other", "acme/hello"])


@pytest.mark.full
@needs_sandbox
def test_a_project_plays_and_passes_its_checks(wander, home):
    write_task(home / "hello")
    assert wander("env", "import", "harbor", "hello", "--out", "my-tasks", "--start-from", "host").status == 0
    shown = wander("check", "./my-tasks", "--json", "--no-sandbox").data
    failed = [check for check in shown["checks"] if check["status"] == "fail"]
    assert failed == [], failed
    status = {check["id"]: check["message"] for check in shown["checks"]}
    assert status["rewards.hacks"] == "40 hacks earned nothing"
    assert shown["earned"]["gold"] == 1.0
    assert shown["earned"]["hack: replaces pytest"] == shown["earned"]["noop"] == 0.0


@pytest.mark.full
@needs_sandbox
def test_a_verifier_that_rewards_an_empty_solution_is_found(wander, home):
    """Its tests run from the working folder, and believe modules there."""
    runner = "python3 -m unittest discover -s /tests"
    script = f"#!/bin/bash\nif {runner}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    test = (
        "import unittest\n\nclass Test(unittest.TestCase):\n    def test_it(self):\n"
        '        self.assertEqual(open("/app/hello.txt").read(), "Hello, world!\\n")\n'
    )
    write_task(home / "weak", {"tests/test.sh": script, "tests/test_it.py": test})
    assert wander("env", "import", "harbor", "weak", "--out", "my-tasks", "--start-from", "host").status == 0
    shown = wander("check", "./my-tasks", "--json", "--no-sandbox").data
    (hacks,) = [check for check in shown["checks"] if check["id"] == "rewards.hacks"]
    assert hacks["status"] == "fail"
    assert "the hack `shadows modules that the tests import` earned 1" in hacks["message"]
    assert shown["earned"]["hack: shadows modules that the tests import"] == 1.0


def test_tasks_come_from_a_repository(wander, home):
    write_task(home / "origin" / "tasks" / "hello")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(home / "origin")]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Add a task"]):
        subprocess.run([*git, *words], check=True)
    source = f"{(home / 'origin').as_uri()}#subdirectory=tasks"
    done = wander("env", "import", "harbor", source, "--out", "my-tasks", "--json")
    assert done.status == 0, done.err
    assert done.data["tasks"] == ["acme/hello"]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert done.data["origin"]["revision"] == commit.stdout.strip()


def test_a_faulty_import_leaves_nothing_behind(wander, home):
    write_task(home / "bad", toml="[task]\n")
    refused = wander("env", "import", "harbor", "bad", "--out", "my-tasks")
    assert refused.status != 0
    assert "`bad/task.toml` lacks the field `task.name`" in refused.err
    write_task(home / "windows", toml=TASK_TOML.format(name="windows") + 'os = "windows"\n')
    refused = wander("env", "import", "harbor", "windows", "--out", "my-tasks")
    assert "no task can be played" in refused.err
    refused = wander("env", "import", "harbor", "nowhere", "--out", "my-tasks")
    assert "not the URL of a repository" in refused.err
    assert not (home / "my-tasks").exists()
    refused = wander("env", "import", "harbor", "bad", "--out", "my-tasks", "--start-from", "image")
    assert refused.status == 2
    (home / "full").mkdir()
    (home / "full" / "file").touch()
    assert "not empty" in wander("env", "import", "harbor", "windows", "--out", "full").err
    assert "package name" in wander("env", "import", "harbor", "windows", "--out", "1-bad.name").err


def test_an_environment_becomes_tasks(wander, home, shell_environment):
    done = wander(
        *("env", "export", "./greet_env", "--to", "harbor", "--out", "tasks", "--image", "debian:12"),
        *("--organization", "acme", "--json"),
    )
    assert done.status == 0, done.err
    assert done.data["tasks"] == ["Ada", "Bo"]
    task = read_task(home / "tasks" / "Ada")
    assert task.name == "acme/Ada"
    assert task.instruction == "Greet Ada."
    assert task.settings.environment.env == {"LEVEL": "1"}
    assert task.text("environment/Dockerfile") == "FROM debian:12\nWORKDIR /work\nCOPY files/ /\n"
    assert task.contents("environment")["files/opt/tool"].executable
    assert task.contents("solution")["solve.sh"].content.startswith(b"#!/bin/bash\ncd /work\nread name")
    again = wander("env", "export", "./greet_env", "--to", "harbor", "--out", "tasks", "--image", "debian:12")
    assert "not empty" in again.err


@needs_sandbox
def test_an_exported_task_plays_when_it_is_imported(wander, home, shell_environment):
    words = ("env", "export", "./greet_env", "--to", "harbor", "--out", "tasks", "--image", "debian:12")
    assert wander(*words, "--examples", "1").status == 0
    env = HarborEnv(home / "tasks", start_from="host")
    example = env.dataset("eval")[0]
    solved = asyncio.run(env.rollout(ScriptedClient(env.gold(example)), example))
    idle = asyncio.run(env.rollout(ScriptedClient(["Done."]), example))
    assert (solved.reward, idle.reward) == (1.0, 0.0), solved.failure


def test_a_harbor_environment_exports_its_own_tasks(wander, home):
    write_task(home / "hello")
    wander("env", "import", "harbor", "hello", "--out", "my-tasks", "--start-from", "host")
    done = wander("env", "export", "./my-tasks", "--to", "harbor", "--out", "tasks", "--json")
    assert done.status == 0, done.err
    assert read_task(home / "tasks" / "hello").digest == read_task(home / "hello").digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("def harbor_tests", "def other_tests"), "has no method `harbor_tests(example)`"),
        (('"test.sh": f', '"run.sh": f'), "returned no `test.sh`"),
        (("await box.upload", "await box.exec"), "`setup_box` runs a command"),
        (("image=image, ", ""), "a Harbor task needs an image"),
        (("(SandboxEnv)", "(SingleTurnEnv)"), "only environments with a shell"),
        (('f"greet/{name}"', 'f"{name}/greet"'), "two examples would have the folder `greet`"),
    ],
)
def test_environments_without_harbor_tasks_are_rejected(wander, home, shell_environment, change, message):
    text = SHELL_ENVIRONMENT.replace(*change)
    if "SingleTurn" in change[1]:
        text = "from wander import SingleTurnEnv\n" + text.replace("box=box, ", "")
    (shell_environment / "greet_env.py").write_text(text)
    image = [] if change[1] == "" else ["--image", "debian:12"]
    refused = wander("env", "export", "./greet_env", "--to", "harbor", "--out", "tasks", *image)
    assert refused.status == 1
    assert message in refused.err
    assert not (home / "tasks").exists()


def test_options_for_tasks_are_rejected_for_other_imports(wander, shell_environment):
    words = ("env", "export", "./greet_env", "--to", "skyrl", "--out", "x", "--image", "debian:12")
    assert wander(*words).status == 2


def test_an_environment_cannot_write_outside_of_the_folder(monkeypatch, tmp_path):
    here = Location(".", ".", Path(sys.executable), folder=tmp_path)
    for path in ("../x", "/etc/x", "a/../../x"):
        reply = ExportReply(tasks=["a"], files=[{"path": path, "content": ""}])
        monkeypatch.setattr("wander_client.environments.task_export._run", lambda *_, reply=reply: reply)
        with pytest.raises(ClientError, match="outside of the folder"):
            export_tasks(here, "module", tmp_path / "out", None, arguments={})
        assert not (tmp_path / "x").exists()
