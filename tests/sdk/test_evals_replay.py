"""A run is played again from its record: what was played comes out the same, what was forged does not."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from asked_model import AskedModel
from wander import (
    LocalEnvironment,
    MultiTurnEnv,
    Rollout,
    Rubric,
    ScriptedClient,
    SingleTurnEnv,
    load_environment,
)
from wander.clients.base import ModelRequest
from wander.clients.scripted import scripted_client_from_spec
from wander.errors import ModelError, RunError
from wander.evals.replay import TRIES, first_difference, replay_run
from wander.evals.run.runner import EvaluationPlan, EvaluationResult, evaluate
from wander.evals.store.folder import RunFolder
from wander.rubrics.judge import JudgeRubric, judge_score
from wander.types import EnvironmentInfo, Failure, GridView, SamplingArgs, Turn, TurnTokens, Usage
from wander.wire import EnvironmentPin, ModelPin, Platform, RunManifest
from wander.wire.boards import LeaderboardRow
from wander.wire.run_record import EndpointUse, MixedEnvironment, Shard, Spending
from wander.wire.verification import ReplayReport


def exact(completion: list[dict[str, Any]], answer: str) -> float:
    return float(completion[-1]["content"] == answer)


def environment(rubric: Rubric | None = None, **options: Any) -> LocalEnvironment:
    rows = [{"question": f"{i}?", "answer": str(i)} for i in range(6)]
    return LocalEnvironment(
        SingleTurnEnv(eval_dataset=rows, rubric=rubric or Rubric([exact]), name="echo", **options)
    )


def drawing() -> LocalEnvironment:
    """Return an environment whose answers depend on the seed of the run."""

    class Drawing(MultiTurnEnv):
        def env_response(self, messages: list[dict[str, Any]], state: Any) -> list[dict[str, Any]]:
            return [{"role": "user", "content": f"{self.rng(state, 1).random()}?"}]

    rows = [{"question": f"{i}?", "answer": str(i), "stratum": i} for i in range(6)]
    return LocalEnvironment(
        Drawing(rows[:1], eval_dataset=rows, rubric=Rubric([exact]), name="echo", max_turns=2)
    )


def answers(request: ModelRequest) -> str:
    number = int(str(request.messages[-1]["content"]).rstrip("?"))
    return str(number if number % 2 else number + 1)


async def played(env: LocalEnvironment, client: Any = answers, rollouts: int = 2) -> EvaluationResult:
    client = client if hasattr(client, "complete") else ScriptedClient(client)
    plan = EvaluationPlan(num_examples=None, rollouts_per_example=rollouts, max_retries=0)
    return await evaluate(env, client, plan, None, EnvironmentPin(name=env.info.name, info=env.info))


async def replayed(result: EvaluationResult, *, env: LocalEnvironment | None = None, **options: Any) -> Any:
    rollouts = options.pop("rollouts", result.rollouts)
    return await replay_run(env or environment(), result.manifest, rollouts, **options)


async def test_a_replay_gives_the_same_rollouts() -> None:
    told: list[tuple[int, int]] = []
    report = await replayed(await played(environment()), on_replayed=lambda *now: told.append(now))
    assert report.level == "replayed"
    assert (report.replayed, report.same, report.differing, report.failed) == (12, 12, 0, 0)
    assert told[-1] == (12, 0)


@pytest.mark.parametrize("concurrency", [1, 50])
@pytest.mark.parametrize("chunk", [1, 5, 256])
async def test_games_replay_from_a_folder(
    chunk: int, concurrency: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wander.evals.replay._CHUNK", chunk)
    env = LocalEnvironment(load_environment("tictactoe"))
    player = scripted_client_from_spec("tictactoe.players:careless")
    plan = EvaluationPlan(num_examples=15, rollouts_per_example=2, seed=3)
    pin = EnvironmentPin(name="tictactoe", info=env.info)
    await evaluate(env, player, plan, tmp_path / "run", pin)
    folder = RunFolder.open(tmp_path / "run")
    again = LocalEnvironment(load_environment("tictactoe"))
    report = await replay_run(again, folder.manifest, folder.rollouts(), concurrency=concurrency)
    assert report.level == "replayed", report.divergences
    assert report.same == 30


FORGERIES: dict[str, tuple[dict[str, Any], str]] = {
    "reward": ({"reward": 1.0}, "the reward is `0.0`, not `1.0`"),
    "metric": ({"metrics": {"exact": 1.0}}, 'the metrics is `{"exact":0.0}`, not `{"exact":1.0}`'),
    "metric added": ({"metrics": {"exact": 0.0, "more": 1.0}}, "the metrics is"),
    "seed": ({"seed": 5}, "the seed is"),
    "prompt": ({"prompt": [{"role": "user", "content": "1?"}]}, "message 0 of the prompt is `0?`, not `1?`"),
    "answer": ({"answer": "1"}, "the answer is `0`, not `1`"),
    "completion": (
        {"completion": [{"role": "assistant", "content": "0"}]},
        "message 0 of the completion is `1`, not `0`",
    ),
    "a message more": (
        {"completion": [{"role": "assistant", "content": "1"}, {"role": "user", "content": "good"}]},
        "the completion has 1 messages, not 2",
    ),
    "stop reason": ({"stop_reason": "won"}, "the stop_reason is"),
    "truncated": ({"truncated": True}, "the truncated is `false`, not `true`"),
    "info": ({"info": {"won": True}}, 'the info is `{}`, not `{"won":true}`'),
    "turns dropped": ({"turns": []}, "the"),
    "a turn more": (
        {"turns": [Turn(message={"role": "assistant", "content": "1"}, context_messages=1)] * 2},
        "the rollout has 1 turns, not 2",
    ),
    "number for truth": ({"metrics": {"exact": False}}, "the metrics is"),
}


@pytest.mark.parametrize("name", FORGERIES)
async def test_a_forged_rollout_is_found_without_blaming_its_group(name: str) -> None:
    result = await played(environment())
    changes, said = FORGERIES[name]
    position = next(i for i, each in enumerate(result.rollouts) if each.key == ("0", 1))
    result.rollouts[position] = result.rollouts[position].model_copy(update=changes)
    report = await replayed(result)
    assert report.level == "claimed"
    assert [(each.example_id, each.index) for each in report.divergences] == [("0", 1)]
    assert report.divergences[0].difference.startswith(said)
    assert (report.same, report.differing) == (11, 1)


async def test_a_changed_completion_reveals_the_false_reward() -> None:
    result = await played(environment())
    forged = result.rollouts[0].model_copy(deep=True)
    forged.completion[0]["content"] = forged.turns[0].message["content"] = "nonsense"
    forged.reward, forged.metrics = 1.0, {"exact": 1.0}
    report = await replayed(result, rollouts=[forged, *result.rollouts[1:]])
    assert [each.difference for each in report.divergences] == ["the reward is `0.0`, not `1.0`"]


async def test_missing_rollouts_leave_a_run_claimed() -> None:
    result = await played(environment())
    report = await replayed(result, rollouts=result.rollouts[1:])
    assert (report.level, report.recorded, report.expected, report.same) == ("claimed", 11, 12, 11)


async def test_failed_rollouts_are_counted_and_not_compared() -> None:
    def failing(request: ModelRequest) -> str:
        if request.messages[-1]["content"] == "3?":
            raise ModelError("the endpoint was down")
        return "1"

    result = await played(environment(), failing)
    report = await replayed(result)
    assert (report.level, report.failed, report.same, report.differing) == ("claimed", 2, 10, 0)


async def test_a_rollout_that_fails_in_the_replay_is_undecided() -> None:
    """It has failed, and does not differ; what it states is not shown either."""
    calls = itertools.count()

    def broken(completion: list[dict[str, Any]], answer: str) -> float:
        next(calls)
        raise ValueError("no socket here")

    broken_env = environment(Rubric([broken]))
    result = await played(environment())
    result.manifest.environment.info = broken_env.info
    report = await replayed(result, env=broken_env)
    assert (report.level, report.undecided, report.unfinished, report.differing) == ("complete", 12, 0, 0)
    assert not report.agrees
    assert "no socket here" in (report.undecided_reason or "")
    assert next(calls) == 12 * TRIES


async def test_a_rollout_that_fails_once_is_replayed_again() -> None:
    calls = itertools.count()

    def unsure(completion: list[dict[str, Any]], answer: str) -> float:
        if next(calls) in (20, 21):
            raise OSError("no memory for a moment")
        return exact(completion, answer)

    env = environment(Rubric([unsure]))
    report = await replayed(await played(env), env=env)
    assert (report.level, report.same, report.undecided) == ("replayed", 12, 0)


async def test_a_difference_that_is_not_repeated_is_ignored() -> None:
    """Neither does it show that the rollout is the same."""
    calls = itertools.count()

    def moody(completion: list[dict[str, Any]], answer: str) -> float:
        number = next(calls)  # 12 of the run; then every second call gives another reward
        return exact(completion, answer) if number < 12 or number % 2 else 5.0

    env = environment(Rubric([moody]), reward_bounds=(0.0, 5.0))
    result = await played(env)
    report = await replayed(result, env=env, concurrency=1, sample=1)
    assert (report.replayed, report.differing, report.undecided) == (1, 0, 1)
    assert "it was equal when it was replayed again" in (report.undecided_reason or "")


@pytest.mark.parametrize("taken", [[], [0]])
async def test_a_rollout_that_asks_for_more_than_its_record_has_differs(taken: list[int]) -> None:
    env = LocalEnvironment(load_environment("tictactoe"))
    player = scripted_client_from_spec("tictactoe.players:careless")
    plan = EvaluationPlan(num_examples=3, rollouts_per_example=1, seed=3)
    result = await evaluate(env, player, plan, None, EnvironmentPin(name="tictactoe", info=env.info))
    first = result.rollouts[0]
    result.rollouts[0] = first.model_copy(update={"turns": [first.turns[at] for at in taken]})
    report = await replay_run(env, result.manifest, result.rollouts)
    assert (report.level, report.differing, report.undecided) == ("claimed", 1, 0)
    assert report.divergences[0].part == "failure"


@pytest.mark.parametrize(
    ("arguments", "defaults", "contradicted"),
    [
        ({"size": 50}, {"size": 50}, True),
        ({"size": 8}, {}, True),
        ({"size": 8}, {"size": 8}, False),
        ({"size": 8.0}, {"size": 8}, False),
        ({"other": 1}, {"size": 9}, False),
    ],
)
async def test_false_defaults_of_arguments_that_a_run_gives_contradict_it(
    arguments: dict[str, Any], defaults: dict[str, Any], contradicted: bool
) -> None:
    env = environment()
    env.env.argument_defaults = {"size": 8}
    result = await played(env)
    pin = result.manifest.environment
    pin.arguments, pin.info = arguments, pin.info.model_copy(update={"defaults": defaults})
    report = await replayed(result, env=env)
    assert (report.contradicted, report.level) == (contradicted, "claimed" if contradicted else "replayed")


async def test_hidden_randomness_is_caught() -> None:
    numbers = itertools.count()

    def moody(completion: list[dict[str, Any]]) -> float:
        return float(next(numbers))

    env = environment(Rubric([moody]))
    report = await replayed(await played(env), env=env)
    assert (report.level, report.same) == ("claimed", 0)


async def test_keys_outside_of_the_manifest_are_rejected() -> None:
    result = await played(environment())
    first = result.rollouts[0]
    for changes in ({"example_id": "77"}, {"index": 2}, {"index": -1}):
        with pytest.raises(RunError, match="does not belong to the run"):
            await replayed(result, rollouts=[first.model_copy(update=changes)])
    with pytest.raises(RunError, match="occurs twice"):
        await replayed(result, rollouts=[first, first])


async def test_another_task_set_is_rejected_with_its_reason() -> None:
    result = await played(environment())
    other = result.manifest.model_copy(update={"task_set_sha256": "0" * 64})
    report = await replay_run(environment(), other, result.rollouts)
    assert report.refused == "the examples differ from those of the run: their digest is different"
    assert (report.replayed, report.contradicted, report.level) == (0, True, "claimed")
    missing = result.manifest.model_copy(update={"example_ids": ["nowhere", *result.manifest.example_ids]})
    report = await replay_run(environment(), missing, result.rollouts)
    assert report.refused == "`echo` has no example `nowhere`"


async def test_an_environment_that_declares_outside_observations_is_not_compared() -> None:
    env = environment(deterministic=False)
    report = await replayed(await played(env), env=env)
    assert report.refused == "`echo` declares that it is not deterministic"
    assert (report.replayed, report.level) == (0, "complete")


STATED_OF_THE_ENVIRONMENT: dict[str, Any] = {
    "name": "other",
    "kind": "tool",
    "summary": "The hardest of all.",
    "tags": ["hard"],
    "reward_functions": [],
    "reward_bounds": (0.0, 2.0),
    "max_turns": 9,
    "timeout_seconds": 5.0,
    "deterministic": False,
    "group_rewards": True,
    "train_examples": 7,
    "eval_examples": 5,
    "strata": 3,
    "reference_scores": {"human": 0.1},
    "arguments": {"size": 9},
    "defaults": {"size": 9},
    "players": ["X", "O"],
    "view": GridView(columns=3, cells={"x": "X"}),
}


DESCRIPTION = {"name", "kind", "tags", "reference_scores", "arguments"}
"""No page takes these from a run: arguments are shown as the run's own, and resolved by the defaults."""


