"""Every error the SDK raises.

WanderError                    has `.hint`: what to do next, as a command where possible (`Wording`)
|- LoadError                   a package or module that gives no usable environment
|  |- ArgumentsRefused         `load_environment` raised `ConfigError`; is a `ConfigError` too
|  |  '- ArgumentsUnfit        arguments that its signature does not take
|  |- NeedsOutside            it wants of outside what it was not given:
|  |  '- NeedsKey, NeedsDownload
|  |- WorkerUnreachable        no worker answers, or it is busy; a later attempt may do better
|  '- WorkerRefusedToken       a worker on another machine that does not take the token
|- DatasetError                rows that cannot become examples
|- ConfigError                 arguments or settings that contradict each other
|  '- ModelNotFound            a model's name that leads nowhere
|- MissingExtra                an optional dependency is absent; names the install line
|  '- MissingClient            wander-client is absent
|- RunError                    a run folder that cannot be read, resumed or written
'- BoundaryError               raised inside a rollout; becomes `Rollout.failure`, never a score
   |- ModelError               the endpoint or the model
   |  |- EndpointUnreachable   nothing listens, DNS, TLS
   |  |- AuthenticationFailed  401 or 403
   |  |- RateLimited           429 after all retries
   |  |- InvalidResponse       the answer is not a chat completion
   |  |- RecordEnded           replayed, the rollout asks for a turn that its record does not have
   |  |- UnsupportedParameter  the model does not take a sampling argument
   |  |- ContextOverflow       prompt longer than the model takes; ends the rollout as truncated
   |  '- ContentFiltered       the endpoint's filter refused the conversation; an empty answer
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
    "MissingClient",
    "MissingExtra",
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
    """A text that names options: itself as a terminal writes them, `python` as a program does.

        "share it with " + name_option("workers", 4)    share it with `--workers 4`
                                                        share it with `workers=4`

    Join such texts by `+`: an f-string keeps only the words of the terminal.
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
    """Return the name of an option, which Python calls `keyword`, with a value unless that is None.

    The terminal calls it `word`, by default `--` and the keyword, and may need a whole `command` before it.
    """
    dashes = "-" if len(keyword) == 1 else "--no-" if value is False else "--"
    typed = [*command.split(), word or dashes + keyword.replace("_", "-")]
    typed += [] if value is None or isinstance(value, bool) else [shlex.quote(str(value))]
    literal = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
    return Wording(f"`{' '.join(typed)}`", f"`{keyword}`" if value is None else f"`{keyword}={literal}`")


def in_python(text: str) -> str:
    """Return a text in the words of Python."""
    return text.python if isinstance(text, Wording) else text


class WanderError(Exception):
    """Base of all Wander errors; `hint` says what to do next."""

    _hint: str | None = None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def hint(self) -> str | None:
        """What to do next; a traceback shows it under the message."""
        return self._hint

    @hint.setter
    def hint(self, hint: str | None) -> None:
        shown = f"hint: {in_python(self._hint or '')}"
        notes = [note for note in getattr(self, "__notes__", ()) if note != shown]
        self.__notes__ = [*notes, f"hint: {in_python(hint)}"] if hint else notes
        self._hint = hint


class LoadError(WanderError):
    """A package or module has no usable environment."""


class NeedsOutside(LoadError):
    """An environment wants something of outside that it was not given."""


class NeedsKey(NeedsOutside):
    """An environment wants a variable with a key."""


class NeedsDownload(NeedsOutside):
    """An environment downloads something, and could not."""


class WorkerUnreachable(LoadError):
    """No worker answers at an address, or it is busy; a later attempt may do better."""


class WorkerRefusedToken(LoadError):
    """A worker on another machine refused the token."""


class DatasetError(WanderError):
    """Rows cannot become examples."""


class ConfigError(WanderError):
    """Arguments or settings are wrong or contradict each other."""


class RunError(WanderError):
    """A run folder cannot be read, resumed or written."""


class ArgumentsRefused(LoadError, ConfigError):
    """Arguments with which `load_environment` raised `ConfigError`."""


class ArgumentsUnfit(ArgumentsRefused):
    """Arguments that the signature of `load_environment` does not take."""


class ModelNotFound(ConfigError):
    """No model has this name."""


DEFAULT_HUB = "http://127.0.0.1:8600"
"""Where `wander-hub serve` listens unless told otherwise."""


def install_command(distribution: str, hub: str | None = None) -> str:
    """Return the pip command that installs a distribution of this project from a hub.

    `hub` is its URL; the default is the one in `WANDER_HUB`, or `DEFAULT_HUB`.
    """
    named = hub or os.environ.get("WANDER_HUB", "")
    address = named.rstrip("/") if "://" in named else DEFAULT_HUB
    return f"pip install --index-url {address}/wander/index/ {distribution}"


