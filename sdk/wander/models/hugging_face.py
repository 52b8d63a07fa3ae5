"""Model repositories on Hugging Face: uploads as commits, and downloads into its cache.

Everything uses `huggingface_hub`: its token (`HF_TOKEN`, `hf auth login`), its address (`HF_ENDPOINT`), and
its cache, which `hf:owner/name` is loaded from.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wander.errors import (
    AuthenticationFailed,
    EndpointUnreachable,
    ModelNotFound,
    RunError,
    require_extra,
)
from wander.wire.models import is_model_file_name
from wander.wire.postings import file_digest

_SECONDS = 5.0
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)
_LOG_IN = "create a write token at https://huggingface.co/settings/tokens, then set `HF_TOKEN`"


@dataclass(frozen=True)
class RepositoryCommit:
    """A commit of a repository."""

    revision: str
    """Id of the commit."""
    url: str
    """Address of the repository's page."""
    digests: Mapping[str, str]
    """SHA-256 of the repository's large files, by name."""


def require_writer(name: str) -> None:
    """Raise `AuthenticationFailed` without a token that Hugging Face accepts; `name` is `owner/name`."""
    hub = _library()
    with _translate_errors(name):
        hub.HfApi().whoami()


def send_files(
    name: str, files: Mapping[str, Path | bytes], message: str, *, private: bool | None
) -> RepositoryCommit:
    """Replace the files of a model's repository, which is created if it does not exist.

    Other files of a model in the repository are removed. Raises `WanderError` with the reason from Hugging
    Face.
    """
    hub = _library()
    api = hub.HfApi()
    with _translate_errors(name):
        api.create_repo(name, private=private, exist_ok=True)
        gone = [file for file in api.list_repo_files(name) if is_model_file_name(file) and file not in files]
        changes = [
            *(
                hub.CommitOperationAdd(file, body if isinstance(body, bytes) else str(body))
                for file, body in files.items()
            ),
            *(hub.CommitOperationDelete(file) for file in gone),
        ]
        commit = api.create_commit(name, changes, commit_message=message)
        return _commit_of(api, api.model_info(name, revision=commit.oid, files_metadata=True))


def fetch_files(name: str, revision: str | None) -> tuple[RepositoryCommit, Path, list[str]]:
    """Download the files of a model into the cache and check each against the digest from Hugging Face.

    Returns the commit, the folder, and the files that had been changed in the cache and were downloaded
    again. Raises `ModelNotFound`, `EndpointUnreachable`, or `RunError` if a file has a wrong digest.
    """
    hub = _library()
    api = hub.HfApi()
    if only_cached(name, revision):  # also raises errors about the name
        hint = f"the copy in the cache plays as `hf:{name}`"
        raise EndpointUnreachable(f"`{api.endpoint}` does not respond", hint=hint, retryable=True)
    with _translate_errors(name):
        info = api.model_info(name, revision=revision, files_metadata=True)
        wanted = [file.rfilename for file in info.siblings if is_model_file_name(file.rfilename)]
        # Download by name instead of commit, so that the cache can resolve the name without a network.
        folder = Path(hub.snapshot_download(name, revision=revision, allow_patterns=wanted))
        if folder.name != info.sha:
            raise RunError(f"`{name}` was changed while it was fetched", hint="pull again")
        changed = _find_damaged(info, folder)
        for filename in changed:
            hub.hf_hub_download(name, filename, revision=info.sha, force_download=True)
    if damaged := _find_damaged(info, folder):
        raise RunError(
            f"`{damaged[0]}` of `{name}` differs from the digest that Hugging Face lists",
            hint="pull again; if it fails again, check proxies, because something alters the download",
        )
    return _commit_of(api, info), folder, changed


def _library() -> Any:
    with require_extra("transformers", needed_for="models of Hugging Face"):
        import huggingface_hub
    return huggingface_hub


def _commit_of(api: Any, info: Any) -> RepositoryCommit:
    digests = {file.rfilename: file.lfs.sha256 for file in info.siblings if file.lfs is not None}
    return RepositoryCommit(info.sha, f"{api.endpoint}/{info.id}", digests)


