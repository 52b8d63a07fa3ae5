"""The checks by their stable ids, and the report of a run of them."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import Field

from wander.checks.records import Trouble
from wander.types import EnvironmentInfo, Record

Status = Literal["pass", "warn", "fail", "skip"]


class Check(NamedTuple):
    """What one check is about."""

    title: str
    """What holds when it passes."""
    doc: str
    """How an author makes it pass."""


CHECKS: dict[str, Check] = {
    "package.name": Check(
        "the package has a name and a version",
        "Set `name` and `version` under `[project]` in pyproject.toml; the version as in `1.0.0`.",
    ),
    "package.entry-point": Check(
        "the package declares its environment",
        'Add `[project.entry-points."wander.environments"]` with `name = "module:load_environment"`.',
    ),
    "package.summary": Check(
        "the package says in one line what it is",
        "Set `description` under `[project]` in pyproject.toml.",
    ),
    "package.readme": Check(
        "the package has a README that explains it",
        'Write README.md (task, a sample rollout, reference scores) and set `readme = "README.md"`.',
    ),
    "package.license": Check(
        "the package has a licence", "Set `license` under `[project]`: `Apache-2.0`, ..."
    ),
    "package.scaffold": Check(
        "nothing of a template is left in it",
        "Say in README.md and pyproject.toml what this environment does, and remove what a template said.",
    ),
    "package.sdk": Check("the package depends on the SDK", "Add `wander-sdk` to the `dependencies`."),
    "load.works": Check(
        "it loads in fresh processes",
        "`load_environment` must work in a fresh process, from any folder, and return an environment.",
    ),
    "load.light": Check(
        "its module is imported quickly",
        "Import heavy packages inside the function that needs them: every listing imports the module.",
    ),
    "dataset.rows": Check(
        "there are examples, and every row becomes one",
        "Give at least one row; a row holds JSON values and a `prompt` or a `question`.",
    ),
    "dataset.ids": Check(
        "every example has a name of its own",
        "Make the `example_id` column unique, or leave it out: rows are numbered then.",
    ),
    "dataset.stable": Check(
        "every load gives the same examples",
        "Make rows from `wander.seeding.derived_rng(...)`, and sort what comes out of a set or a folder.",
    ),
    "dataset.access": Check(
        "an example does not depend on which were asked for before",
        "Make each row from its index alone: `derived_rng(seed, split, index)`, not one generator for all.",
    ),
    "dataset.splits": Check(
        "what is measured is not what is trained on",
        "Give `eval_dataset` other rows than `dataset`, or make rows by `derived_rng(seed, split, index)`.",
    ),
    "prompt.answer": Check(
        "a prompt does not tell its answer",
        "Keep the answer in the `answer` column, and what leads to it out of the prompt.",
    ),
    "determinism.replay": Check(
        "a recorded rollout plays again bit for bit",
        "Draw with `self.rng(state, ...)`; show nothing that the process decides: set order, `id`, time.",
    ),
    "determinism.group": Check(
        "rollouts of one example meet the same environment",
        'Let nothing depend on `state["index"]` or on other rollouts: keep what changes in the state.',
    ),
    "determinism.shared": Check(
        "no rollout leaves anything for the next",
        "Count and draw in the rollout's `state`: all rollouts share the environment and its modules.",
    ),
    "determinism.declared": Check(
        "outside observations are declared",
        "Pass `deterministic=False` when a judge, the network or a live tool enters the rollouts.",
    ),
    "sources.random": Check(
        "nothing is drawn from the global `random`",
        "Draw with `self.rng(state, ...)`, or at load with `derived_rng`.",
    ),
    "sources.numpy": Check(
        "nothing is drawn from the global `numpy.random`",
        "Use `numpy.random.default_rng(derived_seed(...))`.",
    ),
    "sources.clock": Check(
        "nothing depends on the clock",
        "Leave the time out, or put it into the row. Durations are measured by the SDK.",
    ),
    "sources.entropy": Check(
        "nothing comes from the system's randomness",
        "Draw with `self.rng(state, ...)`, or seed from it: `reset(seed=...)`, `action_space.seed(...)`.",
    ),
    "sources.network": Check(
        "nothing comes over the network",
        "Ship the data in the package. A live tool needs `deterministic=False`.",
    ),
    "sources.process": Check(
        "nothing depends on the process or the machine",
        "Use `hashlib` for `hash` and a name for `id`; leave out host, process and the times of files.",
    ),
    "sources.sets": Check(
        "nothing is taken from a set in its order",
        "Write `sorted(...)` around the set: its order is another one in every process.",
    ),
    "sources.eval": Check(
        "no text is run as code in the environment's process",
        "Parse with `ast.literal_eval` or `json`, or run code in a process of its own, as `RLMEnv` does.",
    ),
    "rollout.faults": Check(
        "no reply makes the environment fail",
        "Score a bad reply, do not raise on it: a model will write anything.",
    ),
    "rollout.stops": Check(
        "every rollout ends by itself",
        "Give `max_turns`, or a `@stop` condition that every kind of reply reaches.",
    ),
    "tools.answer": Check(
        "no tool tells the answer to who has not found it",
        "Let a tool check or compute, and return nothing that holds the answer.",
    ),
    "rewards.weights": Check(
        "some reward function counts",
        "Give at least one reward function a weight other than 0.",
    ),
    "rewards.bounds": Check(
        "rewards stay within their bounds",
        "Keep reward functions between 0 and 1, or declare `reward_bounds=(lowest, highest)`.",
    ),
    "rewards.gold": Check(
        "a right answer earns a high reward",
        "Override `gold(example)` so that it returns a right completion, or correct the reward functions.",
    ),
    "rewards.empty": Check(
        "an empty reply earns a low reward",
        "Give no credit for silence: look for the answer before comparing it.",
    ),
    "rewards.noop": Check(
        "a reply that does nothing earns a low reward",
        "Give no credit for a refusal or for politeness.",
    ),
    "rewards.injection": Check(
        "a reply that asks for a high reward earns a low one",
        "Parse the answer and compare it whole; `answer in completion` rewards lists of guesses.",
    ),
    "rewards.judge": Check(
        "text in an answer does not decide a judge's verdict",
        "Put `{response}` between tags in the judge's prompt, and read the verdict with `read_verdict`.",
    ),
}


NOT_LOOKED_AT = "not looked at, since an earlier check failed"
"""What a check says that could not begin."""


class CheckResult(Record):
    """What one check found."""

    id: str
    """Stable: scripts and the hub name checks by it."""
    title: str
    status: Status
    message: str = ""
    """What was seen; empty when there is nothing to add to the title."""
    example_id: str | None = None
    """The example with which it was seen."""
    seconds: float = 0.0
    """Of `load.works` the first process, of `dataset.stable` the second; the other checks share those two."""
    doc: str = ""
    """How to make it pass."""


class CheckReport(Record):
    """Every check of one environment, in the order of `CHECKS`."""

    schema_: Literal["wander.check/1"] = Field(default="wander.check/1", alias="schema")
    target: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    environment: str | None = None
    """Its name, when it loads."""
    deterministic: bool | None = None
    """What it declares, when it loads."""
    checks: list[CheckResult]
    earned: dict[str, float] = Field(default_factory=dict)
    """Mean reward of each scripted player that was scored, by its name: `gold`, `empty`, ..."""
    seconds: float = 0.0
    info: EnvironmentInfo | None = Field(default=None, exclude=True)
    """What it says about itself, when it loads."""
    unfit_arguments: Trouble | None = Field(default=None, exclude=True)
    """Set where it was not loaded because `load_environment` does not take the arguments: no fault of it."""

    @property
    def ok(self) -> bool:
        """True when no check failed; warnings do not count."""
        return not self.failed

    @property
    def failed(self) -> list[CheckResult]:
        """The checks that failed."""
        return [check for check in self.checks if check.status == "fail"]

    def by_id(self, check_id: str) -> CheckResult:
        """Return one check; raises `KeyError` for an id that does not exist."""
        return {check.id: check for check in self.checks}[check_id]


def result(check_id: str, status: Status, message: str = "", *, example_id: str | None = None) -> CheckResult:
    """Return a result with the title and the doc of its check."""
    title, doc = CHECKS[check_id]
    return CheckResult(
        id=check_id, title=title, status=status, message=message, example_id=example_id, doc=doc
    )
