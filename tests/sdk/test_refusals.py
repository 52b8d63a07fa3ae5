"""What an endpoint's refusal means: too long, filtered, too fast, or something else."""

# ruff: noqa: E501 - the servers' own sentences

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wander.clients.http_errors import error_of
from wander.clients.transport import Answer
from wander.errors import ContentFiltered, ContextOverflow, ModelError, RateLimited

OVERFLOWS = [
    # OpenAI, Azure, OpenRouter, DeepSeek
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "This endpoint's maximum context length is 131072 tokens. However, you requested about 132463 tokens (1463 of "
    "text input, 131000 in the output). Please reduce the length of either one.",
    "Invalid 'messages[0].content': string too long. Expected a string with maximum length 1048576, but got a string "
    "with length 1540820 instead.",
    # vLLM, SGLang, TGI, TensorRT-LLM, llama.cpp, Ollama, LM Studio
    "max_tokens must be at least 1, got -17.",
    "max_completion_tokens must be at least 1, got 0.",
    "'max_tokens' or 'max_completion_tokens' is too large: 2000. This model's maximum context length is 4096 tokens "
    "and your request has 2104 input tokens (2000 > 4096 - 2104).",
    "The decoder prompt (length 5951) is longer than the maximum model length of 4096.",
    "Input length (265330) exceeds model's maximum context length (262144).",
    "Input length (265330 tokens) exceeds the maximum allowed length (262138 tokens).",
    "The input (140000 tokens) is longer than the model's context length (131072 tokens).",
    "Requested token count exceeds the model's maximum context length of 131072 tokens. You requested a total of "
    "140000 tokens: 100000 tokens from the input messages and 40000 tokens for the completion.",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 100 "
    "`max_new_tokens`",
    "Input validation error: `inputs` must have less than 1000 tokens. Given: 1600",
    "`max_new_tokens` must be strictly positive",
    "The sum of prompt length (9000), query length (0) should not exceed max_num_tokens (8192)",
    "the request exceeds the available context size, try increasing it",
    "context size has been exceeded",
    "Context size has been exceeded.",
    "prompt too long; exceeded max context length by 4096 tokens",
    "The number of tokens to keep from the initial prompt is greater than the context length.",
    "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with context "
    "length of only 4096 tokens, which is not enough.",
    "Prompt has 70,000 tokens, but the configured context size is 65,536 tokens",
    # Gemini, xAI, Anthropic and their bridges, Bedrock, Groq, Cerebras, Mistral, Cohere, Fireworks
    "The input token count (1048577) exceeds the maximum number of tokens allowed (1048576).",
    "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "prompt is too long: 213462 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "Input is too long for requested model.",
    "Please reduce the length of the messages or completion.",
    "Please reduce the length of the messages or completion. Current length is 8239 while limit is 8192",
    "Prompt contains 140000 tokens and 0 draft tokens, too large for model with 131072 maximum context length",
    "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292",
    "The prompt is too long: 5000, model maximum context length: 4096",
    "tokens in request more than max tokens allowed",
    # DashScope, GLM, Kimi, MiniMax, Volcengine, GitHub
    "Range of input length should be [1, 129024]",
    "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 202745]",
    "Prompt exceeds max length",
    "Prompt 超长",
    "输入长度超过模型上限",
    "Your request exceeded model token limit: 262144 (requested: 300000)",
    "Input token length too long",
    "invalid params, context window exceeds limit",
    "Total tokens of image and text exceed max message tokens.",
    "prompt token count of 130000 exceeds the limit of 128000",
    "Request body too large for gpt-4o model. Max size: 8000 tokens.",
    "Request has too many tokens",
    "token limit exceeded for this model",
    # Bedrock, Vertex, TabbyAPI
    "too many total text bytes: 130000 > 100000",
    "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input to try again.",
    "Malformed input request: expected maxLength: 2048, actual: 3000, please reformat your input and try again.",
    "Unable to submit request because the input token count is 40000 but model only supports up to 32768.",
    "Prompt length 5000 is greater than max_seq_len 4096",
]

