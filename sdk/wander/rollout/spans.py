"""OpenTelemetry spans of rollouts, turns and tool calls, by the semantic conventions for generative AI.

    invoke_agent ENVIRONMENT     a rollout, from its start to its reward
      chat MODEL                 a turn
      execute_tool TOOL          a tool call of a turn

Spans are made from finished rollouts. This does not slow down playing, and it includes environments in other
processes. The times of turns follow from the seconds that the rollout records. The tools of a turn share
the seconds of the environment's answer. Spans contain no messages, because these may be private.

A program that has set its own tracer provider gets the spans there. Otherwise, `WANDER_OTEL=1` sends them to
the collector that OpenTelemetry's own variables name (`OTEL_EXPORTER_OTLP_ENDPOINT`). Without both, nothing
is imported.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from wander.errors import require_extra
from wander.types import Rollout, Turn, Usage
from wander.wire import RunManifest

VARIABLE = "WANDER_OTEL"
_PROVIDERS = {
    "api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "api.deepseek.com": "deepseek",
    "api.mistral.ai": "mistral_ai",
    "api.x.ai": "x_ai",
    "api.groq.com": "groq",
}
"""Names that the conventions give to the providers behind these hosts. Others are named by their host."""
_NANOSECONDS = 1_000_000_000


def rollout_spans(manifest: RunManifest) -> RolloutSpans | None:
    """Return the writer of a run's spans, or None if nobody receives them.

    Raises `MissingExtra` if the variable is set and OpenTelemetry is not installed.
    """
    if os.environ.get(VARIABLE) == "1":
        return RolloutSpans(_configured_provider(), manifest)
    api = sys.modules.get("opentelemetry.trace")
    if api is None or "opentelemetry.sdk.trace" not in sys.modules:
        return None
    from opentelemetry.sdk.trace import TracerProvider

    provider = api.get_tracer_provider()
    return RolloutSpans(provider, manifest) if isinstance(provider, TracerProvider) else None


@cache
def _configured_provider() -> Any:
    """Return the program's provider, or else one that exports by OTLP and flushes when the program exits."""
    with require_extra("otel", needed_for=f"`{VARIABLE}=1`"):
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if isinstance(known := trace.get_tracer_provider(), TracerProvider):
        return known
    name = os.environ.get("OTEL_SERVICE_NAME", "wander")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class RolloutSpans:
    """Writes the spans of a run's rollouts."""

    def __init__(self, provider: Any, manifest: RunManifest) -> None:
        from opentelemetry.trace import SpanKind

        self._tracer = provider.get_tracer("wander")
        self._internal, self._client = SpanKind.INTERNAL, SpanKind.CLIENT
        self._run_id, self._model = manifest.run_id, manifest.model.name
        address = urlsplit(manifest.model.base_url or "")
        host = address.hostname or ""
        self._called: dict[str, str | int] = {
            "gen_ai.provider.name": _PROVIDERS.get(host, host or "wander"),
            "gen_ai.request.model": self._model,
        }
        if host:
            self._called["server.address"] = host
            self._called["server.port"] = address.port or (443 if address.scheme == "https" else 80)
        pin = manifest.environment
        self._agent = {"gen_ai.agent.name": pin.full_name} | (
            {"gen_ai.agent.version": pin.version} if pin.version else {}
        )
        self._name = f"invoke_agent {pin.full_name}"

    def add(self, rollout: Rollout) -> None:
        """Write the spans of a finished rollout."""
        from opentelemetry.trace import set_span_in_context

        start = _nanoseconds(rollout.started_at)
        root = self._start(self._name, start, self._of_rollout(rollout))
        within, now = set_span_in_context(root), start
        for turn in rollout.turns:
            answered = now + round(turn.model_seconds * _NANOSECONDS)
            self._start(f"chat {self._model}", now, self._of_turn(turn), within, self._client).end(answered)
            now = answered + round(turn.environment_seconds * _NANOSECONDS)
            for call in turn.message.get("tool_calls") or ():
                attributes = _of_call(call)
                name = f"execute_tool {attributes['gen_ai.tool.name']}"
                self._start(name, answered, attributes, within).end(now)
        _mark_failure(root, rollout)
        root.end(max(now, start + round(rollout.seconds * _NANOSECONDS)))

    def _start(
        self, name: str, at: int, attributes: dict[str, Any], within: Any = None, kind: Any = None
    ) -> Any:
        return self._tracer.start_span(
            name, context=within, kind=kind or self._internal, attributes=attributes, start_time=at
        )

    def _of_rollout(self, rollout: Rollout) -> dict[str, Any]:
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.conversation.id": f"{self._run_id}/{rollout.example_id}/{rollout.index}",
            "wander.run_id": self._run_id,
            "wander.example_id": rollout.example_id,
            "wander.index": rollout.index,
            "wander.reward": rollout.reward,
            "wander.stop_reason": rollout.stop_reason,
            "wander.step": rollout.step,
            "error.type": rollout.failure.type if rollout.failure else None,
        }
        known = {name: value for name, value in attributes.items() if value is not None}
        return known | self._agent | self._called | _of_usage(rollout.usage)

    def _of_turn(self, turn: Turn) -> dict[str, Any]:
        own = {"gen_ai.operation.name": "chat", "gen_ai.response.finish_reasons": [turn.finish_reason]}
        return own | self._called | _of_usage(turn.usage)


def _of_usage(usage: Usage) -> dict[str, int]:
    counts = {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
    }
    if usage.cached_tokens:
        counts["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    if usage.reasoning_tokens:
        counts["gen_ai.usage.reasoning.output_tokens"] = usage.reasoning_tokens
    return counts


def _of_call(call: Any) -> dict[str, str]:
    """Return the attributes of a tool call, which a model may have written in any shape."""
    call = call if isinstance(call, dict) else {}
    function = call.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": str(name or "unknown"),
        "gen_ai.tool.type": "function",
    }
    return attributes | ({"gen_ai.tool.call.id": str(call["id"])} if call.get("id") else {})


def _mark_failure(span: Any, rollout: Rollout) -> None:
    if rollout.failure is not None:
        from opentelemetry.trace import Status, StatusCode

        span.set_status(Status(StatusCode.ERROR, rollout.failure.message))


def _nanoseconds(moment: str) -> int:
    try:
        return round(datetime.fromisoformat(moment).timestamp() * _NANOSECONDS)
    except ValueError:  # a rollout that never started has no time
        return round(datetime.now().timestamp() * _NANOSECONDS)
