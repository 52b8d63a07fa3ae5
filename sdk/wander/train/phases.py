"""Runs of several phases in a single settings file: games, a new model, fine-tuning, GRPO, preferences.

    [[phases]]
    name = "games"
    kind = "rollouts"        # a model or a scripted player plays; selected rollouts become rows
    [[phases]]
    name = "warm-up"
    kind = "sft"             # learns from the rows of the previous phase
    [[phases]]
    name = "harder"
    kind = "grpo"            # continues with the model of the previous phase

Sections outside of the phases are shared. A `grpo` phase merges its own sections into all of them, a
`rollouts` phase into `environment`, and phases that learn from rows into `model` and the seed. A phase
without a model or rows uses those of earlier phases, which have names such as `phase:warm-up`.

A phase of kind `rloo` or `distill` is a `grpo` phase with that loss. A phase of kind `rejection`, `dpo` or
`kto` has two parts: the current model plays each example several times, then it learns from these rollouts.
`rounds` repeats both parts, each time with the model of the previous round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from wander.errors import ConfigError
from wander.train.config import (
    DPOSettings,
    GRPOSettings,
    KTOSettings,
    OfflineSettings,
    SFTSettings,
)
from wander.train.records.files import read_best
from wander.train.settings.sections import EnvironmentSection, Section
from wander.train.settings.toml_file import check_settings, merge_tables, settings_data

PHASE = "phase:"
"""Prefix of a model or rows from an earlier phase of the run."""

MODEL_KINDS = ("model", "sft", "grpo", "dpo", "kto")
"""Kinds of phases that produce a model."""

LOSSES = ("rloo", "distill")
"""Kinds of phases that are `grpo` with another loss."""

OWN_ROLLOUTS = ("rejection", "dpo", "kto")
"""Kinds of phases that play before they learn."""

SEVERAL = 8
"""Default number of rollouts of each example in these phases."""


class PlayersSection(Section):
    """The player and the number of a phase's rollouts."""

    model: str | None = None
    """Player: `scripted:MODULE:FUNCTION`, a folder, `smollm2`, or a model name at `base_url`. None means the
    current model."""
    base_url: str | None = None
    """Address of an OpenAI-compatible endpoint; the key is in `OPENAI_API_KEY`."""
    examples: int = Field(default=200, gt=0)
    per_example: int = Field(default=1, gt=0)
    split: Literal["train", "eval"] = "train"
    temperature: float | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, gt=0)
    compact_at: int | None = Field(default=None, gt=0)
    """Number of tokens above which the oldest turns are left out, as in `sampling`; only for a model in this
    process."""
    concurrency: int = Field(default=32, gt=0)
    seed: int = 0


class FilterSection(Section):
    """The selection of rollouts as rows, as in `wander runs data`."""

    where: list[str] = Field(default_factory=list)
    """Conditions on metrics, such as `lost==0`."""
    min_reward: float | None = None
    keep_repeats: bool = False
    near: bool = False
    """Whether to drop conversations that differ only in case, spacing and punctuation."""
    whole: bool = False
    """Whether to drop truncated rollouts."""
    per_example: int | None = Field(default=None, gt=0)
    """Number of best rollouts of each example to keep; None keeps all."""


class RolloutsSettings(Section):
    """All settings of a phase that plays rollouts."""

    environment: EnvironmentSection = EnvironmentSection()
    rollouts: PlayersSection = PlayersSection()
    filter: FilterSection = FilterSection()


class NewModelSection(Section):
    """The shape of an untrained model, whose tokenizer is trained on the transcripts of an earlier phase."""

    seed: int = 0
    hidden: int = Field(default=128, ge=8)
    layers: int = Field(default=4, ge=1)
    vocabulary: int = Field(default=512, ge=300)
    characters: bool = False
    """Whether each letter is a token, for tasks about letters. This needs more tokens."""


class NewModelSettings(Section):
    """All settings of a phase that creates a model."""

    tiny: NewModelSection = NewModelSection()


class RolloutsPhase(Section):
    """A phase that plays rollouts and saves the selected ones as `rows.jsonl`."""

    kind: Literal["rollouts"] = "rollouts"
    name: str
    settings: RolloutsSettings


class ModelPhase(Section):
    """A phase that creates an untrained tiny model, with a tokenizer for the transcripts of a `rollouts`
    phase."""

    kind: Literal["model"] = "model"
    name: str
    transcripts: str
    settings: NewModelSettings


class SFTPhase(Section):
    """A phase that fine-tunes a model on rows."""

    kind: Literal["sft"] = "sft"
    name: str
    rows: list[str]
    """Files of `wander runs data`, or names of phases."""
    settings: SFTSettings


class DPOPhase(Section):
    """A phase that learns from pairs of a better and a worse rollout of an example."""

    kind: Literal["dpo"] = "dpo"
    name: str
    rows: list[str]
    """Files of `wander runs data`, or names of phases."""
    settings: DPOSettings


class KTOPhase(Section):
    """A phase that learns from good and bad rollouts."""

    kind: Literal["kto"] = "kto"
    name: str
    rows: list[str]
    """Files of `wander runs data`, or names of phases."""
    settings: KTOSettings


