"""The dialect of Anthropic's Messages.

Reasoning is returned as thinking if the request asks for thinking. Calls whose arguments are not a JSON
object get the input `{"INVALID_JSON": TEXT}`, as Anthropic recommends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wander.endpoint.dialect import (
    Conversation,
    DialectRequest,
    Event,
    Part,
    Refused,
    argument_object,
    image_part,
    object_of,
    objects_of,
    refuse_fields,
    sampling_of,
    text_of,
    text_part,
    texts_of,
    to_json,
)
from wander.endpoint.values import EndpointReply
from wander.types import FILTERED, Message, SamplingArgs, Usage

_REFUSED = {
    "container": "no containers are rented",
    "mcp_servers": "the model cannot reach servers",
}
_ERRORS = {
    400: "invalid_request_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}
_INVALID = "INVALID_JSON"
_SIGNATURE = "wander"
_BILLING = "x-anthropic-billing-header:"
"""Start of a block of the system prompt that Claude Code adds for Anthropic's servers, not for the model."""
_BYTES_PER_TOKEN = 4
_STRING, _INTEGER = {"type": "string"}, {"type": "integer"}
_OWN_TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "bash": (
        "Run a command in a bash session that keeps its state, or restart the session.",
        {"command": _STRING, "restart": {"type": "boolean"}},
    ),
    "text_editor": (
        "View, create and edit text files.",
        {
            "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert"]},
            "path": _STRING,
            "view_range": {"type": "array", "items": _INTEGER},
            "file_text": _STRING,
            "old_str": _STRING,
            "new_str": _STRING,
            "insert_line": _INTEGER,
            "insert_text": _STRING,
        },
    ),
}
"""Description and arguments of Anthropic's tools that the program runs, by their type without its date."""


