"""What a model's name on the command line means.

scripted:MODULE:FUNCTION   a function of the environment's package, in a process of its own
hf:NAME, hf:FOLDER         a Hugging Face model in this process
./FOLDER                   the same, a checkpoint folder
hub:OWNER/NAME[@REVISION]  the same, a model that `wander model pull OWNER/NAME` fetched from a hub
smollm2                    SmolLM2-135M-Instruct, fetched on first use
NAME -b URL                any OpenAI-compatible endpoint; without -b OPENAI_BASE_URL, else api.openai.com
"""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from wander_client.errors import LoginRequired, NotFound, UsageError, name_option
from wander_client.names import is_scripted, looks_like_path
from wander_client.terminal.suggestions import did_you_mean

if TYPE_CHECKING:
    from wander.clients.base import Client

    from wander_client.context import Invocation
    from wander_client.environments.location import Location

HUB_SCHEME = "hub:"
"""Goes before the name of a model that was pulled from a hub."""
HF_SCHEME = "hf:"
"""Goes before the name of a repository of Hugging Face."""
KEY_VARIABLE = "OPENAI_API_KEY"
START_SECONDS = 900.0
"""How long a server may take to start, unless said."""
OPENAI_URL = "https://api.openai.com/v1"
NAMED = ("smollm2", "smollm2-135m-instruct")
"""Names of models that are fetched on first use."""
KINDS = """\
NAME -b URL                any OpenAI-compatible endpoint (key: OPENAI_API_KEY)
smollm2, hf:NAME, ./DIR    a model in this process
hub:OWNER/NAME             a model that `wander model pull` fetched from the hub
scripted:MODULE:FUNCTION   a function of the environment's package"""
CALL_SECONDS = 600.0
"""How long one call of an endpoint may take, unless said."""
_OPENAI_SCHEME = "ft"
"""What OpenAI's own names of fine-tuned models begin with."""


def open_model(
    context: Invocation,
    spec: str,
    *,
    base_url: str | None = None,
    key_variable: str = KEY_VARIABLE,
    location: Location | None = None,
    device: str | None = None,
    timeout: float | None = None,
    send_reasoning: bool | None = None,
    merge_system: bool = True,
    template_date: date | None = None,
) -> Client:
    """Return the client that a model's name means; `location` is needed for `scripted:` alone.

    `timeout` is how many seconds one call of an endpoint may take, `template_date` the date that a local
    model's chat template shows. `send_reasoning` and `merge_system` are as in `OpenAIClient`.
    """
    require_model(spec, base_url, key_variable)
    if is_scripted(spec):
        if location is None:
            raise UsageError("a scripted model needs its environment", hint="name the environment first")
        from wander_client.models.scripted import ScriptedProcessClient

        return ScriptedProcessClient(spec, location)
    if base_url is None and is_local_model(spec):
        context.output.note(f"loading {spec}")
        from wander.models.chat import ChatOptions
        from wander.models.client import TransformersClient

        chat = ChatOptions(template_date, merge_system)
        return TransformersClient(local_path(spec), device=device, chat=chat)
    url = _require_endpoint(spec, base_url, key_variable)
    from wander.clients.openai import OpenAIClient

    key = os.environ.get(key_variable)
    return OpenAIClient(
        *(spec, url, key),
        timeout=timeout or CALL_SECONDS,
        send_reasoning=send_reasoning,
        merge_system=merge_system,
    )


def require_model(spec: str, base_url: str | None, key_variable: str = KEY_VARIABLE) -> None:
    """Raise what is wrong with a model's name, as far as that can be known without loading or asking it."""
    if not spec.strip():
        raise UsageError("the model's name is empty", hint="pass " + name_option("model", "NAME", word="-m"))
    if is_scripted(spec):
        return
    if base_url is None and is_local_model(spec):
        local_path(spec)
    else:
        _require_endpoint(spec, base_url, key_variable)


def is_local_model(spec: str) -> bool:
    """Return whether the name means a model that runs in this process."""
    named = spec.lower() in NAMED or spec.startswith((HF_SCHEME, HUB_SCHEME))
    return named or looks_like_path(spec) or _is_checkpoint(Path(spec))


def asks_endpoint(spec: str) -> bool:
    """Return whether somebody else answers for the model: one that is neither code nor on this machine."""
    return not is_scripted(spec) and not is_local_model(spec)


