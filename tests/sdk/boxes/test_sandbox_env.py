"""An environment with a shell: what commands do, how it is scored in a new box, and how it is verified."""

from __future__ import annotations

import asyncio
import os
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest
from sandboxes import needs_sandbox
from wander import LocalEnvironment, ReplayClient, Rollout, Rubric, SandboxEnv, ScriptedClient
from wander.boxes import BoxSpec
from wander.clients.replay import TranscriptClient
from wander.envs import run_commands
from wander.evals.replay import replay_run
from wander.evals.run.runner import EvaluationPlan, evaluate
from wander.sandbox import SandboxPolicy
from wander.wire import EnvironmentPin
from wander.worker.host.environment import WorkerEnvironment

pytestmark = needs_sandbox

BODY = '''
from wander import Rubric, SandboxEnv


async def solved(box):
    """1 if the file says done, in a new box."""
    return float((await box.exec("cat /work/out 2>/dev/null")).output.strip() == "done")


async def planted(box):
    """1 if anything outside of the working folder came along."""
    found = await box.exec("cat /tmp/out /root/out /run/out 2>/dev/null")
    return float(bool(found.output.strip()))


class Shell(SandboxEnv):
    async def setup_box(self, box, state):
        await box.upload({"/work/task": f"task {state.example.index}\\n"})


def load_environment(**options):
    rubric = Rubric([solved])
    rubric.add_metric(planted)
    rows = [{"question": f"Write done into out ({number})."} for number in range(3)]
    return Shell(eval_dataset=rows, rubric=rubric, name="shell", **options)
'''
_names: dict[str, Any] = {"__name__": "shell_environment"}
exec(BODY, _names)
Shell: type[SandboxEnv] = _names["Shell"]
load = _names["load_environment"]


async def play(*commands: str, env: SandboxEnv | None = None, **options: Any) -> Rollout:
    local = LocalEnvironment(env or load(**options))
    try:
        example = (await local.examples("eval", 0, 1))[0]
        return await local.rollout(ScriptedClient(run_commands(*commands)), example)
    finally:
        await local.close()


def outputs(rollout: Rollout) -> list[str]:
    return [message["content"] for message in rollout.completion if message["role"] == "tool"]


async def test_the_shell_keeps_its_state_from_command_to_command():
    rollout = await play(
        "mkdir inner; cd inner; export GREETING='good morning'; local_one=1; f() { echo \"f $1\"; }",
        'pwd; echo "$GREETING"; f 2',
        "exit 3",
        "pwd",
    )
    assert rollout.failure is None, rollout.failure
    assert outputs(rollout) == [
        "(no output)",
        "/work/inner\ngood morning\nf 2",
        "(no output)\n[exit status 3]",
        "/work/inner",
    ]


async def test_a_shell_other_than_bash_keeps_folder_and_exported_variables(busybox_root):
    env = SandboxEnv(eval_dataset=[{"question": "x"}], box=BoxSpec(root=busybox_root), rubric=Rubric())
    words = "a folder's name"
    rollout = await play(
        f'mkdir "{words}"; cd "{words}"; export A="1 2"', 'pwd; echo "$A"; cd ..', "pwd", env=env
    )
    assert outputs(rollout) == ["(no output)", f"/work/{words}\n1 2", "/work"], rollout.failure


async def test_failed_slow_and_verbose_commands_are_reported_to_the_model():
    rollout = await play(
        "cat task; cat missing",
        "sleep 60",
        "seq 1 100000",
        "echo after",
        env=load(command_seconds=1.0, output_chars=400),
    )
    assert rollout.failure is None, rollout.failure
    failed, slow, loud, after = outputs(rollout)
    assert failed.startswith("task 0\n")
    assert failed.endswith("[exit status 1]")
    assert slow == "(no output)\n[stopped after 1 s]"
    assert loud.startswith("1\n2\n")
    assert loud.endswith("100000")
    assert "characters left out" in loud
    assert len(loud) < 500
    assert after == "after"


async def test_only_files_below_the_working_folder_reach_the_scoring_box():
    right = await play("echo done > out")
    assert (right.failure, right.reward, right.metrics["planted"]) == (None, 1.0, 0.0)
    planted = await play("for place in /tmp /root /run; do echo done > $place/out; done")
    assert (planted.failure, planted.reward, planted.metrics["planted"]) == (None, 0.0, 0.0)
    # A process that continues in the box does not affect the score.
    late = await play("(sleep 2; echo done > /work/out) >/dev/null 2>&1 &")
    assert (late.failure, late.reward) == (None, 0.0)


async def test_the_task_is_set_up_again_for_scoring_and_the_state_says_what_changed():
    rollout = await play("rm task; mkdir -p a/b; echo done > out; ln -s out a/link; chmod +x out")
    files = {entry["path"]: entry for entry in rollout.info["box"]["state"]["files"]}
    assert set(files) == {"/work/task", "/work/a", "/work/a/b", "/work/a/link", "/work/out"}
    assert files["/work/task"]["kind"] == "removed"
    assert files["/work/a/link"] | {"kind": "link", "target": "out"} == files["/work/a/link"]
    assert (files["/work/out"]["text"], files["/work/out"]["executable"]) == ("done\n", True)
    assert rollout.reward == 1.0


