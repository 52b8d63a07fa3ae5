"""The reward that a Harbor verifier writes: exactly one valid file, or an error of the rubric."""

from __future__ import annotations

import pytest
from harbor_tasks import TASK_TOML, write_task
from wander.errors import RubricError
from wander_integrations.harbor.environment import choose_reward
from wander_integrations.harbor.folder import read_task
from wander_integrations.harbor.verifier import parse_rewards


@pytest.mark.parametrize(
    ("text", "document", "rewards"),
    [
        (b"1\n", None, {"reward": 1.0}),
        (b" 0.25 ", None, {"reward": 0.25}),
        (b"-3e-1", None, {"reward": -0.3}),
        (None, b'{"reward": 1, "style": 0.5}', {"reward": 1.0, "style": 0.5}),
        (None, b'{"passed": true}', {"passed": 1.0}),
    ],
)
def test_one_reward_is_read(text, document, rewards):
    assert parse_rewards("acme/hello", text, document) == rewards


@pytest.mark.parametrize(
    ("text", "document", "message"),
    [
        (None, None, "wrote no reward"),
        (b"1", b'{"reward": 1}', "wrote two rewards"),
        (b"", None, "is not a number: ``"),
        (b"PASS", None, "is not a number: `PASS`"),
        (b"1\n1", None, "is not a number"),
        (b"\xff", None, "is not a number"),
        (b"nan", None, "is not a finite number"),
        (b"inf", None, "is not a finite number"),
        (None, b"{", "is not JSON"),
        (None, b"[" * 100_000, "is not JSON"),
        (None, b"1", "is not an object"),
        (None, b"{}", "is not an object"),
        (None, b'{"reward": "1"}', "is not a finite number"),
        (None, b'{"reward": 1e999}', "is not a finite number"),
        (None, b'{"reward": NaN}', "is not a finite number"),
        (None, b'{"reward": null}', "is not a finite number"),
    ],
)
def test_anything_else_is_an_error_of_the_rubric(text, document, message):
    with pytest.raises(RubricError) as raised:
        parse_rewards("acme/hello", text, document)
    assert message in str(raised.value)
    assert "acme/hello" in str(raised.value)


def test_the_reward_is_chosen_by_its_key(tmp_path):
    plain = read_task(write_task(tmp_path / "plain"))
    assert choose_reward({"reward": 0.5, "style": 1.0}, plain) == 0.5
    assert choose_reward({"passed": 1.0}, plain) == 1.0
    with pytest.raises(RubricError, match="wrote `speed`, `style`, but not `reward`"):
        choose_reward({"style": 1.0, "speed": 2.0}, plain)
    toml = TASK_TOML.format(name="keyed") + '[metadata.wander]\nreward_key = "style"\n'
    keyed = read_task(write_task(tmp_path / "keyed", toml=toml))
    assert choose_reward({"reward": 0.5, "style": 1.0}, keyed) == 1.0
    with pytest.raises(RubricError, match="but not `style`"):
        choose_reward({"reward": 0.5}, keyed)
