"""Spellings of one version (PEP 440) are one release, as for pip and uv: to publish, find and delete."""

from __future__ import annotations

import hashlib

import pytest

PATH = "/api/v1/environments/alice/reverse-text"
SPELLINGS = [
    ("1.0", ["1.0.0", "1.0.0.0", "1"], ["v1.0", "01.0", "1.00"]),
    ("2!1.1.0", ["2!1.1"], ["02!1.1", "v2!1.1"]),
    ("1.0.post1", ["1.post1", "1.0.0.post1"], ["1.0-1", "1.0-r1", "1.0POST1"]),
    ("1.0rc1", ["1rc1", "1.0.0rc1"], ["1.0-RC.1", "1.0.0c1"]),
]
"""A version; others in their normal form, under which files may be named; spellings for readers alone."""


@pytest.mark.parametrize(("first", "normal", "odd"), SPELLINGS, ids=[first for first, _, _ in SPELLINGS])
async def test_every_spelling_of_a_version_is_one_release(hub, make_wheel, run_of, first, normal, odd):
    wheel = make_wheel(version=first)
    assert (await hub.upload(wheel.build(), wheel.wheel_name)).status_code == 200
    digest = hashlib.sha256(wheel.build()).hexdigest()
    for spelling in (first, *normal, *odd):
        for found in (
            await hub.get(f"{PATH}/versions/{spelling}"),
            await hub.get(f"{PATH}/versions/{spelling.upper()}"),
        ):
            assert (found.status_code, found.json()["version"]) == (200, first)
    for spelling in normal:
        other = make_wheel(version=spelling)
        refused = await hub.upload(other.build(), other.wheel_name)
        assert (refused.status_code, refused.json()["code"]) == (409, "version_exists")
    for number, spelling in enumerate((first, *normal)):
        manifest, rollouts = run_of(digest, version=spelling, run_id=f"01JRUN000000000000000000{number:02}")
        posted = await hub.post_run(manifest, rollouts)
        assert posted.status_code == 201, posted.text
    board = (await hub.get(f"{PATH}/leaderboard")).json()
    assert board["version"] == first
    detail = (await hub.get(PATH)).json()
    assert (detail["all_versions"], detail["runs"]) == ([first], 1 + len(normal))

    named = (normal or odd)[-1]
    path, options = f"{PATH}/versions/{named}", {"params": {"reason": "leaked"}, "headers": hub.auth("alice")}
    assert (await hub.client.request("DELETE", path, **options)).status_code == 200
    for spelling in (first, *normal):
        other = make_wheel(version=spelling)
        refused = await hub.upload(other.build(), other.wheel_name)
        assert (refused.status_code, refused.json()["code"]) == (409, "version_deleted")


async def test_different_releases_stay_apart(hub, make_wheel):
    versions = ["1.0", "1.0.1", "1!1.0", "1.0.post1", "1.0rc1", "1.0.dev0", "10.0", "1.0.0.1"]
    for version in versions:
        wheel = make_wheel(version=version)
        answer = await hub.upload(wheel.build(), wheel.wheel_name)
        assert answer.status_code == 200, answer.text
    assert sorted((await hub.get(PATH)).json()["all_versions"]) == sorted(versions)


@pytest.mark.parametrize("spelling", ["one", "1.0 ", "1..0", "1.0*", "1.0/../2.0", "\u0661.0"])
async def test_an_invalid_version_is_not_found(hub, make_wheel, spelling):
    wheel = make_wheel(version="1.0")
    await hub.upload(wheel.build(), wheel.wheel_name)
    answer = await hub.get(f"{PATH}/versions/{spelling}")
    assert answer.status_code == 404