def local_path(spec: str) -> str:
    """Return the folder, or the repository, of a model that runs in this process; raises for a wrong name."""
    if spec.startswith(HUB_SCHEME):
        from wander.models.pulled import find_pulled

        return str(find_pulled(spec).folder)
    name = spec.removeprefix(HF_SCHEME)
    if not name.strip():
        raise UsageError("`hf:` names no model", hint="write `hf:ORGANISATION/NAME`")
    if name.lower() in NAMED:
        return NAMED[0]
    if looks_like_path(name) or spec == name:
        folder = Path(name).expanduser()
        if not folder.is_dir():
            raise NotFound(
                f"the model folder `{name}` does not exist",
                hint="`wander model --help` says how to make or fetch one",
                code="model_not_found",
            )
        if not _is_checkpoint(folder):
            raise NotFound(
                f"`{name}` is no checkpoint: it has no `config.json`",
                hint="pass the folder that holds `config.json` and the weights",
                code="model_not_found",
            )
        return str(folder.resolve())
    return name


def _is_checkpoint(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def endpoint_of(base_url: str | None) -> str:
    """Return the endpoint that is asked: the given one, else the variable's, else OpenAI's."""
    return base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL


def _require_endpoint(name: str, base_url: str | None, key_variable: str) -> str:
    """Return the endpoint's URL; raises `UsageError` if it is none, `LoginRequired` if its key is missing."""
    url = endpoint_of(base_url)
    if url == OPENAI_URL:
        _require_name_of_openai(name, key_variable)
    if not url.startswith(("http://", "https://")):
        raise UsageError(
            f"`{url}` is no endpoint URL",
            hint="pass one like " + name_option("base_url", "http://127.0.0.1:8000/v1", word="-b"),
        )
    return url


def _require_name_of_openai(name: str, key_variable: str) -> None:
    """Raise for a name that was meant for something else than OpenAI's endpoint, or that has no key there."""
    scheme, colon, rest = name.partition(":")
    if colon and scheme != _OPENAI_SCHEME:
        kinds = {kind: f"{kind}:{rest}" for kind in ("hf", "hub", "scripted")}
        raise UsageError(
            f"`{scheme}:` is no kind of model",
            hint=did_you_mean(scheme, kinds, cutoff=0.5, shown=kinds)
            or "pass " + name_option("base_url", "URL", word="-b") + " for a model of another endpoint",
            code="unknown_kind_of_model",
            detail=KINDS,
        )
    if os.environ.get(key_variable):
        return
    require_no_slip(name)
    if Path(name).is_dir():
        raise NotFound(
            f"there is no model `{name}` on this machine",
            hint=f"`{name}` is a folder, but has no `config.json`",
            code="model_not_found",
            detail=KINDS,
        )
    player = f"; a player of the environment is `scripted:MODULE:{name}`" if name.isidentifier() else ""
    raise LoginRequired(
        f"`{name}` is no model of this machine, and `{key_variable}` is not set for `{OPENAI_URL}`",
        hint="pass "
        + name_option("base_url", "URL", word="-b")
        + f" for another endpoint, or `hf:NAME` or a folder for a local model{player}",
        code="no_api_key",
        detail=KINDS,
    )


def require_no_slip(name: str) -> None:
    """Raise `NotFound` for a name that nearly is the name of a model that is fetched on first use."""
    meant = did_you_mean(name, NAMED, cutoff=0.75)
    if meant and name.lower() not in NAMED:
        raise NotFound(f"there is no model `{name}` on this machine", hint=meant, code="model_not_found")


def require_servable(spec: str) -> None:
    """Raise what is wrong with the name of a model that is to be served, as far as that can be known."""
    if is_scripted(spec):
        raise UsageError(f"`{spec}` is code, no model that can be served", hint="leave `--serve` out")
    if is_local_model(spec):
        local_path(spec)


def servable(spec: str) -> str:
    """Return what a server is given for a model's name: a folder, fetched or the user's, or a repository."""
    require_servable(spec)
    if not is_local_model(spec):
        return spec
    if (name := local_path(spec)) not in NAMED:
        return name
    from wander.models.smollm2 import pull_smollm2

    return str(pull_smollm2())