RATES = [
    "Rate limit reached for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Used 29000, Requested "
    "5000. Please try again in 8s.",
    "Request too large for model `openai/gpt-oss-120b` in organization `org_x` service tier `on_demand` on tokens per "
    "minute (TPM): Limit 8000, Requested 50077, please reduce your message size and try again.",
    "Request too large for gpt-4o: Limit 30000, Requested 50000. The input or output tokens must be reduced in order "
    "to run successfully. (tokens per min)",
    "ThrottlingException: Too many tokens, please wait before trying again.",
    "Too many tokens per day, please wait before trying again.",
    "You exceeded your current quota, please check your plan and billing details.",
    "Requests rate limit exceeded, too many input tokens",
    "This request requires more credits, or fewer max_tokens. You requested up to 4096 tokens, but can only afford 12.",
    "The engine is currently overloaded: 300 prompts are longer than usual",
    "You have exceeded your daily token limit of 1000000 tokens",
    "token-limit exceeded: monthly usage limit of 5000000 tokens",
    "Too many concurrent requests: maximum 5 prompts, 12 given",
    "insufficient balance: the input of 5000 tokens exceeds it",
    "context deadline exceeded",
    "请求过于频繁, 输入 token 超过每分钟上限",
]

OTHERS = [
    "max_tokens is too large: 100000. This model supports at most 16384 completion tokens, whereas you provided "
    "100000.",
    "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens for claude",
    "Range of max_tokens should be [1, 8192]",
    "`max_tokens` must be greater than `thinking.budget_tokens`",
    "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64, but got a string "
    "with length 80 instead.",
    "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 8388608 bytes > 5242880 bytes",
    "Too many images in the messages: at most 10",
    "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported.",
    "Conversation roles must alternate user/assistant/user/assistant/...",
    "Missing `reasoning_content` field in the assistant message at message index 2.",
    "Tool argument validation failed: input length exceeds 1000 characters",
    "Unknown parameter: 'top_k'.",
    "temperature must be less than 2",
    "This model does not support image input",
    "",
]

FILTERS: list[tuple[int, dict[str, Any]]] = [
    (
        400,
        {
            "error": {
                "message": "The response was filtered due to the prompt triggering Azure OpenAI's content management "
                "policy. Please modify your prompt and retry.",
                "type": None,
                "param": "prompt",
                "code": "content_filter",
                "status": 400,
                "innererror": {"code": "ResponsibleAIPolicyViolation"},
            }
        },
    ),
    (400, {"error": {"message": "blocked", "innererror": {"code": "ResponsibleAIPolicyViolation"}}}),
    (400, {"error": {"code": "data_inspection_failed", "message": "Input data may contain inappropriate content."}}),
    (400, {"code": "DataInspectionFailed", "message": "Output data may contain inappropriate content."}),
    (400, {"error": {"type": "content_filter", "message": "The request was rejected because it was considered high "
                     "risk"}}),
    (400, {"error": {"code": "1301", "message": "系统检测到输入或生成内容可能包含不安全或敏感内容"}}),
    (400, {"error": {"message": "Content Exists Risk", "type": "invalid_request_error"}}),
    (400, {"error": {"code": "invalid_prompt", "message": "Invalid prompt: your prompt was flagged as potentially "
                     "violating our usage policy."}}),
    (400, {"type": "error", "error": {"type": "invalid_request_error", "message": "Output blocked by content "
                                      "filtering policy"}}),
    (403, {"error": {"code": 403, "message": "Your chosen model requires moderation and your input was flagged"}}),
    (403, {"code": "permission-denied", "error": "Content violates usage guidelines. Failed check: SAFETY_CHECK"}),
    (451, {"error": {"message": "the prompt has prohibited content"}}),
]  # fmt: skip


def of(status: int, body: Any) -> ModelError:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return error_of(Answer(status, {}, data), "http://x/v1", "m")


def bodies(text: str) -> list[Any]:
    """The shapes in which gateways wrap a sentence."""
    return [
        {"error": {"message": text, "type": "invalid_request_error", "code": None}},
        {"error": text, "error_type": "validation"},
        {"object": "error", "message": text, "type": "BadRequestError", "code": 400},
        {"detail": text},
        {"error": {"message": "Provider returned error", "metadata": {"raw": json.dumps({"error": text})}}},
        [{"error": {"code": 400, "message": text, "status": "INVALID_ARGUMENT"}}],
        text.encode(),
    ]


