"""Pages: they show what the API says, need no script, and no text of others can act in them."""

from __future__ import annotations

import gzip
import io
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
from sqlalchemy import insert, select
from wander.wire import Histogram
from wander_hub import names
from wander_hub.accounts.repository import NEIGHBORS
from wander_hub.app import create_app
from wander_hub.environments.models import Environment, Version
from wander_hub.identity import HUB
from wander_hub.runs.models import Run
from wander_hub.storage import log_missing
from wander_hub.web import charts

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)

HTML = {"Accept": "text/html,application/xhtml+xml"}
HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">\u202e\x1b[31m\x00'


class Tags(HTMLParser):
    """Collects tags, attributes and ids; fails on a mismatched nesting of block tags."""

    VOID = frozenset({"meta", "link", "input", "br", "hr", "img", "wbr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag in self.VOID:
            return
        if tag == "p" and "p" not in self.open:
            return
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


def parsed(answer) -> Tags:
    tags = Tags()
    tags.feed(answer.text)
    assert tags.open == []
    return tags


@pytest.fixture
async def posted(hub, make_wheel, run_of):
    """A hub with an environment and runs whose every text is hostile."""
    spec = make_wheel(
        summary="Reverse <b>it</b>", readme=f"# Reverse text\n\n{HOSTILE.replace(chr(0), '')}\n"
    )
    sha256 = await hub.publish(spec)
    for number, model in enumerate(["tiny", "other <i>model</i>"]):
        manifest, rollouts = run_of(
            sha256, reward=[0.0, 0.5, 1.0, 1.0, 1.0, 0.5], run_id=f"01RUN{number:021d}", model=model
        )
        manifest["environment"]["info"]["reward_functions"].append({"name": "<u>f</u>", "weight": 0.5})
        for line in rollouts:
            line["metrics"]["<u>f</u>"] = 0.25
            line["completion"][0]["content"] = f"{HOSTILE}{model}"
            line["completion"][0]["tool_calls"] = [
                {"function": {"name": HOSTILE, "arguments": '{"a": "<b>"}'}}
            ]
            line["prompt"][0]["content"] = [{"type": "text", "text": HOSTILE}]
            line["stop_reason"] = HOSTILE
            line["answer"] = {"text": HOSTILE}
        answer = await hub.post_run(manifest, rollouts)
        assert answer.status_code == 201, answer.text
    return hub


PAGES = [
    "/",
    "/docs",
    "/docs/search?q=level",
    "/docs/verification",
    "/openapi",
    "/?q=reverse",
    "/?tag=text",
    "/?q=nothing-like-it",
    "/alice",
    "/wander",
    "/alice/reverse-text",
    "/alice/reverse-text/versions/0.1.0",
    "/alice/reverse-text/leaderboard",
    "/runs",
    "/runs?environment=alice/reverse-text",
    "/runs?model=tiny",
    "/runs/01RUN000000000000000000000",
    "/runs/01RUN000000000000000000000?sort=-reward&only=scored",
    "/runs/01RUN000000000000000000000?only=failed",
    "/runs/01RUN000000000000000000000/rollouts/0",
    "/runs/01RUN000000000000000000000/rollouts/5",
    "/runs/01RUN000000000000000000000?text=reply&reward_min=0.1&metric=lcs&metric_max=2&stratum=&stop_reason=",
    "/runs/01RUN000000000000000000000/rollouts/5?only=scored&sort=-reward",
]


async def test_every_page_is_whole_and_inert(posted):
    for path in PAGES:
        assert_whole_and_inert(await posted.get(path, headers=HTML))


def assert_whole_and_inert(answer):
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert policy.endswith("; script-src http://hub.test/static/; connect-src 'self'")
    tags = parsed(answer)
    names = {tag for tag, _ in tags.seen}
    assert not names & {"iframe", "object", "style", "img"}
    scripts = [attributes for tag, attributes in tags.seen if tag == "script"]
    assert all(one["src"].startswith("http://hub.test/static/") for one in scripts)
    assert answer.text.count("></script>") == len(scripts), "none has a text of its own"
    for _, attributes in tags.seen:
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        for name in ("href", "src", "action"):
            target = attributes.get(name) or ""
            assert re.match(r"(/|\?|#|http://hub\.test/|data:image/svg)", target) or not target, target
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", answer.text)
    assert any(tag == "h1" for tag, _ in tags.seen)


async def test_an_empty_hub_shows_the_first_steps(hub):
    for path, words in {
        "/": "wander publish",
        "/runs": "wander post",
        "/alice": "has no environments",
    }.items():
        answer = await hub.get(path, headers=HTML)
        assert answer.status_code == 200
        assert words in answer.text
        parsed(answer)


async def test_environment_page_shows_commands_digest_and_results(posted):
    page = (await posted.get("/alice/reverse-text", headers=HTML)).text
    assert "wander install alice/reverse-text@0.1.0" in page
    assert "http://hub.test/alice/index/" in page
    detail = (await posted.get("/api/v1/environments/alice/reverse-text")).json()
    assert detail["latest"]["files"][0]["sha256"] in page
    assert "other &lt;i&gt;model&lt;/i&gt;" in page.replace("<wbr>", "")
    assert "Reverse &lt;b&gt;it&lt;/b&gt;" in page


async def test_leaderboard_page_draws_an_interval_a_row(posted):
    page = (await posted.get("/alice/reverse-text/leaderboard", headers=HTML)).text
    assert page.count('class="interval-chart"') == 2
    assert "1–2" in page


async def test_a_leaderboard_without_runs_shows_how_to_post_one(hub):
    await hub.publish()
    page = await hub.get("/alice/reverse-text/leaderboard", headers=HTML)
    assert page.status_code == 200
    assert "wander eval alice/reverse-text@0.1.0" in page.text


@pytest.mark.parametrize(
    "chart",
    [
        charts.curves("kl", (((0, 0.0), (1, 0.5)),), large=True),
        charts.evaluations({"eval": [(0, 0.2, 0.0, 0.5)]}),
        charts.history(
            tuple(
                charts.HistoryDot("a", "m", reward, datetime(2026, 1, 1, tzinfo=UTC))
                for reward in (0.5, 10.5)
            )
        ),
    ],
)
def test_labels_at_the_top_of_a_wide_chart_are_not_cut_off(chart: Any) -> None:
    """On a phone, their letters are up to 23 units of the chart tall."""
    tops = [float(y) for y in re.findall(r'<text class="tick"[^>]* y="([\d.]+)"', chart)]
    assert min(tops) >= 22


def test_equal_rewards_are_one_bar_whose_number_can_be_read():
    drawn = str(charts.histogram(Histogram(edges=[1.0, 1.0], counts=[80]), 1.0, linked=True))
    assert ('width="71.0"' in drawn, drawn.count('class="tick'), "mean-label" in drawn) == (True, 2, False)


async def test_run_page_gives_the_command_and_the_histogram(posted):
    page = (await posted.get("/runs/01RUN000000000000000000000", headers=HTML)).text
    assert "wander eval alice/reverse-text@0.1.0 -m tiny -n 3 -r 2 --seed 7 -t 1.0" in page
    assert 'class="chart large"' in page
    assert "-n 3 -r 2" in page
    assert "/rollouts.jsonl" in page


async def test_rollout_page_explains_the_reward_and_links_siblings(posted):
    page = (await posted.get("/runs/01RUN000000000000000000000/rollouts/2", headers=HTML)).text
    assert "&lt;script&gt;alert(1)" in page
    assert "U+202E" in page
    assert 'href="/runs/01RUN000000000000000000000/rollouts/1"' in page
    assert 'href="/runs/01RUN000000000000000000000/rollouts/3"' in page
    assert "0.125" in page  # the contribution of a function of weight 0.5 and value 0.25


async def test_training_page_draws_curves_and_shows_plots(hub, run_of):
    sha256 = await hub.publish()
    manifest, _ = run_of(sha256, reward=[], examples=0, kind="training", training={"steps": 2})
    lines = b'{"step": 1, "reward": 0.1, "loss": NaN}\nnot json\n{"step": 2, "reward": 0.4, "kl": 0.0}\n[1]\n'
    artifacts = {"metrics.jsonl": lines, "curve.svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>"}
    answer = await hub.post_run(manifest, None, artifacts=artifacts)
    assert answer.status_code == 201, answer.text
    page = await hub.get(f"/runs/{manifest['run_id']}", headers=HTML)
    tags = parsed(page)
    images = [attributes["src"] for tag, attributes in tags.seen if tag == "img"]
    assert images == [f"/api/v1/runs/{manifest['run_id']}/artifacts/curve.svg"]
    assert page.text.count('class="chart large"') == 1
    assert "0.1 → 0.4" in page.text


async def test_the_training_page_shows_how_exactly_the_run_can_be_repeated(hub, run_of):
    change = {"field": "reproduction.libraries.torch", "before": "1", "after": "2", "step": 7}
    made = {
        **{"mode": "exact", "reason": "one process <on> a CPU", "threads": 2, "device": "cpu"},
        "hardware": {"cpu": "A Processor", "cores": 4},
        **{"libraries": {"torch": "2.0"}, "trainer_sha256": "f" * 64},
        "allowed": [change | {"at": "2026-01-01T00:00:00Z"}],
    }
    manifest, _ = run_of(await hub.publish(), reward=[], examples=0, kind="training", training={})
    manifest["reproduction"] = made
    answer = await hub.post_run(manifest, None, artifacts={"steps.jsonl": b"{}\n"})
    assert answer.status_code == 201, answer.text
    page = (await hub.get(f"/runs/{manifest['run_id']}", headers=HTML)).text
    assert "exact until step 7, then with changes that were allowed: one process &lt;on&gt; a CPU" in page
    assert "cpu, 1 × 2 threads, A Processor" in page
    assert "after step 7: reproduction.libraries.torch" in page
    assert "steps.jsonl" in page


async def test_a_very_long_rollout_is_cut_with_a_word(hub, run_of):
    manifest, rollouts = run_of(await hub.publish())
    rollouts[0]["completion"] = [{"role": "user", "content": f"message {n}"} for n in range(1000)]
    rollouts[0]["completion"][0]["content"] = "x" * 100_000
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    page = await hub.get(f"/runs/{manifest['run_id']}/rollouts/0", headers=HTML)
    assert page.text.count('<article class="message') == 400
    assert "601 more messages" in page.text
    assert "40\u2009000 more characters" in page.text
    parsed(page)


async def test_pages_answer_head(posted):
    for path in PAGES:
        answer = await posted.client.head(path, headers=HTML)
        assert answer.status_code == 200


async def test_a_plain_package_is_not_shown_as_an_environment(hub, make_wheel):
    from wander_hub.accounts import repository
    from wander_hub.identity import HUB
    from wander_hub.upload import checks, service
    from wander_hub.upload.schemas import Upload

    spec = make_wheel(name="wander-sdk", entry_points=None, files={"wander/__init__.py": b""})
    body = io.BytesIO(spec.build())
    upload = Upload("wander", spec.wheel_name, body, len(body.getvalue()), "0" * 64)
    package = checks.check(upload, hub.settings, environment=False)
    with hub.database.write(HUB) as session:
        owner = repository.owner_named(session, "wander")
        service.publish(session, owner, [package], HUB, listed=False)
    page = (await hub.get("/wander/wander-sdk", headers=HTML)).text
    assert "wander install" not in page
    assert "wander-sdk==0.1.0" in page


async def test_arguments_of_calls_break_no_page(hub, run_of):
    deep, wide = "[" * 100_000, "[" * 900 + "1," * 100_000 + "1" + "]" * 900
    manifest, rollouts = run_of(await hub.publish())
    calls = [{"function": {"name": "find", "arguments": text}} for text in (deep, wide, '{"a":1}')]
    rollouts[0]["completion"][0]["tool_calls"] = calls
    rollouts[0]["turns"][0]["usage"]["completion_tokens"] = 200_000
    rollouts[0]["usage"]["completion_tokens"] = 200_000
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    page = await hub.get(f"/runs/{manifest['run_id']}/rollouts/0", headers=HTML)
    assert page.status_code == 200
    assert len(page.content) < 200_000
    assert "{\n  &#34;a&#34;: 1\n}" in page.text


async def test_missing_page_suggests_near_names(posted):
    answer = await posted.get("/alice/revers-text", headers=HTML)
    assert answer.status_code == 404
    assert '<a href="/alice/reverse-text">' in answer.text
    number = (await posted.get("/alice/reverse-text/versions/9.9", headers=HTML)).text
    assert "available: <code>0.1.0</code>" in number
    assert '<a href="/alice/reverse-text">alice/reverse-text</a> ·' in number
    assert "Did you mean" not in number
    other = await posted.get("/bob/reverse-text", headers=HTML)
    assert '<a href="/alice/reverse-text">' in other.text
    script = await posted.get("/bob/reverse-text")
    assert script.headers["content-type"] == "application/problem+json"


async def test_a_large_hub_looks_at_a_page_of_names(hub, monkeypatch):
    await hub.publish()
    with hub.database.write() as session:
        (one,) = session.execute(select(Environment.__table__)).mappings()
        same = {key: value for key, value in one.items() if key != "id"}
        rows = [same | {"name": f"task-{each:04d}", "private": each % 2 == 0} for each in range(1000)]
        session.execute(insert(Environment), rows)
    looked_at: list[int] = []
    near = names.near

    def count(name, known):
        looked_at.append(len(known))
        return near(name, known)

    monkeypatch.setattr(names, "near", count)
    hint = (await hub.get("/api/v1/environments/alice/task-0501x")).json()["hint"]
    assert "`alice/task-0501`" in hint
    assert "task-0500" not in hint  # which is private
    assert 0 < max(looked_at) <= 2 * NEIGHBORS
    page = (await hub.get("/alice", headers=HTML)).text
    assert page.count('href="/alice/simple/task-') == 49
    assert '<a href="/alice/simple/">more</a>' in page


async def test_names_are_redirected_to_their_right_spelling(posted):
    answer = await posted.get("/Alice/Reverse_Text", headers=HTML)
    assert (answer.status_code, answer.headers["location"]) == (301, "/alice/reverse-text")


async def test_page_answers_304_to_who_holds_it(posted):
    first = await posted.get("/alice/reverse-text", headers=HTML)
    again = await posted.get("/alice/reverse-text", headers=HTML | {"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    assert again.content == b""


async def test_style_sheet_is_served_and_small(hub):
    page = await hub.get("/", headers=HTML)
    href = re.search(r'href="(/static/wander\.css\?v=\w+)"', page.text)
    assert href
    answer = await hub.get(href[1])
    assert answer.headers["content-type"].startswith("text/css")
    assert "immutable" in answer.headers["cache-control"]
    assert len(gzip.compress(answer.content)) < 12_000
    assert b"@import" not in answer.content
    assert b"http" not in answer.content


async def test_pages_come_compressed_and_files_as_they_are(posted):
    plain = {"Accept-Encoding": "identity"}
    page = await posted.get("/alice/reverse-text", headers=HTML)
    assert page.headers["content-encoding"] == "gzip"
    assert "Accept-Encoding" in page.headers["vary"]
    same = await posted.get("/alice/reverse-text", headers=HTML | plain)
    assert "content-encoding" not in same.headers
    assert same.text == page.text
    for wanted, told in (("gzip;q=0", None), ("br, GZIP ; q=0.00, *", None), ("br, gzip;q=0.5", "gzip")):
        answer = await posted.get("/alice/reverse-text", headers=HTML | {"Accept-Encoding": wanted})
        assert answer.headers.get("content-encoding") == told
    assert page.headers["etag"] != same.headers["etag"], "these are other bytes"
    held = await posted.get("/alice/reverse-text", headers=HTML | {"If-None-Match": page.headers["etag"]})
    assert held.status_code == 304
    assert int(page.headers["content-length"]) < int(same.headers["content-length"]) / 2
    (file,) = (await posted.get("/api/v1/environments/alice/reverse-text/versions/0.1.0")).json()["files"]
    assert "content-encoding" not in (await posted.get(file["url"])).headers


async def test_the_first_page_features_used_checked_and_verified_environments(hub, make_wheel, run_of):
    ids = {}
    for name in ("good", "failed", "old", "reverse-text"):
        spec = make_wheel(name=name, files={f"{name.replace('-', '_')}.py": b"def load_environment(): ...\n"})
        ids[name] = await hub.publish(spec)
    for place, name in enumerate(ids):
        manifest, rollouts = run_of(ids[name], name=name, run_id=f"01RUN{place:021d}", model=f"of-{name}")
        assert (await hub.post_run(manifest, rollouts)).status_code == 201
    place, body = "/api/v1/environments/alice/old/status", {"status": "deprecated", "reason": "old"}
    assert (await hub.client.put(place, json=body, headers=hub.auth())).status_code == 200
    with hub.database.write(HUB) as session:
        for version in session.scalars(select(Version)):
            version.checked = version.environment_id != 2
        for run in session.scalars(select(Run)):
            run.level = "replayed" if run.model != "of-reverse-text" else "complete"

    async def first(featured=()) -> str:
        app = create_app(hub.settings.model_copy(update={"featured": featured}), database=hub.database)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://hub.test") as client:
            page = (await client.get("/", headers=HTML)).text
        return page[page.index('id="results"') : page.index("All environments")]

    shown = await first()
    cards, _, results = shown.partition("Latest verified results")
    assert re.findall('class="name" href="([^"]+)"', cards) == ["/alice/reverse-text", "/alice/good"]
    assert sorted(re.findall(r"\bof-(?:good|failed)[\w-]*", results)) == ["of-failed", "of-good"]
    chosen = await first(("alice/failed", "alice/old", "bob/none"))
    assert re.findall('class="name" href="([^"]+)"', chosen) == ["/alice/failed"]
    assert "Featured environments" in chosen


async def test_deprecated_environments_are_marked_and_not_featured(hub, make_wheel):
    await hub.publish(make_wheel(name="good", files={"good.py": b"def load_environment(): ...\n"}))
    await hub.publish()
    place, body = "/api/v1/environments/alice/reverse-text/status", {"status": "deprecated", "reason": "old"}
    assert (await hub.client.put(place, json=body, headers=hub.auth())).status_code == 200
    page = (await hub.get("/", headers=HTML)).text
    assert "wander eval alice/good " in page
    first, second = page.index('href="/alice/good"'), page.index('href="/alice/reverse-text"')
    assert first < second < page.index("deprecated</span>")


async def test_data_of_a_leaderboard_is_filtered_as_its_page_is(posted):
    page = await posted.get(
        "/alice/reverse-text/leaderboard?model=ti&runs=all&since=2026-01-01", headers=HTML
    )
    links = [
        one["href"]
        for tag, one in parsed(page).seen
        if tag == "a" and "/leaderboard" in (one["href"] or "") and "/api/" in one["href"]
    ]
    assert [one.partition("?")[0][-4:] for one in links] == ["oard", ".csv"]
    assert all("model=ti" in one and "runs=all" in one and "since=2026-01-01" in one for one in links)
    rows = (await posted.get(links[0])).json()["rows"]
    assert [row["model"] for row in rows] == ["tiny"]


async def test_long_reasoning_shows_its_length_and_links_to_the_rest(hub, run_of):
    manifest, rollouts = run_of(await hub.publish())
    reply = rollouts[0]["completion"][0]
    reply["reasoning_content"] = "x" * 200_000
    reply["tool_calls"] = [{"function": {"name": "f", "arguments": "y" * 70_000}}]
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    page = (await hub.get(f"/runs/{manifest['run_id']}/rollouts/0", headers=HTML)).text
    assert "reasoning, 200\u2009000 characters" in page
    assert "150\u2009000 more characters" in page


async def test_a_picture_in_two_forms_is_shown_once(hub, run_of):
    manifest, rollouts = run_of(await hub.publish())
    files = {
        "curves.png": b"\x89PNG\r\n\x1a\n" + bytes(99),
        "curves.svg": b"<svg/>",
        "other.png": b"\x89PNG\r\n\x1a\n",
    }
    assert (await hub.post_run(manifest, rollouts, artifacts=files)).status_code == 201
    page = await hub.get(f"/runs/{manifest['run_id']}", headers=HTML)
    shown = [one["alt"] for tag, one in parsed(page).seen if tag == "img"]
    assert sorted(shown) == ["curves.svg", "other.png"]


async def test_a_lost_file_is_shown_on_pages_and_logged_once(posted, caplog):
    storage = posted.client._transport.app.state.storage
    log_missing.cache_clear()
    for one in list(storage.objects()):
        storage.delete(one.sha256)
    run = "/runs/01RUN000000000000000000000"
    for _ in range(2):
        page = await posted.get("/alice/reverse-text", headers=HTML)
        assert (page.status_code, "result cannot be shown. A file is missing" in page.text) == (
            200,
            True,
        )
        page = await posted.get(run, headers=HTML)
        assert (page.status_code, "<code>wander-hub fsck</code>. This page leaves out" in page.text) == (
            200,
            True,
        )
        assert (await posted.get("/alice/reverse-text/leaderboard", headers=HTML)).status_code == 200
        for path in (
            f"{run}/rollouts/0",
            "/alice/reverse-text/versions/latest/source",
        ):
            page = await posted.get(path, headers=HTML)
            assert page.status_code == 500
            assert "a required file is missing in the hub&#39;s storage" in page.text
    answer = await posted.get(f"/api/v1{run}/rollouts/0")
    assert (answer.status_code, answer.json()["code"]) == (500, "object_missing")
    told = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert told
    assert len(told) == len(set(told))
    assert all("is missing: run `wander-hub fsck`" in one for one in told)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "/runs?sort=bogus",
            "/api/v1/runs?sort=posted",
            "/alice/reverse-text?cursor=x",
            "/models?owner=alice",
        ),
        *("/api/v1/environments/alice/reverse-text?limit=1", "/docs/search?q=replay&cursor=2"),
    ],
)
async def test_a_query_parameter_of_other_pages_is_rejected(hub, address):
    await hub.publish()
    answer = await hub.get(address, headers={"Accept": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    path = address.partition("?")[0]
    assert (await hub.get(f"{path}?utm_source=letter", headers=HTML)).status_code == 200
