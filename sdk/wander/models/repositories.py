"""Whether a Hugging Face repository can be loaded, found out by one question before anything is fetched.

The libraries ask for every file of a model on its own and try each again for up to half a minute, so that a
machine without a way to Hugging Face would wait for minutes to learn so.
"""

from __future__ import annotations

from wander.errors import EndpointUnreachable, ModelNotFound

_SECONDS = 10.0


def only_cached(name: str, revision: str | None = None) -> bool:
    """Return False where Hugging Face has the repository, True where it is silent but the cache has a copy.

    Raises `ModelNotFound` when there is no such repository, `EndpointUnreachable` when Hugging Face does not
    answer and nothing is cached.
    """
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        cached = isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)
        HfApi().model_info(name, revision=revision, timeout=_SECONDS)
    except HFValidationError as error:
        raise ModelNotFound(
            f"`{name}` is no name of a Hugging Face model", hint="write `hf:ORGANISATION/NAME`"
        ) from error
    except GatedRepoError as error:
        raise ModelNotFound(
            f"access to the Hugging Face model `{name}` is granted on request alone",
            hint=f"ask for it at {constants.ENDPOINT}/{name}, then set `HF_TOKEN`",
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(
            f"the Hugging Face model `{name}` has no revision `{revision}`", hint="leave the revision out"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"Hugging Face has no model `{name}`, or it is private",
            hint="check the spelling; a private one needs `HF_TOKEN`",
        ) from error
    except Exception as error:
        if (
            isinstance(error, HfHubHTTPError)
            and error.response is not None
            and error.response.is_client_error
        ):
            raise ModelNotFound(f"Hugging Face refused `{name}`: {str(error).splitlines()[0]}") from error
        # Whatever the HTTP library of the day raises without a network; a copy of the model will do.
        if cached:
            return True
        raise EndpointUnreachable(
            f"`{constants.ENDPOINT}` does not answer, and `{name}` is not in the cache of Hugging Face",
            hint="check the connection, or pass a folder that holds the model (`./DIR`), or `smollm2`",
            retryable=True,
        ) from error
    return False
