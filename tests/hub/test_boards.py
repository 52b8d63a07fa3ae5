"""Boards in use: filters, pages, owners' choices, hidden runs, histories, versions, and how much is read."""

from __future__ import annotations

import csv
import io
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from board_rows import make_board_row
from jinja2 import UndefinedError
from sqlalchemy import event
from wander.wire.boards import BOARD_COLUMNS, BoardColumn, LeaderboardRow, csv_table
from wander_hub.database import now
from wander_hub.fsck import check as fsck
from wander_hub.identity import HUB
from wander_hub.leaderboards.environment_listing import refresh_results
from wander_hub.leaderboards.filters import BoardFilter
from wander_hub.leaderboards.models import Board
from wander_hub.leaderboards.repository import page as board_page
from wander_hub.runs.models import Run
from wander_hub.runs.service import find
from wander_hub.web import charts, templates

BOARD = "/api/v1/environments/alice/reverse-text/leaderboard"
HTML = {"Accept": "text/html"}
GUIDE = Path(__file__).parents[2] / "docs" / "leaderboards.md"


class Posted:
    """A hub with an environment, to which runs are posted one by one."""

    def __init__(self, hub, run_of, sha256: str) -> None:
        self.hub, self._run_of, self._sha256 = hub, run_of, sha256
        self.count = 0

    async def run(self, model: str, ones: int, *, of: int = 20, user: str = "alice", **changes) -> str:
        self.count += 1
        per_example = changes.pop("per_example", 1)
        rewards = [1.0] * ones + [0.0] * (of * per_example - ones)
        spent = changes.pop("spending", None)
        sampling = changes.pop("sampling", {"temperature": 1.0})
        players = changes.pop("players", {})
        manifest, rollouts = self._run_of(
            changes.pop("sha256", self._sha256),
            reward=rewards,
            run_id=f"01RUN{self.count:021d}",
            model=model,
            examples=of,
            per_example=per_example,
            **changes,
        )
        manifest |= {"sampling": sampling, "players": players} | ({"spending": spent} if spent else {})
        manifest["environment"]["info"]["players"] = ["X", "O"] if players else []
        answer = await self.hub.post_run(manifest, rollouts, user=user)
        assert answer.status_code == 201, answer.text
        return manifest["run_id"]

    async def board(self, **params) -> dict:
        answer = await self.hub.get(BOARD, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def give(self, run_id: str, level: str) -> None:
        """Let the hub have proved so much of a run."""
        with self.hub.database.write(HUB) as session:
            run = session.get_one(Run, run_id)
            run.level = level
            session.flush()
            refresh_results(session, find(session, run_id).environment)

    def faults(self) -> list:
        return list(fsck.find_mismatches(self.hub.database, self.hub.client._transport.app.state.storage))

    async def put(self, path: str, body: dict, user: str = "alice"):
        return await self.hub.client.put(path, json=body, headers=self.hub.auth(user))


@pytest.fixture
async def posted(hub, run_of) -> Posted:
    return Posted(hub, run_of, await hub.publish())


def ranks(board: dict) -> list[tuple[str, int, int]]:
    return [(row["model"], row["rank_low"], row["rank_high"]) for row in board["rows"]]


async def test_posting_again_does_not_move_a_row(posted):
    first = await posted.run("often", 16)
    other = await posted.run("seldom", 2)
    before = (await posted.board())["rows"]
    again = [await posted.run("often", ones) for ones in (20, 19, 18, 1, 0)]
    after = await posted.board()
    assert after["rows"] == before, "neither up nor down, whatever is posted after the first"
    assert ranks(after) == [("often", 1, 1), ("seldom", 2, 2)]
    assert (after["runs"], after["models"], after["showing"]) == (7, 2, "best")
    every = (await posted.board(runs="all"))["rows"]
    assert {row["run_id"] for row in every} == {first, other, *again}
    assert [row["run_id"] for row in every if row["best"]] == [first, other]
    detail = (await posted.hub.get("/api/v1/environments/alice/reverse-text")).json()
    assert (detail["best_model"], detail["best_reward"]) == ("often", 0.8)


async def test_a_level_shows_what_it_does_not_prove(posted):
    run_id = await posted.run("<b>a</b>", 5)
    posted.give(run_id, "replayed")
    place = "/alice/reverse-text/leaderboard"
    text = (await posted.hub.get(place, headers=HTML)).text
    assert text.count('popovertarget="level-replayed" title="') == 1
    assert text.count("<div popover ") == 1
    opened = text[text.index('<div popover id="level-replayed"') :].partition("</div>")[0]
    assert "The submitter reported" in opened
    assert f'href="/runs/{run_id}"' in text
    assert opened.count("✓") == 3
    assert "not proved</b>" not in opened
    assert "<b>a</b>" not in text
    sorted_by = re.findall(r'aria-sort="descending"><a href="([^"]+)"', text)
    assert len(sorted_by) == 1
    assert "sort=reward" in sorted_by[0]


async def test_no_account_can_move_the_row_of_another(posted):
    await posted.run("new-model", 18)
    before = (await posted.board())["rows"]
    await posted.run("new-model", 0, user="bob")
    after = (await posted.board())["rows"]
    assert [(row["posted_by"], row["reward_mean"]) for row in after] == [("alice", 0.9), ("bob", 0.0)]
    assert after[:1] == [before[0] | {"rank_high": 1}]


async def test_a_withdrawn_run_still_counts_as_first_until_hidden(posted):
    unlucky = await posted.run("a", 2)
    lucky = await posted.run("a", 19)
    await posted.run("b", 10)
    gone = await posted.hub.client.delete(
        f"/api/v1/runs/{unlucky}", params={"reason": "wrong prompt"}, headers=posted.hub.auth("alice")
    )
    assert gone.status_code == 200, gone.text
    board = await posted.board()
    assert ranks(board) == [("b", 1, 1)], "no later run takes its place"
    assert (board["runs"], board["models"]) == (2, 1)
    every = await posted.board(runs="all")
    assert ranks(every) == [("a", 1, 1), ("b", 1, 1)]
    assert not every["rows"][0]["best"]
    answer = await posted.put(f"/api/v1/runs/{unlucky}/hiding", {"reason": "its author was right"})
    assert answer.status_code == 200, answer.text
    board = await posted.board()
    assert ranks(board) == [("a", 1, 1), ("b", 2, 2)]
    assert board["rows"][0]["run_id"] == lucky
    assert [one["run_id"] for one in board["hidden"]] == [unlucky], "everybody can see who let it count"
    assert (
        list(fsck.find_mismatches(posted.hub.database, posted.hub.client._transport.app.state.storage)) == []
    )


async def test_a_board_with_only_withdrawn_first_runs_is_empty(posted, make_wheel):
    first = await posted.run("a", 2)
    await posted.run("a", 3)
    await posted.hub.client.delete(
        f"/api/v1/runs/{first}", params={"reason": "mistake"}, headers=posted.hub.auth("alice")
    )
    board = await posted.board()
    assert (board["rows"], board["runs"], board["models"]) == ([], 1, 0)
    assert (await posted.hub.get("/alice/reverse-text/leaderboard", headers=HTML)).status_code == 200
    newer = await posted.hub.publish(make_wheel(version="0.2.0"))
    await posted.run("a", 7, version="0.2.0", sha256=newer)
    assert (await posted.board())["versions"] == []


async def test_a_run_counts_from_the_time_it_becomes_public(posted):
    kept = await posted.run("a", 19)
    shown = await posted.run("a", 5)
    with posted.hub.database.write(
        HUB
    ) as session:  # as if the first one had been posted for its author alone
        run = find(session, kept)
        run.private, run.public_at = True, None
        refresh_results(session, run.environment)
    assert [row["run_id"] for row in (await posted.board())["rows"]] == [shown]
    path = f"/api/v1/runs/{kept}/publish"
    assert (await posted.hub.client.post(path, headers=posted.hub.auth("alice"))).status_code == 200
    assert [row["run_id"] for row in (await posted.board())["rows"]] == [shown]
    assert len((await posted.board(runs="all"))["rows"]) == 2
    again = await posted.hub.client.post(path, headers=posted.hub.auth("alice"))
    assert again.status_code == 200
    assert [row["run_id"] for row in (await posted.board(runs="all", sort="posted"))["rows"]] == [kept, shown]


async def test_filters_hide_rows_without_changing_ranks(posted):
    await posted.run("org/Qwen3-4B", 20)
    low = await posted.run("org/Llama-8B", 1)
    prices = {"prices": {"prompt": 1.0, "completion": 2.0}}
    await posted.run("other/qwen-small", 10, spending=prices)
    posted.give(low, "replayed")
    assert ranks(await posted.board(model="QWEN")) == [("org/Qwen3-4B", 2, 2), ("other/qwen-small", 3, 3)]
    assert ranks(await posted.board(model="%")) == []
    assert ranks(await posted.board(level="rescored")) == [("org/Llama-8B", 1, 1)]
    later = (now() + timedelta(days=1)).date().isoformat()
    assert ranks(await posted.board(since=later)) == []
    assert len((await posted.board(until=later))["rows"]) == 3
    by_cost = (await posted.board(sort="cost"))["rows"]
    assert [row["model"] for row in by_cost] == ["org/Llama-8B", "org/Qwen3-4B", "other/qwen-small"]
    assert by_cost[2]["usd_per_rollout"] == pytest.approx((10 * 1.0 + 4 * 2.0) / 1e6)
    assert by_cost[0]["usd_per_rollout"] is None, "what was proved comes before any sorting"
    assert (await posted.board(sort="posted"))["rows"][0]["model"] == "other/qwen-small"
    wrong = await posted.hub.get(BOARD, params={"level": "best"})
    assert wrong.status_code == 422


async def test_cost_only_orders_runs_of_equal_rank(posted):
    def spent(price):
        return {"prices": {"prompt": price, "completion": price}}

    for model, right, price in [("a", 20, 9.0), ("b", 20, 3.0), ("c", 19, 6.0), ("d", 2, 1.0), ("e", 1, 0.5)]:
        await posted.run(model, right, spending=spent(price))
    await posted.run("c", 1, spending=spent(0.1))  # not the row of its model
    rows = (await posted.board(sort="cost"))["rows"]
    assert [row["model"] for row in rows] == ["b", "c", "a", "e", "d"]
    assert [row["rank_low"] for row in rows] == [1, 1, 1, 4, 4]
    everything = (await posted.board(runs="all", sort="cost"))["rows"]
    key = [(row["rank_low"], row["usd_per_rollout"]) for row in everything]
    assert key == sorted(key)
    assert everything[3]["usd_per_rollout"] < rows[3]["usd_per_rollout"]


@pytest.mark.parametrize(
    "sort", ["reward", *(pytest.param(sort, marks=pytest.mark.full) for sort in ("posted", "tokens", "cost"))]
)
async def test_pages_contain_every_row_once(posted, sort):
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
    page = (await posted.hub.get("/alice/reverse-text/leaderboard", headers={"Accept": "text/html"})).text
    other = page.partition("Other boards of")[2]
    assert ("at most 64 tokens" if board["max_tokens"] is None else "no token limit") in other


@pytest.mark.parametrize(
    "odd", [64, *(pytest.param(odd, marks=pytest.mark.full) for odd in (5, 7, 4097, 10**9))]
)
async def test_an_unusual_token_limit_is_not_the_first_board(posted, odd):
    await posted.run("a", 1, sampling={"max_tokens": odd})
    await posted.run("b", 1)
    board = await posted.board()
    assert (board["max_tokens"], [one["max_tokens"] for one in board["others"]]) == (None, [odd])


async def test_a_board_lists_models_that_are_only_on_other_boards(posted):
    await posted.run("a", 9)
    for model, ones in (("a", 1), ("b", 2)):
        await posted.run(model, ones, sampling={"max_tokens": 64})
    await posted.run("b", 1, sampling={"max_tokens": 32})
    seen = set()
    for one in (board := await posted.board())["board"], *(one["board"] for one in board["others"]):
        address = f"/alice/reverse-text/leaderboard?board={one}"
        text = (await posted.hub.get(address, headers={"Accept": "text/html"})).text
        _, _, rest = text.partition('<h2 id="elsewhere">')
        names = re.findall(r'<a href="/runs/[^"]+">(\w+)</a>', rest.partition("</table>")[0])
        reasons = re.findall(r'<td class="wide">([^<]+)</td></tr>', rest.partition("</table>")[0])
        seen.add((tuple(names), *reasons))
        told = (await posted.board(board=one))["elsewhere"]
        assert [(each["model"], each["because"]) for each in told] == list(zip(names, reasons, strict=True))
    assert seen == {(("b",), "at most 64 tokens per turn"), (("a",), "no token limit"), ((),)}


async def test_another_opponent_is_another_board(posted):
    def played_by(name, **more):
        return {"O": {"name": name, "kind": "script" if name.startswith("scripted:") else "Some", **more}}

    await posted.run("a", 1, players=played_by("scripted:own:optimal"))
    await posted.run("b", 1, players=played_by("scripted:own:random"))
    await posted.run("a", 1, players=played_by("/here/opponent", weights_sha256="ab" * 32))
    await posted.run("b", 2, players=played_by("/there/opponent", weights_sha256="ab" * 32))
    board = await posted.board()
    every = [board, *board["others"]]
    assert {each["players"]["O"] for each in every} == {
        "scripted:own:optimal",
        "scripted:own:random",
        "/here/opponent (weights abababababab)",  # the same weights, wherever they lie
    }
    assert sorted(each["runs"] for each in every) == [1, 1, 2]
    page = await posted.hub.get(BOARD.removeprefix("/api/v1/environments"))
    assert "scripted:own:optimal" in page.text


async def test_hiding_a_run_requires_a_public_reason(posted):
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


async def test_owners_choose_the_columns_of_a_board(posted):
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
    assert ">Tokens, stated<" not in page
    await posted.put(path + busy["board"], {"pinned": True})
    assert (await posted.board())["board"] == busy["board"], "one board of a version is pinned"
    for wrong in (["model", "rank"], [*columns, "color"], [*columns, "level"]):
        assert (await posted.put(path + other, {"columns": wrong})).status_code == 422
    assert (await posted.put(path + "zzz", {})).json()["code"] == "board_not_found"


async def history_of(posted) -> list[tuple[str, str]]:
    """Return the models and rewards of the chart on a board's page, by time."""
    page = (await posted.hub.get("/alice/reverse-text/leaderboard", headers=HTML)).text
    return re.findall(r'<a href="/runs/\w+" aria-label="(\w+) ([\d.]+), [\d-]+ \d\d:\d\d"><circle', page)


async def test_history_shows_the_leading_rows_by_time(posted):
    runs = [await posted.run(model, ones) for model, ones in (("a", 5), ("a", 20), ("b", 3), ("c", 8))]
    assert await history_of(posted) == [("a", "0.250"), ("b", "0.150"), ("c", "0.400")]
    page = (await posted.hub.get("/alice/reverse-text/leaderboard", headers=HTML)).text
    assert "Best score over time: 2 records among 3 rows" in page
    assert "&lt;line" not in page
    # Who goes by keyboard gets to each row; all were posted today, so the axis tells the time.
    dots = re.findall(r'<a href="/runs/(\w+)" aria-label="[abc] [\d.]+, [\d-]+ \d\d:\d\d"><circle', page)
    assert set(dots) == {run for run in runs if run != runs[1]}
    await posted.put(f"/api/v1/runs/{runs[0]}/hiding", {"reason": "a mistake"})
    assert await history_of(posted) == [("a", "1.000"), ("b", "0.150"), ("c", "0.400")]


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (0, ["2026-11-29 12:00"]),
        (40, ["12:00:00", "12:00:40"]),
        (7200, ["2026-11-29 12:00", "2026-11-29 14:00"]),
        (10 * 86_400, ["2026-11-29", "2026-12-09"]),
    ],
)
def test_axis_labels_of_a_history_are_unique(seconds, labels):
    first = datetime(2026, 11, 29, 12, tzinfo=UTC)
    times = (first, first + timedelta(seconds=seconds))
    dots = tuple(charts.HistoryDot("a", "m", 0.5, one) for one in times)
    ticks = re.findall(r'<text class="tick"[^>]*>([^<]+:[^<]+|\d{4}-[^<]+)</text>', str(charts.history(dots)))
    assert ticks == labels


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


