"""Write the table of token prices that the client ships, from the price list of a release of LiteLLM.

    python scripts/token_prices.py 1.110.2

pip downloads the release. Its price list (MIT license, https://github.com/BerriAI/litellm) has the prices of
the providers' own endpoints. The table keeps those of the standard tier, for prompts of usual length. Models
that only have prices by length of the prompt are left out.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "client" / "wander_client" / "evaluate" / "token_prices.json"
LIST = "litellm/model_prices_and_context_window_backup.json"
MODELS = {
    "openai": r"gpt-[3-9][\w.-]*|o\d[\w.-]*",
    "anthropic": r"claude-[\w.-]+",
    "gemini": r"gemini/gemini-\d[\w.-]*|gemini/gemini-(flash|flash-lite|pro)-latest",
    "deepseek": r"deepseek/[\w.-]+",
    "mistral": r"mistral/(mistral-(large|medium|small)|codestral|devstral|magistral)[\w.-]*",
    "xai": r"xai/grok-[\w.-]+",
    "dashscope": r"dashscope/qw[\w.-]+",
}
"""Chat models of each provider whose prices are kept."""
OWNERS = {"gemini": "google", "dashscope": "qwen"}
_LEFT_OUT = re.compile(
    r"audio|realtime|search|deep-research|tts|image|robotics|computer-use|beta|experimental|preview-customtools"
    r"|-\d+b\b|qwen3-vl"
)
_PRICES = (
    *("input_cost_per_token", "output_cost_per_token"),
    *("cache_read_input_token_cost", "output_cost_per_reasoning_token"),
)


def main() -> None:
    """Download the release that the command line names, and write the table."""
    release = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder]
        subprocess.run([*command, f"litellm=={release}"], check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            content = wheel.read(LIST)
    prices = select(json.loads(content))
    head = {
        "source": f"LiteLLM {release}, {LIST}",
        "sha256": hashlib.sha256(content).hexdigest(),
        "date": date.today().isoformat(),
    }
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(prices.items()))
    TABLE.write_text(f'{json.dumps(head, indent=1)[:-2]},\n "prices": {{\n{lines}\n }}\n}}\n')
    print(f"{len(prices)} models")


def select(listed: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the prices of the usual models in USD per million tokens, by owner and model."""
    prices = {}
    for name, row in listed.items():
        owner = row.get("litellm_provider")
        right = row.get("mode") in ("chat", "responses") and re.fullmatch(MODELS.get(owner, ""), name)
        if not right or _LEFT_OUT.search(name) or not (row.get(_PRICES[0]) and row.get(_PRICES[1])):
            continue
        prompt, completion, cached, reasoning = (
            None if row.get(field) is None else round(row[field] * 1e6, 6) for field in _PRICES
        )
        price = {"prompt": prompt, "completion": completion}
        if cached is not None:
            price["cached"] = cached
        if reasoning not in (None, completion):
            price["reasoning"] = reasoning
        prices[f"{OWNERS.get(owner, owner)}/{name.rpartition('/')[2]}"] = price
    return prices


if __name__ == "__main__":
    main()
