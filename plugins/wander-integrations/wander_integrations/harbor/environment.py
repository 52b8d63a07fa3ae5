"""Harbor tasks as an environment: the model works in a box, and the task's tests score its final files."""

from __future__ import annotations

import base64
import posixpath
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from wander.boxes.base import Box, BoxLimits, BoxSpec
from wander.envs.agent import AgentEnv
from wander.envs.sandbox import run_commands
from wander.errors import ConfigError, DatasetError, EnvironmentFault, RubricError
from wander.rubrics.rubric import Rubric
from wander.types import Example, Message, State

from wander_integrations.harbor.dockerfile import PlainImage, plain_image
from wander_integrations.harbor.folder import (
    ENVIRONMENT,
    SOLUTION,
    SOLVE_SCRIPT,
    TESTS,
    HarborTask,
    TaskContent,
    read_tasks,
)
from wander_integrations.harbor.support import box_folder, state_paths, unsupported
from wander_integrations.harbor.task_file import Environment, Healthcheck
from wander_integrations.harbor.verifier import REWARD, collect_artifacts, run_verifier, upload

StartFrom = Literal["task", "dockerfile", "host"]
SYSTEM_PROMPT = (
    "Solve the task with the tool `bash`, which runs commands in a Linux box. "
    "When the task is done, answer without calling the tool."
)
DOCKERFILE = "Dockerfile"
_TEMPLATE = re.compile(r"\$\{(\w+)(?::-(.*))?\}", re.DOTALL)
_CHUNK = 48_000
"""Bytes of a file that one command of the reference solution writes."""
_SCORING_SECONDS = 600.0


