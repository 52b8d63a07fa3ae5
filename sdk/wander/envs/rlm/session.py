"""The session of a model at a REPL, and the sub-calls that its code makes to the model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from wander.clients.sub_calls import sub_call_id
from wander.envs.rlm.prompts import (
    Interface,
    cell_report,
    code_blocks,
    context_description,
    context_text,
    final_text,
    final_variable,
)
from wander.envs.rlm.repl import Answerer, Query, Repl
from wander.envs.tool.calls import ToolCall, read_calls, tool_calls, with_calls
from wander.envs.tool.results import encodable
from wander.envs.tool.schema import InvalidArguments
from wander.errors import ContextOverflow, ModelError
from wander.reasoning import answer_text, message_text, without_reasoning
from wander.rollout.calls import ModelCalls
from wander.rollout.hooks import wait_for_every
from wander.types import Message, Messages, SamplingArgs, State, SubCall


@dataclass(frozen=True)
class SubCallLimits:
    """Limits on the sub-calls that code makes to the model."""

    depth: int = 1
    """Maximum depth. With 1, code can only ask plain questions. With 2, a sub-call with a context gets its
    own REPL."""
    calls: int = 50
    """Maximum number of completions of all sub-calls in a rollout."""
    tokens: int | None = None
    """Maximum number of their completion tokens, checked before each call. None means no limit."""
    concurrent: int = 8
    """Maximum number of concurrent queries in one batch."""
    turns: int = 10
    """Maximum number of completions of a sub-call with a REPL."""


_NUDGE = (
    "This message has neither code to run nor a final answer. Write a ```repl block, or FINAL(your "
    "answer) on a line of its own."
)


class ReplSession:
    """Reads a model's messages, runs their code, and detects the final answer."""

    def __init__(self, repl: Repl, interface: Interface, answer: Answerer) -> None:
        self.repl = repl
        self.interface: Interface = interface
        self.final: str | None = None
        self.spelled_out = False
        """Whether the final answer is in the model's own message."""
        self.cells = 0
        self._answer = answer

    async def read_final(self, message: Message) -> bool:
        """Read the final answer from a message without code. Returns whether there is a final answer now."""
        text = message_text(message)
        runs_code = bool(tool_calls(message) if self.interface == "tool" else code_blocks(text))
        if self.final is None and message.get("role") == "assistant" and not runs_code:
            problem = await self._read_text(text)
            if self.interface == "tool" and self.final is None and problem is None:
                self.final = without_reasoning(text).strip()  # with tools, an answer without a call is final
        return self.final is not None

    async def respond(self, message: Message, turn: int) -> tuple[Message, Messages]:
        """Run the code of a message. Returns the message as it should be recorded, and the answer to it."""
        if self.interface == "tool" and tool_calls(message):
            calls = read_calls(message, turn)
            answers = [await self._call(call) for call in calls]
            return with_calls(message, calls), answers
        text = message_text(message)
        reports = await self._run_blocks(code_blocks(text) if self.interface == "code_block" else [])
        if self.final is None:
            problem = await self._read_text(text)
            if problem or not reports:
                reports.append(problem or _NUDGE)
        return message, [{"role": "user", "content": encodable("\n\n".join(reports))}]

    async def _read_text(self, text: str) -> str | None:
        """Read a final answer outside of code. Returns a description of a problem, or None."""
        name = final_variable(text)
        if name is not None:
            self.final = await self.repl.value(name)
            return None if self.final is not None else f"there is no variable `{name}`"
        self.final = final_text(text)
        self.spelled_out = self.final is not None
        return None

    async def _call(self, call: ToolCall) -> Message:
        try:
            code = call.checked_arguments().get("code")
            if call.name != "repl":
                raise InvalidArguments(f"there is no tool `{call.name}`; the only one is `repl`")
            if not isinstance(code, str):
                raise InvalidArguments("`repl` takes `code`, a text")
            content = await self._run(code)
        except InvalidArguments as error:
            content = f"error: {error}"
        return {"role": "tool", "tool_call_id": call.call_id, "content": encodable(content)}

    async def _run_blocks(self, blocks: Sequence[str]) -> list[str]:
        """Run blocks in order until one fails or gives the final answer."""
        reports: list[str] = []
        for block in blocks:
            report = await self._run(block)
            reports.append(report)
            left = len(blocks) - len(reports)
            if self.final is None and left and " finished\n" not in report.partition("<output>")[0]:
                reports.append(f"{left} more of your blocks were not run")
                break
            if self.final is not None:
                break
        return reports

    async def _run(self, code: str) -> str:
        if self.final is not None:
            return "not run: the final answer was given before"
        self.cells += 1
        result = await self.repl.run(code, self._answer)
        self.final = result.final
        return cell_report(self.cells, result, self.repl.limits.cell_seconds)


class SubCallRefused(Exception):
    """A call was refused, or failed in a way that the model can handle. Its code receives the message."""


