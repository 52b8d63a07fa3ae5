"""Interpretation of an endpoint's responses with status 200: completions, or failures of the endpoint.

Gateways report failures of the providers behind them with status 200. `failure_in` detects them for every
dialect. A response that it calls a failure is never scored.

| response | meaning |
|---|---|
| text, a tool call, reasoning or a refusal | a completion |
| an empty message, but completion tokens were counted | a completion: the model wrote no text |
| an empty message with the finish reason `content_filter` | a completion that a filter removed |
| an empty message, and no completion tokens | a failure |
| an `error` in the body or in the choice | a failure |
| the finish reason `error`, `abort`, `network_error`, ... | a failure |
| no choice, or a choice without a message | a failure |
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pydantic_core import from_json

from wander.clients.base import ModelRequest, ModelResponse
from wander.clients.http_errors import kind_of_refusal, one_line, page_text
from wander.clients.transport import Answer
from wander.errors import ContentFiltered, ContextOverflow, InvalidResponse, ModelError, name_option
from wander.types import FILTERED, Message, TurnTokens, Usage, refuse_constant

_FAILED = frozenset(
    {
        "abort",  # vLLM, SGLang
        "aborted",
        "cancelled",
        "canceled",
        "engine_error",
        "error",  # OpenRouter, vLLM
        "failed",
        "insufficient_system_resource",  # DeepSeek
        "internal_error",
        "network_error",  # GLM
        "overloaded",
        "server_error",
        "timeout",
        "user_cancel",  # Cohere
    }
)
_MEANINGS = {
    "stop": ("complete", "end_turn", "eos", "eos_token", "stop_sequence"),
    "length": ("max_tokens", "max_output_tokens", "model_context_window_exceeded", "model_length"),
    "tool_calls": ("function_call", "tool_call", "tool_use"),
    FILTERED: (
        *("blocklist", "content-filter", "content_filtered", "error_toxic", "guardrail_intervened"),
        *("prohibited_content", "recitation", "refusal", "safety", "sensitive", "spii"),
    ),
}
_STANDARD = {name: standard for standard, names in _MEANINGS.items() for name in names}
_BYTES_A_TOKEN = 4
"""Approximate bytes of text per token, for endpoints that do not count tokens."""
_SAID = (
    *("content", "text", "reasoning", "reasoning_content", "tool_calls", "function_call", "refusal", "audio"),
    *("reasoning_details", "thinking_blocks"),
)
"""Fields of a message, or of a plain completion. A message with any of them is a completion."""
_KEPT = ("tool_calls", "refusal", "reasoning_details", "thinking_blocks", "signature", "reasoning_signature")
"""Fields of a message that are stored unchanged. Some models need them in later requests, for example
signatures."""


def completion_of(answer: Answer, base_url: str, model: str, request: ModelRequest) -> ModelResponse:
    """Return the completion in a response of status 200.

    Raises a retryable `ModelError` for a failure of the endpoint, `ContextOverflow` or `ContentFiltered` if
    that is the reported failure, and `InvalidResponse` for a response that is not a chat completion.
    """
    try:
        data = _parse(answer.body)
    except ValueError as error:
        if (page := page_text(answer.body)) is not None:
            raise InvalidResponse(
                f"`{base_url}` returned a web page: {page}",
                hint="correct the base URL: it usually ends in `/v1`",
            ) from error
        shown = one_line(answer.body[:4000].decode("utf-8", "replace")) or "an empty body"
        raise InvalidResponse(
            f"`{base_url}` returned invalid JSON ({error}): {shown}",
            hint="check the server's log",
            retryable=True,
        ) from error
    if (failure := failure_in(data)) is not None:
        raise _error_of_failure(failure, data, base_url, model)
    try:
        choice = data["choices"][0]
        message = _message(choice["message"])
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise _not_a_completion(data, base_url) from error
    try:
        tokens = _tokens(data, choice)
        # Validating is faster than `model_construct`, which runs in Python.
        return ModelResponse(
            message=message,
            finish_reason=finish_reason_of(choice),
            usage=_usage(usage_of(data.get("usage")), request, message),
            tokens=tokens,
            seconds=answer.seconds,
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidResponse(
            f"`{base_url}` returned invalid token ids or log-probabilities",
            hint="check the server's version, or do not request them",
        ) from error


def failure_in(data: Any) -> Any | None:
    """Return the failure that a response reports, as its error object or a text; None if it reports no
    failure.

    Accepts chat completions and plain completions. A response that is neither is not reported as a failure
    here.
    """
    if not isinstance(data, dict):
        return None
    if _is_error(data.get("error")):
        return data["error"]
    if "choices" in data and data["choices"] in (None, [], [None]):
        return "it has no choices"
    choices = data.get("choices")
    choice = choices[0] if isinstance(choices, list) else None
    if not isinstance(choice, dict):
        return None
    if _is_error(choice.get("error")):
        return choice["error"]
    reason = finish_reason_of(choice)
    if reason in _FAILED:
        return f"its finish reason is `{reason}`"
    if choice.get("token_ids"):
        return None
    message = choice if "text" in choice else choice.get("message")
    if message is None:
        return "its choice has no message"
    if not isinstance(message, dict):
        return None
    said = any(message.get(name) for name in _SAID)
    if said or reason == FILTERED:
        return None
    counted = usage_of(data.get("usage"))
    return (
        None
        if counted and counted.completion_tokens
        else "it is empty, and no completion tokens were counted"
    )


def finish_reason_of(choice: dict[str, Any]) -> str:
    """Return the finish reason of a completion, in OpenAI's terms if there is an equivalent."""
    reason = choice.get("finish_reason")
    if not isinstance(reason, str) or not reason:
        return "stop"
    plain = reason.lower()
    if plain.startswith((FILTERED, "content filter")):  # Gemini's bridge: `content_filter: SAFETY`
        return FILTERED
    return _STANDARD.get(plain) or (plain if plain in _FAILED or plain in _MEANINGS else reason)


