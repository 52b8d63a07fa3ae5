"""Recursive language models of the classic API (0.1.9 to 0.1.14): code that works on files and can call the
model.

Instead of a cloud sandbox, the code runs in the SDK's REPL, under bubblewrap if it is installed. Model calls
of the code are turns of the rollout's record like all others.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Callable, Sequence
from typing import Any

from wander.envs.rlm.repl import ReplLimits
from wander.seeding import derived_seed

from wander_compat.verifiers.async_calls import maybe_await
from wander_compat.verifiers.data import info_of
from wander_compat.verifiers.decorators import cleanup, stop
from wander_compat.verifiers.envs.rlm_shell import RlmShell, read_context
from wander_compat.verifiers.envs.tool_env import StatefulToolEnv, convert_func_to_tool_def
from wander_compat.verifiers.errors import ModelError, SandboxError, ToolCallError
from wander_compat.verifiers.messages.conversion import (
    as_message,
    as_tool_call,
    field_of,
    text_of,
)
from wander_compat.verifiers.messages.models import Tool
from wander_compat.verifiers.rubrics.rubric import Rubric, function_name
from wander_compat.verifiers.types import State, completion_fields

COUNTS = (
    "sub_llm_call_count",
    "sub_llm_total_turns",
    "sub_llm_prompt_tokens",
    "sub_llm_completion_tokens",
    "sub_llm_total_tool_calls",
    "sub_llm_batch_count",
    "root_llm_turns",
    "root_llm_prompt_tokens",
    "root_llm_completion_tokens",
    "repl_call_count",
    "root_tool_call_count",
)
"""Counts that are kept in the state and reported. Times are not reported, because they differ between
runs."""

_PYTHON = """You work in a Python REPL by the tool `call_python_repl`; variables stay between calls.
Its working directory holds the data of the task, if there is any; read it with code, never print all of it.
Give the final answer by `answer["content"] = ...` and then `answer["ready"] = True`; that ends the task."""
_SHELL = """You work in a bash shell by the tool `call_bash_repl`; its working directory stays between calls.
It holds the data of the task, if there is any; read it with commands, never print all of it.
Give the final answer by `ANSWER_CONTENT=...` and then `ANSWER_READY=1`; that ends the task."""
_USE = {
    "python": "These functions can be called from code:",
    "bash": "These commands can be called, with JSON values or texts as arguments, or with `--json OBJECT`:",
}


class RLMCodeExecutionTimeout(ToolCallError):
    """Code took longer than `code_execution_timeout`, and the environment ends the rollout for that."""


class RLMMonitorRubric(Rubric):
    """Reports the counts of a rollout: turns, calls and tokens of the model, and of the calls by its code."""

    def __init__(self, root_tool_names: Sequence[str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in COUNTS:
            self.add_metric(_count(name, name))
        for tool in root_tool_names or []:
            self.add_metric(_count(f"{tool}_root_calls", tool, "root_tool_calls"))


def _count(name: str, key: str, inside: str | None = None) -> Callable[..., Any]:
    """Return a metric that reads a count in the state, or in a dictionary of the state."""

    async def metric(state: State) -> float:
        return float((state if inside is None else state.get(inside) or {}).get(key) or 0)

    metric.__name__ = name
    return metric


class RLMEnv(StatefulToolEnv):
    """Lets the model work in a REPL whose folder holds the row's `info["context"]` or `info["context_dir"]`.

    `tools` are called by the model, `root_tools` by code, and `sub_tools` by the models that code calls
    through `llm_batch`. Summaries of turns (`enable_summarization`) and GPUs are rejected. Settings of the
    releases' sandbox and of their prompt become attributes without an effect.
    """

    outside = True
    """Code may read the clock and the machine, so rollouts are not declared deterministic."""
    passed_errors = (ModelError, SandboxError)

    def __init__(
        self,
        max_turns: int = 50,
        tools: Sequence[Callable[..., Any]] | None = None,
        root_tools: Sequence[Callable[..., Any]] | None = None,
        sub_tools: Sequence[Callable[..., Any]] | None = None,
        sub_llm_max_turns: int = 5,
        sub_max_completion_tokens: int | None = None,
        root_max_completion_tokens: int | None = None,
        sub_model: str | None = None,
        enable_sub_llms: bool = True,
        enable_summarization: bool = False,
        max_turns_in_context: int | None = None,
        max_output_length: int = 8192,
        max_sub_llm_parallelism: int = 5,
        system_prompt: str | None = None,
        repl_language: str = "bash",
        code_execution_timeout: int = 120,
        abort_on_code_timeout: bool = False,
        sandbox_memory_gb: int = 2,
        sandbox_gpu_count: int = 0,
        **kwargs: Any,
    ) -> None:
        if repl_language not in ("bash", "python"):
            raise ValueError(f"`repl_language` must be `bash` or `python`, got `{repl_language}`")
        if enable_summarization:
            raise ValueError("`RLMEnv` does not summarize turns here; leave out `enable_summarization`")
        if sandbox_gpu_count:
            raise SandboxError("`RLMEnv` runs code without a GPU here; `sandbox_gpu_count` must be 0")
        self.repl_language = repl_language
        self.custom_system_prompt = system_prompt
        self.sub_model = sub_model
        self.sub_llm_max_turns = sub_llm_max_turns
        self.sub_max_completion_tokens = sub_max_completion_tokens
        self.root_max_completion_tokens = root_max_completion_tokens
        self.max_turns_in_context = max_turns_in_context
        self.max_sub_llm_parallelism = max_sub_llm_parallelism
        self.max_output_length = max_output_length
        self.code_execution_timeout = code_execution_timeout
        self.abort_on_code_timeout = abort_on_code_timeout
        self.memory_mb = int(sandbox_memory_gb * 1024)
        self.root_tools = [*([self.llm_batch] if enable_sub_llms else []), *(root_tools or [])]
        self.root_tool_map = {function_name(tool): tool for tool in self.root_tools}
        self.root_tool_names = list(self.root_tool_map)
        self.sub_tools = list(sub_tools or [])
        self.sub_tool_map = {function_name(tool): tool for tool in self.sub_tools}
        self.sub_tool_defs: list[Tool] = [convert_func_to_tool_def(tool) for tool in self.sub_tools]
        self._root_tool_context_var: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar(
            "rlm_root_tool_context", default=None
        )
        self._shells: dict[str, RlmShell] = {}
        super().__init__(tools=tools, max_turns=max_turns, **kwargs)
        self.stop_errors.append(RLMCodeExecutionTimeout)
        self.add_rubric(RLMMonitorRubric(self.root_tool_names))
        repl = self.call_bash_repl if repl_language == "bash" else self.call_python_repl
        self.add_tool(repl, args_to_skip=["state"])

    # a rollout

    async def setup_state(self, state: State, **kwargs: Any) -> Any:
        """Explain the REPL to the model and prepare it. Its process starts with the first code."""
        returned = await super().setup_state(state, **kwargs)
        state["rollout_id"] = f"rlm_{id(state):x}"
        state["raw_prompt"] = state["prompt"]
        state["rlm_system_prompt"] = self._system_prompt()
        state["prompt"] = self._with_instructions(state["prompt"], state["rlm_system_prompt"])
        files = read_context(info_of(state.get("info")))
        limits = ReplLimits(
            cell_seconds=float(self.code_execution_timeout),
            memory_mb=self.memory_mb,
            file_mb=16 + sum(map(len, files.values())) // (1 << 20),
            output_chars=self.max_output_length,
        )

        async def call(name: str, args: list[Any], arguments: dict[str, Any]) -> Any:
            return await self._call_root_tool(state, name, args, arguments)

        seed = derived_seed("rlm", str(state.get("example_id")))
        self._shells[state["rollout_id"]] = RlmShell(
            self.repl_language, limits, files, self.root_tool_names, call, seed
        )
        return returned

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Any, state: State, **kwargs: Any
    ) -> dict[str, Any]:
        """Pass the rollout's state to the REPL."""
        return {**tool_args, "state": state} if tool_name.startswith("call_") else tool_args

    async def call_bash_repl(self, code: str, state: Any) -> str:
        """Execute Bash commands in a persistent REPL environment."""
        return await self._call_repl(code, state)

    async def call_python_repl(self, code: str, state: Any) -> str:
        """Execute Python code in a persistent REPL environment."""
        return await self._call_repl(code, state)

    async def _call_repl(self, code: str, state: State) -> str:
        _add(state, repl_call_count=1)
        result, answer = await self._shells[state["rollout_id"]].run(code)
        failed = state.pop("_rlm_failure", None)
        if failed is not None:
            raise failed
        if result.ended == "timeout":
            told = f"the code took longer than {self.code_execution_timeout} s"
            if self.abort_on_code_timeout:
                raise RLMCodeExecutionTimeout(told)
            lost = "; the REPL was restarted and its variables are lost" if result.restarted else ""
            return f"{result.output}\nError: {told}{lost}".strip()
        if result.ended == "died":
            return f"{result.output}\nError: the REPL's process was killed; it was restarted".strip()
        if answer["ready"]:
            state["final_answer"] = answer["content"]
        else:
            state["rlm_answer_so_far"] = answer["content"]
        return result.output.rstrip() or "(no output)"

    async def env_response(self, messages: Any, state: State, **kwargs: Any) -> Any:
        """Return the results of the tools. They are the last ones after a final answer, or without budget."""
        answer = await super().env_response(messages, state, **kwargs)
        tokens, turns = self.root_max_completion_tokens, self.max_turns_in_context
        spent = tokens is not None and (state.get("root_llm_completion_tokens") or 0) >= tokens
        full = turns is not None and len(state["trajectory"]) >= turns
        if "final_answer" in state or spent or full:
            state["final_env_response"] = answer
        return answer

    async def add_trajectory_step(self, state: State, trajectory_step: Any) -> None:
        """Record a step and count its tokens."""
        prompt, completion = _tokens_of(trajectory_step.get("response"))
        _add(state, root_llm_turns=1, root_llm_prompt_tokens=prompt, root_llm_completion_tokens=completion)
        await super().add_trajectory_step(state, trajectory_step)

    @stop
    async def answer_ready(self, state: State) -> bool:
        """Hold if the final answer was given."""
        return "final_answer" in state

    @cleanup(priority=90)
    async def cleanup_rlm_state(self, state: State) -> None:
        """Read the current answer, call `post_rollout`, and end the REPL."""
        state.setdefault("final_answer", state.get("rlm_answer_so_far", ""))
        shell = self._shells.pop(state.get("rollout_id", ""), None)
        try:
            await self.post_rollout(state)
        finally:
            if shell is not None:
                await shell.close()

    async def post_rollout(self, state: State) -> None:
        """Inspect a finished rollout. Override it if needed."""

    # what code calls

    async def llm_batch(self, prompts: list[str]) -> list[str]:
        """Call new instances of the model for all prompts concurrently. Returns the answers in order."""
        context = self._root_tool_context_var.get()
        if context is None:
            raise RuntimeError("`llm_batch` is called from code in the REPL")
        state: State = context["state"]
        if isinstance(prompts, str) or not all(isinstance(prompt, str) for prompt in prompts):
            raise TypeError("`llm_batch` takes a list of texts")
        _add(state, sub_llm_batch_count=1)
        slots = asyncio.Semaphore(max(1, self.max_sub_llm_parallelism))

        async def ask(prompt: str) -> str:
            async with slots:
                limit = self.sub_max_completion_tokens
                if limit is not None and (state.get("sub_llm_completion_tokens") or 0) >= limit:
                    return f"not asked: the {limit} tokens of all calls are used up"
                messages = [{"role": "user", "content": prompt}]
                model = self.sub_model or state["model"]
                result = await self._run_sub_llm(state, state["client"], model, messages)
                return str(result["final_content"])

        answers = await asyncio.gather(*map(ask, prompts), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, ModelError):
                state["_rlm_failure"] = answer
            if isinstance(answer, BaseException):
                raise answer
        return [str(answer) for answer in answers]

    async def _run_sub_llm(self, state: State, client: Any, model: str, messages: Any) -> dict[str, Any]:
        """Let a new model instance answer, with the `sub_tools`.

        Environments may override this to inspect it.
        """
        conversation = self.own_messages(messages)
        result: dict[str, Any] = {"final_content": "", "max_turns_reached": False, "turns": []}
        _add(state, sub_llm_call_count=1)
        for turn in range(max(1, self.sub_llm_max_turns)):
            response = await self.get_model_response(
                state, conversation, client=client, model=model, tools=self.sub_tool_defs
            )
            prompt, completion = _tokens_of(response)
            _add(state, sub_llm_total_turns=1)
            _add(state, sub_llm_prompt_tokens=prompt, sub_llm_completion_tokens=completion)
            result["final_content"] = text_of(response.message.content)
            calls = [as_tool_call(call) for call in response.message.tool_calls or []]
            result["turns"].append(
                {"prompt_messages": conversation, "response": response, "tool_calls": len(calls)}
            )
            if not calls:
                return result
            conversation = [*conversation, as_message(completion_fields(response), self.generation.form)]
            for call in calls:
                _add(state, sub_llm_total_tool_calls=1)
                conversation.append(self._make_tool_message(await self._call_sub_tool(call), call.id))
            result["max_turns_reached"] = turn + 1 >= self.sub_llm_max_turns
        return result

    async def _call_sub_tool(self, call: Any) -> str:
        try:
            return str(await maybe_await(self.sub_tool_map[call.name], **json.loads(call.arguments)))
        except Exception as error:  # noqa: BLE001 - the model receives the error
            return self.error_formatter(error)

    async def _call_root_tool(
        self, state: State, name: str, args: list[Any], keywords: dict[str, Any]
    ) -> Any:
        if name not in self.root_tool_map:
            raise NameError(f"there is no tool `{name}`; there are {', '.join(self.root_tool_names)}")
        _add(state, root_tool_call_count=1)
        calls: dict[str, int] = state.setdefault("root_tool_calls", {})
        calls[name] = calls.get(name, 0) + 1
        token = self._root_tool_context_var.set({"state": state})
        try:
            return await maybe_await(self.root_tool_map[name], *args, **keywords)
        finally:
            self._root_tool_context_var.reset(token)

    # the prompt

    def _system_prompt(self) -> str:
        if self.custom_system_prompt is not None:
            return self.custom_system_prompt
        lines = [_SHELL if self.repl_language == "bash" else _PYTHON]
        if self.root_tools:
            lines += ["", _USE[self.repl_language]]
        for definition in map(convert_func_to_tool_def, self.root_tools):
            parameters = ", ".join(definition.parameters.get("properties", {}))
            lines.append(f"- `{definition.name}({parameters})`: {definition.description}")
        if self.sub_tools and "llm_batch" in self.root_tool_map:
            names = ", ".join(f"`{name}`" for name in self.sub_tool_map)
            lines.append(f"Models that `llm_batch` asks have the tools {names}; you have not.")
        return "\n".join(lines)

    def _with_instructions(self, prompt: Any, instructions: str) -> Any:
        messages = self.own_messages(prompt)
        if messages and field_of(messages[0], "role") == "system":
            instructions += f"\n\n{text_of(field_of(messages[0], 'content'))}"
            messages = messages[1:]
        return self.own_messages([{"role": "system", "content": instructions}, *messages])


def _add(state: State, **counts: int) -> None:
    for name, count in counts.items():
        state[name] = (state.get(name) or 0) + count


def _tokens_of(response: Any) -> tuple[int, int]:
    usage = field_of(response, "usage")
    return field_of(usage, "prompt_tokens", 0) or 0, field_of(usage, "completion_tokens", 0) or 0
