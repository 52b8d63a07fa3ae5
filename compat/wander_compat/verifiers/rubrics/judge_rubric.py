"""A rubric whose functions can call another model, the judge.

The judge is any OpenAI client of the package. In a worker, such a client finds the host's endpoint in
`OPENAI_BASE_URL`, which has the key and records the calls (see `wander.worker.openai_proxy`).
"""

from __future__ import annotations

from typing import Any

from wander_compat.verifiers.async_calls import maybe_await
from wander_compat.verifiers.messages.conversion import field_of, text_of
from wander_compat.verifiers.parsers import Parser
from wander_compat.verifiers.rubrics.rubric import Rubric

# The wording is part of the interface, because a judge's answers, and so published rewards, depend on it.
DEFAULT_JUDGE_PROMPT = """Given a ground truth answer and a response, determine if the response is correct.

Question:
```
{question}
```

Ground truth answer:
```
{answer}
```

Response:
```
{response}
```

Respond either "yes" or "no" only."""


class JudgeRubric(Rubric):
    """A rubric whose functions can take `judge`, `judge_client`, `judge_model` and similar values by name.

    Unlike the later releases, it finds the question in messages of every format. There, `{question}` stays
    empty.
    """

    def __init__(
        self,
        parser: Parser | None = None,
        parallelize_scoring: bool = False,
        judge_client: Any = None,
        judge_model: str = "gpt-4.1-nano",
        judge_sampling_args: dict[str, Any] | None = None,
        judge_prompt: str = DEFAULT_JUDGE_PROMPT,
        **kwargs: Any,
    ) -> None:
        super().__init__(parser=parser, **kwargs)
        if judge_client is None:
            from openai import AsyncOpenAI

            judge_client = AsyncOpenAI()
        self.judge_client = judge_client
        self.judge_model = judge_model
        self.judge_prompt = judge_prompt
        self.judge_sampling_args = judge_sampling_args or {}
        self.class_objects.update(
            judge=self.judge,
            judge_client=judge_client,
            judge_model=judge_model,
            judge_prompt=judge_prompt,
            judge_sampling_args=self.judge_sampling_args,
        )

    async def judge(
        self,
        prompt: Any,
        completion: Any,
        answer: str,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> str:
        """Return the text of the judge's answer. Equal requests of one rollout are sent only once."""
        response = self.parser.parse_answer(completion)
        question = prompt
        if not isinstance(prompt, str):  # the question is in the last message
            question = text_of(field_of(prompt[-1], "content", "")) if prompt else ""
        request = self.judge_prompt.format(question=question, answer=answer, response=response)
        kept = None if state is None else state.get("judge_response")
        if isinstance(kept, dict) and request in kept:
            return str(kept[request])
        text = await self._ask_the_judge(request)
        if state is not None:
            state["judge_response"] = {**(kept if isinstance(kept, dict) else {}), request: text}
        return text

    async def _ask_the_judge(self, text: str) -> str:
        """Call the judge. Raises `RuntimeError` with the problem if it fails."""
        from openai import OpenAIError

        try:
            answer = await maybe_await(
                self.judge_client.chat.completions.create,
                model=self.judge_model,
                messages=[{"role": "user", "content": text}],
                **sampling_arguments(self.judge_sampling_args),
            )
        except OpenAIError as error:
            raise RuntimeError(f"the judge `{self.judge_model}` failed: {error}") from error
        return str(answer.choices[0].message.content)


def sampling_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return sampling arguments for chat endpoints, without unset ones and with the limit renamed."""
    arguments_set = {name: value for name, value in arguments.items() if value is not None}
    if "max_tokens" in arguments_set:
        limit = arguments_set.pop("max_tokens")
        arguments_set.setdefault("max_completion_tokens", limit)
    return arguments_set
