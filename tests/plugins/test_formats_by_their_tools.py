"""Exported runs are opened by the packages whose formats they have, in a virtual environment of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from exported_runs import ConversationRun, SummarizedRun
from wander.evals.export import Format, export_runs
from wander.evals.foreign_run import import_results, read_results
from wander_client.packages.interpreters import choose_python
from wander_client.packages.uv import make_virtualenv, run_uv

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a virtual environment with the packages. Two of them need Python 3.12."""
    place = tmp_path_factory.mktemp("tools")
    make_virtualenv(place, choose_python(">=3.12", "`every-eval-ever`").path)
    found = place / "bin" / "python"
    install = ["pip", "install", "--quiet", "--python", str(found)]
    run_uv([*install, "every-eval-ever==0.3.0", "inspect-ai==0.3.285"], doing="installing the tools")
    # Harbor itself requires a cloud client, a proxy and a server, but its models only pydantic.
    run_uv([*install, "--no-deps", "harbor==0.26.0"], doing="installing Harbor")
    return found


def export(path: Path, kind: Format) -> Path:
    for _ in export_runs([ConversationRun()], path, kind):
        pass
    return path


def opened(python: Path, script: str, folder: Path) -> str:
    """Run a script in a folder and return what it prints."""
    done = subprocess.run(
        [str(python), "-W", "ignore", "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


HARBOR = """
import json
from pathlib import Path
from harbor.models.trajectories import Trajectory

read = [Trajectory.model_validate_json(file.read_text()) for file in sorted(Path("out").iterdir())]
assert len(read) == 6
assert [step.source for step in read[0].steps] == ["system", "user", "agent", "agent", "user", "agent"]
assert read[0].steps[2].observation.results[0].source_call_id == "c1"
assert read[0].extra["metrics"] == {"won": 0.0, "of/odd name": 1.0}
again = [trajectory.to_json_dict() for trajectory in read]
assert [Trajectory.model_validate(each) for each in again] == read
print("read")
"""


def test_harbor_reads_trajectories(python: Path, tmp_path: Path) -> None:
    export(tmp_path / "out", "atif")
    assert opened(python, HARBOR, tmp_path) == "read\n"


VALIDATOR = """
import json, sys
from pathlib import Path
from every_eval_ever.validate import main

files = sorted(map(str, Path("out").rglob("*.json*")))
assert len(files) == 2
assert main([str(Path(file).resolve()) for file in files]) == 0  # 1: errors, 2: warnings
print("valid")
"""


def test_the_validator_of_every_eval_ever_accepts_exports(python: Path, tmp_path: Path) -> None:
    export(tmp_path / "out", "every-eval-ever")
    assert opened(python, VALIDATOR, tmp_path).endswith("valid\n")


INSPECT = """
from inspect_ai.log import read_eval_log, read_eval_log_sample, read_eval_log_sample_summaries, write_eval_log

log = read_eval_log("out.eval", resolve_attachments=True)
assert (log.status, log.eval.task, log.eval.config.epochs) == ("success", "alice/cups", 3)
assert log.eval.model_generate_config.stop_seqs == ["END"]
tools, _, plain, *_ = log.samples
assert (tools.id, tools.epoch, tools.limit.type) == ("cup/0", 1, "turn")
assert tools.output.stop_reason == "max_tokens"
assert [len(event.input) for event in tools.events] == [2, 5, 7]
assert tools.events[0].tools[0].name == "look"
assert tools.messages[2].tool_calls[1].parse_error
assert plain.scores["won"].as_float() == 1.0
assert read_eval_log_sample("out.eval", "cup/1", 3).error.message == "Timeout: no answer in 60 s"
assert len(read_eval_log_sample_summaries("out.eval")) == 6
assert log.results.scores[0].metrics["mean"].value == 0.5625
write_eval_log(log, "again.eval")  # packed with zstd, and its messages with new ids
print("read")
"""

PLAYED = """
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, system_message, use_tools
from inspect_ai.tool import tool

@tool
def add():
    async def execute(x: int, y: int):
        \"\"\"Add.

        Args:
            x: first
            y: second
        \"\"\"
        return x + y
    return execute

outputs = [
    ModelOutput.for_tool_call("mockllm/model", "add", {"x": 2, "y": 2}),
    ModelOutput.from_content("mockllm/model", "the answer is 4"),
    ModelOutput.from_content("mockllm/model", "no idea"),
]
for output in outputs:  # without a usage, Inspect downloads a tokenizer to count
    output.usage = ModelUsage(input_tokens=5, output_tokens=2, total_tokens=7)
samples = [Sample(id=n, input="2 + 2?", target="4", metadata={"kind": "sum"}) for n in (1, 2)]
solver = [system_message("add"), use_tools(add()), generate()]
adding = Task(samples, name="adding", solver=solver, scorer=includes())
model = get_model("mockllm/model", custom_outputs=outputs)
(log,) = eval(adding, model=model, display="none", max_samples=1, log_dir="logs", temperature=0.5)
assert log.status == "success", log.error
print("played")
"""


def test_inspect_opens_a_log_and_writes_it_again(python: Path, tmp_path: Path) -> None:
    export(tmp_path / "out.eval", "inspect")
    assert opened(python, INSPECT, tmp_path) == "read\n"
    ours, theirs = (read_results(tmp_path / name) for name in ("out.eval", "again.eval"))
    assert theirs.rollouts == ours.rollouts
    assert (theirs.sampling, theirs.started_at) == (ours.sampling, ours.started_at)


def test_a_log_that_inspect_played_is_imported(python: Path, tmp_path: Path) -> None:
    assert opened(python, PLAYED, tmp_path) == "played\n"
    run = import_results(tmp_path / "logs", tmp_path / "run")
    right, wrong = run.rollouts()
    assert [rollout.reward for rollout in (right, wrong)] == [1.0, 0.0]
    assert [message["role"] for message in right.prompt] == ["system", "user"]
    assert [message["role"] for message in right.completion] == ["assistant", "tool", "assistant"]
    assert right.completion[1]["content"] == "4"
    assert [turn.context_messages for turn in right.turns] == [2, 4]
    assert right.tools is not None
    assert (run.manifest.environment.name, run.manifest.sampling.temperature) == ("adding", 0.5)
    assert run.manifest.notes.startswith("imported from Inspect 0.3.285, without token ids")
    for _ in export_runs([SummarizedRun(run)], tmp_path / "out.eval", "inspect"):
        pass
    again = read_results(tmp_path / "out.eval")
    assert again.rollouts == [right, wrong]


HUGGING_FACE = """
from pathlib import Path
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries

(file,) = Path("out/.eval_results").iterdir()
(entry,) = parse_eval_result_entries(yaml.safe_load(file.read_text()))
assert (entry.dataset_id, entry.task_id, entry.value) == ("alice/cups", "default", 0.5625)
assert "95% interval" in entry.notes
card = ModelCard("---\\n" + Path("out/model-index.yaml").read_text() + "---\\n# A model\\n")
assert card.data.model_name == "org/model-1"
values = {result.metric_type: result.metric_value for result in card.data.eval_results}
assert values["reward"] == 0.5625 and "metric.won" in values and "pass@1" not in values
assert {result.dataset_revision for result in card.data.eval_results} == {"1.2"}
print("read")
"""


def test_hugging_face_reads_results_and_card_metadata(python: Path, tmp_path: Path) -> None:
    export(tmp_path / "out", "eval-results")
    assert opened(python, HUGGING_FACE, tmp_path) == "read\n"
