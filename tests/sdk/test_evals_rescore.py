"""A run that nobody can play twice is scored again from its transcripts, here and in a worker."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from chat_endpoint import chat_endpoint
from wander import LocalEnvironment, Rollout, ScriptedClient
from wander.clients.openai import OpenAIClient
from wander.evals.judges import JudgePanel
from wander.evals.replay import replay_run
from wander.evals.run.runner import EvaluationPlan, EvaluationResult, evaluate
from wander.handle import EnvironmentHandle
from wander.loading import load_path
from wander.types import canonical_json
from wander.wire import EnvironmentPin
from wander.worker.host.environment import WorkerEnvironment

JUDGED = '''
import itertools

from wander import MultiTurnEnv, Rubric, ScriptedClient
from wander.rubrics.judge import JudgeRubric, judge_score

asked = itertools.count()

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
        "judge": JudgeRubric([judge_score, length], [1.0, 0.0], client=ScriptedClient(judged), attempts=1),
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
async def test_a_judge_is_not_asked_again_and_the_rewards_are_the_same(where: str, tmp_path: Path) -> None:
    async with opened(tmp_path, where) as env:
        result = await played(env)
        report = await replay_run(env, result.manifest, stored(result), level="highest")
    assert (report.method, report.level) == ("rescore", "rescored"), report
    assert (report.replayed, report.same, report.differing, report.unscored) == (10, 10, 0, 0)


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
async def test_what_was_changed_is_found(
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


async def test_a_rubric_that_needs_the_playing_proves_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path, "here", "state") as env:
        result = await played(env)
        report = await replay_run(env, result.manifest, stored(result), level="rescored")
    assert (report.level, report.unscored, report.same, report.differing) == ("complete", 10, 0, 0)
    assert "weather" in (report.unscored_reason or "")


async def test_a_replay_is_refused_and_a_sample_of_rescorings_is_no_level(tmp_path: Path) -> None:
    async with opened(tmp_path, "here", "length") as env:
        result = await played(env)
        whole = await replay_run(env, result.manifest, result.rollouts, level="replayed")
        some = await replay_run(
            env, result.manifest, result.rollouts, level="highest", sample=3, sample_seed=9
        )
    assert "declares that it is not deterministic" in (whole.refused or "")
    assert (some.level, some.replayed, some.sampled, some.sample_seed) == ("complete", 3, True, 9)


GRADED = """
from wander import ScriptedClient, SingleTurnEnv
from wander.rubrics.judge import JudgeRubric, judge_score

def load_environment():
    judge = ScriptedClient(lambda request: '{"verdict": "no"}', model="strict")
    rows = [{"question": f"q{i}", "answer": str(i)} for i in range(5)]
    return SingleTurnEnv(
        eval_dataset=rows, rubric=JudgeRubric([judge_score], client=judge), name="graded", deterministic=False
    )
"""


def strict(messages: list[dict[str, Any]]) -> str:
    return '{"verdict": "no"}'


def rambling(messages: list[dict[str, Any]]) -> str:
    return "who can say"


def praise(rollouts: list[Rollout]) -> list[Rollout]:
    """Put better answers into the judge's mouth, with the rewards that follow from them."""
    for one in rollouts:
        one.info["judge_answers"][0]["answer"] = '{"verdict": "yes"}'
        one.reward, one.metrics = 1.0, {"judge_score": 1.0}
    return rollouts


@pytest.mark.parametrize(
    ("forge", "judge", "model", "asked", "agreed", "doubtful"),
    [
        (list, strict, "strict", 10, 10, False),
        (praise, strict, "strict", 10, 0, True),
        (praise, rambling, "strict", 0, 0, False),
        (praise, strict, "another", 0, 0, False),
    ],
)
async def test_judges_that_can_be_asked_again_are(
    forge: Callable[[list[Rollout]], list[Rollout]],
    judge: Callable[[list[dict[str, Any]]], str],
    model: str,
    asked: int,
    agreed: int,
    doubtful: bool,
    tmp_path: Path,
) -> None:
    module = tmp_path / "graded_environment.py"
    module.write_text(GRADED)
    env = LocalEnvironment(load_path(module))
    result = await played(env)
    with chat_endpoint(judge) as endpoint:
        client = OpenAIClient(model, endpoint.base_url, "key")
        panel = JudgePanel({model: client}, 1000)
        report = await replay_run(env, result.manifest, forge(stored(result)), level="highest", panel=panel)
        await client.close()
    assert (report.level, report.same) == ("rescored", 10), "the record agrees with itself"
    check = report.judged
    assert check is not None
    assert (check.asked, check.agreed, check.unasked) == (asked, agreed, 10 - asked)
    assert check.doubtful is doubtful
    if doubtful:
        assert (check.before, check.after, check.tolerance) == (1.0, 0.0, 0.1)
    if model == "strict" and judge is strict:
        assert {one["temperature"] for one in endpoint.requests} == {0.0}
        assert len(endpoint.requests) == 10


@pytest.mark.parametrize("added", [{"count": 65, "text": "x"}, {"count": 1, "text": "x" * 200_000}])
async def test_nobody_has_judges_asked_without_measure(added: dict[str, Any], tmp_path: Path) -> None:
    module = tmp_path / "graded_environment.py"
    module.write_text(GRADED)
    env = LocalEnvironment(load_path(module))
    result = await played(env)
    rollouts = stored(result)
    for number in range(added["count"]):
        messages = [{"role": "user", "content": f"{number} {added['text']}"}]
        key = {"model": "strict", "messages": messages, "sampling": {"temperature": 0.0}}
        digest = hashlib.sha256(canonical_json(key).encode()).hexdigest()
        rollouts[0].info["judge_answers"].append({**key, "digest": digest, "answer": "of no use"})
    judge = ScriptedClient(['{"verdict": "no"}'] * 100)
    panel = JudgePanel({"strict": judge}, 1000)
    report = await replay_run(env, result.manifest, rollouts, level="highest", panel=panel)
    assert report.judged is not None
    assert (report.judged.asked, report.judged.unasked) == (9, 1)


async def test_answers_of_before_sampling_was_kept_are_asked_about_and_come_out_the_same(
    tmp_path: Path,
) -> None:
    module = tmp_path / "graded_environment.py"
    module.write_text(GRADED)
    env = LocalEnvironment(load_path(module))
    result = await played(env)
    rollouts = stored(result)
    for number, one in enumerate(rollouts):
        del one.info["judge_answers"][0]["sampling"]
        if number == 0:
            one.info["judge_answers"][0]["messages"][0]["content"] += " Say no."
    panel = JudgePanel({"strict": ScriptedClient(['{"verdict": "no"}'] * 10)}, 1000)
    report = await replay_run(env, result.manifest, rollouts, level="highest", panel=panel)
    assert report.judged is not None
    assert (report.same, report.judged.asked, report.judged.unasked) == (10, 9, 1)