@pytest.mark.parametrize("name", EnvironmentInfo.model_fields)
async def test_a_manifest_with_another_environment_fails_the_replay(name: str) -> None:
    env = environment()
    env.env.argument_defaults = {"size": 8}
    result = await played(env)
    pin = result.manifest.environment
    pin.info = pin.info.model_copy(update={name: STATED_OF_THE_ENVIRONMENT[name]})
    pin.arguments = {"size": 9} if name == "defaults" else {}
    report = await replayed(result, env=env)
    assert (report.contradicted, report.level == "claimed") == (name not in DESCRIPTION,) * 2, report.refused


FOREIGN = EnvironmentPin(name="foreign", info=EnvironmentInfo(name="foreign", kind="tool"))
STATED_OF_A_RUN: dict[str, Any] = {
    "run_id": "0" * 26,
    "schema_": "wander.run/1",
    "kind": "training",
    "environment": FOREIGN,
    "model": ModelPin(name="other", kind="X"),
    "sampling": SamplingArgs(temperature=0.5),
    "split": "train",
    "example_ids": [str(i) for i in range(5)],
    "rollouts_per_example": 3,
    "strata": [1] * 6,
    "task_set_sha256": "0" * 64,
    "choice": "shuffled",
    "rerun_of": "0" * 26,
    "seed": 1,
    "started_at": datetime.now(UTC),
    "ended_at": datetime.now(UTC),
    "platform": Platform(wander="0", python="0", system="x", machine="x"),
    "training": {},
    "mixture": [
        MixedEnvironment(label="a", weight=1, environment=FOREIGN, examples=1, task_set_sha256="0" * 64)
    ],
    "reproduction": None,
    "endpoints": EndpointUse(calls=1),
    "spending": Spending(usd=0.0),
    "lines": 1,
    "notes": "the best",
    "shard": Shard(first=0, end=1, of=2),
    "players": {"X": ModelPin(name="m", kind="X")},
}
PROVED_OF_A_RUN = {
    *("environment", "split", "example_ids", "rollouts_per_example", "strata", "task_set_sha256", "seed"),
    *("players", "lines", "shard"),
}
"""All else that a manifest states is the submitter's word, as `wander.wire.verification.STATED` says."""


