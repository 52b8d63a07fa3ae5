"""Prices of a model's tokens: from the user's settings file, or from the table that the client ships.

`token_prices.json` has the prices of the providers' own endpoints. `scripts/token_prices.py` writes it, and
the file names its source and date. The cost of a model that is in neither is unknown, not zero.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError
from wander.wire import TokenPrices

from wander_client.errors import UsageError
from wander_client.models.reference import asks_endpoint, endpoint_of

_OWNERS = {
    **{owner: owner for owner in ("openai", "anthropic", "google", "deepseek", "mistral", "xai", "qwen")},
    **{"gemini": "google", "models": "google", "mistralai": "mistral", "x-ai": "xai", "dashscope": "qwen"},
}
"""Owners of models by the prefixes that providers and gateways put before a model's name."""
_SERVED_BY_OTHERS = {"deepseek": "deepseek.com", "mistral": "mistral.ai", "qwen": "aliyuncs.com"}
"""Owners of public weights, which others serve at other prices, and the domains of their own endpoints."""


def prices_of(model: str, base_url: str | None, own: Mapping[str, object]) -> TokenPrices | None:
    """Return the prices of a model, or None if they are unknown.

    `own` is the table of the user's settings file, which comes first. The shipped table does not apply to
    endpoints on this machine or in its network, which may serve any model under any name. Raises `UsageError`
    for an invalid row of the user's table.
    """
    if model in own:
        try:
            return TokenPrices.model_validate(own[model])
        except ValidationError:
            raise UsageError(
                f"invalid `prices.{model}` in the settings file",
                hint=f'write `"{model}" = {{ prompt = 0.15, completion = 0.60 }}`, in USD per million tokens',
            ) from None
    if base_url is None and not asks_endpoint(model):
        return None
    host = urlsplit(endpoint_of(base_url)).hostname or ""
    owner, prices = _listed_prices().get(_key(model), ("", None))
    domain = _SERVED_BY_OTHERS.get(owner, "")
    return None if _is_near(host) or not f".{host}".endswith(f".{domain}" if domain else "") else prices


def _is_near(host: str) -> bool:
    """Return whether an address belongs to this machine or to a private network."""
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal", ".localhost"))


def _key(model: str) -> tuple[str, str]:
    """Return the owner, or an empty text, and the name of a model. Gateways write `4.5` for `4-5`."""
    prefix, _, name = model.lower().removeprefix("openrouter/").rpartition("/")
    return _OWNERS.get(prefix, prefix), name.replace(".", "-")


@cache
def _listed_prices() -> dict[tuple[str, str], tuple[str, TokenPrices]]:
    """Return the owner and the prices of each listed model, by its name with and without the owner."""
    table = json.loads(Path(__file__).with_name("token_prices.json").read_text())
    prices: dict[tuple[str, str], tuple[str, TokenPrices]] = {}
    for model, row in table["prices"].items():
        owner, name = _key(model)
        prices[owner, name] = prices["", name] = owner, TokenPrices(**row)
    return prices
