"""All errors that the SDK raises.

WanderError                    has `.hint`: the next step, as a command where possible (`Wording`)
|- LoadError                   a package or module without a usable environment
|  |- ArgumentsRefused         `load_environment` raised `ConfigError`; also a `ConfigError`
|  |  '- ArgumentsUnfit        arguments that do not match its signature
|  |- NeedsOutside            the environment lacks an external resource:
|  |  '- NeedsKey, NeedsDownload
|  |- WorkerUnreachable        no worker responds, or it is busy; a later attempt may succeed
|  '- WorkerRefusedToken       a worker on another machine rejects the token
|- DatasetError                rows that cannot become examples
|- ConfigError                 arguments or settings that contradict each other
|  '- ModelNotFound            a model name that does not exist
|- MissingExtra                an optional dependency is not installed; names the install command
|  '- MissingPlugin            wander-client or a plugin is not installed
|- RunError                    a run folder that cannot be read, resumed or written
'- BoundaryError               raised inside a rollout; becomes `Rollout.failure`, never a score
   |- ModelError               the endpoint or the model
   |  |- EndpointUnreachable   no connection: no server, DNS, TLS
   |  |- AuthenticationFailed  401 or 403
   |  |- RateLimited           429 after all retries
   |  |- InvalidResponse       the answer is not a chat completion
   |  |- RecordEnded           a replayed rollout asks for a turn that is not recorded
   |  |- UnsupportedParameter  the model does not support a sampling argument
   |  |- ContextOverflow       prompt longer than the model accepts; ends the rollout as truncated
   |  '- ContentFiltered       the endpoint's filter rejected the conversation; an empty answer
   |- EnvironmentFault         the environment's own code
   |- ToolError                a tool that was declared fatal
   |- RubricError              a reward function
   '- SandboxError             the isolation around the environment
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Self

from wander.types import Boundary, Failure

__all__ = [
    "AuthenticationFailed",
    "BoundaryError",
    "ConfigError",
    "ContentFiltered",
    "ContextOverflow",
    "DatasetError",
    "EndpointUnreachable",
    "EnvironmentFault",
    "InvalidResponse",
    "LoadError",
    "MissingExtra",
    "MissingPlugin",
    "ModelError",
    "ModelNotFound",
    "NeedsDownload",
    "NeedsKey",
    "NeedsOutside",
    "RateLimited",
    "RecordEnded",
    "RubricError",
    "RunError",
    "SandboxError",
    "ToolError",
    "UnsupportedParameter",
    "WanderError",
    "WorkerRefusedToken",
    "WorkerUnreachable",
]


class Wording(str):
    """A text that names options as a terminal writes them; `python` is the same text for a Python program.

        "share it with " + name_option("workers", 4)    share it with `--workers 4`
                                                        share it with `workers=4`

    Join such texts with `+`. An f-string keeps only the terminal's form.
    """

    python: str

    def __new__(cls, terminal: str, python: str = "") -> Self:
        wording = super().__new__(cls, terminal)
        wording.python = python
        return wording

    def __add__(self, text: str) -> Wording:
        return Wording(super().__add__(text), self.python + in_python(text))

    def __radd__(self, text: str) -> Wording:
        return Wording(text + str(self), in_python(text) + self.python)


def name_option(keyword: str, value: object = None, *, word: str = "", command: str = "") -> Wording:
    """Return the name of an option, with its value unless that is None.

    `keyword` is its name in Python. In the terminal it is called `word`, by default `--` and the keyword, and
    may need a whole `command` before it.
    """
    dashes = "-" if len(keyword) == 1 else "--no-" if value is False else "--"
    typed = [*command.split(), word or dashes + keyword.replace("_", "-")]
    typed += [] if value is None or isinstance(value, bool) else [shlex.quote(str(value))]
    literal = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
    return Wording(f"`{' '.join(typed)}`", f"`{keyword}`" if value is None else f"`{keyword}={literal}`")


def in_python(text: str) -> str:
    """Return a text in the form for Python."""
    return text.python if isinstance(text, Wording) else text


class WanderError(Exception):
    """Base of all Wander errors; `hint` is a suggestion for the next step."""

    _hint: str | None = None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def hint(self) -> str | None:
        """Suggestion for the next step; a traceback shows it under the message."""
        return self._hint

    @hint.setter
    def hint(self, hint: str | None) -> None:
        shown = f"hint: {in_python(self._hint or '')}"
        notes = [note for note in getattr(self, "__notes__", ()) if note != shown]
        self.__notes__ = [*notes, f"hint: {in_python(hint)}"] if hint else notes
        self._hint = hint


class LoadError(WanderError):
    """Raised if a package or module does not provide a usable environment."""


class NeedsOutside(LoadError):
    """Raised if an environment lacks an external resource."""


class NeedsKey(NeedsOutside):
    """Raised if an environment lacks an environment variable with a key."""


class NeedsDownload(NeedsOutside):
    """Raised if an environment could not download something."""


class WorkerUnreachable(LoadError):
    """Raised if no worker responds at an address, or it is busy; a later attempt may succeed."""


class WorkerRefusedToken(LoadError):
    """Raised if a worker on another machine rejects the token."""


class DatasetError(WanderError):
    """Raised if rows cannot become examples."""


class ConfigError(WanderError):
    """Raised if arguments or settings are wrong or contradict each other."""


class RunError(WanderError):
    """Raised if a run folder cannot be read, resumed or written."""


class ArgumentsRefused(LoadError, ConfigError):
    """Raised if `load_environment` raised `ConfigError` for its arguments."""


class ArgumentsUnfit(ArgumentsRefused):
    """Raised for arguments that do not match the signature of `load_environment`."""


class ModelNotFound(ConfigError):
    """Raised if no model has the given name."""


DEFAULT_HUB = "http://127.0.0.1:8600"
"""Default address of `wander-hub serve`."""


def install_command(distribution: str, hub: str | None = None) -> str:
    """Return the pip command that installs a distribution of this project from a hub.

    `hub` is its URL; the default is the one in `WANDER_HUB`, or `DEFAULT_HUB`.
    """
    named = hub or os.environ.get("WANDER_HUB", "")
    address = named.rstrip("/") if "://" in named else DEFAULT_HUB
    return f"pip install --index-url {address}/wander/index/ {distribution}"


class MissingExtra(WanderError):
    """Raised if an optional dependency is not installed."""

    def __init__(self, extra: str, *, needed_for: str, of: str = "wander-sdk") -> None:
        super().__init__(
            f"{needed_for} needs packages that are not installed",
            hint=f"run `pip install '{of}[{extra}]'`",
        )
        self.extra = extra


class MissingPlugin(MissingExtra):
    """Raised if a distribution of this project is not installed, such as wander-client or a plugin."""

    def __init__(self, title: str, distribution: str, hub: str | None = None) -> None:
        WanderError.__init__(
            self,
            f"{title} comes with {distribution}, which is not installed",
            hint=f"run `{install_command(distribution, hub)}`",
        )
        self.extra = distribution


class BoundaryError(WanderError):
    """Raised inside a rollout; the rollout loop turns it into a `Failure` of its boundary."""

    boundary: ClassVar[Boundary] = "environment"

    def __init__(self, message: str, *, hint: str | None = None, retryable: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.retryable = retryable

    def failure(self) -> Failure:
        """Return the record of this error for the rollout."""
        return Failure(
            boundary=self.boundary, type=type(self).__name__, message=str(self), retryable=self.retryable
        )


class ModelError(BoundaryError):
    """Raised if the endpoint or the model failed."""

    boundary: ClassVar[Boundary] = "model"


class EndpointUnreachable(ModelError):
    """Raised if the endpoint's address does not respond."""


