"""Environments are found by words, filters and use; nothing private shows, and nothing is counted twice."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text, update
from wander_hub.database import READER
from wander_hub.environments import browse
from wander_hub.environments import repository as environments
from wander_hub.environments.models import Environment, Version
from wander_hub.identity import HUB
from wander_hub.index.downloads import DownloadCounter
from wander_hub.leaderboards import environment_listing

ALL = "/api/v1/environments"
CATALOGUE = {
    "chess-endgames": ("Mate in a few moves.", "game,chess", "Positions of rooks and pawns."),
    "opening-book": ("Name the chess opening.", "game,language", "From 500 master games."),
    "word-ladder": ("Change one letter at a time.", "game,language", "A puzzle by Lewis Carroll."),
    "sums": ("Add numbers.", "math,arithmetic", "Carrying is what makes it hard. Unlike chess."),
    "proofs": ("Write Lean proofs.", "math", "Theorems of number theory."),
}


@pytest.fixture
async def filled(hub: Any, make_wheel: Any) -> Any:
    """A hub with a small catalogue, of which `sums` needs `proofs`."""
    for name, (summary, tags, readme) in CATALOGUE.items():
        module = name.replace("-", "_")
        await hub.publish(
            make_wheel(
                name=name,
                summary=summary,
                keywords=tags,
                readme=f"# {name}\n\n{readme}\n",
                requires_dist=("wander-sdk", *(["proofs>=0.1"] if name == "sums" else [])),
                entry_points=f"[wander.environments]\n{name} = {module}:load_environment\n",
                files={f"{module}.py": b"def load_environment():\n    return None\n"},
            )
        )
    return hub


async def names(hub: Any, query: str, user: str | None = None) -> list[str]:
    answer = await hub.get(f"{ALL}?{query}", headers=hub.auth(user) if user else {})
    assert answer.status_code == 200, answer.text
    return [one["name"] for one in answer.json()["data"]]


async def test_search_ranks_names_before_summaries_before_readmes(filled):
    assert await names(filled, "q=chess") == ["chess-endgames", "opening-book", "sums"]
    assert await names(filled, "q=alice/sums") == ["sums"]
    assert await names(filled, "q=number") == ["sums", "proofs"]  # `numbers`, and the README
    assert await names(filled, "q=the+opening") == ["opening-book"]
    assert await names(filled, "q=lad") == ["word-ladder"]  # as one writes it
    assert await names(filled, "q=chess+ladder") == []
    assert await names(filled, "q=%22%29+OR+%28%2A") == await names(filled, "q=%26%7C%21%27") == []


async def test_misspelled_words_are_found(filled):
    assert await names(filled, "q=ches") == ["chess-endgames", "opening-book"]  # beginnings, but of a README
    for slip in ("chses", "chexss", "cess", "chass"):
        assert "chess-endgames" in await names(filled, f"q={slip}")
    assert await names(filled, "q=arithmatik") == ["sums"]
    assert await names(filled, "q=word+laddr") == ["word-ladder"]
    assert await names(filled, "q=zzzz") == []


async def test_filters_agree_on_every_query_path(filled, monkeypatch):
    for few in (0, 1, 500):
        for name, most in {"_FIRST": 1, "_FEW": few, "_WALKED": (1, 2)}.items():
            monkeypatch.setattr(browse, name, most)
        assert await names(filled, "tag=game&sort=newest") == [
            "word-ladder",
            "opening-book",
            "chess-endgames",
        ]
        assert await names(filled, "tag=game&sort=newest&limit=1") == ["word-ladder"]
        assert await names(filled, "tag=math&owner=alice&limit=1") == ["proofs"]
        assert await names(filled, "tag=nothing") == []


async def test_filters_orders_and_pages(filled):
    with filled.database.write() as session:
        for number, name in enumerate(CATALOGUE):
            values = {"run_count": number % 3, "download_count": 10 - number}
            session.execute(update(Environment).where(Environment.name == name).values(values))
        chess = environments.environment_named(session, "alice", "chess-endgames")
        version = session.query(Version).filter_by(environment_id=chess.id).one()
        version.environment_kind, version.deterministic, version.checked = "tool", True, True
        environment_listing.refresh(session, chess)
        ladder = environments.environment_named(session, "alice", "word-ladder")
        session.query(Version).filter_by(environment_id=ladder.id).one().environment_kind = "multi_turn"
        environment_listing.refresh(session, ladder)
    assert set(await names(filled, "tag=math")) == {"sums", "proofs"}
    assert (
        await names(filled, "kind=tool")
        == await names(filled, "checked=true&license=mit")
        == ["chess-endgames"]
    )
    for kind in ("multi-turn", "Multi_Turn"):
        assert await names(filled, f"kind={kind}") == ["word-ladder"]
    for path in ("/?", "/api/v1/environments?q=chess&"):
        refused = await filled.get(f"{path}kind=one-turn", headers={"Accept": "application/json"})
        assert refused.status_code == 422, refused.text
        assert refused.json()["code"] == "unknown_kind"
        assert "`single-turn`" in refused.json()["hint"]
    assert await names(filled, "deterministic=true&q=chess") == ["chess-endgames"]
    assert len(await names(filled, "checked=false")) == 4
    assert await names(filled, "owner=alice&tag=math&sort=downloads") == ["sums", "proofs"]
    assert await names(filled, "owner=nobody") == await names(filled, "tag=nothing") == []
    assert await names(filled, "sort=newest") == list(reversed(CATALOGUE))
    assert await names(filled, "q=chess&sort=downloads") == ["chess-endgames", "opening-book", "sums"]
    for query in (
        "sort=runs",
        "sort=downloads",
        "sort=newest",
        "",
        "q=chess",
        "q=chess&sort=runs",
        "tag=game",
    ):
        whole, paged, cursor = await names(filled, query), [], ""
        for _ in range(9):
            answer = (await filled.get(f"{ALL}?{query}&limit=1{cursor}")).json()
            paged += [one["name"] for one in answer["data"]]
            if answer["next"] is None:
                break
            cursor = f"&cursor={answer['next']}"
        assert paged == whole, query
    cursor = (await filled.get(f"{ALL}?limit=1&sort=runs")).json()["next"]
    for bad in (f"sort=downloads&cursor={cursor}", "cursor=AAAA", "sort=best", "cursor=WzEsMl0="):
        assert (await filled.get(f"{ALL}?{bad}")).status_code == 422
    page = await filled.get("/?q=chess&checked=true&sort=downloads", headers={"Accept": "text/html"})
    assert "/alice/chess-endgames" in page.text
    assert "/alice/opening-book" not in page.text
    assert '<option value="downloads" selected>' in page.text


async def test_private_environments_are_found_only_by_their_readers(filled):
    queries = [
        "q=chess",
        "q=chses",
        "tag=game",
        "sort=newest",
        "q=rooks",
        "q=game&sort=runs",
    ]
    before = [await names(filled, query) for query in queries]
    private = {"private": True}
    answer = await filled.client.put(
        f"{ALL}/alice/opening-book/visibility", json=private, headers=filled.auth()
    )
    assert answer.status_code == 200, answer.text
    without = [[one for one in found if one != "opening-book"] for found in before]
    assert [await names(filled, query) for query in queries] == without
    assert [await names(filled, query, "bob") for query in queries] == without
    assert [set(await names(filled, query, "alice")) for query in queries] == [set(one) for one in before]
    with filled.database.write() as session:
        session.info[READER] = HUB
        environment_listing.refresh(session, environments.environment_named(session, "alice", "opening-book"))
    assert await names(filled, "q=opxning") == []  # no word of theirs mends the spelling of others
    assert await names(filled, "q=opxning", "alice") == ["opening-book"]


async def test_deleted_and_unindexed_environments_are_handled(filled):
    with filled.database.write() as session:
        session.execute(text("DELETE FROM environment_search"))  # as in a copy that was brought back
    assert await names(filled, "q=chess") == []
    assert environment_listing.fill_search(filled.database) == len(CATALOGUE)
    assert environment_listing.fill_search(filled.database) == 0
    assert len(await names(filled, "q=chess")) == 3
    answer = await filled.client.delete(f"{ALL}/alice/chess-endgames", headers=filled.auth())
    assert answer.status_code in (200, 204), answer.text
    assert await names(filled, "q=chess") == ["opening-book", "sums"]


async def test_simultaneous_downloads_are_each_counted_once(hub, make_wheel):
    spec = make_wheel()
    await hub.publish(spec)
    path = f"/alice/files/reverse-text/{spec.wheel_name}"
    counter: DownloadCounter = hub.client._transport.app.state.downloads  # type: ignore[attr-defined]
    await asyncio.gather(
        *(hub.get(path) for _ in range(30)), *(hub.get(path, headers=hub.auth()) for _ in range(20))
    )
    etag = (await hub.get(path, headers={"Range": "bytes=0-9"})).headers["etag"]
    for uncounted in ({"Range": "bytes=10-19"}, {"Range": "bytes=-5"}, {"If-None-Match": etag}):
        await hub.get(path, headers=uncounted)
        await hub.get(path, headers=uncounted | hub.auth())
    await hub.client.head(path)
    await hub.get(f"{path}.metadata")
    await asyncio.gather(*(asyncio.to_thread(counter.flush) for _ in range(4)))
    await hub.get(path)
    assert counter.flush() == 1
    assert counter.flush() == 0
    assert (await hub.get(f"{ALL}/alice/reverse-text")).json()["downloads"] == 52


async def test_counters_of_several_processes_add_up_and_a_failed_write_loses_nothing(
    hub, make_wheel, monkeypatch
):
    await hub.publish(make_wheel())
    with hub.database.read() as session:
        version = session.query(Version).one().id
    counters = [DownloadCounter(hub.database) for _ in range(4)]

    def count(counter: DownloadCounter) -> None:
        for _ in range(50):
            counter.note(version)
            counter.flush()

    await asyncio.gather(*(asyncio.to_thread(count, one) for one in counters))
    counters[0].note(version)
    with monkeypatch.context() as broken:
        broken.setattr("wander_hub.index.downloads.add_downloads", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            counters[0].flush()
    assert counters[0].flush() == 1
    assert (await hub.get(f"{ALL}/alice/reverse-text")).json()["downloads"] == 201


async def test_a_cursor_with_an_impossible_date_is_rejected(hub):
    for order, value in (("updated", "0001-01-01T00:00:00+14:00"), ("newest", "9999-12-31T23:59:59-14:00")):
        cursor = base64.urlsafe_b64encode(json.dumps([order, value, 1]).encode()).decode()
        answer = await hub.get(ALL, params={"sort": order, "cursor": cursor})
        assert (answer.status_code, answer.json()["code"]) == (422, "bad_cursor")


@pytest.mark.full
@pytest.mark.timeout(900)
def test_search_works_among_ten_thousand_environments(tmp_path):
    script, out = Path(__file__).parents[2] / "benchmarks/discovery.py", tmp_path / "figures.json"
    subprocess.run(
        [sys.executable, script, "--sizes", "10000", "--times", "1", "--out", out], check=True, timeout=800
    )
    assert json.loads(out.read_text())["relevance"] == {"words": 1.0, "slips": 1.0, "names": 1.0}