class MissingExtra(WanderError):
    """An optional dependency is absent."""

    def __init__(self, extra: str, *, needed_for: str, of: str = "wander-sdk") -> None:
        super().__init__(
            f"{needed_for} needs packages that are not installed",
            hint=f"run `pip install '{of}[{extra}]'`",
        )
        self.extra = extra


class MissingClient(MissingExtra):
    """wander-client is absent, which brings the hub, evaluations by name and training to Python."""

    def __init__(self, name: str) -> None:
        WanderError.__init__(
            self,
            f"`{name}` comes with wander-client, which is not installed",
            hint=f"run `{install_command('wander-client')}`",
        )
        self.extra = "wander-client"


class BoundaryError(WanderError):
    """Raised inside a rollout; the loop turns it into a `Failure` of its boundary."""

    boundary: ClassVar[Boundary] = "environment"

    def __init__(self, message: str, *, hint: str | None = None, retryable: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.retryable = retryable

    def failure(self) -> Failure:
        """Return the record that goes into the rollout."""
        return Failure(
            boundary=self.boundary, type=type(self).__name__, message=str(self), retryable=self.retryable
        )


class ModelError(BoundaryError):
    """The endpoint or the model failed."""

    boundary: ClassVar[Boundary] = "model"


class EndpointUnreachable(ModelError):
    """Nothing answers at the endpoint's address."""


class AuthenticationFailed(ModelError):
    """The endpoint refused the key (401 or 403)."""


class RateLimited(ModelError):
    """The endpoint answered 429 until the retries ran out."""


class InvalidResponse(ModelError):
    """The endpoint's answer is not a chat completion."""


class UnsupportedParameter(ModelError):
    """The model does not take a sampling argument, or not with this value."""

    def __init__(
        self, message: str, *, parameter: str = "", hint: str | None = None, retryable: bool = False
    ) -> None:
        super().__init__(message, hint=hint, retryable=retryable)
        self.parameter = parameter


class RecordEnded(ModelError):
    """A replayed rollout asks for a turn that its record does not have."""


class ContextOverflow(ModelError):
    """The prompt is longer than the model accepts; the rollout ends as truncated."""


class ContentFiltered(ModelError):
    """The endpoint's filter refused the conversation; its turn is empty and ends with `content_filter`."""


class EnvironmentFault(BoundaryError):
    """The environment's own code raised."""


class ToolError(BoundaryError):
    """A tool failed that was declared fatal."""

    boundary: ClassVar[Boundary] = "tool"


class RubricError(BoundaryError):
    """A reward function raised or returned something that is not a number."""

    boundary: ClassVar[Boundary] = "rubric"


class SandboxError(BoundaryError):
    """The isolation around the environment broke."""

    boundary: ClassVar[Boundary] = "sandbox"


@contextlib.contextmanager
def require_extra(extra: str, *, needed_for: str, of: str = "wander-sdk") -> Iterator[None]:
    """Raise `MissingExtra`, with an extra of a distribution, if the block imports what is not installed."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(extra, needed_for=needed_for, of=of) from error


def error_type(name: str) -> type[WanderError] | None:
    """Return the error class of that name, if there is one: records and wires carry names."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, WanderError) else None


def raised_while_loading(name: str) -> type[WanderError] | None:
    """Return the class of that name if it says something about the package that raised it, else None.

    A package may raise any class. One that tells of the machine, of the connection or of a model would make a
    fault of the package look like one of its host.
    """
    found = error_type(name)
    return found if found in _OF_PACKAGES else None


_OF_PACKAGES = frozenset(
    {
        *(LoadError, NeedsOutside, NeedsKey, NeedsDownload, DatasetError),
        *(ConfigError, ArgumentsRefused, ArgumentsUnfit),
    }
)


def model_error_type(name: str) -> type[ModelError]:
    """Return the model error class of that name, else `ModelError`."""
    found = error_type(name)
    return found if found is not None and issubclass(found, ModelError) else ModelError


def did_you_mean(
    word: str, known: Iterable[str], *, cutoff: float = 0.6, shown: Mapping[str, str] | None = None
) -> str | None:
    """Return the hint "did you mean `x` or `y`?", in whatever case; None when nothing looks like the word.

    `shown` has what is shown in place of a word.
    """
    import difflib  # late: few programs mistype a word

    lower = {one.lower(): (shown or {}).get(one, one) for one in known}
    found = difflib.get_close_matches(word.lower(), lower, n=2, cutoff=cutoff)
    meant = " or ".join(f"`{lower[one]}`" for one in found)
    return f"did you mean {meant}?" if meant else None