class AuthenticationFailed(ModelError):
    """Raised if the endpoint rejects the key (401 or 403)."""


class RateLimited(ModelError):
    """Raised if the endpoint still answers 429 after all retries."""


class InvalidResponse(ModelError):
    """Raised if the endpoint's answer is not a chat completion."""


class UnsupportedParameter(ModelError):
    """Raised if the model does not support a sampling argument, or does not support its value."""

    def __init__(
        self, message: str, *, parameter: str = "", hint: str | None = None, retryable: bool = False
    ) -> None:
        super().__init__(message, hint=hint, retryable=retryable)
        self.parameter = parameter


class RecordEnded(ModelError):
    """Raised if a replayed rollout asks for a turn that its record does not contain."""


class ContextOverflow(ModelError):
    """Raised if the prompt is longer than the model accepts; the rollout ends as truncated."""


class ContentFiltered(ModelError):
    """Raised if the endpoint's filter rejects the conversation; the turn is empty and ends with
    `content_filter`."""


class EnvironmentFault(BoundaryError):
    """Raised if the environment's own code failed."""


class ToolError(BoundaryError):
    """Raised if a tool that was declared fatal failed."""

    boundary: ClassVar[Boundary] = "tool"


class RubricError(BoundaryError):
    """Raised if a reward function failed or returned a value that is not a number."""

    boundary: ClassVar[Boundary] = "rubric"


