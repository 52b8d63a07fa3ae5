"""Spans of rollouts, in the real SDK of OpenTelemetry."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from wander import LocalEnvironment, MultiTurnEnv, Rubric, ScriptedClient, ToolEnv
from wander.evals.run.runner import EvaluationPlan, evaluate
from wander.types import Messages
from wander.wire import EnvironmentPin

ROWS = [{"example_id": "one", "question": "add 1 to 2", "answer": "3"}]


def right(completion: Messages, answer: str) -> float:
    return float(completion[-1]["content"] == answer)


def add(x: int) -> int:
    """Add 1 to a number."""
    return x + 1


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The exporter of the program's own tracer provider."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


async def play(env: MultiTurnEnv, replies: Any, folder: Path | None = None) -> str:
    handle = LocalEnvironment(env)
    pin = EnvironmentPin(owner="acme", name="adding", version="1.2", info=handle.info)
    result = await evaluate(handle, ScriptedClient(replies), EvaluationPlan(), folder, pin)
    return result.manifest.run_id


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_rollout_its_turns_and_its_tool_calls_are_spans(spans: InMemorySpanExporter) -> None:
    env = ToolEnv(tools=[add], eval_dataset=ROWS, rubric=Rubric([right]), name="adding")
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x": 2}'}}
    run_id = await play(env, [{"role": "assistant", "content": "", "tool_calls": [call]}, "3"])
    first, tool, last, rollout = spans.get_finished_spans()
    assert [span.name for span in (rollout, first, tool, last)] == [
        "invoke_agent acme/adding",
        "chat scripted",
        "execute_tool add",
        "chat scripted",
    ]
    for child in (first, tool, last):
        assert child.parent is not None
        assert child.parent.span_id == rollout.context.span_id
    ends = [(span.start_time, span.end_time) for span in (first, tool, last)]
    moments = [rollout.start_time, *(moment for pair in ends for moment in pair), rollout.end_time]
    assert moments == sorted(moments, key=lambda moment: moment or 0), "turns and tools follow each other"
    assert attributes(rollout) | {"wander.reward": 1.0} == attributes(rollout)
    assert attributes(rollout)["gen_ai.operation.name"] == "invoke_agent"
    assert attributes(rollout)["gen_ai.agent.version"] == "1.2"
    assert attributes(rollout)["gen_ai.conversation.id"] == f"{run_id}/one/0"
    assert attributes(first)["gen_ai.response.finish_reasons"] == ("stop",)
    assert {"gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"} <= attributes(first).keys()
    assert attributes(tool)["gen_ai.tool.call.id"] == "c1"
    texts = "".join(span.to_json() for span in (first, tool, last, rollout))
    assert "add 1 to 2" not in texts, "spans have no messages"


async def test_a_failed_rollout_is_a_failed_span(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    def fails(request: Any) -> str:
        raise RuntimeError("no idea")

    env = ToolEnv(tools=[add], eval_dataset=ROWS, rubric=Rubric([right]), name="adding")
    await play(env, fails, tmp_path / "run")
    (rollout,) = spans.get_finished_spans()
    assert rollout.status.status_code is StatusCode.ERROR
    assert "error.type" in attributes(rollout)


@pytest.mark.parametrize("variable", ["", "1"])
def test_opentelemetry_is_imported_only_if_needed(variable: str) -> None:
    code = (
        "import sys; from wander.rollout.spans import rollout_spans\n"
        "from wander.wire import EnvironmentPin, ModelPin\n"
        "from types import SimpleNamespace as Of\n"
        "manifest = Of(run_id='r', model=ModelPin(name='m', kind='k'), "
        "environment=Of(full_name='e', version=None))\n"
        "print(rollout_spans(manifest) is not None, 'opentelemetry' in sys.modules)"
    )
    environ = {"WANDER_OTEL": variable, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert done.stdout.split() == [str(bool(variable))] * 2, done.stderr
