"""Harbor tasks are played in real boxes and scored in new ones, so that no model can plant its reward."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from harbor_tasks import TASK_TOML, write_task
from sandboxes import needs_sandbox
from shell_agent import COMMAND
from wander import Rollout, ScriptedClient
from wander.checks.hacks import HACKS
from wander.clients.replay import ReplayClient
from wander.envs.sandbox import SandboxEnv, run_commands
from wander.errors import ConfigError, DatasetError
from wander.rubrics.rubric import Rubric
from wander_integrations import HarborEnv

SOLVE = "echo 'Hello, world!' > hello.txt"


def environment(folder: Path, **options) -> HarborEnv:
    return HarborEnv(folder, start_from="host", **options)


async def play(env, *commands: str, index: int = 0) -> Rollout:
    return await env.rollout(ScriptedClient(run_commands(*commands)), env.dataset("eval")[index])


async def play_gold(env) -> Rollout:
    example = env.dataset("eval")[0]
    return await env.rollout(ScriptedClient(env.gold(example)), example)


@needs_sandbox
async def test_the_tests_score_the_final_files(tmp_path):
    env = environment(write_task(tmp_path / "hello"))
    right, wrong, idle = await play(env, SOLVE), await play(env, "echo no > hello.txt"), await play(env)
    assert (right.reward, wrong.reward, idle.reward) == (1.0, 0.0, 0.0), (right.failure, wrong.failure)
    assert right.prompt[-1]["content"] == "Write `Hello, world!` to /app/hello.txt."
    files = right.info["box"]["state"]["files"]
    assert [file["path"] for file in files] == ["/app/hello.txt"]
    assert right.example_id == "acme/hello"


@needs_sandbox
async def test_an_agent_program_plays_a_task(tmp_path):
    env = environment(write_task(tmp_path / "hello"), agent=COMMAND)
    rollout = await play(env, SOLVE)
    assert (rollout.reward, rollout.stop_reason) == (1.0, "program_exited"), rollout.failure
    assert [message["role"] for message in rollout.prompt] == ["user"]
    assert (env.info.kind, env.max_turns) == ("agent", 100)
    alone = environment(tmp_path / "hello")
    assert (alone.info.kind, alone.max_turns, alone.dataset("eval")[0].prompt[0]["role"]) == (
        "shell",
        50,
        "system",
    )


@needs_sandbox
async def test_the_reference_solution_is_the_gold_player(tmp_path):
    changes = {
        "solution/solve.sh": '#!/bin/bash\n"$(dirname "$0")/bin/greet" "$GREETING" > hello.txt\n',
        "solution/bin/greet": '#!/bin/sh\necho "$1"\n',
        "solution/large.bin": "x" * 200_000,
    }
    toml = TASK_TOML.format(name="hello") + '[solution]\nenv = {GREETING = "${GREETING:-Hello, world!}"}\n'
    folder = write_task(tmp_path / "hello", changes, toml=toml)
    rollout = await play_gold(environment(folder))
    assert rollout.reward == 1.0, [message["content"] for message in rollout.completion]
    assert (await play_gold(environment(folder, variables={"GREETING": "Hi"}))).reward == 0.0


@needs_sandbox
async def test_a_rollout_is_replayed_with_the_same_state(tmp_path):
    env = environment(write_task(tmp_path / "hello"))
    first = await play(env, "cat notes.txt", "ls -la / | wc -l > count.txt", SOLVE)
    again = await env.rollout(ReplayClient([first]), env.dataset("eval")[0])
    assert again.reward == first.reward == 1.0
    assert again.completion == first.completion
    assert again.info["box"] == first.info["box"]


@needs_sandbox
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("true", "wrote no reward"),
        ("exit 3", "`tests/test.sh` ended with status 3"),
        (
            "echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json",
            "two rewards",
        ),
        ("echo passed > /logs/verifier/reward.txt", "is not a number: `passed`"),
        ("head -c 100000 /dev/zero > /logs/verifier/reward.txt", "more than 65,536 bytes"),
        ("mkdir /logs/verifier/reward.txt", "reward.txt"),
        ("sleep 60", "did not finish within 1 s"),
        ("echo 1 > /logs/verifier/reward.txt; echo >> /tests/test.sh", "was changed while the verifier ran"),
    ],
)
async def test_a_verifier_without_exactly_one_reward_has_the_rubric_boundary(tmp_path, script, message):
    toml = TASK_TOML.format(name="hello") + "[verifier]\ntimeout_sec = 1\n"
    env = environment(
        write_task(tmp_path / "hello", {"tests/test.sh": f"#!/bin/bash\n{script}\n"}, toml=toml)
    )
    rollout = await play(env, SOLVE)
    assert rollout.reward is None
    assert rollout.failure.boundary == "rubric"
    assert message in rollout.failure.message


@needs_sandbox
async def test_several_rewards_are_kept(tmp_path):
    script = '#!/bin/bash\necho \'{"reward": 0.5, "style": 1}\' > /logs/verifier/reward.json\n'
    rollout = await play(environment(write_task(tmp_path / "hello", {"tests/test.sh": script})))
    assert rollout.reward == 0.5
    assert rollout.info["rewards"] == {"reward": 0.5, "style": 1.0}


@needs_sandbox
async def test_variables_and_other_folders_reach_the_verifier(tmp_path):
    toml = TASK_TOML.format(name="hello").replace("[environment]", "[environment]\nenv = {LEVEL = '3'}")
    toml += '[verifier]\nenv = {WANTED = "${WANTED}"}\n[metadata.wander]\nstate_paths = ["/srv"]\n'
    script = (
        '#!/bin/bash\n[ "$(cat /srv/out)" = "$WANTED$LEVEL" ]\necho $((1 - $?)) > /logs/verifier/reward.txt\n'
    )
    folder = write_task(tmp_path / "hello", {"tests/test.sh": script}, toml=toml)
    with pytest.raises(ConfigError, match="needs the variable `WANTED`"):
        environment(folder)
    env = environment(folder, variables={"WANTED": "a"})
    assert (await play(env, "mkdir -p /srv; echo a$LEVEL > /srv/out")).reward == 1.0
    assert (await play(env, "echo a3 > /app/out")).reward == 0.0


SEPARATE = """
artifacts = ["hello.txt", "/srv/data"]
[verifier]
environment_mode = "separate"
[[verifier.collect]]
command = "mkdir -p /logs/artifacts; wc -c < hello.txt > /logs/artifacts/size"
"""


@needs_sandbox
@pytest.mark.parametrize("own_image", [False, pytest.param(True, marks=pytest.mark.full)])
async def test_a_separate_verifier_gets_only_the_artifacts(tmp_path, own_image):
    script = (
        "#!/bin/bash\ncd /\n"
        '[ "$(cat /app/hello.txt)" = "Hello, world!" ] && [ "$(cat /logs/artifacts/size)" = 14 ] '
        "&& [ -x /srv/data/deep/run.sh ] && [ ! -e /app/secret ]\n"
        "echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    )
    changes = {"tests/test.sh": script}
    if own_image:
        changes["tests/Dockerfile"] = "FROM debian:12\nWORKDIR /app\nCOPY . /tests/\n"
    top, rest = SEPARATE.split("\n", 2)[1:]
    folder = write_task(tmp_path / "hello", changes, toml=f"{top}\n{TASK_TOML.format(name='hello')}{rest}")
    env = environment(folder)
    made = "mkdir -p /srv/data/deep; cd /srv/data/deep; echo '#!/bin/sh' > run.sh; chmod +x run.sh"
    rollout = await play(env, f"{SOLVE}; touch secret; {made}")
    assert rollout.reward == 1.0, rollout.failure
    assert (await play(env, SOLVE)).reward == 0.0


@needs_sandbox
async def test_a_health_check_is_repeated(tmp_path):
    check = 'healthcheck = {command = "%s", interval_sec = 0.05, retries = 3}\n'
    counts = "echo x >> /tmp/tries; [ $(wc -l < /tmp/tries) -ge 3 ]"
    toml = TASK_TOML.format(name="hello") + check % counts
    assert (await play(environment(write_task(tmp_path / "hello", toml=toml)), SOLVE)).reward == 1.0
    toml = TASK_TOML.format(name="hello") + check % "echo down; false"
    rollout = await play(environment(write_task(tmp_path / "hello", toml=toml)), SOLVE)
    assert rollout.failure.boundary == "environment"
    assert "failed 3 times: down" in rollout.failure.message


def test_tasks_that_cannot_be_played_are_named(tmp_path):
    write_task(tmp_path / "a")
    write_task(tmp_path / "b", toml=TASK_TOML.format(name="b") + "gpus = 1\n")
    with pytest.raises(DatasetError, match=r"`acme/b` cannot be played: `environment\.gpus`") as raised:
        environment(tmp_path)
    assert "skip_unsupported" in raised.value.hint
    assert list(environment(tmp_path, skip_unsupported=True).tasks) == ["acme/a"]
    write_task(tmp_path / "c", {"environment/Dockerfile": "FROM x\nWORKDIR /app\nRUN make\n"})
    with pytest.raises(DatasetError, match="line 3: `RUN` needs an image build"):
        environment(tmp_path / "c")
    with pytest.raises(ConfigError, match="`start_from` is"):
        HarborEnv(tmp_path / "a", start_from="image")
    write_task(tmp_path / "d", toml=TASK_TOML.format(name="d") + 'docker_image = "a:1"\n')
    example_of = {"task": {"image": "a:1"}, "dockerfile": {"dockerfile": str(tmp_path / "d/environment")}}
    for start_from, source in example_of.items():
        spec = HarborEnv(tmp_path / "d", start_from=start_from)._spec(
            HarborEnv(tmp_path / "d").tasks["acme/d"]
        )
        assert spec.model_dump(include=set(source)) == source


class SharedVerifier(SandboxEnv):
    """Scores in the model's own box and believes its reward file, as some harnesses do."""

    tests = "[ -e /app/solved ] && echo 1 > /logs/verifier/reward.txt"

    async def _record(self, box, state):
        await box.upload({"/tests/test.sh": self.tests})
        await box.exec("mkdir -p /logs/verifier; bash /tests/test.sh", seconds=60)
        result = await box.exec("cat /logs/verifier/reward.txt 2>/dev/null || echo 0")
        state["public"]["shared"] = result.output.strip()
        await super()._record(box, state)


