"""Repositories of models on Hugging Face: files sent as a commit, and fetched into its cache.

All of it is `huggingface_hub`: its token (`HF_TOKEN`, `hf auth login`), its address (`HF_ENDPOINT`), and its
cache, from which `hf:owner/name` loads everywhere else.
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
    ConfigError,
    EndpointUnreachable,
    ModelNotFound,
    RunError,
    require_extra,
)
from wander.models.loading import only_cached
from wander.wire.models import may_be_sent
from wander.wire.postings import file_digest

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)
_LOG_IN = "make one that may write at https://huggingface.co/settings/tokens, then set `HF_TOKEN`"


@dataclass(frozen=True)
class RepositoryCommit:
    """One state of a repository."""

    revision: str
    """The commit."""
    url: str
    """Of the repository's page."""
    digests: Mapping[str, str]
    """SHA-256 of its large files, by their names."""


def require_writer(name: str) -> None:
    """Raise `AuthenticationFailed` without a token that Hugging Face takes; `name` is `owner/name`."""
    hub = _library()
    with _translate_errors(name):
        hub.HfApi().whoami()


def send_files(
    name: str, files: Mapping[str, Path | bytes], message: str, *, private: bool | None
) -> RepositoryCommit:
    """Make these the files of a model's repository, which is made if it is absent.

    Other files of a model that it has are removed. Raises `WanderError` in words of Hugging Face.
    """
    hub = _library()
    api = hub.HfApi()
    with _translate_errors(name):
        api.create_repo(name, private=private, exist_ok=True)
        gone = [one for one in api.list_repo_files(name) if may_be_sent(one) and one not in files]
        changes = [
            *(
                hub.CommitOperationAdd(one, body if isinstance(body, bytes) else str(body))
                for one, body in files.items()
            ),
            *(hub.CommitOperationDelete(one) for one in gone),
        ]
        made = api.create_commit(name, changes, commit_message=message)
        return _commit_of(api, api.model_info(name, revision=made.oid, files_metadata=True))


def fetch_files(name: str, revision: str | None) -> tuple[RepositoryCommit, Path, list[str]]:
    """Bring the files of a model into the cache, each held against the digest that Hugging Face has of it.

    Returns what was fetched, the folder, and which files had been changed there and were fetched again.
    Raises `ModelNotFound`, `EndpointUnreachable`, or `RunError` for a file that is not what it should be.
    """
    hub = _library()
    api = hub.HfApi()
    if only_cached(name, revision):  # which tells what else is wrong
        hint = f"the copy in the cache plays as `hf:{name}`"
        raise EndpointUnreachable(f"`{api.endpoint}` does not answer", hint=hint, retryable=True)
    with _translate_errors(name):
        info = api.model_info(name, revision=revision, files_metadata=True)
        wanted = [one.rfilename for one in info.siblings if may_be_sent(one.rfilename)]
        # By its name, not by the commit: the cache then knows which commit that is without a network too.
        folder = Path(hub.snapshot_download(name, revision=revision, allow_patterns=wanted))
        if folder.name != info.sha:
            raise RunError(f"`{name}` was changed while it was fetched", hint="pull again")
        changed = _find_damaged(info, folder)
        for one in changed:
            hub.hf_hub_download(name, one, revision=info.sha, force_download=True)
    if damaged := _find_damaged(info, folder):
        raise RunError(
            f"`{damaged[0]}` of `{name}` is not what Hugging Face says that it is",
            hint="pull again; if it stays so, something on the way changes it",
        )
    return _commit_of(api, info), folder, changed


def _library() -> Any:
    with require_extra("transformers", needed_for="models of Hugging Face"):
        import huggingface_hub
    return huggingface_hub


def _commit_of(api: Any, info: Any) -> RepositoryCommit:
    digests = {one.rfilename: one.lfs.sha256 for one in info.siblings if one.lfs is not None}
    return RepositoryCommit(info.sha, f"{api.endpoint}/{info.id}", digests)


def _find_damaged(info: Any, folder: Path) -> list[str]:
    """Return the files that are not what Hugging Face has: by SHA-256, small ones by the digest of git."""
    return [
        one.rfilename
        for one in info.siblings
        if may_be_sent(one.rfilename) and not _is_sound(one, folder / one.rfilename)
    ]


def _is_sound(told: Any, file: Path) -> bool:
    if not file.is_file():
        return False
    if told.lfs is not None:
        return bool(file_digest(file) == told.lfs.sha256)
    body = file.read_bytes()
    git = hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest()
    return bool(told.blob_id is None or git == told.blob_id)


@contextlib.contextmanager
def _translate_errors(name: str) -> Iterator[None]:
    """Turn what `huggingface_hub` raises into errors with a hint."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalTokenNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        yield
    except LocalTokenNotFoundError as error:
        raise AuthenticationFailed("pushing to Hugging Face needs a token", hint=_LOG_IN) from error
    except HFValidationError as error:
        raise ConfigError(f"`{name}` names no repository: {error}") from error
    except RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"Hugging Face has no model `{name}`, or the token may not see it", hint="check the spelling"
        ) from error
    except HfHubHTTPError as error:
        status, words = error.response.status_code, str(error).strip().splitlines()[-1]
        if status == 401:
            raise AuthenticationFailed("Hugging Face refused the token", hint=_LOG_IN) from error
        if status == 403:
            hint = f"use a token that may write to `{name.partition('/')[0]}`"
            raise AuthenticationFailed(f"the token may not write to `{name}`", hint=hint) from error
        raise RunError(f"Hugging Face answered {status}: {words}", hint="try again later") from error
    except Exception as error:
        # Whatever the HTTP library of the day raises without a network.
        if not isinstance(error, OSError) and not type(error).__module__.startswith("http"):
            raise
        if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
            raise
        hint = "check the connection, and `HF_ENDPOINT` and `HF_HUB_OFFLINE` where they are set"
        raise EndpointUnreachable(
            f"`{constants.ENDPOINT}` does not answer: {error}", hint=hint, retryable=True
        ) from error
