"""The dialect of OpenAI's Chat Completions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from wander.endpoint.dialect import (
    Conversation,
    DialectRequest,
    Event,
    Part,
    Refused,
    freeform_arguments,
    freeform_input,
    image_part,
    object_of,
    objects_of,
    openai_error,
    refuse_fields,
    sampling_of,
    text_of,
    text_part,
    texts_of,
)
from wander.endpoint.values import EndpointReply
from wander.types import Message, SamplingArgs, Usage

_REFUSED = {
    "logprobs": "no log-probabilities are returned",
    "audio": "the model writes text",
    "functions": "use `tools`",
    "function_call": "use `tool_choice`",
    "web_search_options": "the model cannot search",
}
_PASSED_ON = (
    *("temperature", "top_p", "seed", "stop", "reasoning_effort", "verbosity"),
    *("presence_penalty", "frequency_penalty", "logit_bias"),
)


class ChatRequest(DialectRequest):
    """A request to `/v1/chat/completions`."""

    def _read_messages(self) -> list[Message]:
        refuse_fields(self.body, _REFUSED)
        if self.body.get("n") not in (None, 1):
            raise Refused("`n` must be 1: a call is a turn of a rollout", parameter="n")
        if self.body.get("modalities") not in (None, ["text"]):
            raise Refused("`modalities` must be `text`", parameter="modalities")
        for tool in objects_of(self.body.get("tools"), "tools"):
            self._add_tool(tool)
        conversation = Conversation()
        for message in objects_of(self.body.get("messages"), "messages"):
            _read_message(message, conversation)
        return conversation.finish()

    def _add_tool(self, tool: dict[str, Any]) -> None:
        if tool.get("type") == "custom":
            self.functions.add_freeform(object_of(tool.get("custom"), "tools.custom"))
            return
        if tool.get("type", "function") != "function":
            raise Refused(f"tools of type `{tool['type']}` are not supported", parameter="tools")
        function = object_of(tool.get("function"), "tools.function")
        self.functions.add(
            function.get("name"),
            function.get("description"),
            function.get("parameters"),
            strict=function.get("strict"),
        )

    def _read_sampling(self) -> SamplingArgs:
        body = self.body
        choice = body.get("tool_choice")
        if isinstance(choice, dict):
            kind = choice.get("type")
            if kind not in ("function", "custom"):
                raise Refused(f"`tool_choice` of type `{kind}` is not supported", parameter="tool_choice")
            choice = self.functions.choice(object_of(choice.get(kind), "tool_choice").get("name"))
        response_format = object_of(body.get("response_format") or {}, "response_format")
        return sampling_of(
            {
                **{name: body.get(name) for name in _PASSED_ON},
                "max_tokens": body.get("max_completion_tokens") or body.get("max_tokens"),
                "tool_choice": None if choice == "auto" else choice,
                "parallel_tool_calls": False if body.get("parallel_tool_calls") is False else None,
                "response_format": None if response_format.get("type", "text") == "text" else response_format,
            }
        )

    def response(self, reply: EndpointReply) -> dict[str, Any]:
        """Return a `ChatCompletion`."""
        choice = {"index": 0, "message": self._message(reply), "finish_reason": _finish_reason(reply)}
        return {
            **self._head("chat.completion"),
            "choices": [{**choice, "logprobs": None}],
            "usage": _usage(reply.usage),
        }

    def opening(self) -> list[Event]:
        """Return the first chunk, which has no text."""
        return [self._chunk({"role": "assistant", "content": ""})]

    def events(self, reply: EndpointReply) -> Iterator[Event]:
        """Yield the `ChatCompletionChunk`s of a reply. One of them contains the whole completion."""
        message = {name: value for name, value in self._message(reply).items() if name != "role"}
        if calls := message.pop("tool_calls", None):
            message["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
        yield self._chunk(message)
        yield self._chunk({}, _finish_reason(reply))
        if object_of(self.body.get("stream_options") or {}, "stream_options").get("include_usage"):
            head = self._head("chat.completion.chunk")
            yield Event(None, {**head, "choices": [], "usage": _usage(reply.usage)})
        yield Event(None, "[DONE]")

    @classmethod
    def error(cls, refused: Refused) -> dict[str, Any]:
        """Return an error in the format of OpenAI."""
        return openai_error(refused)

    def failure(self, refused: Refused) -> list[Event]:
        """Return an error in the stream, which OpenAI's clients raise."""
        return [Event(None, openai_error(refused))]

    def _head(self, kind: str) -> dict[str, Any]:
        created = int(time.time())
        return {
            "id": f"chatcmpl-{self.call_id}",
            "object": kind,
            "created": created,
            "model": self.call.model,
        }

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return Event(None, {**self._head("chat.completion.chunk"), "choices": [choice]})

    def _message(self, reply: EndpointReply) -> Message:
        message = reply.message or {}
        calls = [self._call(call) for call in message.get("tool_calls") or ()]
        text = message.get("content")
        written = {
            "role": "assistant",
            "content": text if text or not calls else None,
            "refusal": message.get("refusal"),
        }
        if calls:
            written["tool_calls"] = calls
        if reasoning := message.get("reasoning_content"):
            written["reasoning_content"] = reasoning
        return written

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        if function["name"] not in self.functions.freeform:
            return call
        custom = {"name": function["name"], "input": freeform_input(function["arguments"])}
        return {"id": call["id"], "type": "custom", "custom": custom}


def _read_message(message: dict[str, Any], conversation: Conversation) -> None:
    role, content = message.get("role"), message.get("content")
    if role in ("system", "developer"):
        conversation.add_system("\n\n".join(texts_of(_read_parts(content))))
    elif role == "user":
        conversation.add_user(_read_parts(content))
    elif role == "tool":
        conversation.add_result(message.get("tool_call_id"), _read_parts(content))
    elif role == "assistant":
        _read_assistant(message, conversation)
    else:
        raise Refused(f"messages with the role `{role}` are not supported", parameter="messages.role")


def _read_assistant(message: dict[str, Any], conversation: Conversation) -> None:
    conversation.begin_assistant()
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        conversation.add_reasoning(text_of(reasoning, "messages.reasoning_content"))
    conversation.add_text("".join(texts_of(_read_parts(message.get("content") or ""))))
    if refusal := message.get("refusal"):
        conversation.add_text(text_of(refusal, "messages.refusal"), "refusal")
    for call in objects_of(message.get("tool_calls"), "messages.tool_calls"):
        if call.get("type") == "custom":
            custom = object_of(call.get("custom"), "messages.tool_calls.custom")
            arguments = freeform_arguments(custom.get("input"))
            conversation.add_call(call.get("id"), custom.get("name"), arguments)
        else:
            function = object_of(call.get("function"), "messages.tool_calls.function")
            conversation.add_call(call.get("id"), function.get("name"), function.get("arguments"))


def _read_parts(content: Any) -> list[Part]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    parts = []
    for part in objects_of(content, "messages.content"):
        kind = part.get("type")
        if kind == "text":
            parts.append(text_part(part.get("text"), "messages.content.text"))
        elif kind == "refusal":
            parts.append(text_part(part.get("refusal"), "messages.content.refusal"))
        elif kind == "image_url":
            image = object_of(part.get("image_url"), "messages.content.image_url")
            parts.append(image_part(image.get("url"), image.get("detail")))
        else:
            raise Refused(f"content of type `{kind}` is not supported", parameter="messages.content")
    return parts


def _finish_reason(reply: EndpointReply) -> str:
    if reply.finish_reason == "stop" and (reply.message or {}).get("tool_calls"):
        return "tool_calls"
    return reply.finish_reason


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