async def test_metrics_have_the_same_interval_as_an_equal_reward(posted):
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
    place = "/alice/reverse-text/leaderboard"
    told = f'data-label="lcs" title="95% interval, clustered by example: {shown}">'
    for query in ("?column=metrics", "?column=rank&column=metric:lcs"):
        assert told in (await posted.hub.get(place + query, headers=HTML)).text
    assert told not in (await posted.hub.get(place, headers=HTML)).text
    assert ">95%<" in (await posted.hub.get(f"/runs/{run_id}", headers=HTML)).text


async def test_a_posted_run_fills_every_column(posted):
    """A column whose value the hub forgets to fill would be hidden instead of failing."""
    prices = {"prices": {"prompt": 1.0, "completion": 2.0}}
    await posted.run("a", 5, of=10, per_example=2, spending=prices)
    (row,) = (await posted.board())["rows"]
    row = LeaderboardRow.model_validate(row)
    assert [name for name, column in BOARD_COLUMNS.items() if column.text(row) == ""] == []


async def test_csv_has_a_header_and_escapes_formulas(posted):
    await posted.run("=cmd|' /C calc'!A0", 5)
    await posted.run("plain", 4)
    answer = await posted.hub.get(BOARD + ".csv")
    assert answer.headers["content-type"].startswith("text/csv")
    first, second = csv.DictReader(io.StringIO(answer.text))
    assert first["model"] == "'=cmd|' /C calc'!A0"
    assert (second["model"], second["reward_mean"], second["metric:length_mean"]) == ("plain", "0.2", "5.0")


