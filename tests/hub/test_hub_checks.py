"""What a publisher states of `wander check`: stored with the wheel, shown as such, or refused."""

from __future__ import annotations

import json

import pytest
from wander.wire import CheckSummary

HTML = {"Accept": "text/html"}
FINDINGS = [
    {"id": "sources.clock", "status": "warn", "message": "read by <b>time</b>\u202e"},
    {"id": "rewards.gold", "status": "skip", "message": "no answer"},
]


def stated(**changes) -> dict[str, str]:
    """Return the field of the form."""
    summary = {"wander": "0.1.0", "passed": 26, "warned": 1, "failed": 0, "skipped": 1, "findings": FINDINGS}
    return {"wander_check": json.dumps(summary | changes)}


async def version_of(hub) -> dict:
    return (await hub.get("/api/v1/environments/alice/reverse-text/versions/latest")).json()


async def test_the_uploaded_check_is_shown_as_declared_by_the_author(hub, wheel_spec):
    answer = await hub.upload(wheel_spec.build(), wheel_spec.wheel_name, fields=stated())
    assert answer.status_code == 200, answer.text
    check = CheckSummary.model_validate((await version_of(hub))["check"])
    assert answer.json()["check"] == check.model_dump()
    assert (check.wander, check.counts) == ("0.1.0", "26 passed, 1 warning, 1 skipped")
    page = (await hub.get("/alice/reverse-text", headers=HTML)).text
    assert "26 passed, 1 warning, 1 skipped, with wander 0.1.0" in page
    assert page.index("Declared by the author") < page.index("with wander 0.1.0")
    assert "read by &lt;b&gt;time&lt;/b&gt;" in page
    assert "U+202E" in page
    assert "rewards.gold" not in page, "what was skipped is only counted"


@pytest.mark.parametrize("fields", [{}, {"wander_check": ""}])
async def test_uploads_of_twine_and_uv_have_no_check(hub, wheel_spec, fields):
    answer = await hub.upload(wheel_spec.build(), wheel_spec.wheel_name, fields=fields)
    assert (answer.status_code, answer.json()["check"]) == (200, None)
    page = (await hub.get("/alice/reverse-text", headers=HTML)).text
    assert page.index("Declared by the author") < page.rindex("not run")


async def test_the_first_uploaded_check_is_kept(hub, wheel_spec):
    await hub.upload(wheel_spec.build(), wheel_spec.wheel_name, fields=stated())
    again = await hub.upload(wheel_spec.build(), wheel_spec.wheel_name, fields=stated(passed=28))
    assert again.headers["x-wander-upload"] == "unchanged"
    assert (await version_of(hub))["check"]["passed"] == 26


@pytest.mark.parametrize(
    "field",
    [
        "nonsense",
        "null",
        "[]",
        r'{"wander": "\ud800"}',
        stated(wander="<script>")["wander_check"],
        stated(passed=-1)["wander_check"],
        stated(warned=0)["wander_check"],
        stated(stars=5)["wander_check"],
        stated(findings=[{"id": "A b", "status": "warn"}])["wander_check"],
        stated(findings=[*FINDINGS, {"id": "x", "status": "pass"}])["wander_check"],
        stated()["wander_check"] + " " * 70_000,
    ],
    ids=range(11),
)
async def test_an_invalid_check_summary_is_rejected_before_storing(hub, wheel_spec, field):
    answer = await hub.upload(wheel_spec.build(), wheel_spec.wheel_name, fields={"wander_check": field})
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_check_report"), answer.text
    assert "--no-check" in answer.json()["hint"]
    assert (await hub.get("/api/v1/environments")).json()["data"] == []
