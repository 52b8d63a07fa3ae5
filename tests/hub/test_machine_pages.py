"""Pages for programs, in addition to the API: llms.txt, and the descriptions of pages."""

from __future__ import annotations

import re
from collections import Counter
from datetime import timedelta

from sqlalchemy import select
from wander_hub.database import now
from wander_hub.environments.models import Version
from wander_hub.identity import HUB
from wander_hub.index import downloads

HTML = {"Accept": "text/html"}
HOSTILE = 'A "><script>alert(1)</script> summary\u202e'


async def test_llms_txt_lists_only_public_environments(hub, make_wheel):
    await hub.publish(make_wheel(summary=HOSTILE))
    spec = make_wheel(name="secret", files={"secret.py": b"def load_environment(): ...\n"})
    answer = await hub.upload(spec.build(), spec.wheel_name, fields={"wander_visibility": "private"})
    assert answer.status_code == 200

    assert "Disallow: /api/" in (await hub.client.get("/robots.txt")).text
    text = (await hub.client.get("/llms.txt")).text
    line = '- [alice/reverse-text](http://hub.test/alice/reverse-text): A "><script>alert(1)</script> summary'
    assert line in text.splitlines()
    assert "secret" not in text


async def test_a_page_describes_itself_in_words_that_cannot_act(hub, make_wheel, run_of):
    sha256 = await hub.publish(make_wheel(summary=HOSTILE))
    manifest, rollouts = run_of(sha256, model="<b>tiny</b>", reward=0.75)
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    run = f"/runs/{manifest['run_id']}"
    for path, told in {
        "/alice/reverse-text": "summary",
        "/alice/reverse-text/leaderboard": "tiny",
        run: "mean reward 0.75 [",
        f"{run}/rollouts/0": "reward 0.750, ",
        f"/runs/compare?run={manifest['run_id']}": "example by example",
        "/runs?model=tiny": "with tiny",
        "/alice": "1 environment of alice: reverse-text.",
        "/docs/statistics": "numbers of a run",
        "/": "Environments for reinforcement learning",
    }.items():
        page = (await hub.client.get(path, headers=HTML)).text
        found = re.findall(r'<meta (?:name="description"|property="og:description") content="([^"]*)">', page)
        assert len(found) == 2, path
        assert all(told in one and "<" not in one for one in found), found
    page = (await hub.client.get("/alice/reverse-text", headers=HTML)).text
    assert '<meta property="og:title" content="alice/reverse-text 0.1.0 · Wander">' in page


async def test_an_environment_page_shows_its_models_and_downloads(hub, make_wheel, run_of):
    sha256 = await hub.publish(make_wheel())
    manifest, rollouts = run_of(sha256, model="<b>tiny</b>")
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    page = (await hub.client.get("/alice/reverse-text", headers=HTML)).text
    assert "per day, last" not in page
    assert "&lt;b&gt;tiny&lt;/" in page
    assert "<b>tiny</b>" not in page
    today = now().date()
    with hub.database.write(HUB) as session:
        version = session.scalars(select(Version).order_by(Version.id)).first()
        days = {
            today: 3,
            today - timedelta(days=29): 1,
            today - timedelta(days=30): 50,
            today + timedelta(days=1): 2,
        }
        downloads.add_downloads(session, Counter({(version.id, day): count for day, count in days.items()}))
    page = (await hub.client.get("/alice/reverse-text", headers=HTML | hub.auth())).text
    assert 'aria-label="6 downloads in 30 days, at most 5 a day"' in page


async def test_only_an_upload_of_the_newest_version_moves_an_environment_up(hub, make_wheel):
    for name, version in (("reverse-text", "0.1.0"), ("reverse-text", "0.2.0"), ("sums", "0.1.0")):
        await hub.publish(make_wheel(name=name, version=version))
    at = "/api/v1/environments"
    with hub.database.write(HUB) as session:  # as if they were of another day
        for one in session.scalars(select(Version)):
            one.uploaded_at -= timedelta(days=one.environment_id)
    path = f"{at}/alice/reverse-text/versions/0.1.0/yank"
    for method, sent in (("PUT", {"json": {"reason": "old"}}), ("DELETE", {})):
        answer = await hub.client.request(method, path, headers=hub.auth(), **sent)
        assert answer.status_code == 200, answer.text
        (told,) = [one for one in (await hub.client.get(at)).json()["data"] if one["name"] == "reverse-text"]
        assert told["updated_at"] < f"{now().date()}"
    assert (await hub.client.get("/?owner=nobody", headers=HTML)).text.count('class="environments"') == 0
    assert (await hub.client.get("/?owner=ALICE&tag=", headers=HTML)).text.count('class="name"') == 2
    older = (await hub.client.get("/alice/reverse-text/versions/0.1.0", headers=HTML)).text
    assert "No results of 0.1.0 yet" in older
