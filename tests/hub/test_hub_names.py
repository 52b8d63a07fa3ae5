"""Names are what they are: nothing is cut off them, and no letter is taken for another."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from wander_client.errors import UsageError
from wander_client.names import parse_name
from wander_hub import names

ADDED = ["\u2028", "\u2029", "\x85", "\r", "\n", "\x0b", "\x1c", "\u00a0", "\u3000", "\u200b", "\0", " "]
"""Ends of lines, spaces and what nobody sees."""
KELVIN = "\u212a"
"""Whose lower case is a `k` of ASCII."""

_spelling = some.text(some.sampled_from("aAkK19-_." + KELVIN + "".join(ADDED)), max_size=8)


@given(_spelling)
def test_names_are_normalized_only_by_case_and_dashes(text: str) -> None:
    owner, name = names.normalize_owner(text), names.normalize_environment(text)
    if names.owner_fault(owner) is None:
        assert text.isascii()
        assert text.lower() == owner
    if name.isascii() and name.replace("-", "").isalnum():
        assert text.isascii()
        assert text.lower().replace("_", "-").replace(".", "-").replace("-", "") == name.replace("-", "")


@given(some.sampled_from(["1.0", "v1.0", "1.0RC1", "1!2.0.post1", "1.0+local.1"]), _spelling)
def test_only_plain_ascii_versions_are_normalized(number: str, odd: str) -> None:
    for text in (number + odd, odd + number):
        try:
            found = names.normalize_version(text)
        except ValueError:
            continue
        assert text.isascii()
        assert not any(map(str.isspace, text))
        assert names.normalize_version(found) == found


async def test_a_run_names_its_environment_exactly(hub: Any, run_of: Any) -> None:
    manifest, rollouts = run_of(await hub.publish())
    pin = manifest["environment"]
    for field in ("owner", "name", "version"):
        for odd in [pin[field] + one for one in ADDED] + [one + pin[field] for one in ADDED]:
            answer = await hub.post_run(manifest | {"environment": pin | {field: odd}}, rollouts)
            assert 400 <= answer.status_code < 500, (odd, answer.text)
    assert (await hub.post_run(manifest, rollouts)).status_code == 201


async def test_names_cannot_contain_letters_of_other_scripts(hub: Any, run_of: Any, make_wheel: Any) -> None:
    sha256 = await hub.publish(make_wheel(name="kite", files={"kite.py": b"def load_environment(): ...\n"}))
    manifest, rollouts = run_of(sha256, name="kite")
    changed = manifest | {"environment": manifest["environment"] | {"name": f"{KELVIN}ite"}}
    assert (await hub.post_run(changed, rollouts)).status_code == 422
    assert (await hub.get(f"/api/v1/environments/alice/{KELVIN}ite")).status_code == 404
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    with pytest.raises(UsageError):
        parse_name(f"alice/{KELVIN}ite")


async def test_an_upload_names_its_version_exactly(hub: Any, make_wheel: Any) -> None:
    spec = make_wheel()
    body = spec.build()
    file = {"filename": spec.wheel_name, "kind": "wheel", "size": len(body)}
    file["sha256"] = hashlib.sha256(body).hexdigest()
    plain = {"owner": "alice", "name": "reverse-text", "version": "0.1.0", "files": [file]}
    for field in ("owner", "name", "version"):
        for added in ADDED:
            wanted = {**plain, field: f"{plain[field]}{added}"}
            answer = await hub.client.post("/api/v1/transfers/versions", json=wanted, headers=hub.auth())
            assert 400 <= answer.status_code < 500, (wanted, answer.text)
    answer = await hub.client.post("/api/v1/transfers/versions", json=plain, headers=hub.auth())
    assert answer.status_code == 201


async def test_names_and_versions_in_metadata_must_be_ascii(hub: Any, make_wheel: Any) -> None:
    text = make_wheel().core_metadata().decode()
    for field in ("Name", "Version"):
        value = next(line for line in text.splitlines() if line.startswith(f"{field}: "))
        odd = make_wheel(metadata=text.replace(value, f"{value}\u3000").encode())
        answer = await hub.upload(odd.build(), odd.wheel_name)
        assert (answer.status_code, answer.json()["code"]) == (422, "bad_metadata"), answer.text
        assert f"`{field}` in METADATA contains a non-ASCII character" in answer.json()["detail"]


ODD_MODELS = {
    "--hub=https://evil.example": "starts with `-`",
    "-m": "starts with `-`",
    "gpt-4  o": "two consecutive spaces",
    "gpt\u4e004o": "CJK UNIFIED IDEOGRAPH-4E00",
    "Q\u4e28wen": "CJK UNIFIED IDEOGRAPH-4E28",
    "meta\u30cellama": "KATAKANA LETTER NO",
}


async def test_a_model_is_not_named_like_an_option_or_another_model(hub: Any, run_of: Any) -> None:
    sha256 = await hub.publish()
    for name, fault in ODD_MODELS.items():
        answer = await hub.post_run(*run_of(sha256, model=name))
        assert (answer.status_code, answer.json()["code"]) == (422, "bad_manifest"), answer.text
        assert fault in answer.json()["detail"]
    honest = run_of(sha256, model="\u96f6\u4e00\u4e07\u7269 Yi-34B")
    assert (await hub.post_run(*honest)).status_code == 201, "which is what it is called"


async def test_an_endpoint_must_be_an_address(hub: Any, run_of: Any) -> None:
    manifest, rollouts = run_of(await hub.publish())
    for url in ("--hub=https://evil.example", "ftp://a/b", "https://a b", "http://a\n", "/v1"):
        manifest["model"]["base_url"] = url
        answer = await hub.post_run(manifest, rollouts)
        assert (answer.status_code, answer.json()["code"]) == (422, "bad_manifest"), answer.text


async def test_the_command_of_a_run_does_not_contain_the_endpoint_of_its_submitter(
    hub: Any, run_of: Any
) -> None:
    manifest, rollouts = run_of(await hub.publish())
    manifest["model"]["base_url"] = "https://evil.example/v1"
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    page = (await hub.get(f"/runs/{manifest['run_id']}", headers={"Accept": "text/html"})).text
    assert "wander eval alice/reverse-text@0.1.0 -m tiny -b ENDPOINT -n 3" in page


async def test_text_of_submitters_is_not_shown_as_text_of_the_environment(hub: Any, run_of: Any) -> None:
    sha256 = await hub.publish()
    for number, (user, kind) in enumerate([("alice", "single_turn"), ("bob", "sponsored_by_bob")]):
        manifest, rollouts = run_of(sha256, run_id=f"01RUN{number:021d}")
        manifest["environment"]["info"]["kind"] = kind
        assert (await hub.post_run(manifest, rollouts, user=user)).status_code == 201
    page = (await hub.get("/alice/reverse-text", headers={"Accept": "text/html"})).text
    assert "single-turn" in page
    assert "sponsored" not in page