async def test_a_state_that_is_too_large_fails_the_rollout():
    rollout = await play("head -c 20000000 /dev/urandom > out")
    assert rollout.failure is not None
    assert rollout.failure.boundary == "tool"
    assert "too much to score" in rollout.failure.message


async def test_a_setup_error_has_the_environment_boundary():
    class Broken(Shell):  # type: ignore[misc,valid-type]
        async def setup_box(self, box: Any, state: Any) -> None:
            raise KeyError("missing file")

    rollout = await play("true", env=Broken([{"question": "?"}], rubric=Rubric([])))
    assert rollout.failure is not None
    assert rollout.failure.boundary == "environment"
    assert "missing file" in rollout.failure.message


async def test_a_machine_that_runs_no_boxes_is_not_blamed_on_the_environment(monkeypatch):
    monkeypatch.setenv("WANDER_BOXES", "none")
    rollout = await play("echo done > out")
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.type) == ("sandbox", "SandboxError")
    assert "does not run boxes" in rollout.failure.message


async def test_forbidden_images_and_dockerfiles_are_rejected(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDER_BOX_IMAGES", "ghcr.io/acme/")
    for spec in (BoxSpec(image="evil.example/x"), BoxSpec(dockerfile=str(tmp_path))):
        rollout = await play("true", env=load(box=spec))
        assert rollout.failure is not None
        assert rollout.failure.boundary == "sandbox"
        assert "allowed" in rollout.failure.message or "Dockerfile" in rollout.failure.message


async def test_a_recorded_rollout_is_rescored_from_its_final_state():
    env = LocalEnvironment(load())
    example = (await env.examples("eval", 0, 1))[0]
    played = await env.rollout(ScriptedClient(run_commands("echo done > out")), example)
    scored = await env.rollout(TranscriptClient([played]), example)
    assert (scored.failure, scored.reward, scored.info) == (None, 1.0, played.info)

    def forged(**changes: Any) -> Rollout:
        copy = played.model_copy(deep=True)
        (entry,) = copy.info["box"]["state"]["files"]
        entry |= changes
        return copy

    other_text = await env.rollout(TranscriptClient([forged(text="nothing\n")]), example)
    assert other_text.failure is not None
    assert (other_text.failure.boundary, other_text.reward) == ("rubric", None)
    for changes in ({"path": "/etc/passwd"}, {"path": "/work/../out"}, {"kind": "link", "target": "/etc"}):
        outside = await env.rollout(TranscriptClient([forged(**changes)]), example)
        assert outside.failure is not None, changes
    bare = played.model_copy(update={"info": {}})
    without = await env.rollout(TranscriptClient([bare]), example)
    assert without.failure is not None
    assert without.failure.boundary == "rubric"
    await env.close()


COMMANDS = {
    "equal": ("cat task", "echo done > out"),
    "other output": ("date +%N", "echo done > out"),
    "other files": ("date +%N > now", "echo done > out"),
}


@pytest.mark.parametrize(
    ("case", "level"),
    [
        pytest.param("equal", "replayed", marks=pytest.mark.full),
        *(("other output", "replayed"), ("other files", "rescored")),
    ],
)
async def test_a_replay_runs_commands_and_compares_final_states(case, level):
    env = LocalEnvironment(load())
    plan = EvaluationPlan(num_examples=2, rollouts_per_example=1, max_retries=0)
    pin = EnvironmentPin(name=env.info.name, info=env.info)
    script = run_commands(*COMMANDS[case])
    result = await evaluate(env, ScriptedClient(lambda request: script[request.turn]), plan, None, pin)
    assert [rollout.reward for rollout in result.rollouts] == [1.0, 1.0]
    report = await replay_run(env, result.manifest, result.rollouts, level="highest")
    assert (report.level, report.same, report.differing) == (level, 2, 0), report
    assert (report.other_output, report.rescored) == {
        "equal": (0, 0),
        "other output": (2, 0),
        "other files": (0, 2),
    }[case]

    forged = [rollout.model_copy(deep=True) for rollout in result.rollouts]
    forged[0].reward = 0.5
    report = await replay_run(env, result.manifest, forged, level="highest")
    assert (report.level, report.differing) == ("claimed", 1), report
    await env.close()


async def test_a_forged_state_proves_at_most_a_rescoring():
    env = LocalEnvironment(load())
    plan = EvaluationPlan(num_examples=1, rollouts_per_example=1, max_retries=0)
    pin = EnvironmentPin(name=env.info.name, info=env.info)
    script, honest = run_commands("true"), run_commands("echo done > out")
    lazy = await evaluate(env, ScriptedClient(lambda request: script[request.turn]), plan, None, pin)
    right = await evaluate(env, ScriptedClient(lambda request: honest[request.turn]), plan, None, pin)
    assert [lazy.rollouts[0].reward, right.rollouts[0].reward] == [0.0, 1.0]
    planted = lazy.rollouts[0].model_copy(
        update={"info": right.rollouts[0].info, "reward": 1.0, "metrics": right.rollouts[0].metrics}
    )
    report = await replay_run(env, lazy.manifest, [planted], level="highest")
    assert (report.level, report.rescored) == ("rescored", 1)
    report = await replay_run(env, lazy.manifest, [planted], level="replayed")
    assert (report.level, report.differing) == ("claimed", 1)
    other_image = planted.model_copy(deep=True)
    other_image.info["box"]["image"] = "sha256:0"
    report = await replay_run(env, lazy.manifest, [other_image], level="highest")
    assert report.level == "complete"
    assert report.undecided == 1
    await env.close()


@pytest.mark.parametrize("confined", [pytest.param(False, marks=pytest.mark.full), True])
async def test_boxes_in_a_worker_give_the_same_rollouts(tmp_path, confined):
    module = tmp_path / "shell_environment.py"
    module.write_text(textwrap.dedent(BODY))
    environment = await WorkerEnvironment.start(
        None,
        None,
        path=module,
        log_path=tmp_path / "worker.log",
        **({"sandbox": SandboxPolicy()} if confined else {}),
    )
    try:
        examples = await environment.examples("eval", 0, 3)
        commands = run_commands("cat task", "echo done > out; echo $$ > /dev/null")
        rollouts = await asyncio.gather(
            *(environment.rollout(ScriptedClient(commands), example) for example in examples)
        )
        here = LocalEnvironment(load())
        for example, rollout in zip(examples, rollouts, strict=True):
            assert rollout.failure is None, rollout.failure
            assert (rollout.reward, outputs(rollout)[0]) == (1.0, f"task {example.index}")
            again = await here.rollout(ReplayClient([rollout]), example)
            assert (again.completion, again.info) == (rollout.completion, rollout.info)
        await here.close()
    finally:
        await environment.close()
    assert boxes_of_this_process() == []


OTHER_FOLDERS = """
from wander import Rubric, SandboxEnv
from wander.boxes import BoxSpec

class OtherFolders(SandboxEnv):
    def box_spec(self, state):
        return BoxSpec(**{state.example.answer: state.example.info["folder"]})

def load_environment(folders):
    rows = [{"question": "?", "answer": kind, "info": {"folder": folder}} for kind, folder in folders]
    return OtherFolders(eval_dataset=rows, rubric=Rubric([lambda: 0.0]))
"""


async def test_a_confined_environment_starts_boxes_only_from_folders_that_it_sees(tmp_path, busybox_root):
    """A box shows its folder to the environment, so any other folder would be a way out of the sandbox."""
    package, outside = tmp_path / "package", tmp_path / "outside"
    package.mkdir()
    outside.mkdir()
    (package / "package.py").write_text(OTHER_FOLDERS)
    shutil.copytree(busybox_root, package / "root", symlinks=True)
    (package / "link").symlink_to(busybox_root)
    (package / "Dockerfile").symlink_to("/etc/shadow")
    (outside / "Dockerfile").write_text("FROM scratch\n")
    root = str(package / "root")
    hidden = [
        *(("root", path) for path in (busybox_root, str(package / "link"), f"{root}/../link", "root")),
        *(("dockerfile", str(path)) for path in (outside, package, package / "../outside")),
    ]
    environment = await WorkerEnvironment.start(
        None,
        None,
        path=package,
        arguments={"folders": [("root", root), *hidden]},
        log_path=tmp_path / "worker.log",
        sandbox=SandboxPolicy(),
    )
    try:
        examples = await environment.examples("eval", 0, None)
        client = ScriptedClient(run_commands("cat given/notes.txt"))
        shown, *others = [await environment.rollout(client, example) for example in examples]
        assert outputs(shown) == ["given"], shown.failure
        assert len(others) == len(hidden)
        for (_, path), rollout in zip(hidden, others, strict=True):
            assert rollout.failure.boundary == "sandbox", rollout
            assert f"a box from `{path}`" in rollout.failure.message
    finally:
        await environment.close()


async def test_no_box_survives_its_rollout_even_if_it_is_canceled():
    env = LocalEnvironment(load())
    example = (await env.examples("eval", 0, 1))[0]
    client = ScriptedClient(run_commands("sleep 600"))
    playing = asyncio.create_task(env.rollout(client, example))
    async with asyncio.timeout(30):
        while not boxes_of_this_process():  # noqa: ASYNC110 - processes cannot be awaited
            await asyncio.sleep(0.05)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    async with asyncio.timeout(30):
        while boxes_of_this_process():  # noqa: ASYNC110 - processes cannot be awaited
            await asyncio.sleep(0.05)
    await env.close()


def boxes_of_this_process() -> list[int]:
    """Return the processes of bubblewrap below this process."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = status.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        name, _, rest = text.partition("(")[2].rpartition(")")
        pid, parent = int(status.parent.name), int(rest.split()[1])
        names[pid] = name
        children.setdefault(parent, []).append(pid)
    found, queue = [], [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        queue += below
        found += [pid for pid in below if names[pid] == "bwrap"]
    return found
