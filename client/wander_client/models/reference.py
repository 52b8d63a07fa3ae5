"""Parse the names of models:

scripted:MODULE:FUNCTION   a function in the environment's package, in its own process
hf:NAME, hf:FOLDER         a Hugging Face model in this process
./FOLDER                   a checkpoint folder, in this process
hub:OWNER/NAME[@REVISION]  a model that `wander model pull OWNER/NAME` fetched from a hub, in this process
smollm2                    SmolLM2-135M-Instruct, downloaded on first use
NAME -b URL                any OpenAI-compatible endpoint; without -b, OPENAI_BASE_URL or api.openai.com
"""

from __future__ import annotations

import os
from collections.abc import Iterable
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
"""Prefix of models that were pulled from a hub."""
HF_SCHEME = "hf:"
"""Prefix of Hugging Face repositories."""
KEY_VARIABLE = "OPENAI_API_KEY"
START_SECONDS = 900.0
"""Default time limit for starting a server, in seconds."""
OPENAI_URL = "https://api.openai.com/v1"
NAMED = ("smollm2", "smollm2-135m-instruct")
"""Names of models that are downloaded on first use."""
KINDS = """\
NAME -b URL                the model NAME of an OpenAI-compatible endpoint (key: OPENAI_API_KEY)
smollm2, hf:NAME, ./DIR    a local model; it runs in this process, or in vLLM with --serve vllm
hub:OWNER/NAME             a local model that you fetched with `wander model pull`
scripted:MODULE:FUNCTION   a function in the environment's package that plays instead of a model"""
CALL_SECONDS = 600.0
"""Default time limit of a call to an endpoint, in seconds."""
_OPENAI_SCHEME = "ft"
"""Prefix of OpenAI's names for fine-tuned models."""


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
    """Return the client for a model's name. `location` is needed only for `scripted:`.

    `timeout` is the time limit of a call to an endpoint in seconds. `template_date` is the date that a local
    model's chat template shows. `send_reasoning` and `merge_system` are as in `OpenAIClient`.
    """
    require_model(spec, base_url, key_variable)
    if is_scripted(spec):
        if location is None:
            raise UsageError("a scripted model requires its environment", hint="pass the environment")
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
    """Raise the errors of a model's name that can be found without loading or calling the model."""
    if not spec.strip():
        raise UsageError("the model's name is empty", hint="pass " + name_option("model", "NAME", word="-m"))
    if is_scripted(spec):
        return
    if base_url is None and is_local_model(spec):
        local_path(spec)
    else:
        _require_endpoint(spec, base_url, key_variable)


def is_local_model(spec: str) -> bool:
    """Return whether a model runs in this process."""
    named = spec.lower() in NAMED or spec.startswith((HF_SCHEME, HUB_SCHEME))
    return named or looks_like_path(spec) or _is_checkpoint(Path(spec))


def asks_endpoint(spec: str) -> bool:
    """Return whether a model is called at an endpoint: it is neither code nor on this machine."""
    return not is_scripted(spec) and not is_local_model(spec)


def require_asked(models: Iterable[str], option: str = "-b") -> None:
    """Raise `UsageError` for an endpoint's option if no model is called at an endpoint.

    With `-b`, every model except functions is.
    """
    names = [spec for spec in models if spec]
    if names and all(is_scripted(spec) for spec in names):
        raise UsageError(
            f"`{option}` applies to models at an endpoint, but `{names[0]}` is a function",
            hint=f"remove `{option}`",
        )


def local_path(spec: str) -> str:
    """Return the folder or repository of a model that runs in this process.

    Raises errors for invalid names.
    """
    if spec.startswith(HUB_SCHEME):
        from wander.models.pulled import find_pulled

        return str(find_pulled(spec).folder)
    name = spec.removeprefix(HF_SCHEME)
    if not name.strip():
        raise UsageError("`hf:` has no model name", hint="for example: `hf:ORGANIZATION/NAME`")
    if name.lower() in NAMED:
        return NAMED[0]
    if looks_like_path(name) or spec == name:
        folder = Path(name).expanduser()
        if not folder.is_dir():
            raise NotFound(
                f"the model folder `{name}` does not exist",
                hint="see `wander model --help` for how to create or download a model",
                code="model_not_found",
            )
        if not _is_checkpoint(folder):
            raise NotFound(
                f"`{name}` is not a checkpoint: it has no `config.json`",
                hint="pass the folder with `config.json` and the weights",
                code="model_not_found",
            )
        return str(folder.resolve())
    return name


def _is_checkpoint(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))


def endpoint_of(base_url: str | None) -> str:
    """Return the endpoint: the given URL, else that of the variable, else OpenAI's."""
    return base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL


def _require_endpoint(name: str, base_url: str | None, key_variable: str) -> str:
    """Return the endpoint's URL.

    Raises `UsageError` if it is not a URL, `LoginRequired` if its key is missing.
    """
    url = endpoint_of(base_url)
    if url == OPENAI_URL:
        _require_openai_name(name, key_variable)
    if not url.startswith(("http://", "https://")):
        raise UsageError(
            f"`{url}` is not an endpoint URL",
            hint="for example: " + name_option("base_url", "http://127.0.0.1:8000/v1", word="-b"),
        )
    return url


def _require_openai_name(name: str, key_variable: str) -> None:
    """Raise an error if a name is probably not meant for OpenAI's endpoint, or if the key is missing."""
    scheme, colon, rest = name.partition(":")
    if colon and scheme != _OPENAI_SCHEME:
        kinds = {kind: f"{kind}:{rest}" for kind in ("hf", "hub", "scripted")}
        raise UsageError(
            f"unknown kind of model `{scheme}:`",
            hint=did_you_mean(scheme, kinds, cutoff=0.5, shown=kinds)
            or "pass " + name_option("base_url", "URL", word="-b") + " for a model at another endpoint",
            code="unknown_kind_of_model",
            detail=KINDS,
        )
    if os.environ.get(key_variable):
        return
    require_no_typo(name)
    if Path(name).is_dir():
        raise NotFound(
            f"no model `{name}` on this machine",
            hint=f"`{name}` is a folder, but has no `config.json`",
            code="model_not_found",
            detail=KINDS,
        )
    player = (
        f"; for a player of the environment, pass `scripted:MODULE:{name}`" if name.isidentifier() else ""
    )
    raise LoginRequired(
        f"no model `{name}` on this machine, and `{key_variable}` is not set for `{OPENAI_URL}`",
        hint=f"set `{key_variable}`, or pass "
        + name_option("base_url", "URL", word="-b")
        + f" for another endpoint, or `hf:NAME` or a folder for a local model{player}",
        code="no_api_key",
        detail=KINDS,
    )


def require_no_typo(name: str) -> None:
    """Raise `NotFound` for a probably mistyped name of a model that is downloaded on first use."""
    meant = did_you_mean(name, NAMED, cutoff=0.75)
    if meant and name.lower() not in NAMED:
        raise NotFound(f"no model `{name}` on this machine", hint=meant, code="model_not_found")


def require_servable(spec: str) -> None:
    """Raise the errors of a served model's name that can be found without starting a server."""
    if is_scripted(spec):
        raise UsageError(f"`{spec}` is code, not a model that can be served", hint="remove `--serve`")
    if is_local_model(spec):
        local_path(spec)


def servable(spec: str) -> str:
    """Return the folder or repository that a server is started with."""
    require_servable(spec)
    if not is_local_model(spec):
        return spec
    if (name := local_path(spec)) not in NAMED:
        return name
    from wander.models.smollm2 import pull_smollm2

    return str(pull_smollm2())
