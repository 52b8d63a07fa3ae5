"""Environments that an unmodified agent program plays in a box, with the rollout's model as its model."""

from __future__ import annotations

import asyncio
import time
from typing import Any, ClassVar

from wander.boxes.base import Box, CommandResult
from wander.boxes.programs import INSTRUCTION, program_named
from wander.clients.sub_calls import with_sub_usage
from wander.dataset import ProceduralRows, Rows
from wander.endpoint.values import EndpointCall
from wander.envs.agent_calls import AgentCalls
from wander.envs.multi_turn import TIMEOUT
from wander.envs.sandbox import SandboxEnv
from wander.errors import ConfigError, EnvironmentFault
from wander.handle import RolloutRequest
from wander.rollout.calls import ModelCalls
from wander.rollout.hooks import stop
from wander.types import AGENT, EnvironmentInfo, Rollout, State, Turn

EXITED, PROGRAM_TIMEOUT, OVERFLOW = "program_exited", "program_timeout", "context_overflow"
_OUTPUT_CHARS = 4000
"""Number of characters at the end of the program's output that are recorded."""
_LONGEST_INSTRUCTION = 100_000
"""Maximum size of an instruction in bytes. Linux limits an environment variable to 128 KiB."""
_GRACE_SECONDS = 5.0
"""Seconds in which a program may exit by itself after a limit was reached."""


