"""Conversion of an endpoint's error responses to `ModelError`."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from pydantic_core import from_json

from wander.clients.transport import Answer, retry_after, without_credentials
from wander.errors import (
    AuthenticationFailed,
    ContentFiltered,
    ContextOverflow,
    InvalidResponse,
    ModelError,
    ModelNotFound,
    RateLimited,
    did_you_mean,
)

_SHOWN = 300
_READ, _DEEPEST, _ITEMS, _LEAVES = 4000, 6, 8, 200
"""Limits for reading an error: characters of a text, levels, items of a list, and values."""
_LISTED = 8
"""Maximum number of models that an error lists."""

_OVERFLOW_CODES = frozenset(
    {
        "context_length_exceeded",  # OpenAI, Azure, Groq, Cerebras
        "context_window_exceeded",
        "exceed_context_size_error",  # llama.cpp
        "model_context_window_exceeded",  # Anthropic, GLM
        "model_max_prompt_tokens_exceeded",  # GitHub Copilot
        "prompt_too_long",
        "request_too_large",  # Anthropic, Groq
        "tokens_limit_reached",  # GitHub Models
        "contextwindowexceedederror",  # LiteLLM
        "1261",  # GLM
    }
)
_RATE_CODES = frozenset(
    {
        "insufficient_quota",
        "rate_limit_error",
        "rate_limit_exceeded",
        "resource_exhausted",
        "throttling",
        "throttlingexception",
        "throttling_error",
        "too_many_requests",
    }
)
_FILTER_CODES = frozenset(
    {
        "content_blocked",
        "content_filter",  # Azure, Moonshot
        "content_filtered",
        "content_policy_violation",  # OpenAI
        "contentpolicyviolationerror",  # LiteLLM
        "data_inspection_failed",  # DashScope
        "datainspectionfailed",
        "moderation_blocked",
        "responsibleaipolicyviolation",  # Azure
        "safety_violation",
        "sensitivecontentdetected",  # Volcengine
        "inputtextsensitivecontentdetected",
        "outputtextsensitivecontentdetected",
        "1301",  # GLM
        "1026",  # MiniMax, the prompt
        "1027",  # MiniMax, the answer
    }
)

_RATE = (
    r"rate ?limit|too many (concurrent )?requests|\b[rt]p[mdsh]\b|requests per|concurren"
    r"|\bper (s|sec|second|m|min|minute|h|hour|d|day|week|month)\b|\b(daily|hourly|weekly|monthly)\b"
    r"|quota|throttl|try again (in|later|after)|retry (after|in|later|your)\b|please wait|slow down"
    r"|overload|(at|over) capacity|exhausted"
    r"|usage limit|spending|billing|balance|credits?\b|deadline|timed? ?out"
    r"|限流|频繁|频率|速率|并发|余额|配额|稍后"
)
"""Pattern of messages about limits on rate, money or time. Such a refusal is not about the prompt's
length."""
_ABOUT_CONVERSATION = (
    r"\b(context|prompts?|inputs?|messages?|conversation|history|request|text|sequence|tokens?)\b"
    r"|上下文|输入|提示|对话"
)
_ABOUT_LENGTH = r"token|length|long|large|size|context|bytes|characters|长"
_EXCESS = (
    r"exceed|overflow|beyond|too (long|large|big|many)|(longer|greater|larger|bigger|more|less) than"
    r"|over (the|its)|not (fit|enough)|(must|should) be <|max ?length|reduce|shorten|超|过长"
)
_ABOUT_CONTEXT = (
    r"\b(context|prompt|input|sequence|model) (length|window|size|limit)\b|\btoken (limit|count)\b"
)
_LIMIT = rf"{_EXCESS}|max|limit|only|should be|full|\d"
_NO_ROOM = (
    r"\bmax (new |completion |output )*tokens\b.*"
    r"((at least|greater than( or equal to)?|>=?) ?[01]\b|positive|(got|given|was) -\d)"
)
"""Pattern of complaints by vLLM and TGI, which subtract the prompt from the context and report the
remainder."""
_OUTPUT = r"\b(max|maximum)? ?(new|completion|output) tokens\b|\bmax tokens\b"
_CONVERSATION = r"\b(context|prompts?|inputs?|messages?|conversation|total|in (the )?request)\b"
_OTHER_LIMITS = (
    r"\b(images?|files?|audio|video|pdf|tools?|functions?|schema|stop|metadata|headers?|url|attachments?"
    r"|name|id|description)\b"
)
"""Pattern of parts of a request that have their own limits."""

_FILTER = (
    r"content (management|usage)? ?(policy|policies|filter\w*)|usage (policy|policies|guidelines)"
    r"|inappropriate content|(was|were|been|is|are) (flagged|filtered)|considered high risk"
    r"|content exists risk|sensitive content|new sensitive|harmful content|prohibited content"
    r"|safety (system|filter|check|polic)\w*|responsible ai|blocked by (the |our )?(safety|content|guardrail)"
    r"|敏感|违规|不安全|风险"
)
_CODE_FIELDS = frozenset({"code", "type", "status", "status_code", "error_type", "reason"})
_ECHOES = frozenset({"input", "body", "request", "prompt", "messages"})
"""Fields that repeat the request, so they contain the user's text instead of the validator's error."""
_INPUT = r"\b(content|input|output|prompt|messages?|response|completion)\b|内容|输入|输出"
_ACCOUNT = r"\b(api key|account|organi[sz]ation|region|country|subscription)\b"


def error_of(answer: Answer, base_url: str, model: str) -> ModelError:
    """Return the error for a response with a status other than 200."""
    said = complaint(answer)
    status = answer.status
    kind = kind_of_refusal(status, _read(answer.body))
    if kind == "overflow":
        return ContextOverflow(f"the prompt does not fit the context of `{model}`: {said}")
    if kind == "filter":
        return ContentFiltered(f"`{base_url}` filtered the conversation ({status}): {said}")
    if status in (401, 403):
        return AuthenticationFailed(
            f"`{base_url}` rejected the API key ({status}): {said}",
            hint="set `OPENAI_API_KEY` to a key that this endpoint accepts",
        )
    if status == 429:
        asked = retry_after(answer.headers)
        wait = f" and asked to wait {asked:.3g} s" if asked else ""
        return RateLimited(
            f"`{base_url}` rejected the call because of its rate limit (429){wait}: {said}",
            hint="wait until the limit is reset, then resume",
            retryable="insufficient_quota" not in said,
        )
    if 300 <= status < 400:
        target = without_credentials(answer.headers.get("location") or "")
        return InvalidResponse(
            f"`{base_url}` redirects to another address ({status}): `{target}`",
            hint="use that address as the base URL, without `/chat/completions`",
        )
    if status in (404, 405):
        return ModelError(
            f"`{base_url}` does not have the model `{model}`, or is not a chat endpoint ({status}): {said}",
            hint=f"list its models with `curl {base_url}/models`; the base URL usually ends in `/v1`",
        )
    return ModelError(
        f"`{base_url}` answered {status}: {said}", retryable=status >= 500 or status in (408, 409, 425)
    )


def kind_of_refusal(status: int, body: Any) -> str | None:
    """Return `overflow` or `filter` if the conversation itself is the problem, else None.

    The codes and types in the body are checked first, then its text. A limit on rate or money is recognized
    before a limit on length, so that it is never mistaken for an overflow.
    """
    if status in (401, 402, 429) or 300 <= status < 400:
        return None
    if isinstance(body, bytes):
        body = body.decode("utf-8", "replace")
    leaves = list(islice(_leaves(body), _LEAVES))
    codes = {text.lower() for name, text in leaves if name in _CODE_FIELDS}
    text = _normalized(" ".join(text for _, text in leaves))
    if codes & _FILTER_CODES:
        return "filter"
    if codes & _RATE_CODES or re.search(_RATE, text):
        return None
    if status in (400, 403, 422, 451) and re.search(_FILTER, text) and re.search(_INPUT, text):
        return None if re.search(_ACCOUNT, text) else "filter"
    if status in (403, 404, 405):
        return None
    if codes & _OVERFLOW_CODES or status == 413 or re.search(_NO_ROOM, text):
        return "overflow"
    if re.search(_OUTPUT, text) and not re.search(_CONVERSATION, re.sub(_OUTPUT, " ", text)):
        return None  # the request asked for more output than the model can write
    if re.search(_OTHER_LIMITS, text) and not re.search(r"\b(tokens?|context)\b", text):
        return None
    too_long = (
        re.search(_ABOUT_CONVERSATION, text) and re.search(_ABOUT_LENGTH, text) and re.search(_EXCESS, text)
    )
    return "overflow" if too_long or (re.search(_ABOUT_CONTEXT, text) and re.search(_LIMIT, text)) else None


def _leaves(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the texts and numbers in an error with their field names, including errors nested as JSON
    text."""
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        with suppress(ValueError):
            value = from_json(value)
    if isinstance(value, str | int):
        yield name, str(value)[:_READ]
    elif depth == _DEEPEST:
        return
    elif isinstance(value, dict):
        for field, item in value.items():
            if field not in _ECHOES:
                yield from _leaves(item, str(field), depth + 1)
    elif isinstance(value, list):
        for item in value[:_ITEMS]:
            yield from _leaves(item, name, depth + 1)


