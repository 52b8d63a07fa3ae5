"""Messages, tools and responses of the third generation: models with dictionary-style access."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from wander_compat.verifiers.messages.dicts import MessageDict


class CustomBaseModel(BaseModel):
    """A model that also supports `value["name"]`, `value.get("name")` and `"name" in value`."""

    model_config = ConfigDict(extra="allow")

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and hasattr(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field or the default."""
        return getattr(self, name, default)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, dict):
            return self.model_dump() == other or self.model_dump(exclude_none=True) == other
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]


class TextContentPart(CustomBaseModel):
    """A text part of a message."""

    type: Literal["text"] = "text"
    text: str


class ImageUrlSource(CustomBaseModel):
    """Source of an image: a URL, which often contains the image."""

    url: str


class ImageUrlContentPart(CustomBaseModel):
    """An image part of a message."""

    type: Literal["image_url"] = "image_url"
    image_url: ImageUrlSource


class InputAudioSource(CustomBaseModel):
    """Audio in base64."""

    data: str
    format: str


class InputAudioContentPart(CustomBaseModel):
    """An audio part of a message."""

    type: Literal["input_audio"] = "input_audio"
    input_audio: InputAudioSource


class GenericContentPart(CustomBaseModel):
    """A part of any other type."""

    type: str


ContentPart = (
    TextContentPart | ImageUrlContentPart | InputAudioContentPart | GenericContentPart | dict[str, Any]
)
MessageContent = str | list[ContentPart]


class ToolCall(CustomBaseModel):
    """A tool call by the model. `arguments` is JSON text."""

    id: str = ""
    name: str
    arguments: str = ""

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        """Also accept OpenAI's format."""
        if isinstance(value, str):
            value = json.loads(value)
        elif not isinstance(value, dict) and hasattr(value, "model_dump"):
            value = value.model_dump()
        if isinstance(value, dict) and value.get("function"):
            return {"id": value.get("id") or "", **value["function"]}
        return value

    @field_validator("arguments", mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        return value if isinstance(value, str) else json.dumps(value or {})

    @property
    def function(self) -> ToolCall:
        """The call itself, which has the name and the arguments."""
        return self


if TYPE_CHECKING:
    RoleModel = CustomBaseModel
else:

    class _RoleClass(type(BaseModel)):
        """Makes `isinstance` accept the earlier generations' dictionaries with the same role."""

        def __instancecheck__(cls, value: object) -> bool:
            if isinstance(value, MessageDict):
                return cls is RoleModel or cls.model_fields["role"].default == value.get("role")
            return super().__instancecheck__(value)

    class RoleModel(CustomBaseModel, metaclass=_RoleClass):
        """A message with a fixed role."""


class SystemMessage(RoleModel):
    """Instructions to the model before everything else."""

    role: Literal["system"] = "system"
    content: MessageContent

    @classmethod
    def from_path(cls, path: str | Path) -> SystemMessage:
        """Create a system message with the text of a file."""
        return cls(content=Path(path).read_text(encoding="utf-8").strip())


class UserMessage(RoleModel):
    """Message of the user, which in a multi-turn rollout is the environment."""

    role: Literal["user"] = "user"
    content: MessageContent


class AssistantMessage(RoleModel):
    """Message of the model."""

    role: Literal["assistant"] = "assistant"
    content: MessageContent | None = None
    reasoning_content: str | None = None
    thinking_blocks: list[Any] | None = None
    tool_calls: list[ToolCall] | None = None


class ToolMessage(RoleModel):
    """Result of a tool."""

    role: Literal["tool"] = "tool"
    tool_call_id: str = ""
    content: MessageContent


class TextMessage(RoleModel):
    """Text without a role, for environments that complete text instead of chatting."""

    role: Literal["text"] = "text"
    content: str


class OtherMessage(CustomBaseModel):
    """A message with a role that the classic API does not define."""

    role: str
    content: Any = None


ROLE_MODELS: dict[str, type[CustomBaseModel]] = {
    "system": SystemMessage,
    "user": UserMessage,
    "assistant": AssistantMessage,
    "tool": ToolMessage,
    "text": TextMessage,
}

Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage | TextMessage
Messages = list[Message]


class Tool(CustomBaseModel):
    """A tool definition for the model."""

    name: str
    description: str = ""
    parameters: dict[str, Any]
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _inner(cls, value: Any) -> Any:
        """Also accept OpenAI's format."""
        if isinstance(value, dict) and isinstance(value.get("function"), dict):
            return {"parameters": {"type": "object", "properties": {}}, **value["function"]}
        return value

    def openai(self) -> dict[str, Any]:
        """Return the function schema in OpenAI's format."""
        function: dict[str, Any] = {
            "name": self.name, "description": self.description, "parameters": self.parameters
        }  # fmt: skip
        if self.strict is not None:
            function["strict"] = self.strict
        return {"type": "function", "function": function}


class Usage(CustomBaseModel):
    """Tokens of a model call."""

    prompt_tokens: int = 0
    reasoning_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0


class ResponseTokens(CustomBaseModel):
    """Token ids of a model call, if the endpoint returns them."""

    prompt_ids: list[int] = Field(default_factory=list)
    prompt_mask: list[int] = Field(default_factory=list)
    completion_ids: list[int] = Field(default_factory=list)
    completion_mask: list[int] = Field(default_factory=list)
    completion_logprobs: list[float] = Field(default_factory=list)
    routed_experts: list[list[list[int]]] | None = None


class ResponseMessage(AssistantMessage):
    """Message of the model, with its finish reason."""

    finish_reason: str | None = None
    is_truncated: bool | None = None
    tokens: ResponseTokens | None = None


class Choice(CustomBaseModel):
    """A response in the format of the earlier generations: `response.choices[0].message`."""

    index: int = 0
    message: Any = None
    finish_reason: str | None = None
    logprobs: Any = None
    text: str = ""


class Response(CustomBaseModel):
    """Response to a model call."""

    id: str = ""
    created: int = 0
    model: str = ""
    usage: Usage | None = None
    message: ResponseMessage

    @property
    def choices(self) -> list[Choice]:
        """The single choice of the response."""
        content = self.message.content
        text = content if isinstance(content, str) else ""
        return [Choice(message=self.message, finish_reason=self.message.finish_reason, text=text)]
