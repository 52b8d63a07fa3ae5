"""Boards in use: filters, pages, owners' choices, hidden runs, histories, versions, and how much is read."""

from __future__ import annotations

import csv
import io
from datetime import timedelta

import pytest
from sqlalchemy import event, text
from wander.wire.boards import LeaderboardRow, csv_table
from wander_hub.database import now
from wander_hub.identity import HUB
from wander_hub.leaderboards.listing import refresh_results
from wander_hub.leaderboards.models import Board, BoardEntry
from wander_hub.leaderboards.placement import place_all
from wander_hub.leaderboards.repository import page as board_page
from wander_hub.leaderboards.schemas import BoardFilter
from wander_hub.runs.models import Run
from wander_hub.runs.service import find

BOARD = "/api/v1/environments/alice/reverse-text/leaderboard"
HTML = {"Accept": "text/html"}


class Posted:
    """A hub with an environment, to which runs are posted one by one."""

    def __init__(self, hub, run_of, sha256: str) -> None:
        self.hub, self._run_of, self._sha256 = hub, run_of, sha256
        self.count = 0

    async def run(self, model: str, ones: int, *, of: int = 20, **changes) -> str:
        self.count += 1
        rewards = [1.0] * ones + [0.0] * (of - ones)
        spent = changes.pop("spending", None)
        sampling = changes.pop("sampling", {"temperature": 1.0})
        manifest, rollouts = self._run_of(
            changes.pop("sha256", self._sha256),
            reward=rewards,
            run_id=f"01RUN{self.count:021d}",
            model=model,
            examples=of,
            per_example=1,
            **changes,
        )
        manifest |= {"sampling": sampling} | ({"spending": spent} if spent else {})
        answer = await self.hub.post_run(manifest, rollouts)
        assert answer.status_code == 201, answer.text
        return manifest["run_id"]

    async def board(self, **params) -> dict:
        answer = await self.hub.get(BOARD, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def put(self, path: str, body: dict, user: str = "alice"):
        return await self.hub.client.put(path, json=body, headers=self.hub.auth(user))


@pytest.fixture
async def posted(hub, run_of) -> Posted:
    return Posted(hub, run_of, await hub.publish())


def ranks(board: dict) -> list[tuple[str, int, int]]:
    return [(row["model"], row["rank_low"], row["rank_high"]) for row in board["rows"]]


async def test_many_runs_of_one_model_push_nobody_down(posted):
    for ones in (18, 19, 20):
        await posted.run("often", ones)
    await posted.run("seldom", 2)
    best = await posted.board()
    assert ranks(best) == [("often", 1, 1), ("seldom", 2, 2)]
    assert (best["runs"], best["models"], best["showing"]) == (4, 2, "best")
    every = await posted.board(runs="all")
    assert ranks(every) == [("often", 1, 1)] * 3 + [("seldom", 2, 2)]
    assert [row["best"] for row in every["rows"]] == [True, False, False, True]


async def test_filters_leave_rows_out_and_change_no_rank(posted):
    await posted.run("org/Qwen3-4B", 20)
    low = await posted.run("org/Llama-8B", 1)
    prices = {"prices": {"prompt": 1.0, "completion": 2.0}}
    await posted.run("other/qwen-small", 10, spending=prices)
    with posted.hub.database.write(HUB) as session:
        run = find(session, low)
        run.level = "replayed"
        refresh_results(session, run.environment)
    assert ranks(await posted.board(model="QWEN")) == [("org/Qwen3-4B", 1, 1), ("other/qwen-small", 2, 2)]
    assert ranks(await posted.board(model="%")) == []
    assert ranks(await posted.board(level="rescored")) == [("org/Llama-8B", 3, 3)]
    later = (now() + timedelta(days=1)).date().isoformat()
    assert ranks(await posted.board(since=later)) == []
    assert len((await posted.board(until=later))["rows"]) == 3
    by_cost = (await posted.board(sort="cost"))["rows"]
    assert by_cost[0]["model"] == "other/qwen-small"
    assert by_cost[0]["usd_per_rollout"] == pytest.approx((10 * 1.0 + 4 * 2.0) / 1e6)
    assert by_cost[1]["usd_per_rollout"] is None
    assert (await posted.board(sort="posted"))["rows"][0]["model"] == "other/qwen-small"
    wrong = await posted.hub.get(BOARD, params={"level": "best"})
    assert wrong.status_code == 422


@pytest.mark.parametrize("sort", ["reward", "posted", "tokens", "cost"])
async def test_pages_hold_every_row_once(posted, sort):
    runs = [await posted.run(f"m{number % 3}", number // 2, of=6) for number in range(8)]
    whole = (await posted.board(runs="all", sort=sort))["rows"]
    assert sorted(row["run_id"] for row in whole) == sorted(runs)
    seen, cursor = [], None
    while True:
        params = {"runs": "all", "sort": sort, "limit": 3} | ({"cursor": cursor} if cursor else {})
        found = await posted.board(**params)
        seen += found["rows"]
        cursor = found["next"]
        if cursor is None:
            break
    assert seen == whole
    for wrong in ("nonsense", "W10="):
        answer = await posted.hub.get(BOARD, params={"cursor": wrong})
        assert (answer.status_code, answer.json()["code"]) == (422, "bad_cursor")


async def test_another_token_limit_is_another_board(posted):
    await posted.run("a", 1)
    await posted.run("a", 1, sampling={"max_tokens": 64})
    board = await posted.board()
    assert board["boards"] == 2
    assert {board["max_tokens"], board["others"][0]["max_tokens"]} == {None, 64}


async def test_owners_hide_a_run_only_with_a_reason_that_all_can_read(posted):
    best = await posted.run("cheat", 20)
    await posted.run("honest", 10)
    path = f"/api/v1/runs/{best}/hiding"
    assert (await posted.put(path, {"reason": "it read the answers"}, "bob")).status_code == 403
    assert (await posted.put(path, {"reason": "  "})).status_code == 422
    assert (await posted.hub.get(path)).json()["code"] == "not_hidden"
    answer = await posted.put(path, {"reason": "it read the answers"})
    assert answer.status_code == 200, answer.text
    board = await posted.board()
    assert ranks(board) == [("honest", 1, 1)]
    (hidden,) = board["hidden"]
    assert (hidden["run_id"], hidden["hidden_by"]) == (best, "alice")
    assert hidden["reason"] == "it read the answers"
    assert (await posted.hub.get(path)).json() == hidden
    shown = (await posted.hub.get("/alice/reverse-text/leaderboard", headers=HTML)).text
    assert "it read the answers" in shown
    detail = (await posted.hub.get("/api/v1/environments/alice/reverse-text")).json()
    assert detail["best_model"] == "honest"
    again = (await posted.put(path, {"reason": "it read the answers, twice"}, "admin")).json()
    assert (again["reason"], again["hidden_by"]) == ("it read the answers, twice", "admin")
    back = await posted.hub.client.delete(path, headers=posted.hub.auth("alice"))
    assert back.status_code == 204
    board = await posted.board()
    assert ranks(board)[0] == ("cheat", 1, 1)
    assert board["hidden"] == []


async def test_owners_arrange_a_board(posted):
    await posted.run("a", 3)
    await posted.run("b", 5)
    await posted.run("b", 5, of=4 + 4, sampling={"max_tokens": 9})
    busy = await posted.board()
    other = busy["others"][0]["board"]
    path = "/api/v1/environments/alice/reverse-text/versions/0.1.0/boards/"
    columns = ["model", "rank", "reward", "interval", "metric:lcs", "level"]
    body = {"title": "Short", "description": "Few examples.", "columns": columns, "pinned": True}
    answer = await posted.put(path + other, body)
    assert answer.status_code == 200, answer.text
    first = await posted.board()
    assert (first["board"], first["title"], first["pinned"]) == (other, "Short", True)
    assert first["columns"] == columns
    page = (await posted.hub.get("/alice/reverse-text/leaderboard", headers=HTML)).text
    assert "Few examples." in page
    assert page.index(">Model<") < page.index(">Rank<")
    assert ">Tokens<" not in page
    await posted.put(path + busy["board"], {"pinned": True})
    assert (await posted.board())["board"] == busy["board"], "one board of a version is pinned"
    for wrong in (["model", "rank"], [*columns, "colour"], [*columns, "level"]):
        assert (await posted.put(path + other, {"columns": wrong})).status_code == 422
    assert (await posted.put(path + "zzz", {})).json()["code"] == "board_not_found"


async def test_history_keeps_the_records_and_loses_what_is_hidden(posted):
    runs = [await posted.run("a", ones) for ones in (5, 3, 8, 12)]
    await posted.run("b", 6)
    points = (await posted.board())["history"]
    assert [(one["model"], one["reward_mean"]) for one in points] == [
        ("a", 0.25), ("a", 0.4), ("a", 0.6), ("b", 0.3),
    ]  # fmt: skip
    await posted.put(f"/api/v1/runs/{runs[2]}/hiding", {"reason": "a mistake"})
    await posted.put(f"/api/v1/runs/{runs[0]}/hiding", {"reason": "a mistake"})
    points = (await posted.board())["history"]
    assert [one["reward_mean"] for one in points if one["model"] == "a"] == [0.15, 0.6]
    page = (await posted.hub.get("/alice/reverse-text/leaderboard", headers=HTML)).text
    assert "Best score over time of 2 models, 3 records" in page
    assert "&lt;line" not in page


async def test_a_new_version_starts_a_new_board_and_names_the_old(posted, make_wheel):
    await posted.run("a", 5)
    newer = await posted.hub.publish(make_wheel(version="0.2.0"))
    empty = await posted.board(version="0.2.0")
    assert (empty["rows"], [one["version"] for one in empty["versions"]]) == ([], ["0.1.0"])
    await posted.run("a", 7, version="0.2.0", sha256=newer)
    board = await posted.board()
    (old,) = board["versions"]
    assert (board["version"], old["version"], old["same_protocol"]) == ("0.2.0", "0.1.0", True)
    assert (old["best_model"], old["best_reward"]) == ("a", 0.25)


async def test_metrics_have_the_interval_that_such_a_reward_has(posted):
    run_id = await posted.run("a", 5)
    (row,) = (await posted.board())["rows"]
    assert row["metrics"]["lcs"] == row["reward_mean"] == 0.25
    assert row["metric_intervals"]["lcs"] == pytest.approx([row["reward_low"], row["reward_high"]])
    # Equal values of a metric that declares no bounds: nothing says what other examples may give.
    assert row["metrics"]["length"] == 5.0
    assert "length" not in row["metric_intervals"]
    text = (await posted.hub.get(BOARD + ".csv")).text
    (cells,) = csv.DictReader(io.StringIO(text))
    assert float(cells["metric:lcs_low_95"]) == pytest.approx(row["reward_low"])
    shown = f"{row['reward_low']:.2f} to {row['reward_high']:.2f}"
    page = (await posted.hub.get("/alice/reverse-text/leaderboard", headers=HTML)).text
    assert shown in page[page.index("<tbody>") :]
    assert ">95 %<" in (await posted.hub.get(f"/runs/{run_id}", headers=HTML)).text


async def test_csv_has_a_header_and_no_formulas(posted):
    await posted.run("=cmd|' /C calc'!A0", 5)
    await posted.run("plain", 4)
    answer = await posted.hub.get(BOARD + ".csv")
    assert answer.headers["content-type"].startswith("text/csv")
    first, second = csv.DictReader(io.StringIO(answer.text))
    assert first["model"] == "'=cmd|' /C calc'!A0"
    assert (second["model"], second["reward_mean"], second["metric:length_mean"]) == ("plain", "0.2", "5.0")


def test_no_cell_of_text_begins_a_formula():
    row = LeaderboardRow(
        rank_low=1, rank_high=1, run_id="-run", model="+m", model_kind="X", reward_mean=-1.0, reward_low=-2.0,
        reward_high=0.0, examples=1, rollouts_per_example=1, rollouts=1, failed=0, version="1",
        level="complete", posted_by="@who", posted_at=now(), url="u",
    )  # fmt: skip
    header, cells = csv_table([row])
    found = dict(zip(header, cells, strict=True))
    assert (found["model"], found["posted_by"], found["run_id"]) == ("'+m", "'@who", "'-run")
    assert found["reward_mean"] == -1.0


async def test_what_an_older_hub_took_in_is_placed_when_the_hub_starts(posted):
    run_id = await posted.run("a", 5)
    with posted.hub.database.write(HUB) as session:
        session.execute(text("DELETE FROM board_entries"))
        session.execute(text("DELETE FROM boards"))
        session.get_one(Run, run_id).board_level = ""
    assert (await posted.board())["rows"] == []
    place_all(posted.hub.database)
    assert ranks(await posted.board()) == [("a", 1, 1)]


@pytest.mark.usefixtures("sqlite_alone")
@pytest.mark.parametrize("showing", ["best", "all"])
@pytest.mark.parametrize("sort", ["reward", "posted"])
async def test_a_page_walks_an_index_and_sorts_nothing(posted, showing, sort):
    for number in range(4):
        await posted.run(f"m{number}", number, of=6)
    database, statements = posted.hub.database, []
    wanted = BoardFilter(showing=showing, sort=sort, limit=2)
    with database.read(HUB) as session:
        board = session.query(Board).one()
        event.listen(database.engine, "before_cursor_execute", lambda *given: statements.append(given[2:4]))
        board_page(session, board, wanted)
        statement, values = next(one for one in statements if "board_entries" in one[0])
        plan = session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
        steps = [row[3] for row in plan]
    assert not [one for one in steps if "TEMP B-TREE" in one], steps
    assert "ix_board_entries" in steps[0] or "ix_board_entries" in " ".join(steps), steps


async def test_entries_are_those_of_runs_that_rank(posted):
    kept = await posted.run("a", 5)
    gone = await posted.run("a", 9)
    withdrawn = await posted.hub.client.delete(
        f"/api/v1/runs/{gone}", params={"reason": "wrong model"}, headers=posted.hub.auth("alice")
    )
    assert withdrawn.status_code == 200, withdrawn.text
    with posted.hub.database.read(HUB) as session:
        (entry,) = session.query(BoardEntry).all()
        board = session.query(Board).one()
        assert (entry.run_id, entry.best, entry.record) == (kept, True, True)
        assert (board.runs, board.models, len(board.lows)) == (1, 1, 8)