@pytest.mark.parametrize("name", RunManifest.model_fields)
async def test_every_manifest_field_is_proved_or_listed_as_self_reported(name: str) -> None:
    result = await played(drawing(), ScriptedClient(lambda request: "1"))
    other = result.manifest.model_copy(update={name: STATED_OF_A_RUN[name]})
    try:
        level = (await replay_run(drawing(), other, result.rollouts)).level
    except RunError:
        level = "refused"
    assert (level != "replayed") == (name in PROVED_OF_A_RUN), level


DERIVED_OF_A_ROW = {
    *("rank_low", "rank_high", "reward_mean", "reward_low", "reward_high", "examples", "rollouts", "failed"),
    *("rollouts_per_example", "metrics", "metric_intervals", "pass_rates", "stratum"),
}
OF_THE_HUB = {
    *(
        "run_id",
        "version",
        "level",
        "posted_by",
        "posted_at",
        "url",
        "best",
        "people",
        "repeated_by",
    ),
    *(
        "looks_like",
        "level_reason",
        "tokens_counted",
        "folded",
        "folded_runs",
        "folded_into",
        "stated",
        "checkpoint_stated_by",
    ),
    *("players_stated_by", "names"),
}
"""What the hub knows of its users and runs. `names` repeats `model`, of runs that are folded."""