def draw_table(*values, **options):
    return templates._templates.get_template("board_table.html").module.board_table(*values, **options)


@pytest.mark.parametrize("column", [*(name for name in BOARD_COLUMNS if name != "metrics"), "metric:right"])
def test_each_column_has_a_cell_on_the_page_and_a_line_in_the_guide(column):
    page = draw_table([make_board_row()], (0.0, 1.0), ["by", column], pass_k=2)
    assert page.count('<th scope="col"') == 2
    assert page.count("<td") == 2
    assert f"| `{column.replace('metric:right', 'metrics')}` | " in GUIDE.read_text()


def test_a_column_without_a_cell_of_its_own_says_who_states_its_values(monkeypatch):
    for name, stated, text in (("proved", False, "7"), ("told", True, "8"), ("unknown", True, "")):
        column = BoardColumn(name, {}, lambda row, text=text: text, stated=stated)
        monkeypatch.setitem(BOARD_COLUMNS, name, column)
    page = draw_table([make_board_row()], (0.0, 1.0), ["proved", "told", "unknown"])
    cells = [re.sub("<[^>]+>", "", cell) for cell in re.findall(r"<td.*?</td>", page)]
    assert cells == ["7", "8 self-reported", "–"]


def test_a_column_without_a_cell_is_an_error():
    with pytest.raises(UndefinedError):
        draw_table([make_board_row()], (0.0, 1.0), ["color"])


