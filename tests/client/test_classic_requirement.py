"""What a package says about `verifiers` decides which one it gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from wander_client.packaging import classic


@pytest.mark.parametrize(
    "wanted", ["", ">=0.1.3", "==0.1.5", ">=0.1.11.dev0", "~=0.2.0", "<0.2,>=0.1.9", "<1"]
)
def test_every_range_that_reaches_the_classic_api_gets_ours(wanted):
    assert not classic.wants_later(SpecifierSet(wanted))


@pytest.mark.parametrize("wanted", [">=0.4", "==0.4.0", "~=0.4.1", ">0.3.1,!=0.4.0", "==0.4.*"])
def test_a_package_for_later_releases_keeps_upstreams(wanted):
    assert classic.wants_later(SpecifierSet(wanted))


def test_the_override_keeps_the_extras_that_bring_imports(tmp_path):
    requirement = classic.requirement_of(["numpy>=2", "Verifiers[rg,all]==0.1.5 ; python_version>'3'"])
    line = classic.override(Path("/wheels/verifiers-1.whl"), requirement)
    assert line == "verifiers[rg] @ file:///wheels/verifiers-1.whl\n"
    assert classic.requirement_of(["verifiers-extras"]) is None
    assert classic.override(Path("/w.whl"), None) == "verifiers @ file:///w.whl\n"