def _find_damaged(info: Any, folder: Path) -> list[str]:
    """Return the files that differ from those on Hugging Face, by SHA-256, or by git's digest for small
    files."""
    return [
        file.rfilename
        for file in info.siblings
        if is_model_file_name(file.rfilename) and not _is_sound(file, folder / file.rfilename)
    ]


def _is_sound(listed: Any, file: Path) -> bool:
    if not file.is_file():
        return False
    if listed.lfs is not None:
        return bool(file_digest(file) == listed.lfs.sha256)
    body = file.read_bytes()
    git = hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest()
    return bool(listed.blob_id is None or git == listed.blob_id)


def only_cached(name: str, revision: str | None = None) -> bool:
    """Return False if Hugging Face has the repository, True if it does not respond but the cache has a copy.

    The libraries request every file of a model separately and retry each for up to half a minute. This single
    request before the download avoids that. Raises `ModelNotFound` if the repository does not exist, and
    `EndpointUnreachable` if Hugging Face does not respond and the cache has no copy.
    """
    from huggingface_hub import HfApi, constants, try_to_load_from_cache

    cached = False
    try:
        with _translate_errors(name, revision):
            cached = isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)
            HfApi().model_info(name, revision=revision, timeout=_SECONDS)
    except EndpointUnreachable as error:
        if cached:
            return True
        raise EndpointUnreachable(
            f"`{constants.ENDPOINT}` does not respond, and `{name}` is not in the Hugging Face cache",
            hint="check the connection, or pass the folder of a model (`./DIR`), or `smollm2`",
            retryable=True,
        ) from error
    return False


@contextlib.contextmanager
def _translate_errors(name: str, revision: str | None = None) -> Iterator[None]:
    """Convert exceptions of `huggingface_hub` to errors with a hint."""
    from huggingface_hub import constants, errors

    try:
        yield
    except errors.LocalTokenNotFoundError as error:
        raise AuthenticationFailed("pushing to Hugging Face needs a token", hint=_LOG_IN) from error
    except errors.HFValidationError as error:
        hint = "write `hf:ORGANIZATION/NAME`"
        raise ModelNotFound(f"`{name}` is not the name of a Hugging Face model", hint=hint) from error
    except errors.GatedRepoError as error:
        raise ModelNotFound(
            f"access to the Hugging Face model `{name}` must be requested",
            hint=f"request it at {constants.ENDPOINT}/{name}, then set `HF_TOKEN`",
        ) from error
    except errors.RevisionNotFoundError as error:
        problem = f"the Hugging Face model `{name}` has no revision `{revision}`"
        raise ModelNotFound(problem, hint="leave the revision out") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"Hugging Face has no model `{name}`, or it is private",
            hint="check the spelling; a private model needs `HF_TOKEN`",
        ) from error
    except Exception as error:
        answer = error.response if isinstance(error, errors.HfHubHTTPError) else None
        status = answer.status_code if answer is not None else None
        if status == 401:
            raise AuthenticationFailed("Hugging Face refused the token", hint=_LOG_IN) from error
        if status == 403:
            hint = f"use a token that may write to `{name.partition('/')[0]}`"
            raise AuthenticationFailed(f"the token may not write to `{name}`", hint=hint) from error
        if status is not None and status < 500:
            raise ModelNotFound(f"Hugging Face refused `{name}`: {str(error).splitlines()[0]}") from error
        # The HTTP library behind huggingface_hub has changed before, so its errors are recognized by their
        # module.
        is_of_network = type(error).__module__.startswith("http") or (
            isinstance(error, OSError) and error.errno not in _OF_THE_DISK
        )
        if status is None and not is_of_network:
            raise
        hint = "check the connection, and `HF_ENDPOINT` and `HF_HUB_OFFLINE` if they are set"
        raise EndpointUnreachable(
            f"`{constants.ENDPOINT}` does not respond: {error}", hint=hint, retryable=True
        ) from error
