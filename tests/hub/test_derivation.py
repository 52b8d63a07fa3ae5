"""Numbers that an older release derived differently are recomputed after an upgrade."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import select, update
from wander.types import canonical_json
from wander_hub.cli.main import app as command
from wander_hub.environments.models import Environment
from wander_hub.fsck import derivation
from wander_hub.fsck.check import find_mismatches
from wander_hub.fsck.derivation import recompute_stale_runs
from wander_hub.identity import HUB
from wander_hub.leaderboards.models import Board, BoardEntry
from wander_hub.runs.models import DERIVATION, Run, RunChunk
from wander_hub.storage import Storage

VALUES = (1, "6053dc08")
"""`DERIVATION`, and the start of the digest of what it gives for the runs of `posted`. If a change of the hub
gives other values for the same rollouts, raise `DERIVATION` and record them here."""
_ENTRY = ("model", "level", "shortfall", "low", "high", "tier", "counts")


@pytest.fixture
def storage(hub: Any) -> Storage:
    return hub.client._transport.app.state.storage


@pytest.fixture
async def posted(hub: Any, run_of: Any, make_wheel: Any) -> Any:
    """Two environments with two runs each."""
    number = 0
    for name in ("reverse-text", "second-env"):
        sha256 = await hub.publish(make_wheel(name=name))
        for model, reward in (("a", 0.9), ("b", 0.5)):
            number += 1
            rewards = [reward, reward, 1.0, 0.0, None, 0.25]
            manifest, rollouts = run_of(
                sha256, name=name, reward=rewards, model=model, run_id=f"01RUN{number:021d}"
            )
            answer = await hub.post_run(manifest, rollouts)
            assert answer.status_code == 201, answer.text
    return hub


def numbers_of(hub: Any) -> list[dict[str, Any]]:
    """Return everything that is derived from the runs, except for ids and times."""
    with hub.database.read(HUB) as session:
        runs = select(Run.model, Run.reward_mean, Run.summary, Run.order_sha256)
        values: list[Any] = [tuple(row) for row in session.execute(runs.order_by(Run.run_id))]
        entries = select(*(getattr(BoardEntry, name) for name in _ENTRY))
        values += [tuple(row) for row in session.execute(entries.order_by(BoardEntry.run_id))]
        boards = select(Board.runs, Board.models, Board.tiers).order_by(Board.id)
        values += [tuple(row) for row in session.execute(boards)]
        totals = select(Environment.name, Environment.best_model, Environment.best_reward)
        values += [tuple(row) for row in session.execute(totals.order_by(Environment.name))]
    return values


def derive_as_before(hub: Any) -> None:
    """Change all derived values, as if an older release had computed them."""
    with hub.database.write(HUB) as session:
        for run in session.scalars(select(Run)):
            run.summary = {**run.summary, "reward_mean": 0.125, "failed": 3}
            run.reward_mean, run.derivation = 0.125, DERIVATION - 1
        session.execute(update(BoardEntry).values(shortfall=-0.125, low=0.1, high=0.2))
        session.execute(update(Board).values(lows=b"", highs=b"", tiers=[9]))
        session.execute(update(Environment).values(best_model="b", best_reward=0.125))


def stale(hub: Any) -> int:
    with hub.database.read(HUB) as session:
        return sum(number != DERIVATION for number in session.scalars(select(Run.derivation)))


async def test_an_upgrade_recomputes_what_an_older_release_derived(posted: Any, storage: Storage) -> None:
    before = numbers_of(posted)
    derive_as_before(posted)
    assert (numbers_of(posted) != before, stale(posted)) == (True, 4)
    assert list(recompute_stale_runs(posted.database, storage)) == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert (numbers_of(posted), stale(posted)) == (before, 0)
    assert list(find_mismatches(posted.database, storage)) == []
    assert list(recompute_stale_runs(posted.database, storage)) == [], "a second upgrade changes nothing"


async def test_an_interrupted_upgrade_continues(posted: Any, storage: Storage) -> None:
    before = numbers_of(posted)
    derive_as_before(posted)
    for done, _total in recompute_stale_runs(posted.database, storage):
        if done == 3:
            break
    assert stale(posted) == 2, "the first environment is finished, the second has one mended run"
    assert list(recompute_stale_runs(posted.database, storage)) == [(1, 2), (2, 2)]
    assert (numbers_of(posted), stale(posted)) == (before, 0)


async def test_an_upgrade_interrupted_before_the_boards_continues(
    posted: Any, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = numbers_of(posted)
    derive_as_before(posted)

    def fail(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(derivation, "check_boards", fail)
        with pytest.raises(KeyboardInterrupt):
            list(recompute_stale_runs(posted.database, storage))
    assert stale(posted) == 4
    list(recompute_stale_runs(posted.database, storage))
    assert (numbers_of(posted), stale(posted)) == (before, 0)


async def test_an_older_release_keeps_the_numbers_of_a_newer_one(posted: Any, storage: Storage) -> None:
    derive_as_before(posted)
    with posted.database.write(HUB) as session:
        session.execute(update(Run).values(derivation=DERIVATION + 1))
    newer = numbers_of(posted)
    assert list(recompute_stale_runs(posted.database, storage)) == []
    assert numbers_of(posted) == newer


async def test_a_damaged_run_stays_stale_and_is_named(
    posted: Any, storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    derive_as_before(posted)
    with posted.database.read(HUB) as session:
        run_id, lost = session.execute(select(RunChunk.run_id, RunChunk.object_sha256).limit(1)).one()
    storage.delete(lost)
    list(recompute_stale_runs(posted.database, storage))
    with posted.database.read(HUB) as session:
        left = session.scalars(select(Run.run_id).where(Run.derivation != DERIVATION)).all()
        sharing = session.scalars(select(RunChunk.run_id).where(RunChunk.object_sha256 == lost)).all()
    assert sorted(left) == sorted(sharing)
    assert run_id in caplog.text


async def test_migrate_recomputes_and_prints_its_progress(
    posted: Any, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, settings = numbers_of(posted), posted.client._transport.app.state.settings
    derive_as_before(posted)
    monkeypatch.setenv("WANDER_HUB_DATABASE_URL", settings.resolved_database_url)
    done = CliRunner().invoke(command, ["migrate", "--data", str(settings.data)])
    assert (done.exit_code, "recomputed 4 of 4 runs" in done.stderr) == (0, True), done.output
    assert (numbers_of(posted), stale(posted)) == (before, 0)


async def test_values_are_recorded_with_their_derivation(posted: Any) -> None:
    digest = hashlib.sha256(canonical_json(numbers_of(posted)).encode()).hexdigest()
    assert (DERIVATION, digest[:8]) == VALUES