class AgentEnv(SandboxEnv):
    """An environment with a shell that an agent program can play, with the rollout's model as its model.

    - `agent`: name of a program (`codex`, `claude-code`, `opencode`, `mini-swe-agent`), or a shell command.
      The task, which is the text of the prompt, is in `$WANDER_INSTRUCTION`. The model's address is in
      `$OPENAI_BASE_URL` and `$ANTHROPIC_BASE_URL`. If it is None, the model plays by itself, as in a
      `SandboxEnv`.
    - `program_seconds`: maximum time of the program.
    - `max_turns`: maximum number of model calls. The default is 100, or 20 without a program.
    - `deterministic`: by default, only rollouts without a program are, because programs read the clock.

    Each model call of the program is a turn of the rollout, with the rollout's sampling, seeds and limits. A
    call that extends the conversation continues it. Other calls, such as those of side agents or after a
    compaction, begin another conversation, which is recorded in `info["agent"]["sub_calls"]`. When a limit is
    reached, further calls are refused.

    The rollout fails if the program never calls the model. Its exit status is recorded and does not affect
    the reward.
    """

    kind: ClassVar[str] = "agent"

    def __init__(
        self,
        dataset: Rows | ProceduralRows | None = None,
        eval_dataset: Rows | ProceduralRows | None = None,
        *,
        agent: str | None = None,
        program_seconds: float = 1800.0,
        max_turns: int | None = None,
        deterministic: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            dataset,
            eval_dataset,
            max_turns=(20 if agent is None else 100) if max_turns is None else max_turns,
            deterministic=agent is None if deterministic is None else deterministic,
            **kwargs,
        )
        if not program_seconds > 0:
            raise ConfigError(f"`program_seconds` must be positive, got `{program_seconds!r}`")
        self.program = None if agent is None else program_named(agent)
        self.program_seconds = program_seconds

    @property
    def info(self) -> EnvironmentInfo:
        """Facts about the environment."""
        info = super().info
        return info if self.program is not None else info.model_copy(update={"kind": SandboxEnv.kind})

    async def start_played_box(self, state: State) -> Box:
        """Start the box of the agent, which also has the program."""
        names = [self.program.name] if self.program is not None and self.program.registry else []
        return await self.start_box(state, programs=names)

    @stop
    def max_turns_reached(self, state: State) -> bool:
        """Hold if the program has used all of its model calls."""
        return self.max_turns != -1 and len(_turns_of(state)) >= self.max_turns

    @stop
    def max_total_completion_tokens_reached(self, state: State) -> bool:
        """Hold if the completions have used all of their tokens."""
        if (limit := self.max_total_completion_tokens) is None:
            return False
        reached = sum(turn.usage.completion_tokens for turn in _turns_of(state)) >= limit
        state["truncated"] = state["truncated"] or reached
        return reached

    @stop(priority=10)
    def no_tools_called(self, state: State) -> bool:
        """Hold if the model answered without calling a tool. A program decides by itself when it is done."""
        return self.program is None and super().no_tools_called(state)

    async def _take_turns(self, state: State, model: ModelCalls) -> str:
        """Run the program, and return why the rollout ended."""
        program = self.program
        if program is None:
            return await super()._take_turns(state, model)
        calls = state["agent_calls"] = AgentCalls(model, main_offers_tools=program.offers_tools)
        await self._set_up(state)
        box: Box = state["played_box"]
        instruction = _instruction_of(state)
        if program.files:
            await box.upload(program.files)
        environment = {**program.environment, INSTRUCTION: instruction}
        await box.start_program(
            f"{program.command} < /dev/null", seconds=self.program_seconds, environment=environment
        )
        state["program_runs"] = True
        result: CommandResult | None = None
        try:
            reason, result = await self._serve(box, calls, state)
        finally:
            calls.end()
            state["program_runs"] = result is None
            state["public"][AGENT] = {"program": program.describe(), **_outcome(result), **calls.record()}
        if result is not None and not calls.turns:
            tail = result.output.strip()[-500:]
            status = f"exited with status {result.exit_status}"
            raise EnvironmentFault(f"the agent program {status} before its first model call: {tail}")
        if reason in (PROGRAM_TIMEOUT, OVERFLOW):
            state["truncated"] = True
        return reason

    async def _serve(self, box: Box, calls: AgentCalls, state: State) -> tuple[str, CommandResult | None]:
        """Answer the program's calls until it exits, or a limit is reached and it had time to exit."""
        reason: str | None = None
        ends_at: float | None = None
        answering: set[asyncio.Future[Any]] = set()
        waiting: asyncio.Future[Any] = asyncio.ensure_future(box.next_call())
        try:
            while True:
                left = None if ends_at is None else ends_at - time.monotonic()
                if left is not None and left <= 0:
                    return reason or TIMEOUT, None
                done, _ = await asyncio.wait(
                    {waiting, *answering}, return_when=asyncio.FIRST_COMPLETED, timeout=left
                )
                for task in answering & done:
                    reason = reason or task.result()
                answering -= done
                if reason is not None and ends_at is None:
                    ends_at = time.monotonic() + _GRACE_SECONDS
                if not waiting.done():
                    continue
                arrived = waiting.result()
                if isinstance(arrived, CommandResult):
                    ended = PROGRAM_TIMEOUT if arrived.timed_out else OVERFLOW if calls.overflowed else EXITED
                    return reason or ended, arrived
                waiting = asyncio.ensure_future(box.next_call())
                answering.add(asyncio.create_task(self._reply(box, arrived, calls, state, reason)))
        finally:
            for task in (waiting, *answering):
                task.cancel()
            await asyncio.gather(waiting, *answering, return_exceptions=True)

    async def _reply(
        self, box: Box, call: EndpointCall, calls: AgentCalls, state: State, reason: str | None
    ) -> str | None:
        """Answer a call, and return the stop condition that then holds."""
        if reason is None and await self._timed_out_before(state):
            reason = TIMEOUT
        if reason is None:
            await box.answer(await calls.reply_to(call))
            return await self._stop_reason(state)
        await box.answer(calls.refuse(call, f"the rollout has ended: {reason}"))
        return reason

    async def _record(self, box: Box, state: State) -> None:
        """End the program if it still runs, and record the box's final state."""
        if state.get("program_runs"):
            await box.exec("kill -9 -1", seconds=10)
        await super()._record(box, state)

    async def play_request(self, request: RolloutRequest) -> list[Rollout]:
        """Play and score the request. The usage includes the tokens of the program's other conversations."""
        return [with_sub_usage(played) for played in await super().play_request(request)]


def _turns_of(state: State) -> list[Turn]:
    """Return the turns of all conversations."""
    calls: AgentCalls | None = state.get("agent_calls")
    return state.turns if calls is None else calls.turns


def _outcome(result: CommandResult | None) -> dict[str, Any]:
    """Return how the program ended; empty if it was still running."""
    if result is None:
        return {}
    output = result.output[-_OUTPUT_CHARS:]
    return {"exit_status": result.exit_status, "timed_out": result.timed_out, "output": output}


def _instruction_of(state: State) -> str:
    """Return the task for the program: the texts of the prompt."""
    texts = [message.get("content") for message in state.prompt]
    instruction = "\n\n".join(text for text in texts if isinstance(text, str))
    if len(instruction.encode()) > _LONGEST_INSTRUCTION:
        raise EnvironmentFault(
            f"the instruction has over {_LONGEST_INSTRUCTION:,} bytes",
            hint="put the long part into a file in `setup_box`",
        )
    return instruction
