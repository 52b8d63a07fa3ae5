"""A run that nobody can play twice is scored again from its transcripts, here and in a worker."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from wander import LocalEnvironment, Rollout, ScriptedClient
from wander.evals.replay import replay_run
from wander.evals.run.runner import EvaluationPlan, EvaluationResult, evaluate
from wander.handle import EnvironmentHandle
from wander.loading import load_path
from wander.wire import EnvironmentPin
from wander.worker.host.environment import WorkerEnvironment

JUDGED = '''
import itertools

from wander import MultiTurnEnv, Rubric, ScriptedClient
from wander.clients.base import Client
from wander.rubrics.judge import JudgeRubric, judge_score

asked = itertools.count()

class Model(Client):
    model = "moody"

    async def complete(self, request):
        return await ScriptedClient(judged).complete(request)

def judged(request):
    """Never says the same twice, as a judge may."""
    return f'{{"verdict": {(next(asked) % 7) / 10}}}'

def length(completion):
    return len(completion)

def weather(state):
    return state["weather"]

class Env(MultiTurnEnv):
    def setup_state(self, state):
        state["weather"] = next(asked)

    def env_response(self, messages, state):
        return [{"role": "user", "content": f"outside it is {next(asked)} degrees"}]

def load_environment(rubric="judge"):
    rubrics = {
        "judge": JudgeRubric([judge_score, length], [1.0, 0.0], client=Model(), attempts=1),
        "length": Rubric([length]),
        "state": Rubric([length, weather]),
    }
    rows = [{"question": f"q{i}", "answer": str(i)} for i in range(5)]
    return Env(eval_dataset=rows, rubric=rubrics[rubric], max_turns=2, name="judged", deterministic=False)
'''


@asynccontextmanager
async def opened(folder: Path, where: str, rubric: str = "judge") -> AsyncIterator[EnvironmentHandle]:
    module = folder / "judged_environment.py"
    module.write_text(JUDGED)
    if where == "worker":
        handle: EnvironmentHandle = await WorkerEnvironment.start(
            None, None, path=module, arguments={"rubric": rubric}, log_path=folder / "log"
        )
    else:
        handle = LocalEnvironment(load_path(module, rubric=rubric))
    try:
        yield handle
    finally:
        await handle.close()


async def played(env: EnvironmentHandle) -> EvaluationResult:
    said = itertools.count()
    client = ScriptedClient(lambda request: f"guess {next(said)}")
    plan = EvaluationPlan(num_examples=None, rollouts_per_example=2)
    result = await evaluate(env, client, plan, None, EnvironmentPin(name=env.info.name, info=env.info))
    assert result.summary.failed == 0
    return result


def stored(result: EvaluationResult) -> list[Rollout]:
    """Return the rollouts as a file gives them back."""
    return [Rollout.model_validate_json(one.model_dump_json()) for one in result.rollouts]


@pytest.mark.parametrize("where", ["here", "worker"])
async def test_rescoring_does_not_call_the_judge_and_gives_the_same_rewards(
    where: str, tmp_path: Path
) -> None:
    async with opened(tmp_path, where) as env:
        result = await played(env)
        report = await replay_run(env, result.manifest, stored(result), level="highest")
    assert (report.method, report.level, report.agrees) == ("rescore", "complete", True), report
    assert (report.replayed, report.same, report.differing, report.undecided) == (10, 10, 0, 0)


def raise_reward(one: dict[str, Any]) -> None:
    one["reward"] += 0.1


def raise_metric(one: dict[str, Any]) -> None:
    one["metrics"]["length"] += 1


def other_words(one: dict[str, Any]) -> None:
    one["completion"][-1]["content"] = "a better guess"


def other_verdict(one: dict[str, Any]) -> None:
    one["info"]["judge_answers"][0]["answer"] = '{"verdict": 1.0}'


def other_question(one: dict[str, Any]) -> None:
    one["prompt"][-1]["content"] = "say anything"


def shorter(one: dict[str, Any]) -> None:
    del one["completion"][1:3], one["turns"][1:]


@pytest.mark.parametrize(
    ("forge", "part"),
    [
        (raise_reward, "reward"),
        (raise_metric, "metrics"),
        (other_verdict, "reward"),
        (other_question, "failure"),
        (other_words, "failure"),
        (shorter, "failure"),
    ],
)
async def test_rescoring_finds_changed_rewards(
    forge: Callable[[dict[str, Any]], None], part: str, tmp_path: Path
) -> None:
    async with opened(tmp_path, "here") as env:
        result = await played(env)
        changed = [one.model_dump() for one in stored(result)]
        forge(changed[3])
        rollouts = [Rollout.model_validate(one) for one in changed]
        report = await replay_run(env, result.manifest, rollouts, level="rescored")
    assert (report.level, report.differing, report.same) == ("claimed", 1, 9)
    (found,) = report.divergences
    assert (found.example_id, found.index, found.part) == (changed[3]["example_id"], 1, part)


async def test_a_rubric_that_needs_the_whole_rollout_cannot_be_rescored(tmp_path: Path) -> None:
    async with opened(tmp_path, "here", "state") as env:
        result = await played(env)
        report = await replay_run(env, result.manifest, stored(result), level="rescored")
    assert (report.level, report.undecided, report.same, report.differing) == ("complete", 10, 0, 0)
    assert "weather" in (report.undecided_reason or "")


async def test_a_sample_of_rescored_rollouts_earns_no_level(tmp_path: Path) -> None:
    async with opened(tmp_path, "here", "length") as env:
        result = await played(env)
        whole = await replay_run(env, result.manifest, result.rollouts, level="replayed")
        some = await replay_run(
            env, result.manifest, result.rollouts, level="highest", sample=3, sample_seed=9
        )
    assert "declares that it is not deterministic" in (whole.refused or "")
    assert (some.level, some.replayed, some.sampled, some.sample_seed) == ("complete", 3, True, 9)