class SandboxError(BoundaryError):
    """Raised if the isolation around the environment failed."""

    boundary: ClassVar[Boundary] = "sandbox"


@contextlib.contextmanager
def require_extra(extra: str, *, needed_for: str, of: str = "wander-sdk") -> Iterator[None]:
    """Raise `MissingExtra`, naming an extra of a distribution, if an import in the block fails."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(extra, needed_for=needed_for, of=of) from error


def error_type(name: str) -> type[WanderError] | None:
    """Return the error class with this name, if any; records and messages contain class names."""
    value = globals().get(name)
    return value if isinstance(value, type) and issubclass(value, WanderError) else None


def raised_while_loading(name: str) -> type[WanderError] | None:
    """Return the error class with this name if it describes the package that raised it, else None.

    A package may raise any class. Classes about the machine, the connection or a model would make a fault of
    the package look like a fault of its host.
    """
    error = error_type(name)
    return error if error in _OF_PACKAGES else None


_OF_PACKAGES = frozenset(
    {
        *(LoadError, NeedsOutside, NeedsKey, NeedsDownload, DatasetError),
        *(ConfigError, ArgumentsRefused, ArgumentsUnfit),
    }
)


def model_error_type(name: str) -> type[ModelError]:
    """Return the model error class with this name, or `ModelError`."""
    error = error_type(name)
    return error if error is not None and issubclass(error, ModelError) else ModelError


def did_you_mean(
    word: str, known: Iterable[str], *, cutoff: float = 0.6, shown: Mapping[str, str] | None = None
) -> str | None:
    """Return the hint "did you mean `x` or `y`?", ignoring case, or None if no known word is similar.

    `shown` maps known words to the text that the hint shows instead.
    """
    import difflib  # imported here, because few programs need a suggestion

    lower = {candidate.lower(): (shown or {}).get(candidate, candidate) for candidate in known}
    matches = difflib.get_close_matches(word.lower(), lower, n=2, cutoff=cutoff)
    ratios = [difflib.SequenceMatcher(None, match, word.lower()).ratio() for match in matches]
    # A second word helps only if it is about as similar: `evla` means `eval`, not `replay`.
    near = [match for match, ratio in zip(matches, ratios, strict=True) if ratio >= ratios[0] - 0.1]
    meant = " or ".join(f"`{lower[match]}`" for match in near)
    return f"did you mean {meant}?" if meant else None


def suggest_option(option: str, known: Iterable[str]) -> str | None:
    """Return a hint with the known options that resemble an unknown one, compared without their dashes."""
    flags = {flag.lstrip("-"): flag for flag in known}
    return did_you_mean(option.lstrip("-"), flags, shown=flags)
