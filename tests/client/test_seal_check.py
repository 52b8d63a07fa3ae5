"""Files of examples that `wander seal` accepts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wander.wire.transfers import MOST_EXAMPLES, read_set
from wander_client.errors import UsageError
from wander_client.evaluate.sealed import set_from

ROW = {"question": "q", "answer": "é"}
LINE = json.dumps(ROW, ensure_ascii=False) + "\n"


@pytest.mark.parametrize(
    "text", [LINE, f"\ufeff{LINE}", LINE.replace("\n", "\r\n"), f"\n{LINE}\n", LINE.strip()]
)
def test_the_usual_forms_of_a_text_file_are_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hidden.jsonl"
    path.write_bytes(text.encode())
    assert read_set(set_from(path)) == [ROW]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (LINE.encode("utf-16"), "line 1: it is not valid JSON in UTF-8"),
        (LINE.encode("latin-1"), "line 1: it is not valid JSON in UTF-8"),
        (b'{"answer": 1e999}\n', "line 1: it is not valid JSON in UTF-8"),
        (b"[1]\n", "line 1: it is not a JSON object"),
        (b"", "has no examples"),
        (LINE.encode() * (MOST_EXAMPLES + 2), "has over"),
    ],
)
def test_another_file_is_rejected_with_a_hint(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "hidden.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=told) as refused:
        set_from(path)
    assert refused.value.hint
