"""The common parts of the dialects: a request and its translation, and the assembly of a conversation.

A request is translated to the chat format (`EndpointCall`), and the reply to it is translated back. Both are
pure. Translations keep texts and the arguments of calls unchanged, so that a conversation that the program
sends back can be recognized as the continuation of an earlier one.

Unknown fields are ignored. A known field that asks for something that a rollout cannot do is refused.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from wander.endpoint.values import EndpointCall, EndpointReply
from wander.types import Message, SamplingArgs, first_fault

Part = dict[str, Any]
"""Content part in the chat format: a text or an image."""


class Refused(Exception):
    """Raised for a request that is not answered with a completion."""

    def __init__(
        self, message: str, *, status: int = 400, parameter: str | None = None, overflow: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.parameter = parameter
        """Path of the invalid field, if any."""
        self.overflow = overflow
        """Whether the conversation is too long for the model. Programs may then shorten it."""

    @classmethod
    def by(cls, reply: EndpointReply) -> Refused:
        """Return the refusal of a reply. Status 403 is not retried by any known client."""
        return cls(reply.refusal or "", status=400 if reply.overflow else 403, overflow=reply.overflow)


class Event(NamedTuple):
    """A server-sent event."""

    name: str | None
    data: Any
    """JSON value, or a text that is sent unchanged."""

    def encode(self) -> bytes:
        """Return the bytes to send."""
        text = self.data if isinstance(self.data, str) else to_json(self.data)
        name = f"event: {self.name}\n" if self.name else ""
        return f"{name}data: {text}\n\n".encode()


class DialectRequest(ABC):
    """A program's model call in one dialect. Raises `Refused` for a request that cannot be answered."""

    def __init__(self, body: dict[str, Any], call_id: str) -> None:
        self.body = body
        self.call_id = call_id
        self.streams = body.get("stream") is True
        self.functions = Functions()
        self.call = EndpointCall(
            call_id=call_id,
            model=text_of(body.get("model", ""), "model"),
            messages=self._read_messages(),
            tools=self.functions.schemas or None,
            sampling=self._read_sampling(),
        )

    @abstractmethod
    def _read_messages(self) -> list[Message]:
        """Return the conversation in the chat format, and add the tools to `functions`."""

    @abstractmethod
    def _read_sampling(self) -> SamplingArgs: ...

    @abstractmethod
    def response(self, reply: EndpointReply) -> dict[str, Any]:
        """Return the body of the response, without streaming."""

    @abstractmethod
    def opening(self) -> list[Event]:
        """Return the events that are sent before the completion is known."""

    def keep_alive(self) -> bytes:
        """Return what is sent from time to time while the model works."""
        return b": the model is working\n\n"

    @abstractmethod
    def events(self, reply: EndpointReply) -> Iterator[Event]:
        """Yield the events of a completion, after those of `opening`."""

    @classmethod
    @abstractmethod
    def error(cls, refused: Refused) -> dict[str, Any]:
        """Return the body of an error response."""

    @abstractmethod
    def failure(self, refused: Refused) -> list[Event]:
        """Return the events of an error after `opening`."""