def _is_error(value: Any) -> bool:
    """Return whether an `error` field reports a failure; some servers always send an empty field."""
    return any(value.values()) if isinstance(value, dict) else bool(value)


def _error_of_failure(failure: Any, data: Any, base_url: str, model: str) -> ModelError:
    said = one_line(failure)
    kind = kind_of_refusal(400, failure)
    if kind == "overflow":
        return ContextOverflow(f"the prompt does not fit the context of `{model}`: {said}")
    if kind == "filter":
        return ContentFiltered(f"`{base_url}` filtered the conversation: {said}")
    shown = said if not isinstance(failure, str) else f"{failure}: {one_line(data)}"
    return InvalidResponse(
        f"`{base_url}` returned status 200 with an error: {shown}",
        hint="the provider behind the endpoint failed; resume with "
        + name_option("only_failed", True)
        + " when it works again",
        retryable=True,
    )


def _not_a_completion(data: Any, base_url: str) -> InvalidResponse:
    return InvalidResponse(
        f"`{base_url}` returned something that is not a chat completion: {one_line(data)}",
        hint="check that the base URL is the address of an OpenAI-compatible chat endpoint",
    )


def _parse(body: bytes) -> Any:
    """Return the JSON of a body, with lone surrogates written as escapes; raises `ValueError`."""
    try:
        # JSON does not allow NaN and infinity, and a record with such a number could not be read again.
        return from_json(body, allow_inf_nan=False)
    except ValueError:
        if b"\\ud" not in body.lower():
            raise
        # Servers that split a text between two tokens can send half of an emoji, which UTF-8 cannot encode.
        return _without_surrogates(json.loads(body, parse_constant=refuse_constant))


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_without_surrogates(name): _without_surrogates(item) for name, item in value.items()}
    return [_without_surrogates(item) for item in value] if isinstance(value, list) else value


def _message(raw: Any) -> Message:
    """Return the assistant message; raises `TypeError` unless its content is text or parts."""
    content = raw.get("content")
    message: Message = {"role": "assistant", "content": "" if content is None else content}
    reasoning = raw.get("reasoning_content") or raw.get("reasoning")
    if isinstance(reasoning, str):
        message["reasoning_content"] = reasoning
    message |= {name: raw[name] for name in _KEPT if raw.get(name)}
    if not isinstance(message["content"], str | list):
        raise TypeError("content")
    return message


