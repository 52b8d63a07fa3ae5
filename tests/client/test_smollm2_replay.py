"""SmolLM2, in this process: what it sampled is played again to the same bits, and sampled again by its seed.

A hundred megabytes to fetch, and a minute of generation.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import Wander
from wander.evals.store.folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
OF_THE_CLOCK = ("seconds", "model_seconds", "environment_seconds", "scoring_seconds", "started_at")


def played(run: Path) -> list[dict[str, Any]]:
    """Return the rollouts of a run but for what the clock told, in the order of their keys."""
    rollouts = sorted(RunFolder.open(run).rollouts(), key=lambda one: one.key)
    return [_untimed(one.model_dump(mode="json")) for one in rollouts]


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _untimed(one) for key, one in value.items() if key not in OF_THE_CLOCK}
    return [_untimed(one) for one in value] if isinstance(value, list) else value


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("environment", "turn"), [("reverse_text", "32"), ("tictactoe", "24")])
def test_rollouts_sampled_by_smollm2_replay_exactly(
    environment: str, turn: str, wander: Wander, home: Path
) -> None:
    folder = str(ROOT / "environments" / environment)
    words = ("-m", "smollm2", "-n", "4", "-r", "2", "-t", "1.0", "--max-tokens", turn, "-c", "1")
    for name in ("one", "other"):
        done = wander("eval", folder, *words, "--seed", "5", "--out", f"runs/{name}", "--json")
        assert done.status == 0, done.out
        assert (done.data["summary"]["rollouts"], done.data["summary"]["failed"]) == (8, 0)
    model = json.loads(Path("runs/one/run.json").read_text())["model"]
    assert (model["name"], len(model["weights_sha256"])) == ("SmolLM2-135M-Instruct", 64)
    first = played(Path("runs/one"))
    assert len({json.dumps(one["completion"]) for one in first}) > 4, "it is sampled, not greedy"
    again = wander("runs", "replay", "runs/one", "--json")
    assert again.status == 0, again.out
    found = (again.data["level"], again.data["same"], again.data["differing"])
    assert found == ("replayed", 8, 0)
    assert played(Path("runs/other")) == first, (
        "one at a time, the same seed samples the same tokens and log-probabilities"
    )
