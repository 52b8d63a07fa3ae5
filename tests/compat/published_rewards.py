"""Play a published environment with written completions and print every reward, as JSON.

    python published_rewards.py MODULE FUNCTION ARGUMENTS COUNT

Runs under the real verifiers and under ours, each in its own virtual environment: it uses what they share.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import random
import sys

import verifiers as vf

try:
    from verifiers.clients.client import Client
    from verifiers.types import Response, ResponseMessage
except ImportError:  # before 0.1.11 the client is OpenAI's
    Client = object

ANSWERS: dict[str, str] = {}
"""Right answers by what the user asks; some completions give them."""
FORMS = (
    "{}", "<answer>{}</answer>", "\\boxed{{{}}}", "<think>hm</think>{}", "#### {}", "```json\n{}\n```",
    "Answer: {}", "I know it.\nANSWER: {}",
)  # fmt: skip


def field(message, name):
    return message.get(name) if isinstance(message, dict) else getattr(message, name, None)


def written(prompt, turn: int) -> str:
    """Return a completion that depends on the conversation alone: words of it, in one of several forms."""
    text = "\n".join(str(field(message, "content")) for message in prompt)
    rng = random.Random(hashlib.sha256(f"{turn}{text}".encode()).digest())
    words = text.split() or ["nothing"]
    start = rng.randrange(len(words))
    taken = " ".join(words[start : start + rng.choice((1, 3, 20, 120))])
    asked = [str(field(message, "content")) for message in prompt]
    chance = rng.random()
    if chance < 0.2:
        taken = str(rng.randrange(100))
    elif chance < 0.5:
        taken = ANSWERS.get(asked[-1], taken)
    return rng.choice(FORMS).format(taken)


class Written(Client):
    """Answers every call with what is written."""

    def __init__(self):
        self._client = None
        self.calls = 0

    async def get_response(self, prompt, model, sampling_args, tools=None, **kwargs):
        self.calls += 1
        content = written(prompt, sum(field(message, "role") == "assistant" for message in prompt))
        message = ResponseMessage(
            content=content, reasoning_content=None, finish_reason="stop", is_truncated=False, tokens=None
        )
        return Response(id="x", created=0, model=model, usage=None, message=message)

    def setup_client(self, config): ...

    async def to_native_tool(self, tool): ...

    async def to_native_prompt(self, messages): ...

    async def get_native_response(self, *args, **kwargs): ...

    async def raise_from_native_response(self, response): ...

    async def from_native_response(self, response): ...

    async def close(self): ...


class WrittenCompletions:
    """Answers like `AsyncOpenAI`, for the releases that take it."""

    base_url = "http://written"

    def __init__(self):
        self.chat = self
        self.completions = self

    async def create(self, *, messages, model, **kwargs):
        from openai.types.chat import ChatCompletion

        content = written(messages, sum(field(message, "role") == "assistant" for message in messages))
        message = {"role": "assistant", "content": content}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return ChatCompletion.model_validate(
            {"id": "x", "object": "chat.completion", "created": 0, "model": model, "choices": [choice]}
        )


def rollouts_of(outputs) -> list[dict]:
    """Return a run's rollouts, which the earlier releases give by column."""
    if "outputs" in outputs:
        return list(outputs["outputs"])
    names = ("example_id", "prompt", "completion", "reward")
    columns = zip(*(outputs[name] for name in names), strict=True)
    rows = [dict(zip(names, values, strict=True)) for values in columns]
    for position, row in enumerate(rows):
        row["metrics"] = {name: values[position] for name, values in outputs["metrics"].items()}
        row["stop_condition"] = outputs["state"][position].get("stop_condition")
    return rows


def plain(messages) -> list:
    if isinstance(messages, str):
        return [["text", messages]]
    return [[field(message, "role"), str(field(message, "content"))] for message in messages]


async def main() -> None:
    module, function, arguments, count = sys.argv[1:]
    random.seed(0)
    env = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    for row in env.get_eval_dataset():
        entries = getattr(env, "rg_dataset", None)
        answer = row["answer"] if entries is None else entries[int(row["answer"])]["answer"]
        prompt = row["prompt"]
        ANSWERS[prompt if isinstance(prompt, str) else str(prompt[-1]["content"])] = str(answer)
    client = WrittenCompletions() if Client is object else Written()
    outputs = await env.evaluate(client, "written", num_examples=int(count), rollouts_per_example=1)
    found = [
        {
            "example": output["example_id"],
            "prompt": plain(output["prompt"]),
            "completion": plain(output["completion"]),
            "reward": output["reward"],
            "metrics": output["metrics"],
            "stop": output["stop_condition"],
        }
        for output in rollouts_of(outputs)
    ]
    print("RESULT " + json.dumps({"version": vf.__version__, "rollouts": found}))


if __name__ == "__main__":
    asyncio.run(main())
