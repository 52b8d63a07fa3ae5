"""Harbor task folders are read as validated values, and every fault is an error that names the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harbor_tasks import TASK_TOML, write_task
from wander.errors import DatasetError
from wander_integrations.harbor import folder as harbor_folder
from wander_integrations.harbor.dockerfile import plain_image, working_folder
from wander_integrations.harbor.folder import read_task, read_tasks
from wander_integrations.harbor.project import write_project
from wander_integrations.harbor.support import state_paths, unsupported

TOML = TASK_TOML.format(name="hello")
EVERY_FIELD = """\
version = "1.2"
source = "acme"
artifacts = ["/app/out", {source = "/srv/data", destination = "data", exclude = ["*.log"], service = "main"}]

[task]
name = "acme/hello"
version = "3"
description = "A greeting."
authors = [{name = "Ada", email = "ada@example.org"}]
keywords = ["text"]

[metadata]
anything = {goes = [1, "two"]}

[metadata.wander]
state_paths = ["/srv"]
reward_key = "accuracy"

[agent]
timeout_sec = 120
user = "root"
network_mode = "no-network"

[verifier]
timeout_sec = 30.5
user = 0
environment_mode = "separate"
env = {TOKEN = "${TOKEN:-none}"}
[[verifier.collect]]
command = "sort -o out.txt out.txt"
timeout_sec = 5

[verifier.environment]
docker_image = "verifier:1"
os = "Linux"

[solution]
env = {FAST = "1"}