def test_text_cells_cannot_start_a_formula():
    row = make_board_row()
    header, cells, without = csv_table([row, row.model_copy(update={"pass_rates": []})])
    found = dict(zip(header, cells, strict=True))
    assert (found["model"], found["posted_by"], found["run_id"]) == ("'+m", "'@who", "'-run")
    assert found["reward_mean"] == -1.0
    rates = ["pass@2", "pass@2_low_95", "pass@2_high_95", "pass^2", "pass^2_low_95", "pass^2_high_95"]
    assert [found[one] for one in rates] == [0.5, 0.4, 0.6, 0.2, 0.1, 0.3]
    assert [dict(zip(header, without, strict=True))[one] for one in rates] == [None] * 6


@pytest.mark.usefixtures("sqlite_alone")
@pytest.mark.parametrize("showing", ["best", "all"])
@pytest.mark.parametrize("sort", ["reward", "posted"])
async def test_a_board_page_reads_an_index_without_sorting(posted, showing, sort):
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


async def test_owners_exclude_and_readmit_rescored_runs(posted):
    """Also one that is rescored after they did, and replayed after that."""
    played, scored, later = [await posted.run(model, ones) for model, ones in (("a", 5), ("b", 9), ("c", 7))]
    posted.give(played, "replayed")
    posted.give(scored, "rescored")
    board = (await posted.board())["board"]
    path = f"/api/v1/environments/alice/reverse-text/versions/0.1.0/boards/{board}"

    async def standing() -> list[str]:
        return [row["run_id"] for row in (await posted.board())["rows"]]

    assert await standing() == [played, scored, later]
    answer = await posted.put(path, {"refuses_rescored": True})
    assert answer.status_code == 200, answer.text
    assert (await posted.board())["refuses_rescored"] is True
    posted.give(later, "rescored")
    assert await standing() == [played]
    assert posted.faults() == []
    page = (await posted.hub.get("/alice/reverse-text/leaderboard", headers={"Accept": "text/html"})).text
    assert "rescored runs not accepted" in page
    posted.give(later, "replayed")
    assert await standing() == [later, played]
    await posted.put(path, {"refuses_rescored": False})
    assert await standing() == [later, played, scored]


