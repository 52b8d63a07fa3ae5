"""`wander train` on several environments, each in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from command_line import Wander
from wander.models.tiny import TinySize, create_tiny

TICTACTOE = str(Path(__file__).parents[3] / "environments" / "tictactoe")
REVERSE = str(Path(__file__).parents[3] / "environments" / "reverse_text")
SETTINGS = f"""
[[environments]]
weight = 3.0
arguments = {{ num_examples = 16, num_groups = 4 }}

[[environments]]
label = "optimal"
arguments = {{ num_examples = 16, max_random_move_prob = 0.0 }}

[[environments]]
name = "{REVERSE}"
label = "reverse"

[batch]
rollouts = 20
group_size = 4

[data]
refill_rounds = 1

[sampling]
max_tokens = 6

[schedule]
steps = 2
"""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.full
def test_mixed_environments_are_weighted_and_pinned(wander: Wander, home: Path) -> None:
    texts = ["0|1|2\n---------\n3|4|5", "<think>a</think><move>3</move>", "Reverse the text: hello"]
    talk = [[{"role": "user", "content": text}, {"role": "assistant", "content": text}] for text in texts]
    size = TinySize(hidden=32, layers=1, heads=2, key_value_heads=1, intermediate=64, vocabulary=330)
    create_tiny(talk, home / "tiny", size=size)
    (home / "mixed.toml").write_text(SETTINGS)
    typed = ("train", TICTACTOE, "mixed.toml", "--model", "tiny", "--out", "run")
    done = wander(*typed)
    assert done.status == 0, done.err
    manifest = json.loads((home / "run" / "run.json").read_text())
    mixture = {one["label"]: one for one in manifest["mixture"]}
    assert list(mixture) == ["tictactoe", "optimal", "reverse"]
    assert mixture["optimal"]["environment"]["arguments"] == {"num_examples": 16, "max_random_move_prob": 0.0}
    assert manifest["environment"] == mixture["tictactoe"]["environment"]
    assert len({one["task_set_sha256"] for one in mixture.values()}) == 3
    entries = [json.loads(line) for line in (home / "run" / "metrics.jsonl").read_text().splitlines()]
    for entry in entries:
        assert entry["environments/tictactoe/groups"] >= 3
        assert entry["environments/optimal/groups"] >= 1
        assert "environments/reverse/reward" in entry
        assert "environments/reverse/rewards/won" not in entry
    refused = wander(*typed[:-1], "other", "-a", "num_examples=4")
    assert refused.status == 2
    assert "each of `[[environments]]` has its own arguments" in refused.err