[environment]
docker_image = "debian:12"
build_timeout_sec = 60.0
cpus = 1.5
memory = "2G"
storage = "512M"
gpus = 0
gpu_types = ["H100"]
env = {LEVEL = "3"}
skills_dir = "/skills"
workdir = "/app/"
network_mode = "allowlist"
allowed_hosts = ["pypi.org", "*.example.org"]
healthcheck = {command = "true", retries = 5}
"""


def read(tmp_path: Path, changes: dict[str, str | None] | None = None, toml: str | None = None):
    return read_task(write_task(tmp_path / "hello", changes, toml=toml))


def test_a_task_is_read(tmp_path):
    task = read(tmp_path)
    assert task.name == "acme/hello"
    assert task.instruction == "Write `Hello, world!` to /app/hello.txt."
    assert task.contents("tests")["test.sh"].executable
    assert not task.contents("environment")["notes.txt"].executable
    assert unsupported(task) == []
    assert state_paths(task) == ["/app"]


def test_every_field_is_read_or_named(tmp_path):
    task = read(tmp_path, toml=EVERY_FIELD)
    settings = task.settings
    assert (settings.schema_version, settings.environment.memory_mb) == ("1.2", 2048)
    assert (settings.environment.storage_mb, settings.verifier.timeout_sec) == (512, 30.5)
    assert settings.is_separate
    assert settings.wander.reward_key == "accuracy"
    assert [fault.field for fault in unsupported(task) if not fault.blocks] == [
        *("environment.cpus", "environment.skills_dir", "environment.build_timeout_sec"),
        *("verifier.network_mode", "verifier.collect[0]", "artifacts[1].exclude"),
    ]
    assert not [fault for fault in unsupported(task) if fault.blocks]
    assert state_paths(task) == ["/app", "/srv", "/logs/artifacts"]


def test_the_digest_depends_on_the_contents(tmp_path):
    first = read(tmp_path / "a")
    assert read(tmp_path / "b").digest == first.digest
    assert read(tmp_path / "c", {"tests/more.txt": "x"}).digest != first.digest


def test_canaries_are_not_part_of_the_instruction(tmp_path):
    text = "<!-- harbor-canary GUID 1 -->\n# CANARY: do not train\n\n# Title\n\nDo it.\n"
    assert read(tmp_path, {"instruction.md": text}).instruction == "# Title\n\nDo it."


@pytest.mark.parametrize(
    ("toml", "message", "hint"),
    [
        ("x = [", "`hello/task.toml` is not a TOML file", "toml.io"),
        (TOML + "memorymb = 5\n", "unknown field `environment.memorymb`", "did you mean `memory_mb`?"),
        (TOML + "[extra]\na = 1\n", "unknown field `extra`", "[metadata]"),
        ('[task]\ndescription = "x"\n', "lacks the field `task.name`", "add `name = ...`"),
        ('[task]\nname = "hello"\n', "invalid `task.name`", "task.toml"),
        ('schema_version = "9.0"\n', "the versions 1.0 to 1.4 can be read", "task.toml"),
        ("[agent]\ntimeout_sec = -1\n", "invalid `agent.timeout_sec`", "task.toml"),
        ('[environment]\nmemory = "much"\n', "`memory` must be a size", "task.toml"),
        ('[environment]\nmemory = "1G"\nmemory_mb = 5\n', "contradict each other", "task.toml"),
        ('[environment]\nallowed_hosts = ["a.org"]\n', "allowlist", "task.toml"),
        ('[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\n', "contradicts", "task.toml"),
        ('artifacts = ["../secret"]\n', "must not contain `..`", "task.toml"),
        ('[[steps]]\nname = "a"\n[[steps]]\nname = "A"\n', "must be unique", "task.toml"),
        ('[[steps]]\nname = "a/b"\n', "invalid `steps.0.name`", "task.toml"),
        ("[metadata.wander]\nstate_path = []\n", "unknown field `metadata.wander.state_path`", "state_paths"),
    ],
)
def test_invalid_settings_are_explained(tmp_path, toml, message, hint):
    with pytest.raises(DatasetError) as raised:
        read(tmp_path, toml=toml)
    assert message in str(raised.value)
    assert hint in raised.value.hint


@pytest.mark.parametrize("name", ["task.toml", "instruction.md", "environment/Dockerfile", "tests/test.sh"])
def test_missing_files_are_named(tmp_path, name):
    changes: dict[str, str | None] = {name: None}
    if name.startswith("environment"):
        changes["environment/notes.txt"] = None
    folder = write_task(tmp_path / "hello", changes)
    (folder / name).unlink(missing_ok=True)
    with pytest.raises(DatasetError) as raised:
        read_task(folder)
    assert name in str(raised.value)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("changes", "toml", "field"),
    [
        ({"environment/docker-compose.yaml": "services: {}"}, "", "environment/docker-compose.yaml"),
        ({"tests/.harborignore": "*.bin"}, "", "tests/.harborignore"),
        ({"trajectory.json": "{}"}, "", "trajectory.json"),
        ({}, "gpus = 2\n", "environment.gpus"),
        ({}, 'tpu = {type = "v6e", topology = "2x4"}\n', "environment.tpu"),
        ({}, 'os = "windows"\n', "environment.os"),
        ({}, 'mcp_servers = [{name = "a", url = "http://a"}]\n', "environment.mcp_servers"),
        ({}, '[agent]\nuser = "ada"\n', "agent.user"),
        ({}, "[verifier]\nuser = 1000\n", "verifier.user"),
        ({}, '[[verifier.collect]]\ncommand = "x"\nservice = "db"\n', "verifier.collect[0].service"),
        ({}, '[verifier]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.org"]\n', "verifier.network_mode"),
        ({}, '[metadata.wander]\nstate_paths = ["/logs"]\n', "metadata.wander.state_paths"),
        ({}, '[metadata.wander]\nstate_paths = ["/tests/data"]\n', "metadata.wander.state_paths"),
    ],
)
def test_unsupported_fields_are_named(tmp_path, changes, toml, field):
    task = read(tmp_path, changes, toml=TOML + toml)
    assert [fault.field for fault in unsupported(task) if fault.blocks] == [field]


def test_the_working_folder_must_be_known(tmp_path):
    toml = TOML.replace('workdir = "/app"\n', "")
    assert unsupported(read(tmp_path / "a", toml=toml)) == []  # the Dockerfile names it
    task = read(tmp_path / "b", {"environment/Dockerfile": "FROM x"}, toml=toml)
    assert [fault.field for fault in unsupported(task) if fault.blocks] == ["environment.workdir"]
    task = read(tmp_path / "c", toml=toml + 'workdir = "/"\n')
    assert [fault.field for fault in unsupported(task) if fault.blocks] == ["environment.workdir"]


def test_steps_are_read_and_named(tmp_path):
    toml = TOML + '[[steps]]\nname = "one"\nmin_reward = 0.5\nartifacts = ["/app"]\n'
    changes: dict[str, str | None] = {"steps/one/instruction.md": "First.", "instruction.md": None}
    task = read(tmp_path, changes, toml=toml)
    assert [step.instruction for step in task.steps] == ["First."]
    assert [fault.field for fault in unsupported(task)] == ["steps"]
    with pytest.raises(DatasetError, match="steps/two"):
        read(tmp_path, changes, toml=toml + '[[steps]]\nname = "two"\n')


def test_folders_of_tasks_are_read_in_order(tmp_path):
    for name in ("b", "a", "deep/down/c"):
        write_task(tmp_path / name)
    (tmp_path / ".git").mkdir()
    write_task(tmp_path / ".git" / "hidden")
    assert [task.name for task in read_tasks(tmp_path)] == ["acme/a", "acme/b", "acme/c"]
    write_task(tmp_path / "other" / "a")
    with pytest.raises(DatasetError, match="same name `acme/a`"):
        read_tasks(tmp_path)
    with pytest.raises(DatasetError, match="no Harbor tasks"):
        read_tasks(tmp_path / "a" / "solution")
    with pytest.raises(DatasetError, match="is not a folder"):
        read_tasks(tmp_path / "nowhere")


def test_an_invalid_task_does_not_stop_the_others(tmp_path):
    write_task(tmp_path / "tasks" / "good")
    broken = write_task(tmp_path / "tasks" / "broken")
    (broken / "task.toml").write_text("author_name = 3\n[agnet]\n")
    with pytest.raises(DatasetError):
        read_tasks(tmp_path / "tasks")
    written = write_project(tmp_path / "tasks", tmp_path / "out", name="some-tasks")
    assert written.tasks == ["acme/good"]
    assert list(written.left_out) == ["broken"]
    assert "task.toml" in written.left_out["broken"][0]
    assert (tmp_path / "out/some_tasks/tasks/good/task.toml").is_file()
    with pytest.raises(DatasetError):
        write_project(broken, tmp_path / "alone", name="one-task")


def test_a_hostile_folder_is_rejected(tmp_path, monkeypatch):
    folder = write_task(tmp_path / "linked")
    os.symlink("/etc/passwd", folder / "tests" / "passwd")
    with pytest.raises(DatasetError, match="cannot be read"):
        read_task(folder)
    folder = write_task(tmp_path / "fifo")
    os.mkfifo(folder / "environment" / "pipe")
    with pytest.raises(DatasetError, match="cannot be read"):
        read_task(folder)
    monkeypatch.setattr(harbor_folder, "MOST_FILES", 3)
    with pytest.raises(DatasetError, match="more than 3 files"):
        read_task(write_task(tmp_path / "many"))
    monkeypatch.setattr(harbor_folder, "MOST_TASKS", 1)
    with pytest.raises(DatasetError, match="too many"):
        read_tasks(tmp_path)


def test_text_fields_must_be_text(tmp_path):
    folder = write_task(tmp_path / "hello")
    (folder / "instruction.md").write_bytes(b"\xff\xfe")
    with pytest.raises(DatasetError, match="not UTF-8"):
        read_task(folder)
    with pytest.raises(DatasetError, match="is empty"):
        read(tmp_path, {"instruction.md": "\n"})


DOCKERFILE = """\
# A comment
FROM python:3.12 AS base
ENV NAME=value ROOT=/srv
ENV OLD style
WORKDIR /app
WORKDIR inner
COPY a.txt \\
     b.txt ./