class SlowSharedVerifier(SharedVerifier):
    """Its tests take long enough for a process in the background to write the reward."""

    tests = "while ! [ -s /logs/verifier/reward.txt ]; do sleep 0.05; done"


@needs_sandbox
async def test_a_reward_written_in_the_background_fools_a_shared_verifier_only(tmp_path):
    [hack] = [hack for hack in HACKS if hack.name == "writes the reward in the background"]
    shared = SlowSharedVerifier(eval_dataset=[{"question": "x"}], rubric=Rubric([lambda: 0.0]))
    assert (await play(shared, hack.command)).info["shared"] == "1"
    assert not (await play(environment(write_task(tmp_path / "hello")), hack.command)).reward


@pytest.mark.full
@needs_sandbox
async def test_no_hack_earns_a_reward_in_a_new_box(tmp_path):
    """The hacks are real: two of them are seen to fool a verifier in the model's own box."""
    script = "#!/bin/bash\npython3 /tests/check.py; echo $((1 - ($? != 0))) > /logs/verifier/reward.txt\n"
    checked = 'assert open("/app/hello.txt").read() == "Hello, world!\\n"\n'
    folder = write_task(tmp_path / "hello", {"tests/test.sh": script, "tests/check.py": checked})
    env = environment(folder)
    shared = SharedVerifier(eval_dataset=[{"question": "x"}], rubric=Rubric([lambda: 0.0]))
    limit = asyncio.Semaphore(3)

    async def try_hack(command: str) -> float | None:
        async with limit:
            rollout = await play(env, command)
        assert rollout.failure is None or rollout.failure.boundary == "rubric", rollout.failure
        return rollout.reward

    rewards = await asyncio.gather(*(try_hack(hack.command) for hack in HACKS))
    assert len(HACKS) >= 25
    assert [hack.name for hack, reward in zip(HACKS, rewards, strict=True) if reward] == []
    real = {"writes the reward as text", "writes the reward through links"}
    fooled = [(await play(shared, hack.command)).info["shared"] for hack in HACKS if hack.name in real]
    assert fooled == ["1", "1"]
    assert (await play_gold(env)).reward == 1.0