def _normalized(text: str) -> str:
    """Return a text in lower case, with spaces in place of quotes, brackets and underscores."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text.lower())
    text = re.sub(r"(?<=[a-z])-(?=[a-z])|[^\w<>=.;,+-]|_", " ", text)
    return re.sub(r"\b(invalid|bad) request( error)?\b", "", " ".join(text.split()))


def list_models(answer: Answer) -> list[str]:
    """Return the names in an endpoint's list of models; empty if the response is not such a list."""
    if answer.status != 200:
        return []
    try:
        return [str(entry["id"]) for entry in from_json(answer.body)["data"]]
    except (ValueError, KeyError, TypeError):
        return []


def lacks_model(answer: Answer, model: str) -> bool:
    """Return whether a response means that the endpoint does not have the model."""
    return answer.status == 404 or (answer.status in (400, 422) and model in complaint(answer))


def refuse_unlisted(model: str, listed: list[str], base_url: str) -> ModelNotFound:
    """Return the error for a model that an endpoint does not list, with suggestions."""
    whole = next((f"did you mean `{name}`?" for name in listed if name.rpartition("/")[2] == model), None)
    meant = f"{near} " if (near := whole or did_you_mean(model, listed)) else ""
    shown = ", ".join(f"`{name}`" for name in listed[:_LISTED]) + (", ..." if len(listed) > _LISTED else "")
    return ModelNotFound(f"`{base_url}` has no model `{model}`", hint=f"{meant}it has {shown}")


