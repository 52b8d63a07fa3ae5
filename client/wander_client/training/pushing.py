"""Push checkpoints to the hub, and resume interrupted pushes."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from wander.errors import ConfigError
from wander.system.plain_files import is_plain_file, open_file, open_plain_file
from wander.wire.environments import Visibility, marks_of, visibility_of
from wander.wire.models import (
    CARD,
    CheckpointFacts,
    HubModel,
    ModelFile,
    ModelRevision,
    NewModel,
    is_model_file_name,
    read_checkpoint,
    revision_of,
    weights_of,
)
from wander.wire.postings import file_digest

from wander_client.errors import ClientError, NotFound, UsageError
from wander_client.hub.api import HubApi
from wander_client.hub.transfer import GO_ON, PATIENCE, Sent, Told, TransferSender, parts_of, send
from wander_client.names import model_path
from wander_client.terminal.output import counted

if TYPE_CHECKING:
    from wander.evals.store.folder import RunFolder
    from wander.wire import RunManifest, RunSummary

    from wander_client.context import Invocation

_KIB = 1024
_ADAPTERS = "adapter_config.json"
_OF_TRAINING = re.compile(
    r"optimizer\.(pt|bin)|scheduler\.pt|scaler\.pt|rng_state.*\.pth|mean\.pt|trainer_state\.json"
    r"|training_args\.bin|seal\.json"
)
"""Files for resuming the training, which do not belong to the model."""


@dataclass(frozen=True)
class PackedModel:
    """A checkpoint that was checked and is ready to be pushed."""

    folder: Path
    facts: CheckpointFacts
    digests: Mapping[str, str]
    """SHA-256 digests of the files to push, by name, including the card."""
    sizes: Mapping[str, int]
    left_out: tuple[str, ...]
    """Files that are not pushed."""
    card: bytes | None = field(default=None, repr=False)
    """Generated card, or None if the folder has its own card."""
    links: bool = False
    """Whether its files may be links, as in the Hugging Face cache."""

    @property
    def revision(self) -> str:
        """Revision of the model on a hub."""
        return revision_of(self.digests)

    @property
    def weights_sha256(self) -> str:
        """Digest of the weights, as runs record it."""
        weights = weights_of(self.digests)
        assert weights is not None  # `read_checkpoint` rejects a folder without weights
        return weights

    def with_card(self, text: str) -> PackedModel:
        """Return the packed model with a card."""
        card = text.encode()
        digest = hashlib.sha256(card).hexdigest()
        digests, sizes = {**self.digests, CARD: digest}, {**self.sizes, CARD: len(card)}
        return replace(self, digests=digests, sizes=sizes, card=card)

    def open(self, name: str) -> BinaryIO:
        """Open a file to push."""
        if name == CARD and self.card is not None:
            return BytesIO(self.card)
        return _open(self.folder / name, links=self.links)


def find_checkpoint(context: Invocation, word: str) -> tuple[Path, RunFolder | None]:
    """Return the folder of a checkpoint, and the training run that made it, if there was a run.

    `word` is the checkpoint's folder, or a training run, which means its final model. Raises `NotFound`.
    """
    from wander.evals.store.folder import RunFolder

    from wander_client.runs.lookup import run_folder

    folder = Path(word).expanduser()
    if folder.is_dir() and not (folder / "run.json").is_file():
        for above in (folder.resolve().parent, folder.resolve().parent.parent):
            if (above / "run.json").is_file():
                run = RunFolder.open(above)
                return folder, run if run.manifest.kind == "training" else None
        return folder, None
    hint = "pass a checkpoint's folder, or a finished training run"
    try:
        run = run_folder(context, word)
    except NotFound as error:
        raise NotFound(f"`{word}` is neither a folder nor a run", hint=hint, code=error.code) from error
    if run.manifest.kind != "training" or not (run.path / "model").is_dir():
        problem = (
            "has no model yet"
            if run.manifest.kind == "training"
            else "has no model, because it is not a training run"
        )
        raise NotFound(f"`{word}` {problem}", hint=hint, code="model_not_found")
    return run.path / "model", run


def pack_model(folder: Path, *, links: bool = False) -> PackedModel:
    """Check a checkpoint's folder and pack it. Raises `UsageError` if it cannot be pushed.

    The folder may come from somebody else, so its files must be regular files. Links are allowed only with
    `links`, which means that this machine created them.
    """
    files, left_out = _select(folder, links=links)
    sizes = {name: path.stat().st_size for name, path in files.items()}

    def read(name: str, start: int, length: int) -> bytes:
        with _open(files[name], links=links) as file:
            file.seek(start)
            return file.read(length)

    try:
        facts = read_checkpoint(sizes, read)
    except ConfigError as error:
        hint = error.hint or "see `wander model --help` for how to create a model"
        raise UsageError(f"`{folder}`: {error}", hint=hint, code="not_a_checkpoint") from error
    digests = {name: file_digest(path) for name, path in files.items()}
    return PackedModel(folder, facts, digests, sizes, tuple(left_out), links=links)


def _open(path: Path, *, links: bool) -> BinaryIO:
    return open_file(path) if links else open_plain_file(path)


def _select(folder: Path, *, links: bool) -> tuple[dict[str, Path], list[str]]:
    """Return the files to push, and the other files. Raises `UsageError` for files that are not allowed."""
    if (folder / _ADAPTERS).is_file() and not (folder / "config.json").is_file():
        hint = "push the merged weights, which are in `model` in the run's folder"
        raise UsageError(
            f"`{folder}` contains adapters, not a complete model", hint=hint, code="not_a_checkpoint"
        )
    files, left_out, refused = {}, [], []
    for path in sorted(folder.iterdir()):
        if not links and (path.is_symlink() or not (path.is_dir() or is_plain_file(path))):
            raise UsageError(
                f"`{path}` is a link or a special file, which could expose another of your files",
                hint=f"copy the files that you want to push: `cp -rL {shlex.quote(str(folder))} ./checked`",
                code="unsafe_file",
            )
        if path.is_dir() or path.name.startswith(".") or _OF_TRAINING.fullmatch(path.name):
            left_out.append(f"{path.name}/" if path.is_dir() else path.name)
        elif path.is_file() and is_model_file_name(path.name):
            if path.stat().st_size:
                files[path.name] = path
        else:
            refused.append(path.name)
    if refused:
        raise UsageError(
            f"`{folder}` has {counted(len(refused), 'file')} not allowed in a model: "
            f"{', '.join(refused[:5])}",
            hint="save the weights as safetensors (`model.save_pretrained(folder)`); pickled weights and "
            "Python code are not allowed, because they would run on the machines of other users",
            code="not_a_checkpoint",
        )
    return files, left_out


def evaluations_of(context: Invocation, weights_sha256: str) -> Iterator[tuple[RunManifest, RunSummary]]:
    """Yield the local evaluations of exactly these weights on published environments."""
    from wander_client.runs.lookup import local_runs

    for run in local_runs(context.settings.runs_dir, context.output):
        manifest = run.manifest
        mine = manifest.kind == "evaluation" and manifest.model.weights_sha256 == weights_sha256
        if mine and manifest.environment.owner is not None and (summary := run.summary()) is not None:
            yield manifest, summary


def push_model(
    context: Invocation, word: str, name: HubModel, *, visibility: Visibility | None = None
) -> Sent[ModelRevision]:
    """Push a checkpoint or a training run's model to the hub as `owner/name`.

    Pushing the same files again does nothing. Raises `ClientError` if it is not a checkpoint or the hub
    rejects it.
    """
    if name.revision is not None:
        hint = f"pass `{name.owner}/{name.name}`: the revision is computed from the files"
        raise UsageError(f"`{name}` names a revision", hint=hint)
    with context.hub(login=True) as hub:  # the token is checked before anything is read
        hub.whoami()
    packed = pack_for(context, word, str(name))
    output, total = context.output, sum(packed.sizes.values())
    output.note(f"pushing {packed.folder} to {context.settings.hub} as {name}")
    with (
        context.hub(login=True) as hub,
        output.progress("pushing", -(-total // _KIB), unit="KiB") as progress,
    ):
        sent = _send(hub, packed, name, visibility, lambda done, _: progress.update(-(-done // _KIB)))
    if sent.resumed_bytes:
        output.note(f"{sent.resumed_bytes:,} bytes were already uploaded by an earlier attempt")
    return sent


def pack_for(context: Invocation, word: str, title: str) -> PackedModel:
    """Pack a checkpoint with its card, which is generated from its runs if the folder has no card."""
    folder, run = find_checkpoint(context, word)
    packed = pack_model(folder)
    context.output.note(f"sends: {', '.join(sorted({*packed.digests, CARD}))}")
    if packed.left_out:
        context.output.note(f"left out: {', '.join(packed.left_out)}")
    if CARD not in packed.digests:
        from wander_client.training.card import write_card

        trained = (run.path, run.manifest) if run is not None else None
        weights = packed.weights_sha256
        packed = packed.with_card(
            write_card(title, packed.facts, weights, trained, evaluations_of(context, weights))
        )
    return packed


def _send(
    hub: HubApi, packed: PackedModel, name: HubModel, visibility: Visibility | None, told: Told
) -> Sent[ModelRevision]:
    """Send the missing files of a revision."""
    try:
        revision = hub.read(model_path(name.owner, name.name, "revisions", packed.revision), ModelRevision)
    except NotFound:
        pass  # not on the hub yet
    else:
        if visibility in (None, visibility_of(revision.private, internal=revision.internal)):
            return Sent(revision, frozenset(), 0)
    files = [
        ModelFile(filename=file, size=packed.sizes[file], sha256=packed.digests[file])
        for file in sorted(packed.digests)
    ]
    private, internal = marks_of(visibility) if visibility is not None else (None, False)
    wanted = NewModel(owner=name.owner, name=name.name, files=files, private=private, internal=internal)
    with ExitStack() as stack:
        bodies = {file: parts_of(stack.enter_context(packed.open(file))) for file in packed.digests}
        try:
            sent = send(
                TransferSender(hub, PATIENCE, GO_ON), "models", wanted, bodies, ModelRevision, told=told
            )
        except ClientError as error:
            if error.code == "digest_mismatch":
                error.hint = "push again when no other program writes to the folder"
            raise
    if sent.made.revision != packed.revision:
        raise ClientError(
            f"the hub stored different files than were sent: `{sent.made}`", code="digest_mismatch"
        )
    return sent
