"""Defines the checks by their stable ids, and the report of a check run."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import Field

from wander.checks.records import Trouble
from wander.types import EnvironmentInfo, Record

Status = Literal["pass", "warn", "fail", "skip"]


class Check(NamedTuple):
    """Description of one check."""

    title: str
    """Statement that is true if the check passes."""
    doc: str
    """Advice on how to make the check pass."""


CHECKS: dict[str, Check] = {
    "package.name": Check(
        "the package has a name and a version",
        "Set `name` and `version` under `[project]` in pyproject.toml; the version looks like `1.0.0`.",
    ),
    "package.entry-point": Check(
        "the package has an entry point for its environment",
        'Add `[project.entry-points."wander.environments"]` with `name = "module:load_environment"`.',
    ),
    "package.summary": Check(
        "the package has a one-line description",
        "Set `description` under `[project]` in pyproject.toml.",
    ),
    "package.readme": Check(
        "the package has a README",
        'Write README.md (task, a sample rollout, reference scores) and set `readme = "README.md"`.',
    ),
    "package.license": Check(
        "the package has a license", "Set `license` under `[project]`: `Apache-2.0`, ..."
    ),
    "package.scaffold": Check(
        "no text of the template is left",
        "Describe this environment in README.md and pyproject.toml, and remove the text of the template.",
    ),
    "package.sdk": Check("the package depends on the SDK", "Add `wander-sdk` to the `dependencies`."),
    "load.works": Check(
        "the environment loads in a new process",
        "`load_environment` must work in a new process, from any folder, and return an environment.",
    ),
    "load.light": Check(
        "the module imports quickly",
        "Import heavy packages inside the function that needs them: every listing imports the module.",
    ),
    "dataset.rows": Check(
        "there are examples, and every row is a valid example",
        "Provide at least one row. A row holds JSON values and a `prompt` or a `question`.",
    ),
    "dataset.ids": Check(
        "every example has a different id",
        "Make the `example_id` column unique, or leave it out. Rows are then numbered.",
    ),
    "dataset.stable": Check(
        "every load gives the same examples",
        "Make rows with `wander.seeding.derived_rng(...)`, and sort the contents of sets and folders.",
    ),
    "dataset.access": Check(
        "an example does not depend on earlier requests",
        "Make each row from its index with `derived_rng(seed, split, index)`, not with a shared generator.",
    ),
    "dataset.splits": Check(
        "the evaluation rows differ from the training rows",
        "Use different rows for `eval_dataset` and `dataset`, or `derived_rng(seed, split, index)`.",
    ),
    "prompt.answer": Check(
        "no prompt contains its answer",
        "Keep the answer in the `answer` column. Remove it, and what leads to it, from the prompt.",
    ),
    "determinism.replay": Check(
        "a replayed rollout is the same, bit for bit",
        "Draw with `self.rng(state, ...)`. Do not show set order, `id` or time: they differ in each process.",
    ),
    "determinism.group": Check(
        "the environment is the same for all rollouts of an example",
        'Do not use `state["index"]` or other rollouts. Keep everything that changes in `state`.',
    ),
    "determinism.shared": Check(
        "no rollout affects later rollouts",
        "Keep counters and generators in `state`: all rollouts share the environment and its modules.",
    ),
    "determinism.declared": Check(
        "observations from outside are declared",
        "Pass `deterministic=False` if a judge, the network or a live tool affects the rollouts.",
    ),
    "sources.random": Check(
        "the global `random` is not used",
        "Draw with `self.rng(state, ...)`, or with `derived_rng` while loading.",
    ),
    "sources.numpy": Check(
        "the global `numpy.random` is not used",
        "Use `numpy.random.default_rng(derived_seed(...))`.",
    ),
    "sources.clock": Check(
        "the clock is not read",
        "Leave the time out, or put it into the row. The SDK measures durations.",
    ),
    "sources.entropy": Check(
        "the randomness of the operating system is not used",
        "Draw with `self.rng(state, ...)`, or seed from it: `reset(seed=...)`, `action_space.seed(...)`.",
    ),
    "sources.network": Check(
        "the network is not used",
        "Ship the data in the package. A live tool needs `deterministic=False`.",
    ),
    "sources.process": Check(
        "nothing depends on the process or the machine",
        "Use `hashlib` instead of `hash`, names instead of `id`, and no host, process or file times.",
    ),
    "sources.sets": Check(
        "nothing depends on the order of a set",
        "Write `sorted(...)` around the set: its order differs in every process.",
    ),
    "sources.eval": Check(
        "no text is run as code in the environment's process",
        "Parse with `ast.literal_eval` or `json`, or run code in a separate process, as `RLMEnv` does.",
    ),
    "rollout.faults": Check(
        "no reply makes the environment fail",
        "Score a bad reply instead of raising: a model may write anything.",
    ),
    "rollout.stops": Check(
        "every rollout ends",
        "Pass `max_turns`, or add a `@stop` condition that every kind of reply reaches.",
    ),
    "tools.answer": Check(
        "no tool reveals the answer",
        "A tool may check or compute. It must not return the answer.",
    ),
    "rewards.weights": Check(
        "at least one reward function counts",
        "Give at least one reward function a weight other than 0.",
    ),
    "rewards.bounds": Check(
        "rewards stay within their bounds",
        "Keep reward functions between 0 and 1, or declare `reward_bounds=(lowest, highest)`.",
    ),
    "rewards.gold": Check(
        "a right answer earns a high reward",
        "Override `gold(example)` to return a right completion, or correct the reward functions.",
    ),
    "rewards.empty": Check(
        "an empty reply earns a low reward",
        "Give no reward for silence: check that there is an answer before you compare it.",
    ),
    "rewards.noop": Check(
        "a reply that does nothing earns a low reward",
        "Give no reward for a refusal or for politeness.",
    ),
    "rewards.injection": Check(
        "a reply that asks for a high reward earns a low reward",
        "Parse the answer and compare all of it: `answer in completion` rewards lists of guesses.",
    ),
    "rewards.hacks": Check(
        "known hacks of a shell earn no reward",
        "Score in the new box that the reward function gets. Upload the tests to it only then, to a folder "
        "outside of the working folder.",
    ),
    "rewards.judge": Check(
        "text in an answer does not decide a judge's verdict",
        "Put `{response}` between tags in the judge's prompt, and read the verdict with `read_verdict`.",
    ),
}


NOT_LOOKED_AT = "not checked, because an earlier check failed"
"""Message of a check that could not start."""


class CheckResult(Record):
    """Result of one check."""

    id: str
    """Stable id of the check, for scripts and the hub."""
    title: str
    status: Status
    message: str = ""
    """Observation, or empty if the title says everything."""
    example_id: str | None = None
    """Id of the example with this observation."""
    seconds: float = 0.0
    """Duration: for `load.works` of the first process, for `dataset.stable` of the second. Otherwise 0."""
    doc: str = ""
    """Advice on how to make the check pass."""


class CheckReport(Record):
    """Results of every check of one environment, in the order of `CHECKS`."""

    schema_: Literal["wander.check/1"] = Field(default="wander.check/1", alias="schema")
    target: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    environment: str | None = None
    """Name of the environment, if it loads."""
    deterministic: bool | None = None
    """Whether it declares that it is deterministic, if it loads."""
    checks: list[CheckResult]
    earned: dict[str, float] = Field(default_factory=dict)
    """Mean reward of each scripted player with scored rollouts, by player name: `gold`, `empty`, ...
    The players of `wander.checks.hacks` are named `hack: ` and the name of the hack."""
    seconds: float = 0.0
    info: EnvironmentInfo | None = Field(default=None, exclude=True)
    """The environment's description of itself, if it loads."""
    has_judge: bool = Field(default=False, exclude=True)
    """Whether a judge model takes part in its rewards."""
    unfit_arguments: Trouble | None = Field(default=None, exclude=True)
    """Error if `load_environment` does not accept the arguments, which is not a fault of the environment."""

    @property
    def ok(self) -> bool:
        """Whether no check failed. Warnings do not count."""
        return not self.failed

    @property
    def failed(self) -> list[CheckResult]:
        """Checks that failed."""
        return [check for check in self.checks if check.status == "fail"]

    def by_id(self, check_id: str) -> CheckResult:
        """Return a check by its id. Raises `KeyError` if the id does not exist."""
        return {check.id: check for check in self.checks}[check_id]


def check_result(
    check_id: str, status: Status, message: str = "", *, example_id: str | None = None
) -> CheckResult:
    """Return a result with the title and the advice of its check."""
    title, doc = CHECKS[check_id]
    return CheckResult(
        id=check_id, title=title, status=status, message=message, example_id=example_id, doc=doc
    )
