"""What a checkpoint is: names, digests and the look into its files that client and hub share."""

from __future__ import annotations

import hashlib
import json

import pytest
from small_models import checkpoint, digests, safetensors_of, tokenizer, weights
from wander.errors import ConfigError
from wander.wire.models import CheckpointFacts, read_checkpoint, revision_of, weights_of


def facts(files: dict[str, bytes]) -> CheckpointFacts:
    sizes = {name: len(body) for name, body in files.items()}
    return read_checkpoint(sizes, lambda name, start, length: files[name][start : start + length])


def test_a_checkpoint_describes_itself() -> None:
    assert facts(checkpoint()) == CheckpointFacts("LlamaForCausalLM", 32)
    empty = safetensors_of({"a": ([0], b""), "b": ([], b"1234")})
    assert facts(checkpoint(model_safetensors=empty)).parameters == 1


def test_the_revision_equals_sha256sum_over_all_files() -> None:
    files = digests(checkpoint())
    listing = "".join(f"{files[name]}  {name}\n" for name in sorted(files))
    assert revision_of(files) == hashlib.sha256(listing.encode()).hexdigest()
    assert revision_of(files | {"README.md": "0" * 64}) != revision_of(files)
    assert weights_of(files | {"README.md": "0" * 64}) == weights_of(files)
    assert weights_of({"config.json": "0" * 64}) is None


def with_token(*, special: bool, used: bool = False) -> dict[str, bytes]:
    """A tokenizer with a token more than the weights have rows, as Gemma 3's for images."""
    made = json.loads(tokenizer())
    made["added_tokens"] = [{"id": 8, "content": "<image>", "special": special}]
    named = {"eos_token": {"content": "<image>"}} if used else {"eos_token": "t1"}
    files = checkpoint(tokenizer_json=json.dumps(made).encode())
    return files | {"tokenizer_config.json": json.dumps(named).encode()}


def test_a_special_token_that_no_text_becomes_may_lie_beyond_the_weights() -> None:
    assert facts(with_token(special=True)).parameters == 32
    for refused in with_token(special=False), with_token(special=True, used=True):
        with pytest.raises(ConfigError, match="a token has id 8, but the weights have 8 rows"):
            facts(refused)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"config.json": b"{}", "notes.txt": b"x"}, "there are no weights"),
        (checkpoint(config_json=None), "there is no `config.json`"),
        (checkpoint(config_json=b"{"), "`config.json`: not JSON"),
        (checkpoint(config_json=b"[1]"), "is not a JSON object"),
        (checkpoint(config_json=b'{"auto_map": {}, "model_type": "x"}'), "requires custom code"),
        (checkpoint() | {"tokenizer_config.json": b'{"auto_map": {}}'}, "requires custom code"),
        (checkpoint(config_json=b"{}"), "names neither"),
        (checkpoint(model_safetensors=weights()[:-1]), "is truncated"),
        (checkpoint(model_safetensors=weights() + b"x"), "is truncated"),
        (checkpoint(model_safetensors=b"PK\x03\x04 pickled, and longer"), "is truncated"),
        (checkpoint(tokenizer_json=tokenizer(9)), "weights and tokenizer do not fit"),
        (checkpoint(other_safetensors=weights()), "is in both"),
        (checkpoint(pytorch__model_bin=b"x"), "not allowed as a file of a model"),
        (checkpoint(modeling_py=b"import os"), "not allowed as a file of a model"),
        (
            checkpoint()
            | {"model.safetensors.index.json": b'{"weight_map": {"lm_head.weight": "b.safetensors"}}'},
            "but that file does not contain it",
        ),
    ],
)
def test_an_invalid_checkpoint_is_reported(files: dict[str, bytes], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        facts(files)