def test_a_row_names_every_field_that_nothing_proves() -> None:
    stated = set(LeaderboardRow.model_fields["stated"].default.split())
    parts = [stated, DERIVED_OF_A_ROW, OF_THE_HUB]
    assert sorted(name for part in parts for name in part) == sorted(LeaderboardRow.model_fields)


MESSAGE = {"role": "user", "content": "so"}
STATED_OF_A_ROLLOUT: dict[str, Any] = {
    "example_id": "1",
    "index": 1,
    "seed": 5,
    "prompt": [MESSAGE],
    "completion": [MESSAGE],
    "turns": [],
    "answer": "7",
    "stop_reason": "won",
    "truncated": True,
    "reward": 0.5,
    "metrics": {"exact": 0.5},
    "failure": Failure(boundary="model", type="X", message=""),
    "usage": Usage(prompt_tokens=9),
    "started_at": "2026-01-01T00:00:00Z",
    "seconds": 9.0,
    "scoring_seconds": 9.0,
    "info": {"won": True},
    "tools": [{"type": "function"}],
    "step": 3,
    "rewards": {"X": 1.0},
    "player_metrics": {"O": {"exact": 1.0}},
}
STATED_OF_A_TURN: dict[str, Any] = {
    "message": {"role": "assistant", "content": "77"},
    "context_messages": 0,
    "finish_reason": "eos",
    "usage": Usage(prompt_tokens=9),
    "model_seconds": 9.0,
    "environment_seconds": 9.0,
    "tokens": TurnTokens(prompt_ids=[1], completion_ids=[2], logprobs=[-0.5]),
    "cached": True,
    "player": "X",
    "left_out": (0, 1),
}
UNPROVED = {
    *("usage", "started_at", "seconds", "scoring_seconds", "step"),
    *("turn finish_reason", "turn usage", "turn model_seconds", "turn environment_seconds", "turn tokens"),
    *("turn cached", "turn left_out", "turn context_messages", "tools"),
}
"""Tokens, times and what an endpoint says, as `wander.wire.verification.STATED` says."""


