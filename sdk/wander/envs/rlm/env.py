"""Recursive language models: the model explores a long context with code in a REPL."""

from __future__ import annotations

from typing import Any, ClassVar

from wander.clients.sub_calls import with_sub_usage
from wander.dataset import ProceduralRows, Rows
from wander.envs.metrics import report_metric
from wander.envs.multi_turn import MultiTurnEnv
from wander.envs.rlm.prompts import (
    REPL_TOOL,
    FinalAnswerParser,
    Interface,
    context_description,
    context_text,
    instructions,
    make_closing_message,
)
from wander.envs.rlm.repl import Repl, ReplLimits, Sandbox
from wander.envs.rlm.session import ReplSession, SubCaller, SubCallLimits
from wander.errors import ConfigError, EnvironmentFault
from wander.handle import RolloutRequest
from wander.parsers import Parser
from wander.rollout.calls import ModelCalls
from wander.rollout.hooks import cleanup, stop
from wander.seeding import derived_seed
from wander.types import Messages, Rollout, SamplingArgs, State


class RLMEnv(MultiTurnEnv):
    """An environment whose model works on a long context with code, and can call itself on parts of it.

    The context is a column of the row (`context`, text or JSON) and is not part of the prompt: it is a
    variable in a Python REPL. The model writes code in ```repl blocks (`interface="code_block"`) or calls the
    tool `repl` (`interface="tool"`), reads the output, and finishes with FINAL(answer) or
    FINAL_VAR(variable). Code can call the model with `llm_query` within the limits of `sub_calls`.

    The final answer is available as `state["final_answer"]`, from the parser, and as
    `info["rlm"]["final_answer"]` of the rollout. Sub-calls are recorded in `info["rlm"]["sub_calls"]`.

    Code runs in a separate process with limits. Without `sandbox="bwrap"`, it has the rights of the user who
    runs the environment. The `random` module is seeded. Code that reads the clock or the system's randomness
    cannot be replayed.

    Metrics: `repl_calls`, `sub_calls`, `context_chars`.
    """

    kind: ClassVar[str] = "rlm"

    def __init__(
        self,
        dataset: Rows | ProceduralRows | None = None,
        eval_dataset: Rows | ProceduralRows | None = None,
        *,
        parser: Parser | None = None,
        max_turns: int = 20,
        context_column: str = "context",
        interface: Interface = "code_block",
        repl: ReplLimits | None = None,
        sub_calls: SubCallLimits | None = None,
        sub_sampling: SamplingArgs | None = None,
        sandbox: Sandbox = "none",
        python: str | None = None,
        repl_instructions: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            dataset, eval_dataset, max_turns=max_turns, parser=parser or FinalAnswerParser(), **kwargs
        )
        if interface not in ("code_block", "tool"):
            raise ConfigError(f'`interface` must be "code_block" or "tool", got `{interface!r}`')
        self.context_column = context_column
        self.interface: Interface = interface
        self.repl_limits = repl or ReplLimits()
        self.sub_call_limits = sub_calls or SubCallLimits()
        self.sub_sampling = sub_sampling
        self.sandbox: Sandbox = sandbox
        self.python = python
        self.repl_instructions = repl_instructions
        for metric in (repl_calls, sub_calls_made, context_chars):
            report_metric(self.rubric, metric)

    def setup_state(self, state: State) -> Any:
        """Put the context into a REPL, and describe it to the model.

        A subclass that computes the context sets `state["context"]` before it calls this method.
        """
        if "context" not in state:
            example, column = state.example, self.context_column
            state["context"] = example.columns.get(column, example.info.get(column))
            if state["context"] is None:
                raise EnvironmentFault(
                    f"example `{example.example_id}` has no `{column}`",
                    hint=f"put the context into the column `{column}`, or name another column",
                )
        model: ModelCalls = state["model_calls"]
        caller = SubCaller(
            model,
            self.sub_call_limits,
            self.sub_sampling or model.sampling,
            lambda path: self._repl(state, path),
            self.interface,
            self._instructions(),
            self._tools(),
        )
        state["sub_caller"] = caller
        state["repl_session"] = ReplSession(self._repl(state, ""), self.interface, caller.asker())
        state["prompt"] = self._opening(state)

    def tools(self, state: State) -> list[dict[str, Any]] | None:
        """Return the schema of the tool `repl` if the model must call it."""
        return self._tools()

    @stop(priority=20)
    async def final_answer_given(self, state: State) -> bool:
        """Hold if the model has given its final answer, in its message or from code."""
        session: ReplSession = state["repl_session"]
        if session.final is None and state.completion:
            answered = await session.read_final(state.completion[-1])
            if answered and not session.spelled_out:
                state.completion.append(make_closing_message(str(session.final)))
        return session.final is not None

    async def env_response(self, messages: Messages, state: State) -> Messages:
        """Run the code of the last message and return its output."""
        session: ReplSession = state["repl_session"]
        recorded, answer = await session.respond(state.completion[-1], len(state.turns) - 1)
        state.completion[-1] = recorded
        if session.final is not None:
            state["final_env_response"] = [*answer, make_closing_message(session.final)]
        return answer

    async def play(self, state: State, model: ModelCalls) -> None:
        """Let the model and the REPL take turns until there is a final answer or a limit is reached."""
        state["model_calls"] = model
        await super().play(state, model)

    @cleanup
    async def close_repl(self, state: State) -> None:
        """End the REPL's process and publish the record of its use."""
        session: ReplSession | None = state.get("repl_session")
        if session is None:
            return
        caller: SubCaller = state["sub_caller"]
        state["final_answer"] = session.final
        state["public"]["rlm"] = {
            "final_answer": session.final,
            "context_chars": len(context_text(state["context"])),
            "repl_calls": session.cells + caller.cells,
            "sub_calls": caller.record(),
        }
        await session.repl.close()

    async def play_request(self, request: RolloutRequest) -> list[Rollout]:
        """Play and score the request, and add the tokens of sub-calls to the usage."""
        return [with_sub_usage(played) for played in await super().play_request(request)]

    def _opening(self, state: State) -> Messages:
        """Return the prompt, with an explanation of the REPL before it and of the context after it."""
        system = {"role": "system", "content": self._instructions()}
        first, *rest = state.prompt
        if first["role"] == "system" and isinstance(first["content"], str):
            system["content"] += f"\n\n{first['content']}"
        else:
            rest = state.prompt
        if not rest:
            return [system]
        description, content = context_description(state["context"]), rest[-1].get("content") or ""
        if isinstance(content, str):
            content = f"{content}\n\n{description}".strip()
        else:
            content = [*content, {"type": "text", "text": description}]
        return [system, *rest[:-1], {**rest[-1], "content": content}]

    def _instructions(self) -> str:
        if self.repl_instructions is not None:
            return self.repl_instructions
        may_ask = self.sub_call_limits.depth > 0 and self.sub_call_limits.calls > 0
        return instructions(self.interface, self.repl_limits.output_chars, may_ask=may_ask)

    def _tools(self) -> list[dict[str, Any]] | None:
        return [REPL_TOOL] if self.interface == "tool" else None

    def _repl(self, state: State, path: str) -> Repl:
        seed = derived_seed(state.run_seed, state.example.seed, "repl", path)
        repl = Repl(self.repl_limits, sandbox=self.sandbox, python=self.python, seed=seed)
        if not path:
            repl.loaded["context"] = state["context"]
        return repl


def repl_calls(state: State) -> float:
    """Count the pieces of code that were run, including those of sub-calls."""
    return float(_read_published(state, "repl_calls"))


def sub_calls_made(state: State) -> float:
    """Count the calls that code made to the model."""
    return float(len(_read_published(state, "sub_calls")))


sub_calls_made.__name__ = "sub_calls"


def context_chars(state: State) -> float:
    """Return the length of the context in characters."""
    return float(_read_published(state, "context_chars"))


def _read_published(state: State, name: str) -> Any:
    return state["public"]["rlm"][name]
