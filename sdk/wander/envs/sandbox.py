"""Environments whose model works with a shell in a box, and is scored by the files that it leaves."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import ValidationError

from wander.boxes.base import RECORD, Box, BoxSpec, CommandResult, FinalState, is_same_image
from wander.dataset import ProceduralRows, Rows
from wander.envs.tool.env import ToolEnv
from wander.envs.tool.schema import FunctionTool, Tool
from wander.errors import BoundaryError, ConfigError, EnvironmentFault, RubricError, SandboxError, ToolError
from wander.rollout.calls import ModelCalls
from wander.rollout.hooks import call_hook
from wander.types import Message, State, first_fault

_SHELL_STATE = "/tmp/.shell"  # noqa: S108 - a path inside the box
_RUN = """
[ -f {state} ] && . {state}
keep_shell() {{
    status=$?
    {{ export -p; declare -f; alias -p; echo 'cd "$PWD"'; }} > {state} 2>/dev/null
    exit $status
}}
trap keep_shell EXIT
eval {command}
"""
"""Runs a command in the shell state that the previous command left: folder, variables, functions, aliases."""


class SandboxEnv(ToolEnv):
    """An environment whose model runs commands in a box (`wander.boxes`) with the tool `bash`.

    - `box`: what the box is started from, by default the host's system folders and an empty `/work`. Override
      `box_spec` for boxes that differ between examples. With `allowed_hosts`, an environment is not
      deterministic.
    - `command_seconds`: time limit of a command.
    - `output_chars`: maximum length of a tool message. Longer output is cut in the middle.

    Override `setup_box` to put the task's files into a box. The shell keeps its folder, variables and
    functions from one command to the next.

    A rollout is never scored in the box in which the model worked. The box's final state (the changes below
    `box.state_paths`, by default the working folder) is recorded in `info["box"]`. Reward functions with a
    parameter `box` get a new box, set up in the same way, to which the final state was applied. All other
    changes by the model are lost, and the rollout can be scored again from its record. Upload the tests in
    the reward function, after the final state, so that the model cannot replace them.
    """

    kind: ClassVar[str] = "shell"

    def __init__(
        self,
        dataset: Rows | ProceduralRows | None = None,
        eval_dataset: Rows | ProceduralRows | None = None,
        *,
        box: BoxSpec | None = None,
        command_seconds: float = 30.0,
        output_chars: int = 8000,
        max_turns: int = 20,
        **kwargs: Any,
    ) -> None:
        if box is not None and box.allowed_hosts:
            kwargs = {**kwargs, "deterministic": False}
        super().__init__(dataset, eval_dataset, max_turns=max_turns, **kwargs)
        if not command_seconds > 0:
            raise ConfigError(f"`command_seconds` must be positive, got `{command_seconds!r}`")
        if output_chars < 100:
            raise ConfigError(f"`output_chars` must be at least 100, got `{output_chars!r}`")
        self.box = box or BoxSpec()
        self.command_seconds = command_seconds
        self.output_chars = output_chars
        self._bash = FunctionTool(self.bash, args_to_skip=("state",))
        self.add_tool(self._bash)

    def box_spec(self, state: State) -> BoxSpec:
        """Return what the boxes of this rollout are started from. It may depend only on the example."""
        return self.box

    def setup_box(self, box: Box, state: State) -> Any:
        """Put the task's files into a new box. It may depend only on the example. May be async."""

    async def bash(self, command: str, state: State) -> str:
        """Run a command in the shell, and return its output.

        The working folder, variables and functions are kept for the next command.

        Args:
            command: The command, as for `bash -c`.
        """
        box: Box = state["played_box"]
        text = _RUN.format(state=_SHELL_STATE, command=shlex.quote(command))
        result = await box.exec(text, seconds=self.command_seconds, output_bytes=4 * self.output_chars)
        return render_result(result, self.output_chars, self.command_seconds)

    async def call_tool(self, tool: Tool, arguments: dict[str, Any], state: State) -> Any:
        """Call a tool. The shell gets the rollout's box."""
        if tool is self._bash:
            arguments = {**arguments, "state": state}
        return await super().call_tool(tool, arguments, state)

    async def play(self, state: State, model: ModelCalls) -> None:
        """Start the box, let the model work in it, and record its final state."""
        box = await self.start_played_box(state)
        state["played_box"] = box
        await box.keep_as_start()
        await super().play(state, model)
        await self._record(box, state)
        await box.stop()

    async def start_played_box(self, state: State) -> Box:
        """Start the box in which the model works."""
        return await self.start_box(state)

    async def start_box(self, state: State, *, programs: Sequence[str] = ()) -> Box:
        """Start a box for this rollout, with the task's files and with agent programs."""
        spec = self.box_spec(state)
        if programs:
            spec = spec.model_copy(update={"programs": [*spec.programs, *programs]})
        if spec.allowed_hosts and self.deterministic:
            raise EnvironmentFault(
                "a box that reaches other hosts is not deterministic",
                hint="pass `deterministic=False` to the environment",
            )
        box: Box = await state["host"].start_box(spec)
        await call_hook(self.setup_box, box, state)
        return box

    async def _record(self, box: Box, state: State) -> None:
        final = await box.final_state()
        state["public"][RECORD] = {"image": box.image_digest, "state": final.model_dump(mode="json")}
        if box.spec.allowed_hosts:
            state["public"][RECORD]["hosts"] = box.spec.allowed_hosts
        if final.too_large:
            size = sum(file.size for file in final.files)
            raise ToolError(
                f"the commands left {len(final.files):,} changed files with {size:,} bytes, too much to score"
            )

    async def _score_states(self, states: Sequence[State], *, together: bool) -> None:
        """Score rollouts with a new box for each of them, if a reward function asks for it."""
        if any("box" in (*f.required, *f.optional) or f.takes_all for f in self.rubric.functions):
            scored = []
            for state in states:
                try:
                    state["box"] = await self._grading_box(state)
                    scored.append(state)
                except BoundaryError as error:
                    state["failure"] = error.failure()
            states = scored
        try:
            await super()._score_states(states, together=together)
        finally:
            for state in states:
                if "box" in state:
                    await state.pop("box").stop()

    async def _grading_box(self, state: State) -> Box:
        """Return a new box with the final state of a rollout, which may come from an untrusted record."""
        record = state["public"].get(RECORD)
        try:
            final = FinalState.model_validate(record["state"] if isinstance(record, dict) else None)
        except (KeyError, ValidationError) as error:
            fault = ": ".join(first_fault(error)) if isinstance(error, ValidationError) else "it has no state"
            raise RubricError(f"the final state of the box cannot be read: {fault}") from error
        box = await self.start_box(state)
        if isinstance(record, dict) and not is_same_image(record.get("image"), box.image_digest):
            raise SandboxError(
                f"the box was started from `{record.get('image')}`, and is now `{box.image_digest}`",
                hint="score the rollout on a machine with the same image",
            )
        try:
            await box.restore(final)
        except ValueError as error:
            raise RubricError(f"the final state of the box cannot be restored: {error}") from error
        return box


def run_commands(*commands: str, final: str = "done") -> list[Message | str]:
    """Return the completions of a model that runs commands one by one, and then answers without a call.

    They are meant for `ScriptedClient` and `Environment.gold`.
    """
    calls = (
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": "bash", "arguments": json.dumps({"command": command})},
        }
        for number, command in enumerate(commands)
    )
    return [*({"role": "assistant", "content": "", "tool_calls": [call]} for call in calls), final]


def render_result(result: CommandResult, output_chars: int, command_seconds: float) -> str:
    """Return the text that tells the model what a command did."""
    text = result.output
    if len(text) > output_chars:
        head, tail = output_chars * 3 // 4, output_chars // 4
        cut = len(text) - head - tail
        text = f"{text[:head]}\n... [{cut + result.left_out_bytes} characters left out] ...\n{text[-tail:]}"
    lines = [text.rstrip("\n")] if text.strip() else ["(no output)"]
    if result.timed_out:
        lines.append(f"[stopped after {command_seconds:g} s]")
    elif result.exit_status:
        lines.append(f"[exit status {result.exit_status}]")
    return "\n".join(lines)