class HarborEnv(AgentEnv):
    """Plays the tasks in a folder of Harbor task folders, with the tool `bash` or with an agent program.

    - `tasks`: a task folder, or a folder of task folders. Tasks that cannot be played raise `DatasetError`,
      unless `skip_unsupported` is set.
    - `start_from`: what boxes start from. `task` is the task's `docker_image`, or else its Dockerfile.
      `dockerfile` ignores `docker_image`. `host` plays tasks whose Dockerfile only copies files and sets
      variables over this machine's system instead of the image, so scores depend on this machine.
    - `agent`: the agent program that plays. By default, the model plays by itself. The default
      `system_prompt` is only for the model, so a program does not get it.
    - `variables`: values for variables such as `${API_KEY}` in the tasks. They are never read from this
      machine's environment.

    The tests always run in a new box that gets the changes below the working folder (and below
    `[metadata.wander] state_paths`), and then the tests. The model's box is never scored.
    """

    def __init__(
        self,
        tasks: str | Path,
        *,
        start_from: StartFrom = "task",
        variables: Mapping[str, str] | None = None,
        skip_unsupported: bool = False,
        command_seconds: float = 180.0,
        agent: str | None = None,
        max_turns: int | None = None,
        system_prompt: str | None = None,
        **kwargs: Any,
    ) -> None:
        if start_from not in ("task", "dockerfile", "host"):
            raise ConfigError(f"`start_from` is `task`, `dockerfile` or `host`, got `{start_from}`")
        self.start_from = start_from
        self.variables = dict(variables or {})
        self.tasks = {task.name: task for task in _playable(Path(tasks), skip_unsupported)}
        self._images: dict[tuple[str, str], PlainImage] = {}
        for task in self.tasks.values():
            spec, _ = self._spec(task), self._verifier_spec(task)  # errors should not wait for a rollout
            if spec.allowed_hosts:
                kwargs["deterministic"] = False
            self.resolve_variables(task, {**task.settings.verifier.env, **task.settings.solution.env})
        limits = [task.settings.agent.timeout_sec for task in self.tasks.values()]
        kwargs.setdefault("timeout_seconds", None if None in limits else max(filter(None, limits)))
        super().__init__(
            [_row(task) for task in self.tasks.values()],
            command_seconds=command_seconds,
            agent=agent,
            max_turns=50 if agent is None and max_turns is None else max_turns,
            system_prompt=SYSTEM_PROMPT if agent is None and system_prompt is None else system_prompt,
            rubric=Rubric([self.verifier_reward]),
            **kwargs,
        )

    def task_of(self, state: State) -> HarborTask:
        """Return the task of a rollout."""
        return self.tasks[state["example"].example_id]

    def box_spec(self, state: State) -> BoxSpec:
        """Return the box of the rollout's task."""
        return self._spec(self.task_of(state))

    async def setup_box(self, box: Box, state: State) -> None:
        """Copy the files of a Dockerfile that is played over the host, and wait for the health check."""
        task = self.task_of(state)
        if self.start_from == "host":
            await self._copy_files(box, task, ENVIRONMENT)
        if (healthcheck := task.settings.environment.healthcheck) is not None:
            await wait_until_healthy(box, healthcheck, task)

    async def verifier_reward(self, box: Box, state: State) -> float:
        """Run the task's tests in a fresh box with the final state, and return the reward that they write."""
        task = self.task_of(state)
        variables = self.resolve_variables(task, task.settings.verifier.env)
        spec, part = self._verifier_spec(task)
        if spec is None:
            rewards = await run_verifier(box, task, variables)
        else:
            artifacts = await collect_artifacts(box, task)
            own = await state["host"].start_box(spec)
            if self.start_from == "host":
                await self._copy_files(own, task, part)
            await upload(own, artifacts)
            rewards = await run_verifier(own, task, variables, has_own_tests=part == TESTS)
            await own.stop()
        if len(rewards) > 1:
            state["public"]["rewards"] = rewards
        return choose_reward(rewards, task)

    def gold(self, example: Example) -> list[Message | str] | None:
        """Return a player that runs the reference solution; None without `solve.sh`."""
        task = self.tasks[example.example_id]
        files = task.contents(SOLUTION)
        if SOLVE_SCRIPT not in files:
            return None
        variables = {
            "DEBIAN_FRONTEND": "noninteractive",
            **self.resolve_variables(task, task.settings.solution.env),
        }
        assignments = " ".join(shlex.quote(f"{name}={value}") for name, value in variables.items())
        run = f"chmod +x /{SOLUTION}/{SOLVE_SCRIPT} && env {assignments} /{SOLUTION}/{SOLVE_SCRIPT}"
        return run_commands(*_writing_commands(files, f"/{SOLUTION}"), run)

    def resolve_variables(self, task: HarborTask, variables: Mapping[str, str]) -> dict[str, str]:
        """Return variables with `${NAME}` and `${NAME:-default}` replaced.

        Raises `ConfigError` if a value is neither given nor has a default.
        """
        resolved = {}
        for name, value in variables.items():
            if template := _TEMPLATE.fullmatch(value):
                given = self.variables.get(template[1], template[2])
                if given is None:
                    raise ConfigError(
                        f"the task `{task.name}` needs the variable `{template[1]}`",
                        hint=f"pass `variables={{'{template[1]}': '...'}}`",
                    )
                value = given
            resolved[name] = value
        return resolved

    def _spec(self, task: HarborTask) -> BoxSpec:
        return self._box_spec(task, task.settings.environment, ENVIRONMENT, state_paths(task))

    def _verifier_spec(self, task: HarborTask) -> tuple[BoxSpec | None, str]:
        """Return the box of a separate verifier, and the folder with its Dockerfile; None if it is shared."""
        if not task.settings.is_separate:
            return None, ENVIRONMENT
        settings = task.settings.verifier.environment or task.settings.environment
        has_image = settings is not task.settings.environment and settings.docker_image is not None
        part = TESTS if has_image or task.has(f"{TESTS}/{DOCKERFILE}") else ENVIRONMENT
        if part == ENVIRONMENT:
            image = task.settings.environment.docker_image
            settings = settings.model_copy(update={"docker_image": image})
        return self._box_spec(task, settings, part, []), part

    def _box_spec(self, task: HarborTask, settings: Environment, part: str, recorded: list[str]) -> BoxSpec:
        limits = {"memory_mb": settings.memory_mb, "disk_mb": settings.storage_mb}
        seconds = max(3600.0, task.settings.agent.timeout_sec or 0.0, task.settings.verifier.timeout_sec)
        source: dict[str, Any] = {}
        variables = self.resolve_variables(task, settings.env)
        folder = settings.workdir or box_folder(task) or "/"
        if self.start_from == "host":
            image = self._plain_image(task, part)
            variables = {**image.variables, **variables}
            folder = settings.workdir or image.working_folder
        elif settings.docker_image is not None and self.start_from == "task":
            source["image"] = settings.docker_image
        elif task.has(f"{part}/{DOCKERFILE}"):
            source["dockerfile"] = str(task.folder / part)
        else:
            raise DatasetError(
                f"the task `{task.name}` has no `{part}/{DOCKERFILE}`",
                hint="add it, or set `docker_image`, and play with `start_from='task'`",
            )
        return BoxSpec(
            **source,
            working_folder=folder,
            state_paths=recorded,
            environment=variables,
            allowed_hosts=settings.allowed_hosts or [],
            limits=BoxLimits(
                seconds=seconds + _SCORING_SECONDS, **{name: mb for name, mb in limits.items() if mb}
            ),
        )

    def _plain_image(self, task: HarborTask, part: str) -> PlainImage:
        """Return the effect of a Dockerfile without a build. Raises `DatasetError` if it needs one."""
        if (task.name, part) not in self._images:
            name = f"{part}/{DOCKERFILE}"
            text = task.text(name)
            if text is None or task.has(f"{part}/.dockerignore"):
                raise DatasetError(
                    f"the task `{task.name}` cannot be played over this machine's system: "
                    + (f"it has no `{name}`" if text is None else f"it has a `{part}/.dockerignore`"),
                    hint="play it with `start_from='task'`, which needs Podman or Docker",
                )
            context = {path.removeprefix(f"{part}/") for path in task.sizes if path.startswith(f"{part}/")}
            self._images[task.name, part] = plain_image(
                text, dict.fromkeys(sorted(context)), f"{task.folder.name}/{name}"
            )
        return self._images[task.name, part]

    async def _copy_files(self, box: Box, task: HarborTask, part: str) -> None:
        contents = task.contents(part)
        await upload(
            box, {path: contents[name] for path, name in self._plain_image(task, part).files.items()}
        )