@pytest.fixture
async def tiers(posted) -> dict[str, str]:
    """Runs of every level, of which those that are least proven have the highest rewards."""
    levels = ["unverifiable", "complete", "rescored", "replayed"]
    runs = {one: await posted.run(one, 20 - 3 * number) for number, one in enumerate(levels)}
    for level, run_id in runs.items():
        posted.give(run_id, level)
    return runs


ORDER = ["replayed", "rescored", "complete", "unverifiable"]


async def test_replayed_runs_rank_above_higher_unverified_rewards(posted, tiers):
    board = await posted.board()
    assert [row["model"] for row in board["rows"]] == ORDER
    assert ranks(board) == [
        ("replayed", 1, 1),
        ("rescored", 2, 2),
        ("complete", 3, 3),
        ("unverifiable", 4, 4),
    ]
    for sort in ("tokens", "cost"):
        assert [row["level"] for row in (await posted.board(sort=sort))["rows"]] == ORDER
    pages = [await posted.board(limit=3)]
    pages.append(await posted.board(limit=3, cursor=pages[0]["next"]))
    assert [row["model"] for page in pages for row in page["rows"]] == ORDER
    detail = (await posted.hub.get("/api/v1/environments/alice/reverse-text")).json()
    assert detail["best_model"] == "replayed"
    assert await history_of(posted) == [], "one row has the best level, and others set no record"
    page = (await posted.hub.get("/alice/reverse-text/leaderboard", headers=HTML)).text
    assert page.count("These runs rank below all runs above. Does not prove: that") == 3
    assert (
        'scope="rowgroup"'
        not in (await posted.hub.get("/alice/reverse-text/leaderboard?sort=posted", headers=HTML)).text
    )
    assert posted.faults() == []