class Functions:
    """The tools of a request as function schemas, with their names in the dialect."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.freeform: set[str] = set()
        """Names of tools whose input is a text. The model calls them with the argument `input`."""
        self.namespaces: dict[str, tuple[str, str]] = {}
        """Namespace and name of functions that are part of a namespace."""
        self.left_out: list[str] = []
        """Tools that the API's own servers would run, so that the model is not shown them."""

    def add(
        self, name: Any, description: Any, parameters: Any, *, strict: Any = None, namespace: str = ""
    ) -> None:
        """Add a function."""
        name = text_of(name, "tools.name")
        if namespace:
            self.namespaces[f"{namespace}__{name}"] = namespace, name
            name = f"{namespace}__{name}"
        function: dict[str, Any] = {"name": name}
        if description:
            function["description"] = text_of(description, "tools.description")
        function["parameters"] = object_of(parameters or {"type": "object", "properties": {}}, "tools")
        if strict is True:
            function["strict"] = True
        self.schemas.append({"type": "function", "function": function})

    def add_freeform(self, tool: dict[str, Any]) -> None:
        """Add a tool whose input is a text, as a function with the argument `input`."""
        description = text_of(tool.get("description") or "", "tools.description")
        grammar = object_of(tool.get("format") or {}, "tools.format")
        grammar = grammar.get("grammar") or grammar
        if grammar.get("definition"):
            syntax = grammar.get("syntax", "lark")
            description = f"{description}\n\n`input` has this {syntax} grammar:\n{grammar['definition']}"
        properties = {"input": {"type": "string"}}
        self.add(
            tool.get("name"),
            description.strip(),
            {"type": "object", "properties": properties, "required": ["input"]},
        )
        self.freeform.add(tool["name"])

    def require_some(self, tools: Any) -> None:
        """Raise `Refused` if a request offers only tools that are left out."""
        if tools and not self.schemas:
            raise Refused(
                f"tools that run outside of the box are not available: {', '.join(self.left_out)}",
                parameter="tools",
            )

    def choice(self, name: Any) -> dict[str, Any]:
        """Return the choice of one function in the chat format."""
        if not any(schema["function"]["name"] == name for schema in self.schemas):
            raise Refused(f"`tool_choice` names `{name}`, which is not offered", parameter="tool_choice")
        return {"type": "function", "function": {"name": name}}


class Conversation:
    """Collects the messages of a conversation in the chat format.

    System prompts at the start become a single one, because most chat templates accept only one. Images in
    the results of tools follow in a message of the user, because the chat format has no other place for them.
    """

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._images: list[Part] = []

    def add_system(self, text: str) -> None:
        """Add a system prompt, or instructions within the conversation."""
        if not text:
            return
        if len(self._messages) == 1 and self._messages[0]["role"] == "system":
            self._messages[0]["content"] += f"\n\n{text}"
        else:
            self._append({"role": "system", "content": text})

    def add_user(self, parts: Iterable[Part]) -> None:
        """Add a message of the user."""
        self._append({"role": "user", "content": content_of([*self._take_images(), *parts])})

    def add_result(self, call_id: Any, parts: Iterable[Part], *, failed: bool = False) -> None:
        """Add the result of a tool call."""
        parts = list(parts)
        text = "\n".join(part["text"] for part in parts if part["type"] == "text")
        if failed and not text.lower().startswith("error"):
            text = f"Error: {text}"
        images = [part for part in parts if part["type"] != "text"]
        self._messages.append(
            {"role": "tool", "tool_call_id": text_of(call_id, "id of a tool result"), "content": text}
        )
        self._images += images

    def begin_assistant(self) -> None:
        """Begin a message of the assistant, which the following parts belong to."""
        self._append({"role": "assistant", "content": ""})

    def add_reasoning(self, text: str) -> None:
        """Add reasoning of the assistant."""
        message = self._assistant()
        message["reasoning_content"] = message.get("reasoning_content", "") + text

    def add_text(self, text: str, field: str = "content") -> None:
        """Add text of the assistant, or the text of its refusal."""
        message = self._assistant()
        message[field] = message.get(field, "") + text

    def add_call(self, call_id: Any, name: Any, arguments: Any) -> None:
        """Add a tool call of the assistant. `arguments` is a JSON text."""
        function = {"name": text_of(name, "name of a call"), "arguments": text_of(arguments, "arguments")}
        call = {"id": text_of(call_id, "id of a call"), "type": "function", "function": function}
        self._assistant().setdefault("tool_calls", []).append(call)

    def finish(self) -> list[Message]:
        """Return the messages. Raises `Refused` if nothing is left to answer."""
        if self._images:
            self.add_user([])
        if not self._messages:
            raise Refused("the conversation is empty", parameter="messages")
        if self._messages[-1]["role"] == "assistant":
            raise Refused(
                "the conversation ends with a message of the assistant: a turn cannot be continued",
                parameter="messages",
            )
        return self._messages

    def _assistant(self) -> Message:
        """Return the assistant's message to extend."""
        if not self._messages or self._messages[-1]["role"] != "assistant":
            self.begin_assistant()
        return self._messages[-1]

    def _append(self, message: Message) -> None:
        if self._images:
            self._messages.append({"role": "user", "content": content_of(self._take_images())})
        self._messages.append(message)

    def _take_images(self) -> list[Part]:
        images, self._images = self._images, []
        return images