@pytest.mark.parametrize("name", [*Rollout.model_fields, *(f"turn {name}" for name in Turn.model_fields)])
async def test_every_rollout_field_is_proved_or_listed_as_self_reported(name: str) -> None:
    result = await played(environment())
    first, field = result.rollouts[0], name.removeprefix("turn ")
    if field == name:
        changes = {name: STATED_OF_A_ROLLOUT[name]}
    else:
        changes = {"turns": [first.turns[0].model_copy(update={field: STATED_OF_A_TURN[field]})]}
    result.rollouts[0] = first.model_copy(update=changes)
    try:
        level = (await replayed(result)).level
    except RunError:  # two of one place
        level = "refused"
    assert (level != "replayed") == (name not in UNPROVED), level


async def test_a_sample_is_drawn_by_its_seed_and_raises_no_level() -> None:
    result = await played(environment())
    report: ReplayReport = await replayed(result, sample=5)
    assert (report.replayed, report.sampled, report.level) == (5, True, "complete")
    forged = [each.model_copy(update={"reward": 9.0}) for each in result.rollouts]
    found = [
        [
            (each.example_id, each.index)
            for each in (await replayed(result, rollouts=forged, **one)).divergences
        ]
        for one in ({"sample": 5}, {"sample": 5}, {"sample": 5, "sample_seed": 1})
    ]
    assert found[0] == found[1] != found[2]
    assert (await replayed(result, sample=12)).level == "replayed"


def say_no(request: ModelRequest) -> str:
    return '{"verdict": "no"}'


