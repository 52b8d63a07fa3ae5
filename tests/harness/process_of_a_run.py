"""One of several processes that train on the bandit: started by `torchrun` with a JSON file of jobs.

    python -m torch.distributed.run --standalone --nproc-per-node 2 process_of_a_run.py WORK.json

Each job trains into a folder; the process writes its observations to `FOLDER.RANK.json`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

TRAINING = Path(__file__).resolve().parents[1] / "sdk" / "training"


def conftest() -> ModuleType:
    """Return the module that defines the bandit."""
    spec = importlib.util.spec_from_file_location("bandit_conftest", TRAINING / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def alike() -> float:
    """Reward every rollout equally, so that all advantages are zero."""
    return 0.5


def trained(job: dict[str, Any], rank: int) -> dict[str, Any]:
    """Do one job and return its results."""
    from wander.errors import WanderError
    from wander.train import grpo, step_trainer
    from wander.train.config import GRPOSettings, SFTSettings
    from wander.train.sft import train_sft

    step_trainer.ROWS_PER_FORWARD = job.get("rows_per_forward", step_trainer.ROWS_PER_FORWARD)
    bandits = conftest()

    class BrokenEnv(bandits.BanditEnv):  # type: ignore[name-defined, misc]
        def setup_state(self, state: Any) -> None:
            raise OSError("nothing works here")

    def broken() -> Any:
        rows = [{"question": "?", "answer": ""}] * 64
        return BrokenEnv(rows, max_turns=2, rubric=bandits.bandit().rubric)

    def even() -> Any:
        made = bandits.bandit()
        made.rubric = bandits.Rubric([alike])
        return made

    usual = getattr(bandits, job.get("environment", "bandit"))
    make = {job.get("broken_rank"): broken, job.get("even_rank"): even}.get(rank, usual)
    seen: list[int] = []

    def progress(entry: dict[str, Any]) -> None:
        seen.append(entry["step"])
        if entry["step"] == job.get("interrupt_at"):
            os.kill(os.getpid(), signal.SIGINT)

    try:
        if "rows" in job:
            tuned = train_sft(
                [] if rank == job.get("broken_rank") else job["rows"],
                SFTSettings.model_validate(job["settings"]),
                Path(job["folder"]),
                progress=progress,
                resume=job.get("resume", False),
            )
            return {"steps": tuned.steps, "interrupted": tuned.interrupted, "seen": seen}
        result = grpo.train_grpo(
            bandits.opener_of(make),
            GRPOSettings.model_validate(job["settings"]),
            Path(job["folder"]),
            progress=progress,
            resume=job.get("resume", False),
        )
    except WanderError as error:
        return {"error": type(error).__name__, "message": str(error), "hint": error.hint}
    return {"steps": result.steps, "interrupted": result.interrupted, "seen": seen}


def main() -> None:
    import torch

    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    for job in json.loads(Path(sys.argv[1]).read_text()):
        outcome = trained(job, rank)
        Path(f"{job['folder']}.{rank}.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