def content_of(parts: list[Part]) -> str | list[Part]:
    """Return the content of a message: a text, or a list if the parts contain an image."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def text_part(text: Any, field: str) -> Part:
    """Return a text as a content part."""
    return {"type": "text", "text": text_of(text, field)}


def texts_of(parts: Iterable[Part]) -> list[str]:
    """Return the texts of parts in a place where images are not allowed."""
    parts = list(parts)
    if any(part["type"] != "text" for part in parts):
        raise Refused("images are only supported in messages of the user and in tool results")
    return [part["text"] for part in parts]


def image_part(url: Any, detail: Any = None) -> Part:
    """Return an image as a content part. `url` may be a data URL."""
    image = {"url": text_of(url, "url of an image")}
    if isinstance(detail, str) and detail != "auto":
        image["detail"] = detail
    return {"type": "image_url", "image_url": image}


def text_of(value: Any, field: str) -> str:
    """Return a value that must be a text."""
    if not isinstance(value, str):
        raise Refused(f"`{field}` is not a string", parameter=field)
    return value


def object_of(value: Any, field: str) -> dict[str, Any]:
    """Return a value that must be an object."""
    if not isinstance(value, dict):
        raise Refused(f"`{field}` is not an object", parameter=field)
    return value


def objects_of(value: Any, field: str) -> list[dict[str, Any]]:
    """Return a value that must be a list of objects, or missing."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise Refused(f"`{field}` is not a list", parameter=field)
    return [object_of(item, f"{field}[{place}]") for place, item in enumerate(value)]


def refuse_fields(body: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
    """Raise `Refused` if a request has one of these fields with a value that changes something."""
    for name, reason in reasons.items():
        if body.get(name) not in (None, False, 0, "", [], {}):
            raise Refused(f"`{name}` is not supported here: {reason}", parameter=name)


def sampling_of(values: Mapping[str, Any]) -> SamplingArgs:
    """Return sampling arguments; missing ones are None."""
    given = {name: value for name, value in values.items() if value is not None}
    if isinstance(given.get("stop"), str):
        given["stop"] = [given["stop"]]
    try:
        return SamplingArgs.model_validate(given)
    except ValidationError as error:
        path, fault = first_fault(error)
        raise Refused(f"`{path}`: {fault}", parameter=path) from None


def to_json(value: Any) -> str:
    """Return the JSON text of a value."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def argument_object(arguments: str) -> dict[str, Any] | None:
    """Return the arguments of a call, or None if they are not a JSON object."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def freeform_input(arguments: str) -> str:
    """Return the text that a model passed to a tool whose input is a text."""
    text = (argument_object(arguments) or {}).get("input")
    return text if isinstance(text, str) else arguments


def freeform_arguments(text: Any) -> str:
    """Return the arguments of a call of a tool whose input is a text."""
    return json.dumps({"input": text_of(text, "input of a call")}, ensure_ascii=False)


def openai_error(refused: Refused) -> dict[str, Any]:
    """Return an error in the format of OpenAI."""
    kind = {403: "permission_error", 404: "not_found_error"}.get(refused.status, "invalid_request_error")
    return {
        "error": {
            "message": str(refused),
            "type": kind if refused.status < 500 else "server_error",
            "param": refused.parameter,
            "code": "context_length_exceeded" if refused.overflow else None,
        }
    }