@dataclass
class SubCaller:
    """Answers the queries of a rollout's code within the limits, and records every call."""

    model: ModelCalls
    limits: SubCallLimits
    sampling: SamplingArgs
    new_repl: Callable[[str], Repl]
    """Factory for the REPL of a sub-call with this path."""
    interface: Interface
    instructions: str
    """System message of sub-calls with a REPL."""
    tools: list[dict[str, Any]] | None
    made: int = 0
    """Number of completions so far."""
    tokens: int = 0
    """Number of completion tokens so far."""
    cells: int = 0
    """Number of cells run by sub-calls."""
    records: dict[tuple[int, ...], SubCall] = field(default_factory=dict)
    _asked: dict[tuple[int, ...], int] = field(default_factory=dict)

    def asker(self, path: tuple[int, ...] = ()) -> Answerer:
        """Return the callback that answers the queries of the REPL at `path`."""

        async def answer(queries: list[Query]) -> list[str] | str:
            try:
                return await self._answers(queries, path)
            except SubCallRefused as refused:
                return str(refused)

        return answer

    def record(self) -> list[dict[str, Any]]:
        """Return all calls so far as JSON, ordered by path. Timings are left out, so that a replayed rollout
        has the same record."""
        timings = {"turns": {"__all__": {"model_seconds", "environment_seconds"}}}
        return [self.records[path].model_dump(mode="json", exclude=timings) for path in sorted(self.records)]

    async def _answers(self, queries: list[Query], parent: tuple[int, ...]) -> list[str]:
        if len(parent) >= self.limits.depth:
            raise SubCallRefused("code at this depth may not ask the model")
        self._check_budget(len(queries))
        first = self._asked.get(parent, 0) + 1
        self._asked[parent] = first - 1 + len(queries)
        numbered_queries = [(query, (*parent, number)) for number, query in enumerate(queries, start=first)]
        if any(self._gets_repl(query, path) for query, path in numbered_queries):
            # Sequential, so that their own sub-calls use up the budget in the same order each time.
            answers: list[str] = []
            for query, path in numbered_queries:
                self._check_budget(1)
                answers.append(await self._sub_call(query, path))
            return answers
        slots = asyncio.Semaphore(self.limits.concurrent)

        async def wait_and_ask(query: Query, path: tuple[int, ...]) -> str:
            async with slots:
                return await self._sub_call(query, path)

        return await wait_for_every(wait_and_ask(*query) for query in numbered_queries)

    async def _sub_call(self, query: Query, path: tuple[int, ...]) -> str:
        """Make a sub-call and record it. Raises `SubCallRefused` and `ModelError`."""
        calls = self._calls(query, path)
        state = calls.state
        turn = len(self.model.state.turns) - 1
        call = SubCall.model_construct(
            path=".".join(map(str, path)), depth=len(path), turn=turn, prompt=state.prompt
        )
        call.completion, call.turns, call.answer, call.failure = state.completion, state.turns, None, None
        self.records[path] = call
        calls.begin()
        try:
            if self._gets_repl(query, path):
                call.answer = await self._converse(query, path, calls)
            else:
                await self._complete(calls, None)
                call.answer = answer_text(state.completion[-1]).strip()
        except ModelError as error:
            call.failure = error.failure()
            if isinstance(error, ContextOverflow):
                raise SubCallRefused(
                    f"sub-call {call.path}: the prompt is longer than the model takes"
                ) from error
            raise
        finally:
            calls.end()
        return call.answer

    async def _converse(self, query: Query, path: tuple[int, ...], calls: ModelCalls) -> str:
        """Let the model answer a query with its own REPL."""
        state = calls.state
        repl = self.new_repl(".".join(map(str, path)))
        repl.loaded["context"] = query.context
        session = ReplSession(repl, self.interface, self.asker(path))
        try:
            for turn in range(self.limits.turns):
                self._check_budget(1)
                await self._complete(calls, self.tools)
                if await session.read_final(state.completion[-1]):
                    break
                state.completion[-1], answer = await session.respond(state.completion[-1], turn)
                state.completion.extend(answer)
                if session.final is not None:
                    break
        finally:
            self.cells += session.cells
            await repl.close()
        if session.final is None:
            raise SubCallRefused(f"the sub-call gave no final answer within {self.limits.turns} turns")
        return session.final

    async def _complete(self, calls: ModelCalls, tools: list[dict[str, Any]] | None) -> None:
        self.made += 1
        response = await calls.complete(tools)
        self.tokens += response.usage.completion_tokens

    def _check_budget(self, calls: int) -> None:
        left = self.limits.calls - self.made
        if calls > left:
            raise SubCallRefused(
                f"the budget allows {self.limits.calls} sub-calls; {left} are left and {calls} were asked for"
            )
        if self.limits.tokens is not None and self.tokens >= self.limits.tokens:
            raise SubCallRefused(f"the budget of {self.limits.tokens} tokens for sub-calls is spent")

    def _gets_repl(self, query: Query, path: tuple[int, ...]) -> bool:
        return query.context is not None and len(path) < self.limits.depth

    def _calls(self, query: Query, path: tuple[int, ...]) -> ModelCalls:
        """Return the model for a sub-call, with a conversation and id of its own."""
        text = query.prompt
        prompt: Messages = []
        if self._gets_repl(query, path):
            text = f"{text}\n\n{context_description(query.context)}"
            prompt = [{"role": "system", "content": self.instructions}, {"role": "user", "content": text}]
        else:
            if query.context is not None:
                text = f"{text}\n\n{context_text(query.context)}"
            prompt = [{"role": "user", "content": encodable(text)}]
        rollout = self.model.state
        name = ".".join(map(str, path))
        state = State(
            example=rollout.example,
            prompt=prompt,
            completion=[],
            turns=[],
            run_seed=rollout.run_seed,
            index=f"{rollout['index']}/sub:{name}",
            truncated=False,
        )
        return ModelCalls(self.model.client, state, self.sampling, sub_call_id(self.model.rollout_id, name))