def complaint(answer: Answer) -> str:
    """Return the endpoint's error message on a single line."""
    data = _read(answer.body)
    if isinstance(data, bytes):
        return _show(data)
    error = data.get("error", data) if isinstance(data, dict) else data
    return one_line(error)


def one_line(error: Any) -> str:
    """Return the message of an error object on a single line."""
    if isinstance(error, dict):
        said = error.get("message") or error.get("detail") or error
        code = error.get("code") or error.get("type")
        error = f"{said} ({code})" if isinstance(code, str) and code not in str(said) else said
    return _line(str(error))


def page_text(body: bytes) -> str | None:
    """Return the text of a web page; None for any other body."""
    return _show(body) if body[:200].lstrip().lower().startswith((b"<!doctype", b"<html")) else None


def _read(body: bytes) -> Any:
    """Return a body's JSON value, or the body if it is not JSON."""
    try:
        return from_json(body)
    except ValueError:
        return body


def _show(body: bytes) -> str:
    text = body[:4000].decode("utf-8", "replace")
    if "<html" in text.lower() or "<!doctype" in text.lower():
        text = html.unescape(re.sub(r"(?s)<(script|style).*?</\1>|<[^>]+>", " ", text))
    return _line(text) or "an empty body"


def _line(text: str) -> str:
    line = " ".join(text.split())
    line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "..."
