"""The gate of uploads: a corpus of bad archives, each refused with its code, and the table of the codes."""

from __future__ import annotations

import ast
import hashlib
import io
from pathlib import Path
from typing import Any

import pytest
import wander_hub.upload
from bad_sdists import BAD_SDISTS
from bad_wheels import BAD_WHEELS
from wander_hub.http.problems import HubProblem
from wander_hub.settings import Settings
from wander_hub.upload import checks
from wander_hub.upload.schemas import Upload
from wander_hub.upload_rules import OPTIONAL, RULES

CORPUS = [*BAD_WHEELS, *BAD_SDISTS]
ELSEWHERE = {"too_large", "wheel_differs_from_source", "source_tree_mismatch"}
"""Refused before the archive is there to be read (test_hub_limits.py), or of two archives together
(test_upload_sources.py)."""
DOCS = Path(__file__).resolve().parents[2] / "docs" / "package-index.md"


def judged(case) -> None:
    """Hold a file against the gate as the upload's route does."""
    body = case.build()
    sha256 = hashlib.sha256(body).hexdigest()
    upload = Upload("alice", case.filename, io.BytesIO(body), len(body), sha256, case.fields)
    checks.parse_check(upload)
    checks.check(upload, Settings())


def shared_out() -> list[Any]:
    """Return every bad archive. The short run takes a wheel and a source archive for each code."""
    taken, found = set[tuple[str, bool]](), []
    for case in CORPUS:
        kind = (case.code, case in BAD_WHEELS)
        marks = [pytest.mark.full] if kind in taken else []
        found.append(pytest.param(case, marks=marks, id=case.label))
        taken.add(kind)
    return found


@pytest.mark.parametrize("case", shared_out())
def test_a_bad_archive_is_rejected_with_its_code(case):
    with pytest.raises(HubProblem) as caught:
        judged(case)
    problem = caught.value
    assert (problem.code, problem.status) == (case.code, RULES[case.code].status), problem.detail
    assert problem.hint
    assert 10 < len(problem.detail) < 1000
    assert problem.detail.isprintable()


@pytest.mark.full
async def test_the_hub_rejects_each_bad_archive_and_stores_nothing(hub):
    wrong = []
    for case in CORPUS:
        answer = await hub.upload(case.build(), case.filename, fields=case.fields)
        got = (answer.status_code, answer.json().get("code"), answer.headers["content-type"])
        if got != (RULES[case.code].status, case.code, "application/problem+json"):
            wrong.append((case.label, got, answer.text[:200]))
        assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert wrong == []
    assert (await hub.get("/api/v1/environments")).json()["data"] == []
    assert list(hub.client._transport.app.state.storage.objects()) == []


def test_every_rule_has_bad_archives_with_unique_labels():
    labels = [case.label for case in CORPUS]
    assert len(set(labels)) == len(labels)
    flagged = {code for code, action in OPTIONAL.items() if action == "flag"}
    assert set(RULES) - {case.code for case in CORPUS} == ELSEWHERE | flagged


def test_the_upload_checks_and_the_table_have_the_same_codes():
    """No check refuses under a code that is not in the table, and no row of it is idle."""
    named: set[str] = set()
    for path in Path(wander_hub.upload.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in RULES:
                named.add(node.value)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "refusal":
                code = node.args[0]
                assert not isinstance(code, ast.Constant) or code.value in RULES, ast.unparse(node)
    assert named == set(RULES)


def test_the_guide_lists_every_upload_rule():
    """To mend it, put what this test expects between the headings of docs/package-index.md."""
    text = DOCS.read_text()
    always = [f"|`{rule.code}`|{rule.what}|" for rule in RULES.values() if rule.code not in OPTIONAL]
    chosen = [
        f"|`{rule.code}`|{rule.default}|{rule.what}|" for rule in RULES.values() if rule.code in OPTIONAL
    ]
    assert "\n".join(always) in text
    assert "\n".join(chosen) in text
    assert {rule.code for rule in RULES.values() if rule.status == 400} == {"bad_form"}
    assert {rule.status for rule in RULES.values()} == {400, 413, 422}


def test_operators_can_only_change_optional_rules():
    assert Settings(upload_policy={"startup_file": "refuse"}).upload_policy == {"startup_file": "refuse"}
    for policy in ({"unsafe_path": "allow"}, {"no_such_rule": "flag"}, {"startup_file": "delete"}):
        with pytest.raises(ValueError, match="upload_policy"):
            Settings(upload_policy=policy)