COPY ["c d.txt", "/data/renamed.txt"]
COPY src $ROOT/src/
CMD ["bash"]
"""
CONTEXT = dict.fromkeys(["a.txt", "b.txt", "c d.txt", "src/one.py", "src/deep/two.py", "Dockerfile"])


def test_a_dockerfile_without_builds_is_played_as_files():
    image = plain_image(DOCKERFILE, CONTEXT, "Dockerfile")
    assert (image.base, image.working_folder) == ("python:3.12", "/app/inner")
    assert image.variables == {"NAME": "value", "ROOT": "/srv", "OLD": "style"}
    assert image.files == {
        "/app/inner/a.txt": "a.txt",
        "/app/inner/b.txt": "b.txt",
        "/data/renamed.txt": "c d.txt",
        "/srv/src/one.py": "src/one.py",
        "/srv/src/deep/two.py": "src/deep/two.py",
    }
    assert working_folder(DOCKERFILE) == "/app/inner"
    assert working_folder("FROM a\nWORKDIR /x\nFROM b\n") is None
    assert working_folder("FROM a\nWORKDIR $HOME\n") is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("RUN apt-get update", "line 2: `RUN` needs an image build"),
        ("FROM other", "several stages"),
        ("COPY --from=base /a /b", "COPY --from=base"),
        ("COPY *.txt /app/", "COPY *.txt"),
        ("ADD https://example.org/x /x", "`ADD` needs"),
        ("USER ada", "`USER` needs"),
        ("COPY nothing /app/", "`nothing`, which does not exist"),
        ("COPY ../a.txt /app/", "does not exist"),
        ("COPY a.txt", "needs a source and a target"),
        ('ENV A="b', "`ENV` cannot be read"),
    ],
)
def test_other_dockerfiles_need_a_runtime(line, message):
    with pytest.raises(DatasetError) as raised:
        plain_image(f"FROM x\n{line}\n", CONTEXT, "environment/Dockerfile")
    assert message in str(raised.value)
