"""The dialect of OpenAI's Responses. Nothing is stored: each request has the whole conversation.

A reply becomes the items `reasoning`, `message` and one for each call, in this order. The reasoning is sent
as a summary.
"""

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
from wander.types import FILTERED, Message, SamplingArgs, Usage

_REFUSED = {
    "previous_response_id": "no responses are stored, so send the whole conversation as `input`",
    "conversation": "no conversations are stored, so send the whole conversation as `input`",
    "background": "the response is only sent to the request",
    "prompt": "no prompts are stored",
    "top_logprobs": "no log-probabilities are returned",
}


class ResponsesRequest(DialectRequest):
    """A request to `/v1/responses`."""

    def __init__(self, body: dict[str, Any], call_id: str) -> None:
        self._sequence = -1
        super().__init__(body, call_id)

    def _read_messages(self) -> list[Message]:
        refuse_fields(self.body, _REFUSED)
        self._read_tools(self.body.get("tools"))
        conversation = Conversation()
        conversation.add_system(text_of(self.body.get("instructions") or "", "instructions"))
        given = self.body.get("input")
        if isinstance(given, str):
            conversation.add_user([text_part(given, "input")])
        else:
            for item in objects_of(given, "input"):
                self._read_item(item, conversation)
        self.functions.require_some(self.body.get("tools"))
        return conversation.finish()

    def _read_tools(self, tools: Any, namespace: str = "") -> None:
        for tool in objects_of(tools, "tools"):
            kind = tool.get("type")
            if kind == "function":
                self.functions.add(
                    tool.get("name"),
                    tool.get("description"),
                    tool.get("parameters"),
                    strict=tool.get("strict"),
                    namespace=namespace,
                )
            elif kind == "custom":
                self.functions.add_freeform(tool)
            elif kind == "namespace" and not namespace:
                self._read_tools(tool.get("tools"), text_of(tool.get("name"), "tools.name"))
            else:
                self.functions.left_out.append(str(kind))

    def _read_item(self, item: dict[str, Any], conversation: Conversation) -> None:
        kind = item.get("type", "message")
        if kind == "message":
            _read_message(item, conversation)
        elif kind == "reasoning":
            conversation.add_reasoning(_reasoning(item))
        elif kind == "function_call":
            name = item.get("name")
            if item.get("namespace"):
                name = f"{item['namespace']}__{name}"
            conversation.add_call(item.get("call_id"), name, item.get("arguments"))
        elif kind == "custom_tool_call":
            conversation.add_call(
                item.get("call_id"), item.get("name"), freeform_arguments(item.get("input"))
            )
        elif kind in ("function_call_output", "custom_tool_call_output"):
            conversation.add_result(item.get("call_id"), _read_parts(item.get("output")))
        elif kind == "additional_tools":
            self._read_tools(item.get("tools"))
        else:
            raise Refused(f"items of type `{kind}` are not supported", parameter="input")

    def _read_sampling(self) -> SamplingArgs:
        body = self.body
        return sampling_of(
            {
                "temperature": body.get("temperature"),
                "top_p": body.get("top_p"),
                "max_tokens": body.get("max_output_tokens"),
                "reasoning_effort": object_of(body.get("reasoning") or {}, "reasoning").get("effort"),
                "verbosity": object_of(body.get("text") or {}, "text").get("verbosity"),
                "response_format": self._response_format(),
                "tool_choice": self._tool_choice(),
                "parallel_tool_calls": False if body.get("parallel_tool_calls") is False else None,
            }
        )

    def _response_format(self) -> dict[str, Any] | None:
        asked = object_of(object_of(self.body.get("text") or {}, "text").get("format") or {}, "text.format")
        kind = asked.get("type", "text")
        if kind == "text":
            return None
        if kind != "json_schema":
            return asked
        return {
            "type": kind,
            "json_schema": {name: value for name, value in asked.items() if name != "type"},
        }

    def _tool_choice(self) -> Any:
        choice = self.body.get("tool_choice")
        if not isinstance(choice, dict):
            return None if choice == "auto" else choice
        if choice.get("type") not in ("function", "custom"):
            raise Refused(
                f"`tool_choice` of type `{choice.get('type')}` is not supported", parameter="tool_choice"
            )
        return self.functions.choice(choice.get("name"))

    def response(self, reply: EndpointReply) -> dict[str, Any]:
        """Return a `Response`."""
        return self._response([item for item, _ in self._items(reply)], reply)

    def opening(self) -> list[Event]:
        """Return `response.created` and `response.in_progress`."""
        head = self._response([])
        return [self._event("response.created", response=head), self._in_progress(head)]

    def keep_alive(self) -> bytes:
        """Return `response.in_progress`, because some clients do not count comments as a sign of life."""
        return self._in_progress(self._response([])).encode()

    def events(self, reply: EndpointReply) -> Iterator[Event]:
        """Yield the events of each item, then `response.completed` or `response.incomplete`."""
        items = self._items(reply)
        for index, (item, started) in enumerate(items):
            yield self._event("response.output_item.added", output_index=index, item=started)
            yield from self._item_events(index, item)
            yield self._event("response.output_item.done", output_index=index, item=item)
        response = self._response([item for item, _ in items], reply)
        yield self._event(f"response.{response['status']}", response=response)

    @classmethod
    def error(cls, refused: Refused) -> dict[str, Any]:
        """Return an error in the format of OpenAI."""
        return openai_error(refused)

    def failure(self, refused: Refused) -> list[Event]:
        """Return `response.failed`."""
        code = "context_length_exceeded" if refused.overflow else "invalid_prompt"
        failed = {
            **self._response([]),
            "status": "failed",
            "error": {"code": code, "message": str(refused)},
        }
        return [self._event("response.failed", response=failed)]

    def _in_progress(self, response: dict[str, Any]) -> Event:
        return self._event("response.in_progress", response=response)

    def _event(self, kind: str, **fields: Any) -> Event:
        self._sequence += 1
        return Event(kind, {"type": kind, "sequence_number": self._sequence, **fields})

    def _response(self, output: list[dict[str, Any]], reply: EndpointReply | None = None) -> dict[str, Any]:
        cut = {"length": "max_output_tokens", FILTERED: FILTERED}.get(reply.finish_reason if reply else "")
        status = "in_progress" if reply is None else "incomplete" if cut else "completed"
        sampling = self.call.sampling
        return {
            "id": f"resp_{self.call_id}",
            "object": "response",
            "created_at": int(time.time()),
            "status": status,
            "error": None,
            "incomplete_details": {"reason": cut} if cut else None,
            "instructions": self.body.get("instructions"),
            "max_output_tokens": sampling.max_tokens,
            "metadata": self.body.get("metadata") or {},
            "model": self.call.model,
            "output": output,
            "parallel_tool_calls": self.body.get("parallel_tool_calls") is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": sampling.temperature,
            "tool_choice": self.body.get("tool_choice") or "auto",
            "tools": self.body.get("tools") or [],
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None if reply is None else _usage(reply.usage),
        }

    def _items(self, reply: EndpointReply) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return the items of a reply, each with its form before its text is sent."""
        message = reply.message or {}
        items: list[tuple[dict[str, Any], dict[str, Any]]] = []
        if reasoning := message.get("reasoning_content"):
            item = {"id": f"rs_{self.call_id}", "type": "reasoning", "summary": []}
            items.append(({**item, "summary": [{"type": "summary_text", "text": reasoning}]}, item))
        content: list[dict[str, Any]] = []
        if text := message.get("content"):
            content.append(_output_text(text))
        if refusal := message.get("refusal"):
            content.append({"type": "refusal", "refusal": refusal})
        calls = message.get("tool_calls") or []
        if content or not calls:
            item = {"id": f"msg_{self.call_id}", "type": "message", "role": "assistant", "content": []}
            written = {**item, "status": "completed", "content": content or [_output_text("")]}
            items.append((written, {**item, "status": "in_progress"}))
        for index, call in enumerate(calls):
            items.append(self._call_item(call, index))
        return items

    def _call_item(self, call: dict[str, Any], index: int) -> tuple[dict[str, Any], dict[str, Any]]:
        function = call["function"]
        item = {"id": f"fc_{self.call_id}_{index}", "call_id": call["id"], "name": function["name"]}
        if function["name"] in self.functions.freeform:
            item["type"] = "custom_tool_call"
            return {**item, "input": freeform_input(function["arguments"])}, {**item, "input": ""}
        item["type"] = "function_call"
        if function["name"] in self.functions.namespaces:
            item["namespace"], item["name"] = self.functions.namespaces[function["name"]]
        return (
            {**item, "arguments": function["arguments"], "status": "completed"},
            {**item, "arguments": "", "status": "in_progress"},
        )

    def _item_events(self, index: int, item: dict[str, Any]) -> Iterator[Event]:
        place = {"item_id": item["id"], "output_index": index}
        if item["type"] == "reasoning":
            part, name, place["summary_index"] = item["summary"][0], "response.reasoning_summary", 0
            empty = {**part, "text": ""}
            yield self._event(f"{name}_part.added", **place, part=empty)
            yield self._event(f"{name}_text.delta", **place, delta=part["text"])
            yield self._event(f"{name}_text.done", **place, text=part["text"])
            yield self._event(f"{name}_part.done", **place, part=part)
        elif item["type"] == "message":
            for number, part in enumerate(item["content"]):
                yield from self._part_events({**place, "content_index": number}, part)
        elif item["type"] == "function_call":
            name = "response.function_call_arguments"
            yield self._event(f"{name}.delta", **place, delta=item["arguments"])
            yield self._event(f"{name}.done", **place, name=item["name"], arguments=item["arguments"])
        else:
            name = "response.custom_tool_call_input"
            yield self._event(f"{name}.delta", **place, delta=item["input"])
            yield self._event(f"{name}.done", **place, input=item["input"])

    def _part_events(self, place: dict[str, Any], part: dict[str, Any]) -> Iterator[Event]:
        field = "text" if part["type"] == "output_text" else "refusal"
        more: dict[str, Any] = {"logprobs": []} if field == "text" else {}
        yield self._event("response.content_part.added", **place, part={**part, field: ""})
        yield self._event(f"response.{part['type']}.delta", **place, delta=part[field], **more)
        yield self._event(f"response.{part['type']}.done", **place, **{field: part[field]}, **more)
        yield self._event("response.content_part.done", **place, part=part)


def _read_message(item: dict[str, Any], conversation: Conversation) -> None:
    role, parts = item.get("role"), _read_parts(item.get("content"))
    if role in ("system", "developer"):
        conversation.add_system("\n\n".join(texts_of(parts)))
    elif role == "user":
        conversation.add_user(parts)
    elif role == "assistant":
        conversation.add_text("".join(texts_of(parts)))
    else:
        raise Refused(f"messages with the role `{role}` are not supported", parameter="input.role")


def _read_parts(content: Any) -> list[Part]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    parts = []
    for part in objects_of(content, "input.content"):
        kind = part.get("type")
        if kind in ("input_text", "output_text", "text"):
            parts.append(text_part(part.get("text"), "input.content.text"))
        elif kind == "refusal":
            parts.append(text_part(part.get("refusal"), "input.content.refusal"))
        elif kind == "input_image" and part.get("image_url"):
            parts.append(image_part(part["image_url"], part.get("detail")))
        else:
            raise Refused(f"content of type `{kind}` is not supported", parameter="input.content")
    return parts


def _reasoning(item: dict[str, Any]) -> str:
    parts = objects_of(item.get("content") or item.get("summary"), "input.summary")
    return "\n\n".join(text_of(part.get("text"), "input.summary.text") for part in parts)


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
