"""Shards of a run whose model is in the process: one at a time, they make the run that is played at once."""

from __future__ import annotations

from pathlib import Path

from shard_records import aggregates_of, records_of
from wander.environment import LocalEnvironment
from wander.evals.run.merge import merge_shards
from wander.evals.run.plan import EvaluationPlan
from wander.evals.run.runner import evaluate
from wander.evals.store.folder import RunFolder
from wander.models.client import TransformersClient
from wander.models.loading import load_model
from wander.types import SamplingArgs
from wander.wire import EnvironmentPin
from wander.wire.run_record import Shard

from .conftest import bandit


async def test_merged_shards_of_a_local_model_equal_a_run_without_shards(tiny: Path, tmp_path: Path) -> None:
    env = LocalEnvironment(bandit())
    client = TransformersClient(load_model(tiny, device="cpu"))
    parts = [None, *(Shard(first=number, end=number + 1, of=3) for number in range(3))]
    for number, shard in enumerate(parts):
        sampling = SamplingArgs(temperature=1.0, max_tokens=6)
        # Alone in its batch, a turn has the same log-probabilities to the last bit.
        plan = EvaluationPlan(4, 2, concurrency=1, sampling=sampling, shard=shard)
        pin = EnvironmentPin(name="bandit", info=env.info)
        await evaluate(env, client, plan, tmp_path / str(number), pin)
    await client.close()
    merge_shards([RunFolder.open(tmp_path / str(number)) for number in (1, 2, 3)], tmp_path / "whole")
    assert records_of(tmp_path / "whole") == records_of(tmp_path / "0")
    assert aggregates_of(tmp_path / "whole") == aggregates_of(tmp_path / "0")
