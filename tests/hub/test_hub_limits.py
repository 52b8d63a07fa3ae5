"""Limits hold while bytes arrive."""

from __future__ import annotations

import asyncio

import pytest
from small_models import checkpoint
from staged_uploads import pushed
from wander_hub.http import bodies
from wander_hub.posting import arrival, run_routes
from wander_hub.settings import Settings
from wander_hub.upload.archives import limits


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MAX_MEMBERS", 10)
    monkeypatch.setattr(limits, "MAX_README_BYTES", 1_000)
    for module in (arrival, run_routes):
        monkeypatch.setattr(module, "MAX_ARTIFACTS", 2)
    monkeypatch.setattr(run_routes, "MAX_ARTIFACT_BYTES", 1_000)
    return Settings(
        data=tmp_path / "data",
        bundled_packages=False,
        max_upload_bytes=20_000,
        max_unpacked_bytes=50_000,
        max_run_bytes=20_000,
        max_model_bytes=300,
    )


async def test_a_file_over_the_limit_is_rejected(hub, make_wheel):
    noise = bytes(range(256)) * 200
    spec = make_wheel(files={"noise.bin": b"".join(bytes([b ^ k % 251]) for k, b in enumerate(noise))})
    body = spec.build()
    padded = body + b"\0" * 20_001
    answer = await hub.upload(padded, spec.wheel_name)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


async def test_models_over_the_limit_are_rejected_before_the_upload(hub):
    large = await pushed(hub.client, hub.auth(), checkpoint())
    assert (large.status_code, large.json()["code"]) == (413, "too_large")
    assert "up to 300" in large.json()["detail"]
    card = await pushed(hub.client, hub.auth(), checkpoint(README_md=bytes(1_001)))
    assert "`README.md` exceeds" in card.json()["detail"]


async def test_request_over_the_limit_stops_early(hub):
    sent = 0

    async def endless():
        nonlocal sent
        head = (
            b'--b\r\nContent-Disposition: form-data; name="content"; filename="a-1-py3-none-any.whl"\r\n\r\n'
        )
        yield head
        while sent < 200 * 1024 * 1024:
            sent += 1024 * 1024
            yield b"\0" * (1024 * 1024)

    headers = hub.auth() | {"Content-Type": "multipart/form-data; boundary=b"}
    answer = await hub.client.post("/alice/legacy/", content=endless(), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert sent < 40 * 1024 * 1024


async def test_oversized_json_is_rejected_from_everyone(hub):
    sent = 0

    async def endless():
        nonlocal sent
        while sent < 200 * 1024 * 1024:
            sent += 1024 * 1024
            yield b" " * (1024 * 1024)

    answer = await hub.client.post("/api/v1/tokens", content=endless())
    assert (answer.status_code, answer.json()["code"]) == (401, "token_required")
    assert sent == 0, "who asks is known before the body is read"
    answer = await hub.client.post("/api/v1/tokens", content=endless(), headers=hub.auth())
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert sent <= 2 * 1024 * 1024


@pytest.mark.parametrize("path", ["/api/v1/tokens", "/alice/legacy/"])
async def test_a_slow_request_body_times_out(hub, monkeypatch, path):
    monkeypatch.setattr(bodies, "_PATIENCE", 0.05)

    async def slow():
        yield b"--b\r\n"
        await asyncio.Event().wait()

    headers = hub.auth() | {"Content-Type": "multipart/form-data; boundary=b"}
    answer = await hub.client.post(path, content=slow(), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (408, "request_timeout")
    assert (answer.json()["detail"], answer.headers["connection"]) == (
        "the body arrived too slowly: 5 bytes so far",
        "close",
    )


async def test_compression_bombs_and_too_many_members_are_rejected(hub, make_wheel):
    bomb = make_wheel(files={"zeros.bin": b"\0" * 60_000})
    answer = await hub.upload(bomb.build(), bomb.wheel_name)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large_unpacked")
    crowd = make_wheel(files={f"m{number}.py": b"" for number in range(12)})
    answer = await hub.upload(crowd.build(), crowd.wheel_name)
    assert answer.json()["code"] == "too_many_members"


async def test_runs_over_the_limits_are_rejected(hub, run_of):
    sha256 = await hub.publish()
    manifest, rollouts = run_of(sha256)
    rollouts[0]["completion"][0]["content"] = "a" * 30_000
    plain = await hub.post_run(manifest, rollouts)
    packed = await hub.post_run(manifest, rollouts, compress=True)
    assert (plain.status_code, packed.status_code) == (413, 413)
    manifest["notes"] = "n" * 70_000
    assert (await hub.post_run(manifest, [])).status_code == 413
    manifest["notes"] = ""
    fine = run_of(sha256)[1]
    big = await hub.post_run(manifest, fine, artifacts={"a.png": b"x" * 2_000})
    assert big.status_code == 413
    many = await hub.post_run(manifest, fine, artifacts={f"{n}.png": b"x" for n in range(4)})
    assert (many.status_code, many.json()["code"]) == (400, "bad_form")