class GRPOPhase(Section):
    """A phase that improves the policy by GRPO."""

    kind: Literal["grpo"] = "grpo"
    name: str
    settings: GRPOSettings


RowsPhase = SFTPhase | DPOPhase | KTOPhase
"""A phase that learns from rows."""

ROWS_PHASES: dict[Any, tuple[Any, type[OfflineSettings]]] = {
    "sft": (SFTPhase, SFTSettings),
    "dpo": (DPOPhase, DPOSettings),
    "kto": (KTOPhase, KTOSettings),
}
"""Classes of the phase and of its settings, by kind."""

Phase = Annotated[RolloutsPhase | ModelPhase | RowsPhase | GRPOPhase, Field(discriminator="kind")]


def only_phase(settings: GRPOSettings) -> GRPOPhase:
    """Return a run without phases as a single phase."""
    return GRPOPhase(name="grpo", settings=settings)


def read_phases(file: Path, overrides: Sequence[str] = (), **given: Mapping[str, Any]) -> list[Phase] | None:
    """Return the complete phases in a settings file; None for a file without phases.

    Overrides of shared sections have the form `section.field=value`, and those of a phase
    `phases.NAME.section.field=value`. `given` are shared sections. Raises `ConfigError` that names the wrong
    field.
    """
    data = settings_data(file, overrides, given)
    if "phases" not in data:
        return None
    named = data.pop("phases")
    if not isinstance(named, dict):
        raise ConfigError(f"`phases` in `{file}` is not a list", hint="write `[[phases]]`")
    if unknown := sorted(data.keys() - GRPOSettings.model_fields.keys()):
        raise ConfigError(
            f"there is no section `{unknown[0]}` in `{file}`",
            hint=f"the sections that phases share are {', '.join(GRPOSettings.model_fields)}",
        )
    phases: list[Phase] = []
    for name, own in named.items():
        if not name.replace("-", "").replace("_", "").isalnum():
            raise ConfigError(
                f"`{name}` is not a valid name of a phase", hint="use letters, digits, `-` and `_`"
            )
        where = f" of phase `{name}` in `{file}`"
        for step, settings in _rounds(name, dict(own), data, where):
            phase = _phase(step, settings, data, phases, where)
            _require_earlier(phase, phases)
            phases.append(phase)
    if not phases:
        raise ConfigError(f"`{file}` has no phase", hint='begin with `[[phases]]` and `kind = "grpo"`')
    return phases