@pytest.mark.parametrize("text", OVERFLOWS)
@pytest.mark.parametrize("status", [400, 413, 422, 500])
def test_a_prompt_that_does_not_fit_is_recognized(text: str, status: int) -> None:
    for body in bodies(text):
        assert type(of(status, body)) is ContextOverflow, body


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"code": "context_length_exceeded", "message": "no"}},
        {
            "type": "error",
            "error": {"type": "request_too_large", "message": "Request exceeds the maximum size"},
        },
        {"error": {"type": "exceed_context_size_error", "n_ctx": 4096, "message": "no"}},
        {"error": {"code": "1261", "message": "no"}},
        {"error": {"code": "tokens_limit_reached", "message": "no"}},
    ],
)
def test_an_error_code_is_enough(body: Any) -> None:
    assert type(of(400, body)) is ContextOverflow


@pytest.mark.parametrize(
    "body", [b"", b"<html><h1>413 Request Entity Too Large</h1></html>", {"error": "no"}]
)
def test_a_too_large_request_is_an_overflow(body: Any) -> None:
    assert type(of(413, body)) is ContextOverflow


@pytest.mark.parametrize("text", RATES)
@pytest.mark.parametrize("status", [400, 402, 413, 422, 429, 500])
def test_a_limit_on_rate_or_money_is_not_an_overflow(text: str, status: int) -> None:
    for body in bodies(text):
        assert isinstance(of(status, body), ModelError)
        assert not isinstance(of(status, body), ContextOverflow | ContentFiltered), body


@pytest.mark.parametrize("text", OTHERS)
def test_other_request_errors_are_not_overflows_or_filters(text: str) -> None:
    for body in bodies(text):
        assert type(of(400, body)) is ModelError, body


@pytest.mark.parametrize(("status", "body"), FILTERS)
def test_a_filter_is_recognized(status: int, body: Any) -> None:
    assert type(of(status, body)) is ContentFiltered


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (401, "Your prompt was flagged"),
        (403, "Your API key was disabled for violations of our usage policies"),
        (403, "Your account is not allowed to use this model in your country: usage policy"),
        (403, "no access"),
    ],
)
def test_a_rejected_key_is_not_a_content_filter(status: int, text: str) -> None:
    assert not isinstance(of(status, {"error": {"message": text}}), ContentFiltered)


@given(
    rate=st.sampled_from(RATES),
    length=st.sampled_from(OVERFLOWS),
    order=st.booleans(),
    status=st.sampled_from([400, 422, 429, 500, 503]),
    glue=st.sampled_from([" ", ". ", "\n", " - ", '": "']),
    upper=st.booleans(),
)
def test_errors_about_rates_are_not_overflows(
    rate: str, length: str, order: bool, status: int, glue: str, upper: bool
) -> None:
    text = glue.join([rate, length] if order else [length, rate])
    error = of(status, {"error": {"message": text.upper() if upper else text}})
    assert not isinstance(error, ContextOverflow)


@given(
    text=st.sampled_from(OVERFLOWS),
    numbers=st.integers(1, 10**7),
    upper=st.booleans(),
    before=st.sampled_from(
        ["", "Error code: 400 - ", "BadRequestError: ", "litellm.BadRequestError: XaiException - "]
    ),
)
def test_numbers_case_and_wrappers_change_nothing(text: str, numbers: int, upper: bool, before: str) -> None:
    import re

    if "got" not in text:  # there the number is what is wrong
        text = re.sub(r"\d{3,}", f"{numbers:,}", text)
    error = of(400, {"error": {"message": before + (text.upper() if upper else text)}})
    assert type(error) is ContextOverflow


@given(st.text(max_size=300) | st.binary(max_size=300))
def test_any_error_body_is_handled(text: str | bytes) -> None:
    body = text if isinstance(text, bytes) else json.dumps({"error": {"message": text}}).encode()
    for status in (400, 401, 403, 404, 413, 429, 500):
        assert isinstance(error_of(Answer(status, {}, body), "http://x/v1", "m"), ModelError)


def test_rate_limit_errors_are_recognized() -> None:
    assert type(of(429, {"error": {"message": "prompt is too long: 5 tokens > 3 maximum"}})) is RateLimited
