"""Which example each group plays; no model and no environment are needed for that."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from wander.errors import ConfigError
from wander.train.config import DataSection, GRPOSettings
from wander.train.rollouts.environments import choices_of, require_distinct
from wander.train.rollouts.sampler import ExampleSampler, TrainingMixture, has_signal, pool_of
from wander.train.settings.sections import MixedEnvironmentSection


def sampler(length: int | None = 12, strata: list[int | None] | None = None, **data: Any) -> ExampleSampler:
    return ExampleSampler(DataSection(**data), length=length, strata=strata or [], seed=3)


def drawn(source: ExampleSampler, count: int) -> list[int]:
    return [source.draw() for _ in range(count)]


def test_examples_follow_the_order_of_the_dataset_repeatedly() -> None:
    assert drawn(sampler(), 30) == list(range(30))
    assert drawn(sampler(None), 30) == list(range(30))
    assert drawn(sampler(None, order="shuffled", curriculum=True), 5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("groups", [4, 5, 7, 32])
def test_every_step_has_equal_shares_of_the_strata(groups: int) -> None:
    strata: list[int | None] = [0] * 100 + [1] * 20 + [2] * 7 + [3]  # as uneven as can be, one after another
    for data in ({}, {"order": "shuffled"}, {"curriculum": True}):
        source = sampler(len(strata), strata, **data)
        for _ in range(6):
            counts = Counter(strata[place % len(strata)] for place in drawn(source, groups))
            source.end_step()
            expected = {groups // 4, -(-groups // 4)}
            assert {counts[stratum] for stratum in range(4)} <= expected
            assert sum(counts.values()) == groups


def test_alternating_strata_keep_the_order_of_the_dataset() -> None:
    strata: list[int | None] = [(row + 2) % 5 for row in range(40)]
    assert drawn(sampler(40, strata), 90) == list(range(90))


def test_every_shuffled_epoch_has_its_own_order() -> None:
    places = drawn(sampler(order="shuffled"), 36)
    epochs = [places[first : first + 12] for first in (0, 12, 24)]
    for number, epoch in enumerate(epochs):
        assert sorted(epoch) == list(range(12 * number, 12 * number + 12))
    orders = [[place % 12 for place in epoch] for epoch in epochs]
    assert orders[0] != sorted(orders[0])
    assert len({tuple(order) for order in orders}) == 3
    other = ExampleSampler(DataSection(order="shuffled"), length=12, seed=4)
    assert drawn(other, 12) != epochs[0]
    assert drawn(sampler(order="shuffled"), 36) == places


def test_pools_classify_examples_by_difficulty() -> None:
    settings = DataSection(hard_below=0.25, easy_from=0.75)
    cases = {"hard": [0.0, 0.0], "normal": [0.0, 1.0], "easy": [0.9, 1.0], "solved": [0.7, 0.7]}
    assert {pool: pool_of(rewards, settings) for pool, rewards in cases.items()} == {p: p for p in cases}
    assert pool_of([1.0, 1.0], settings) == "solved"
    assert has_signal([0.0, 1.0])
    assert not has_signal([0.5, 0.5])
    assert not has_signal([])


def learned(source: ExampleSampler, steps: int, groups: int = 4) -> list[list[int]]:
    """Play steps in which row r earns [r / 12] and every fourth row something else too."""
    played = []
    for _ in range(steps):
        source.end_step()
        places = drawn(source, groups)
        played.append(places)
        for place in places:
            row = place % 12
            source.observe(place, [row / 12, row / 12 if row % 4 else 1.0])
    return played


def test_a_curriculum_plays_unseen_examples_first() -> None:
    source = sampler(curriculum=True, pool_weights={"hard": 0, "easy": 0, "solved": 0, "normal": 1})
    steps = learned(source, 20)
    assert [place for step in steps[:3] for place in step] == list(range(12))
    pools = [each[2] for each in source.state()["examples"].values()]
    assert {pool: pools.count(pool) for pool in pools} == {"hard": 2, "normal": 2, "easy": 1, "solved": 7}
    later = [place for step in steps[3:] for place in step]
    # Rows 0 and 4 are the only normal ones; none is taken twice in a step while another is left.
    assert all({0, 4} <= {place % 12 for place in step} for step in steps[3:])
    assert len(set(later)) == len(later), "an example that comes again meets new chances"


def test_pools_are_played_by_weight_and_in_order() -> None:
    source = sampler(curriculum=True, pool_weights={"hard": 0, "easy": 0, "solved": 1, "normal": 3})
    counts = Counter(place % 12 for step in learned(source, 300, groups=1)[12:] for place in step)
    normal = counts[0] + counts[4]
    assert 0.65 < normal / sum(counts.values()) < 0.85
    assert abs(counts[0] - counts[4]) <= 1
    assert max(counts[row] for row in (3, 5, 6, 7, 9, 10, 11)) - min(counts[row] for row in (3, 5, 6)) <= 1
    assert {counts[row] for row in (1, 2, 8)} == {0}


def test_a_share_of_draws_can_repeat_known_examples() -> None:
    early = [place % 12 for step in learned(sampler(curriculum=True, unseen_share=0.5), 3) for place in step]
    assert 4 < len(set(early)) < 12


@pytest.mark.parametrize(
    "data", [{}, {"order": "shuffled"}, {"curriculum": True}, {"curriculum": True, "order": "shuffled"}]
)
def test_a_restored_sampler_continues_exactly(data: dict[str, Any]) -> None:
    strata: list[int | None] = [row % 3 for row in range(12)]
    whole, part = sampler(12, strata, **data), sampler(12, strata, **data)
    learned(whole, 7)
    learned(part, 7)
    resumed = sampler(12, strata, **data)
    resumed.restore(json.loads(json.dumps(part.state())))
    assert learned(resumed, 9) == learned(whole, 9)
    assert resumed.state() == whole.state()


def test_environments_alternate_by_weight() -> None:
    mixture = TrainingMixture([sampler(None), sampler(None), sampler(None)], [3, 2, 1])
    for _ in range(4):
        assert Counter(pick.environment for pick in mixture.draw(12)) == {0: 6, 1: 4, 2: 2}
    picks = [pick.environment for pick in mixture.draw(7)]
    assert sorted(Counter(picks).values(), reverse=True) in ([3, 3, 1], [4, 2, 1], [3, 2, 2])
    assert [pick.environment for pick in mixture.refill([2, 2, 0])] == [2, 2, 0]
    resumed = TrainingMixture([sampler(None), sampler(None), sampler(None)], [3, 2, 1])
    resumed.restore(json.loads(json.dumps(mixture.state())))
    assert resumed.draw(8) == mixture.draw(8)


def test_environments_of_a_mixture_are_distinguished() -> None:
    mixed = [
        MixedEnvironmentSection(label="easy", arguments={"level": 1}),
        MixedEnvironmentSection(name="acme/words@1.0.0", weight=2),
    ]
    settings = GRPOSettings(model={"path": "m"}, environments=mixed)
    assert [(one.name, one.arguments, one.label) for one in choices_of(settings)] == [
        (None, {"level": 1}, "easy"),
        ("acme/words@1.0.0", {}, None),
    ]
    with pytest.raises(ConfigError, match="called `words`"):
        require_distinct(["words", "words"])
    with pytest.raises(ValueError, match="set `arguments` in each of them"):
        GRPOSettings(model={"path": "m"}, environments=mixed, environment={"arguments": {"level": 2}})