def choose_reward(rewards: Mapping[str, float], task: HarborTask) -> float:
    """Return the reward among a verifier's values: the named one, `reward`, or the only one."""
    key = task.settings.wander.reward_key
    if key is None:
        key = REWARD if REWARD in rewards or len(rewards) > 1 else next(iter(rewards))
    if key not in rewards:
        written = ", ".join(f"`{name}`" for name in sorted(rewards))
        raise RubricError(
            f"the verifier of `{task.name}` wrote {written}, but not `{key}`: "
            "name the reward by `reward_key` in the table `[metadata.wander]`"
        )
    return rewards[key]


async def wait_until_healthy(box: Box, healthcheck: Healthcheck, task: HarborTask) -> None:
    """Repeat the command of a health check until it succeeds. Raises `EnvironmentFault` if it never does."""
    started = 0.0
    failures = 0
    while True:
        result = await box.exec(healthcheck.command, seconds=healthcheck.timeout_sec)
        if result.exit_status == 0:
            return
        in_start = started < healthcheck.start_period_sec
        failures += not in_start
        if failures >= healthcheck.retries:
            ending = result.output.strip()[-300:]
            raise EnvironmentFault(f"the health check of `{task.name}` failed {failures} times: {ending}")
        pause = healthcheck.start_interval_sec if in_start else healthcheck.interval_sec
        await box.exec(f"sleep {pause:g}", seconds=pause + 30.0)
        started += result.seconds + pause


def _playable(folder: Path, skip_unsupported: bool) -> list[HarborTask]:
    tasks = read_tasks(folder)
    blocked = {
        task.name: faults
        for task in tasks
        if (faults := [str(fault) for fault in unsupported(task) if fault.blocks])
    }
    playable = [task for task in tasks if task.name not in blocked]
    if blocked and not (skip_unsupported and playable):
        name, faults = next(iter(blocked.items()))
        more = f" ({len(blocked) - 1} more tasks have such fields)" if len(blocked) > 1 else ""
        raise DatasetError(
            f"the task `{name}` cannot be played: {'; '.join(faults)}{more}",
            hint="pass `skip_unsupported=True` to play the other tasks" if playable else None,
        )
    return playable


def _row(task: HarborTask) -> dict[str, Any]:
    row: dict[str, Any] = {
        "example_id": task.name,
        "question": task.instruction,
        "info": {"task_sha256": task.digest},
    }
    for field in ("difficulty", "category"):
        if isinstance(value := task.settings.metadata.get(field), str):
            row[field] = value
    return row


def _writing_commands(files: Mapping[str, TaskContent], folder: str) -> list[str]:
    """Return shell commands that write files, each short enough for one command line."""
    pieces = []
    for name, file in sorted(files.items()):
        path = shlex.quote(posixpath.join(folder, name))
        pieces.append(
            f"mkdir -p {shlex.quote(posixpath.dirname(posixpath.join(folder, name)))} && : > {path}"
        )
        for start in range(0, len(file.content), _CHUNK):
            text = base64.b64encode(file.content[start : start + _CHUNK]).decode()
            pieces.append(f"echo {text} | base64 -d >> {path}")
        if file.executable:
            pieces.append(f"chmod +x {path}")
    commands: list[str] = []
    for piece in pieces:
        if commands and len(commands[-1]) + len(piece) < 2 * _CHUNK:
            commands[-1] += f"\n{piece}"
        else:
            commands.append(piece)
    return commands
