"""`wander eval --serve vllm` with the real vLLM, on a CPU, and SmolLM2: minutes, and gigabytes of packages.

`WANDER_TEST_VLLM_PYTHON` names a Python that has vLLM; without it the test makes a virtual environment.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Wander
from vllm_python import vllm_python

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_smollm2_is_served_by_vllm(tmp_path: Path, wander: Wander, monkeypatch: pytest.MonkeyPatch) -> None:
    python = vllm_python(tmp_path)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    environment = str(ROOT / "environments" / "reverse_text")
    words = (
        "-m",
        "smollm2",
        "--serve",
        "vllm",
        "--set",
        f"serve_python={python}",
        "--set",
        "serve_args=--max-model-len=1024",
    )
    result = wander("eval", environment, *words, "-n", "3", "--max-tokens", "32", "-t", "0", "--json")
    assert result.status == 0, result.out
    summary = result.data["summary"]
    assert (summary["rollouts"], summary["failed"]) == (3, 0)
    assert summary["usage"]["completion_tokens"] > 0
    model = json.loads((Path(result.data["run_dir"]) / "run.json").read_text())["model"]
    assert model["name"] == "SmolLM2-135M-Instruct"
    assert len(model["weights_sha256"]) == 64
    assert model["details"]["server"]["versions"] == {"vllm-cpu": "0.32.0"}