def _rounds(
    name: str, own: dict[str, Any], shared: Mapping[str, Any], where: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a phase or its parts, which are a playing phase and a learning phase in every round.

    The last part has the name of the phase, so that later phases find its model.
    """
    kind = own.get("kind")
    plays = kind == "rejection" or (kind in OWN_ROLLOUTS and "rows" not in own)
    if not plays:
        yield name, own
        return
    if "rows" in own:
        raise ConfigError(f"`rows`{where}: it learns from its own rollouts", hint='use `kind = "sft"`')
    playing = {key: own.pop(key) for key in ("environment", "rollouts", "filter") if key in own}
    rounds = own.pop("rounds", 1)
    if type(rounds) is not int or rounds < 1:
        raise ConfigError(f"`rounds`{where} is `{rounds}`", hint="write a number, from 1 on")
    if kind != "rejection" and "filter" in playing:
        raise ConfigError(
            f"`filter`{where}: it compares all of its rollouts",
            hint="use `preference` to select the comparisons",
        )
    sampling = shared.get("sampling", {})
    usual = {key: sampling[key] for key in ("temperature", "max_tokens", "compact_at") if key in sampling}
    players = {"per_example": SEVERAL, "temperature": 1.0, **usual, **playing.get("rollouts", {})}
    if "model" in players or "base_url" in players:
        raise ConfigError(
            f"`rollouts.model`{where}: the learning model itself plays",
            hint='let another model play in a phase of kind `rollouts`, and set `rows = "phase:NAME"`',
        )
    if kind != "rejection" and players["per_example"] == 1:
        raise ConfigError(
            f"`rollouts.per_example`{where} is 1, but a comparison needs several rollouts of an example",
            hint=f"leave it out to play {SEVERAL} rollouts of each example",
        )
    keep = {"per_example": 1, **playing.get("filter", {})} if kind == "rejection" else {"keep_repeats": True}
    begun = own.pop("model", {})
    for number in range(1, rounds + 1):
        # A round starts with the model of the previous round.
        of_model = begun if number == 1 else {key: value for key, value in begun.items() if key != "path"}
        last = name if number == rounds else f"{name}-{number}"
        yield (
            f"{last}-rollouts",
            {
                "kind": "rollouts",
                "environment": playing.get("environment", {}),
                "rollouts": {
                    **players,
                    "seed": players.get("seed", 0) + number - 1,
                    **({"model": of_model["path"]} if "path" in of_model else {}),
                },
                "filter": keep,
            },
        )
        kind_of_learning = "sft" if kind == "rejection" else kind
        yield last, {**own, **({"model": of_model} if of_model else {}), "kind": kind_of_learning}


def _phase(
    name: str, own: dict[str, Any], shared: dict[str, Any], before: Sequence[Phase], where: str
) -> Phase:
    kind = own.pop("kind", None)
    if kind in LOSSES:
        algorithm = own.get("algorithm")
        if isinstance(algorithm, dict) and (loss := algorithm.get("loss", kind)) != kind:
            raise ConfigError(
                f"`algorithm.loss`{where} is `{loss}`, but its `kind` is `{kind}`",
                hint='leave `algorithm.loss` out, or write `kind = "grpo"`',
            )
        own, kind = merge_tables({"algorithm": {"loss": kind}}, own), "grpo"
    if kind == "rollouts":
        settings = check_settings(RolloutsSettings, merge_tables(_only(shared, "environment"), own), where)
        if settings.rollouts.model is None:
            players = settings.rollouts.model_copy(update={"model": _model_before(before, shared, where)})
            settings = settings.model_copy(update={"rollouts": players})
        return RolloutsPhase(name=name, settings=settings)
    if kind == "model":
        (transcripts,) = _rows_before(before, where)
        return ModelPhase(
            name=name, transcripts=transcripts, settings=check_settings(NewModelSettings, own, where)
        )
    if kind not in ROWS_PHASES and kind != "grpo":
        hint = f"it is one of rollouts, model, sft, grpo, {', '.join(LOSSES + OWN_ROLLOUTS)}"
        raise ConfigError(f"`kind`{where} is `{kind}`", hint=hint)
    if "path" not in own.get("model", {}):
        own["model"] = {**own.get("model", {}), "path": _model_before(before, shared, where)}
    if kind == "grpo":
        return GRPOPhase(name=name, settings=check_settings(GRPOSettings, merge_tables(shared, own), where))
    rows = own.pop("rows", None)
    if rows is None:
        rows = _rows_before(before, where)
    common = _only(shared, "model", "logging")
    if "seed" in shared.get("schedule", {}):
        common["schedule"] = {"seed": shared["schedule"]["seed"]}
    make, settings_kind = ROWS_PHASES[kind]
    phase: Phase = make(
        name=name,
        rows=[rows] if isinstance(rows, str) else rows,
        settings=check_settings(settings_kind, merge_tables(common, own), where),
    )
    return phase


def _only(data: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: data[name] for name in names if name in data}


def _model_before(before: Sequence[Phase], shared: Mapping[str, Any], where: str) -> str:
    """Return the default initial model of a phase."""
    for phase in reversed(before):
        if phase.kind in MODEL_KINDS:
            return f"{PHASE}{phase.name}"
    path = shared.get("model", {}).get("path")
    if path is None:
        raise ConfigError(
            f"`model.path`{where} is missing, and no earlier phase produces a model",
            hint='write `[model]` with `path = "..."`, or add a phase of kind `model` before it',
        )
    return str(path)


def _rows_before(before: Sequence[Phase], where: str) -> list[str]:
    for phase in reversed(before):
        if phase.kind == "rollouts":
            return [f"{PHASE}{phase.name}"]
    raise ConfigError(
        f"`rows`{where} are missing, and no earlier phase plays rollouts",
        hint='write `rows = "rows.jsonl"` (from `wander runs data`), or add a phase of kind `rollouts`',
    )


def phase_folders(folder: Path, phases: Sequence[Phase]) -> dict[str, Path]:
    """Return the folders of the phases in the run's folder, by name: `1-games`, `2-warm-up`..."""
    return {phase.name: folder / f"{n}-{phase.name}" for n, phase in enumerate(phases, start=1)}


def _require_earlier(phase: Phase, before: Sequence[Phase]) -> None:
    """Raise `ConfigError` if a phase uses a model or rows of a phase that does not come before it."""
    # names of inputs, with the kinds of phases that produce them
    inputs: list[tuple[str, Sequence[str]]] = []
    if isinstance(phase, RolloutsPhase):
        inputs.append((phase.settings.rollouts.model or "", MODEL_KINDS))
    elif isinstance(phase, ModelPhase):
        inputs.append((phase.transcripts, ("rollouts",)))
    else:
        inputs.append((phase.settings.model.path, MODEL_KINDS))
        if isinstance(phase, GRPOPhase):
            inputs.append((phase.settings.teacher.path or "", MODEL_KINDS))
        else:
            inputs += [(text, ("rollouts",)) for text in phase.rows]
    for text, kinds in inputs:
        name = text.removeprefix(PHASE)
        makers = [f"`{PHASE}{earlier.name}`" for earlier in before if earlier.kind in kinds]
        if text.startswith(PHASE) and f"`{text}`" not in makers:
            raise ConfigError(
                f"phase `{phase.name}` uses `{text}`, but no earlier phase that could produce it is called "
                f"`{name}`",
                hint=f"available are {', '.join(makers)}" if makers else "change the order of the phases",
            )


def find_phase_model(folder: Path) -> Path:
    """Return the model of a finished phase for later phases: its best weights if it kept them."""
    return folder / ("best" if read_best(folder) is not None else "model")