def praise(rollouts: list[Rollout]) -> None:
    """Put better answers into the judge's mouth, with the rewards that follow from them."""
    for each in rollouts:
        each.info["judge_answers"][0]["answer"] = '{"verdict": "yes"}'
        each.reward, each.metrics = 1.0, {"judge_score": 1.0}


@pytest.mark.parametrize("deterministic", [True, False])
async def test_answers_of_a_judge_come_from_the_record_in_a_replay(
    deterministic: bool,
) -> None:
    judge = JudgeRubric([judge_score], client=AskedModel(say_no))
    env = environment(judge, deterministic=deterministic)
    result = await played(env)
    assert {each.reward for each in result.rollouts} == {0.0}
    for forge in (list, praise):
        forge(result.rollouts)
        report = await replayed(result, env=env, level="highest")
        assert (report.same, report.judged, report.answered, report.level) == (12, 12, 12, "complete")
        assert report.agrees
        assert report.taken_as_recorded == "the judge's answers are taken as recorded"


@pytest.mark.parametrize("deterministic", [True, False])
async def test_a_judge_that_is_a_function_is_called_again(deterministic: bool) -> None:
    env = environment(JudgeRubric([judge_score], client=ScriptedClient(say_no)), deterministic=deterministic)
    result = await played(env)
    honest = await replayed(result, env=env, level="highest")
    assert (honest.level, honest.answered) == ("replayed" if deterministic else "rescored", 0)
    praise(result.rollouts)
    forged = await replayed(result, env=env, level="highest")
    assert (forged.level, forged.differing) == ("claimed", 12)


MANGLED: dict[str, Any] = {
    "messages": lambda one: one["messages"][0].update(content="another question"),
    "digest": lambda one: one.update(digest="0" * 64),
    "model": lambda one: one.update(model="a stricter judge"),
    "sampling": lambda one: one.update(sampling={"temperature": 2.0}),
    "called a function": lambda one: one.update(scripted=True),
    "gone": lambda one: one.clear(),
}


@pytest.mark.parametrize("name", MANGLED)
@pytest.mark.parametrize("deterministic", [True, False])
async def test_mangled_records_of_a_judge_differ(name: str, deterministic: bool) -> None:
    env = environment(JudgeRubric([judge_score], client=AskedModel(say_no)), deterministic=deterministic)
    result = await played(env)
    for each in result.rollouts:
        MANGLED[name](each.info["judge_answers"][0])
    report = await replayed(result, env=env, level="highest")
    assert (report.level, report.same) == ("claimed", 0)


@pytest.mark.parametrize("info", [{"judge_answers": "x"}, {"judge_answers": [1]}, {"judge_answers": []}])
async def test_unusual_judge_records_do_not_stop_a_replay(info: dict[str, Any]) -> None:
    result = await played(environment())
    result.rollouts[0].info |= info
    report = await replayed(result)
    assert (report.level, report.differing) == ("claimed", 1)


async def test_group_rewards_are_compared_for_whole_groups() -> None:
    def rank(completions: list[list[dict[str, Any]]]) -> list[float]:
        lengths = [len(each[-1]["content"]) for each in completions]
        return [float(sorted(lengths).index(length)) for length in lengths]

    def longer(request: ModelRequest) -> str:
        return "x" * (int(request.rollout_id.rpartition("/")[2]) + 1)

    env = environment(Rubric([rank]))
    assert env.info.group_rewards
    result = await played(env, longer, rollouts=3)
    assert {each.reward for each in result.rollouts} == {0.0, 1.0, 2.0}
    shuffled = sorted(result.rollouts, key=lambda each: (-each.index, each.example_id))
    assert (await replayed(result, env=env, rollouts=shuffled)).level == "replayed"
    sample = await replayed(result, env=env, sample=4)
    assert (sample.replayed, sample.same) == (3, 3)


def test_values_that_python_considers_equal_are_distinguished() -> None:
    one = Rollout(example_id="0", index=0, seed=0, prompt=[], completion=[], info={"n": 1})
    for other in (True, 1.0, "1"):
        assert first_difference(one, one.model_copy(update={"info": {"n": other}})) is not None
    nan = one.model_copy(update={"reward": float("nan"), "info": {"n": object}})
    assert first_difference(one, nan) is not None
