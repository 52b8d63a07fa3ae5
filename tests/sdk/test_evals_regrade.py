"""Runs whose rollouts another version of the environment grades again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from asked_model import AskedModel
from wander import LocalEnvironment, MultiTurnEnv, Rubric, SingleTurnEnv
from wander.clients.scripted import ScriptedClient
from wander.errors import ConfigError
from wander.evals import regrade as regrading
from wander.evals.regrade import FAILED_BEFORE, NO_JUDGE, NOT_RECORDED, PROMPT_CHANGED, regrade
from wander.evals.replay import replay_run
from wander.evals.run.runner import EvaluationPlan, evaluate
from wander.evals.store.folder import RunFolder
from wander.rubrics.judge import DEFAULT_PROMPT, JudgeRubric, judge_score
from wander.types import Messages, State
from wander.wire import EnvironmentPin


def rows(*numbers: int, ask: str = "say") -> list[dict[str, Any]]:
    return [
        {"example_id": f"n{number}", "question": f"{ask} {number}", "answer": str(number)}
        for number in numbers
    ]


def exact(completion: Messages, answer: str) -> float:
    return float(completion[-1]["content"] == answer)


def lenient(completion: Messages, answer: str) -> float:
    return 1.0 if completion[-1]["content"].strip("!") == answer else 0.25


def environment(reward: Any, questions: list[dict[str, Any]]) -> LocalEnvironment:
    rubric = reward if isinstance(reward, Rubric) else Rubric([reward])
    return LocalEnvironment(
        SingleTurnEnv(eval_dataset=questions, rubric=rubric, summary="Say a number.", name="say")
    )


def pin_of(env: LocalEnvironment, version: str) -> EnvironmentPin:
    return EnvironmentPin(owner="acme", name="say", version=version, info=env.info)


def shout(request: Any) -> str:
    return request.messages[-1]["content"].rpartition(" ")[2] + "!"


async def played(folder: Path, env: LocalEnvironment, client: Any = None, **plan: Any) -> RunFolder:
    client = client or ScriptedClient(shout)
    await evaluate(env, client, EvaluationPlan(**plan), folder, pin_of(env, "1.0"))
    return RunFolder.open(folder)


async def test_recorded_completions_are_graded_by_the_new_version(tmp_path: Path) -> None:
    old = await played(tmp_path / "old", environment(exact, rows(1, 2, 3)), rollouts_per_example=2)
    env = environment(lenient, rows(1, 2, 3))
    plan = await regrade(env, pin_of(env, "2.0"), old, None)
    assert (plan.graded, plan.changed, plan.is_complete) == (6, 6, True)
    done = await regrade(env, pin_of(env, "2.0"), old, tmp_path / "new", concurrency=4)
    assert done == plan
    new = RunFolder.open(tmp_path / "new")
    assert [rollout.reward for rollout in new.rollouts()] == [1.0] * 6
    manifest = new.manifest
    assert (manifest.environment.version, manifest.model) == ("2.0", old.manifest.model)
    assert manifest.notes == f"regraded from {old.manifest.run_id} (1.0)"
    assert manifest.ended_at is not None
    assert [rollout.usage for rollout in new.rollouts()] == [rollout.usage for rollout in old.rollouts()]
    report = await replay_run(env, manifest, new.rollouts())
    assert (report.same, report.refused) == (6, None), "the new run replays like one that was played"


async def test_changed_prompts_are_played_again_and_missing_examples_left_out(tmp_path: Path) -> None:
    old = await played(tmp_path / "old", environment(exact, rows(1, 2, 3)))
    env = environment(lenient, [*rows(1, 4), *rows(3, ask="tell me")])
    found = await regrade(env, pin_of(env, "2.0"), old, tmp_path / "new")
    assert (found.graded, found.gone, found.is_complete) == (1, 1, False)
    assert found.to_play == {PROMPT_CHANGED: 1, NOT_RECORDED: 1}
    new = RunFolder.open(tmp_path / "new")
    assert [rollout.example_id for rollout in new.rollouts()] == ["n1"]
    assert new.manifest.ended_at is None
    # The evaluator plays the rest with the model, and keeps what was graded.
    rest = await evaluate(
        env, ScriptedClient(shout), EvaluationPlan(num_examples=3), new.path, pin_of(env, "2.0"), resume=True
    )
    assert (rest.resumed, rest.summary.rollouts, rest.summary.reward_mean) == (1, 3, 1.0)


async def test_an_interrupted_regrading_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = await played(tmp_path / "old", environment(exact, rows(1, 2, 3)))
    env = environment(lenient, rows(1, 2, 3))

    def stop(done: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await regrade(env, pin_of(env, "2.0"), old, tmp_path / "new", concurrency=1, on_progress=stop)
    assert len(list(RunFolder.open(tmp_path / "new").rollouts())) == 2
    done = await regrade(env, pin_of(env, "2.0"), old, tmp_path / "new")
    assert (done.resumed, done.graded, done.is_complete) == (2, 1, True)
    assert len(list(RunFolder.open(tmp_path / "new").rollouts())) == 3


class Polite(MultiTurnEnv):
    """Asks for a second answer, in words that differ by version."""

    again = "again"

    async def env_response(self, messages: Messages, state: State) -> Messages:
        return [{"role": "user", "content": self.again}]


class Politer(Polite):
    again = "again, please"


async def test_a_later_turn_that_differs_is_played_again(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rubric": Rubric([exact]), "max_turns": 2, "name": "say"}
    old = await played(tmp_path / "old", LocalEnvironment(Polite(eval_dataset=rows(1), **settings)))
    for kind, graded in ((Polite, 1), (Politer, 0)):
        env = LocalEnvironment(kind(eval_dataset=rows(1), **settings))
        found = await regrade(env, pin_of(env, "2.0"), old, None)
        assert (found.graded, found.to_play[PROMPT_CHANGED]) == (graded, 1 - graded)
    longer = LocalEnvironment(Polite(eval_dataset=rows(1), **settings | {"max_turns": 3}))
    found = await regrade(longer, pin_of(longer, "2.0"), old, None)
    assert found.to_play == {PROMPT_CHANGED: 1}, "the model has no answer to a third question"


async def test_failed_rollouts_are_played_again(tmp_path: Path) -> None:
    def fails_on_two(request: Any) -> str:
        if "2" in request.messages[-1]["content"]:
            raise RuntimeError("no idea")
        return shout(request)

    old = await played(tmp_path / "old", environment(exact, rows(1, 2)), ScriptedClient(fails_on_two))
    env = environment(lenient, rows(1, 2))
    found = await regrade(env, pin_of(env, "2.0"), old, None)
    assert (found.graded, found.to_play) == (1, {FAILED_BEFORE: 1})


async def test_answers_of_a_judge_come_from_the_record(tmp_path: Path) -> None:
    """A grader that asks its judge something else needs the model, and nothing is graded without it."""
    model = AskedModel(lambda request: '{"verdict": "no"}')
    judge = JudgeRubric([judge_score], client=model)
    old = await played(tmp_path / "old", environment(judge, rows(1)))
    stricter = JudgeRubric([judge_score], client=model, prompt=f"Be strict. {DEFAULT_PROMPT}")
    for rubric, to_play in ((judge, {}), (stricter, {NO_JUDGE: 1})):
        env = environment(rubric, rows(1))
        assert (await regrade(env, pin_of(env, "2.0"), old, None)).to_play == to_play


async def test_incomplete_evaluations_are_rejected(tmp_path: Path) -> None:
    env = environment(exact, rows(1))
    old = await played(tmp_path / "old", env)
    for change in ({"kind": "training"}, {"players": {"b": old.manifest.model}}):
        with pytest.raises(ConfigError):
            regrading.plan_of(old.manifest.model_copy(update=change))
