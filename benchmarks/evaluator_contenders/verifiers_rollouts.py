"""The same rollouts with the classic verifiers library. This runs in the library's virtual environment."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import verifiers as vf
from datasets import Dataset
from stopwatch import arguments, measured, report
from verifiers.types import ClientConfig

os.environ.setdefault("BENCHMARK_KEY", "x")
logging.disable(logging.ERROR)


async def exact(completion: list[Any], answer: str, **rest: Any) -> float:
    return float((completion[-1]["content"] or "") == answer)


class Conversation(vf.MultiTurnEnv):
    async def env_response(self, messages: Any, state: Any, **rest: Any) -> Any:
        return [{"role": "user", "content": "next"}]


def quiet(*_: Any) -> None:
    return None


async def main() -> None:
    given = arguments()
    rows = [{"question": f"What is {i}+1?", "answer": str(i + 1)} for i in range(given.n)]
    options = {"dataset": Dataset.from_list(rows), "rubric": vf.Rubric(funcs=[exact])}
    environment = (
        vf.SingleTurnEnv(**options) if given.turns == 1 else Conversation(max_turns=given.turns, **options)
    )
    config = ClientConfig(
        api_base_url=given.url, api_key_var="BENCHMARK_KEY", client_type="openai_chat_completions"
    )
    call = {"client": config, "model": "instant", "on_progress": quiet}
    inputs = environment.get_dataset().to_list()
    await environment.generate(inputs[:8], max_concurrent=8, **call)
    with tempfile.TemporaryDirectory() as folder:
        if given.save:
            call |= {"save_results": True, "results_path": Path(folder) / "results"}
        with measured(given.n) as result:
            output = await environment.generate(inputs, max_concurrent=given.concurrency, **call)
    assert len(output["outputs"]) == given.n
    assert not any(rollout.get("error") for rollout in output["outputs"])
    report(result)


asyncio.run(main())