def usage_of(raw: Any) -> Usage | None:
    """Return the token counts of a response, or None if they are missing or all zero.

    Reads the counts of every API whose responses Wander receives or imports. They differ in two ways:

    - Cached tokens are part of `prompt_tokens` (OpenAI and its imitations) and of `input_tokens` with details
      (OpenAI's Responses API). Anthropic and Inspect count them apart from `input_tokens`.
    - Reasoning tokens are part of the completion tokens. xAI and Gemini count them only in the total, so the
      completion tokens are at least the total minus the prompt tokens.
    """
    if not isinstance(raw, dict):
        return None
    prompt = _count(raw, "prompt_tokens", "input_tokens")
    completion = _count(raw, "completion_tokens", "output_tokens")
    cached = _count(_details(raw, "prompt_tokens_details", "input_tokens_details"), "cached_tokens")
    cached = cached or _count(raw, *_CACHE_READS)
    if not _count(raw, "prompt_tokens") and not raw.get("input_tokens_details"):
        prompt += sum(_count(raw, name) for name in _APART)
    total = _count(raw, "total_tokens")
    if not (prompt or completion or total):
        return None
    uncounted = max(0, total - prompt - completion) if prompt else 0
    reasoning = _count(
        _details(raw, "completion_tokens_details", "output_tokens_details"), "reasoning_tokens"
    )
    reasoning = reasoning or _count(raw, "reasoning_tokens") or uncounted
    completion += uncounted
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=min(cached, prompt),
        reasoning_tokens=min(reasoning, completion),
    )


def total_usage(counts: Iterable[Any]) -> Usage:
    """Return the sum of the token counts of several responses. Missing counts are 0."""
    return sum((usage_of(raw) or Usage() for raw in counts), Usage())


_CACHE_READS = (
    *("cache_read_input_tokens", "input_tokens_cache_read"),  # Anthropic, Inspect
    *("prompt_cache_hit_tokens", "cached_tokens"),  # DeepSeek, Moonshot
)
"""Fields of the whole usage that count the tokens read from a cache."""
_APART = (
    *("cache_read_input_tokens", "cache_creation_input_tokens"),
    *("input_tokens_cache_read", "input_tokens_cache_write"),
)
"""Fields that count prompt tokens in addition to `input_tokens`."""


def _details(raw: dict[str, Any], *names: str) -> dict[str, Any]:
    return next((raw[name] for name in names if isinstance(raw.get(name), dict)), {})


def _count(raw: dict[str, Any], *names: str) -> int:
    for name in names:
        value = raw.get(name)
        if isinstance(value, int | float) and value > 0 and value == int(value):
            return int(value)
    return 0


def _usage(counted: Usage | None, request: ModelRequest, message: Message) -> Usage:
    """Return the counted tokens, with estimates for the counts that the endpoint left out."""
    written = [message[name] for name in ("content", "reasoning_content", "tool_calls") if message.get(name)]
    if counted is not None and (counted.completion_tokens or not written):
        return counted
    counted = counted or Usage()
    return counted.at_least(
        Usage(
            prompt_tokens=0 if counted.prompt_tokens else _estimated_tokens(request.messages),
            completion_tokens=_estimated_tokens(written),
            estimated=True,
        )
    )


def _estimated_tokens(values: list[Any]) -> int:
    texts = (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values)
    return -(-sum(len(text.encode("utf-8", "replace")) for text in texts) // _BYTES_A_TOKEN)


def _tokens(data: dict[str, Any], choice: dict[str, Any]) -> TurnTokens | None:
    """Return ids and log-probabilities if the server returned both (vLLM with `return_token_ids`).

    Returns None without ids. Raises an error if there are ids that cannot be read.
    """
    prompt = data.get("prompt_token_ids") or choice.get("prompt_token_ids")
    completion = choice.get("token_ids")
    if not prompt or not completion:
        return None
    entries = (choice.get("logprobs") or {}).get("content") or []
    logprobs = [entry["logprob"] for entry in entries]
    if len(logprobs) != len(completion):
        return None
    return TurnTokens(prompt_ids=prompt, completion_ids=completion, logprobs=logprobs)