class MessagesRequest(DialectRequest):
    """A request to `/v1/messages`, or to `/v1/messages/count_tokens`."""

    def _read_messages(self) -> list[Message]:
        refuse_fields(self.body, _REFUSED)
        edits = object_of(self.body.get("context_management") or {}, "context_management").get("edits")
        for edit in objects_of(edits, "context_management.edits"):
            if not str(edit.get("type")).startswith("clear_thinking"):
                raise Refused(
                    f"the edit `{edit.get('type')}` is not supported: shorten the conversation yourself",
                    parameter="context_management.edits",
                )
        for tool in objects_of(self.body.get("tools"), "tools"):
            self._add_tool(tool)
        self.functions.require_some(self.body.get("tools"))
        conversation = Conversation()
        for text in texts_of(_read_blocks(self.body.get("system") or "")):
            if not text.startswith(_BILLING):
                conversation.add_system(text)
        for message in objects_of(self.body.get("messages"), "messages"):
            _read_message(message, conversation)
        return conversation.finish()

    def _add_tool(self, tool: dict[str, Any]) -> None:
        kind = tool.get("type") or "custom"
        known = _OWN_TOOLS.get(str(kind).rsplit("_", 1)[0])
        if kind == "custom":
            self.functions.add(tool.get("name"), tool.get("description"), tool.get("input_schema"))
        elif known is not None:
            description, properties = known
            self.functions.add(tool.get("name"), description, {"type": "object", "properties": properties})
        else:
            self.functions.left_out.append(str(kind))

    def _read_sampling(self) -> SamplingArgs:
        body = self.body
        output = object_of(body.get("output_config") or {}, "output_config")
        asked = object_of(output.get("format") or body.get("output_format") or {}, "output_config.format")
        schema = {"name": "output", "schema": asked.get("schema"), "strict": True}
        choice = object_of(body.get("tool_choice") or {}, "tool_choice")
        return sampling_of(
            {
                **{name: body.get(name) for name in ("temperature", "top_p", "top_k", "max_tokens")},
                "stop": body.get("stop_sequences"),
                "reasoning_effort": output.get("effort"),
                "response_format": {"type": "json_schema", "json_schema": schema} if asked else None,
                "tool_choice": self._tool_choice(choice),
                "parallel_tool_calls": False if choice.get("disable_parallel_tool_use") is True else None,
            }
        )

    def _tool_choice(self, choice: dict[str, Any]) -> Any:
        kind = choice.get("type", "auto")
        if kind == "tool":
            return self.functions.choice(choice.get("name"))
        known = {"auto": None, "any": "required", "none": "none"}
        if kind not in known:
            raise Refused(f"`tool_choice` of type `{kind}` is not supported", parameter="tool_choice")
        return known[kind]

    def response(self, reply: EndpointReply) -> dict[str, Any]:
        """Return a `Message`."""
        return {
            **self._head(),
            "content": self._blocks(reply),
            "stop_reason": _stop_reason(reply),
            "usage": _usage(reply.usage),
        }

    def count_tokens(self) -> dict[str, int]:
        """Return an estimate of the prompt's tokens, from its bytes."""
        text = to_json([self.call.messages, self.call.tools])
        return {"input_tokens": -(-len(text.encode()) // _BYTES_PER_TOKEN)}

    def opening(self) -> list[Event]:
        """Return `message_start`, with a usage of zero; `message_delta` has the real one."""
        message = {**self._head(), "content": [], "stop_reason": None, "usage": _usage(Usage())}
        return [_event("message_start", message=message)]

    def keep_alive(self) -> bytes:
        """Return `ping`."""
        return _event("ping").encode()

    def events(self, reply: EndpointReply) -> Iterator[Event]:
        """Yield the events of each content block, then `message_delta` and `message_stop`."""
        for index, block in enumerate(self._blocks(reply)):
            started, deltas = _in_deltas(block)
            yield _event("content_block_start", index=index, content_block=started)
            for delta in deltas:
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        delta = {"stop_reason": _stop_reason(reply), "stop_sequence": None}
        yield _event("message_delta", delta=delta, usage=_usage(reply.usage))
        yield _event("message_stop")

    @classmethod
    def error(cls, refused: Refused) -> dict[str, Any]:
        """Return an error in the format of Anthropic."""
        # Programs recognize a conversation that is too long by these words.
        message = f"prompt is too long: {refused}" if refused.overflow else str(refused)
        return {
            "type": "error",
            "error": {"type": _ERRORS.get(refused.status, "api_error"), "message": message},
            "request_id": None,
        }

    def failure(self, refused: Refused) -> list[Event]:
        """Return an `error` event."""
        return [Event("error", self.error(refused))]

    def _head(self) -> dict[str, Any]:
        return {
            "id": f"msg_{self.call_id}",
            "type": "message",
            "role": "assistant",
            "model": self.call.model,
            "stop_sequence": None,
        }

    def _blocks(self, reply: EndpointReply) -> list[dict[str, Any]]:
        message = reply.message or {}
        blocks: list[dict[str, Any]] = []
        thinks = object_of(self.body.get("thinking") or {}, "thinking").get("type") in ("enabled", "adaptive")
        if thinks and (reasoning := message.get("reasoning_content")):
            blocks.append({"type": "thinking", "thinking": reasoning, "signature": _SIGNATURE})
        if text := message.get("content") or message.get("refusal"):
            blocks.append({"type": "text", "text": text, "citations": None})
        for call in message.get("tool_calls") or ():
            function = call["function"]
            arguments = argument_object(function["arguments"])
            if arguments is None:
                arguments = {_INVALID: function["arguments"]}
            blocks.append(
                {"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments}
            )
        return blocks


def _read_message(message: dict[str, Any], conversation: Conversation) -> None:
    role, content = message.get("role"), message.get("content")
    if role == "system":
        conversation.add_system("\n\n".join(texts_of(_read_blocks(content))))
    elif role == "user":
        _read_user(content, conversation)
    elif role == "assistant":
        _read_assistant(content, conversation)
    else:
        raise Refused(f"messages with the role `{role}` are not supported", parameter="messages.role")


def _read_user(content: Any, conversation: Conversation) -> None:
    parts: list[Part] = []
    for block in _blocks_of(content):
        if block.get("type") == "tool_result":
            failed = block.get("is_error") is True
            conversation.add_result(
                block.get("tool_use_id"), _read_blocks(block.get("content") or ""), failed=failed
            )
        else:
            parts += _read_block(block)
    if parts:
        conversation.add_user(parts)


def _read_assistant(content: Any, conversation: Conversation) -> None:
    for block in _blocks_of(content):
        kind = block.get("type")
        if kind == "thinking":
            conversation.add_reasoning(text_of(block.get("thinking"), "messages.content.thinking"))
        elif kind == "tool_use":
            arguments = object_of(block.get("input"), "messages.content.input")
            invalid = arguments.get(_INVALID)
            text = invalid if isinstance(invalid, str) and len(arguments) == 1 else to_json(arguments)
            conversation.add_call(block.get("id"), block.get("name"), text)
        elif kind == "text":
            conversation.add_text(text_of(block.get("text"), "messages.content.text"))
        elif kind != "redacted_thinking":
            raise Refused(f"content of type `{kind}` is not supported", parameter="messages.content")


def _blocks_of(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return objects_of(content, "messages.content")


def _read_blocks(content: Any) -> list[Part]:
    return [part for block in _blocks_of(content) for part in _read_block(block)]


def _read_block(block: dict[str, Any]) -> list[Part]:
    """Return a content block as content parts."""
    kind = block.get("type")
    if kind == "text":
        return [text_part(block.get("text"), "messages.content.text")]
    source = object_of(block.get("source") or {}, "messages.content.source")
    if kind == "image" and source.get("type") == "base64":
        media_type = text_of(source.get("media_type"), "messages.content.source.media_type")
        data = text_of(source.get("data"), "messages.content.source.data")
        return [image_part(f"data:{media_type};base64,{data}")]
    if kind == "image" and source.get("type") == "url":
        return [image_part(source.get("url"))]
    if kind == "document" and source.get("type") == "text":
        return [text_part(source.get("data"), "messages.content.source.data")]
    if kind == "document" and source.get("type") == "content":
        return _read_blocks(source.get("content"))
    if kind == "search_result":
        return _read_blocks(block.get("content"))
    named = f"{kind} ({source['type']})" if source.get("type") else kind
    raise Refused(f"content of type `{named}` is not supported", parameter="messages.content")


def _in_deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a content block without its content, and the events that add it."""
    if block["type"] == "thinking":
        return {**block, "thinking": "", "signature": ""}, [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": to_json(block["input"])}]


def _stop_reason(reply: EndpointReply) -> str:
    message = reply.message or {}
    if message.get("refusal") or reply.finish_reason == FILTERED:
        return "refusal"
    if reply.finish_reason == "length":
        return "max_tokens"
    return "tool_use" if message.get("tool_calls") else "end_turn"


def _event(kind: str, **fields: Any) -> Event:
    return Event(kind, {"type": kind, **fields})


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
    }
