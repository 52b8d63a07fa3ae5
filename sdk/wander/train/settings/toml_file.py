"""Reading of training settings from TOML files and overrides, with errors that name the wrong setting and the
possible ones."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from wander.errors import ConfigError, did_you_mean, name_option
from wander.train.settings.sections import Section
from wander.types import first_fault
from wander.wire.untrusted_text import SETTINGS, read_toml_file

AnySection = TypeVar("AnySection", bound=Section)


def read_settings(
    kind: type[AnySection], file: Path | None, overrides: Sequence[str] = (), **given: Mapping[str, Any]
) -> AnySection:
    """Read settings from a TOML file, then apply `section.field=value` overrides and `given` sections.

    Values of overrides are TOML (`schedule.steps=5`, `algorithm.loss="cispo"`); a bare word counts as text.
    Raises `ConfigError` that names the field.
    """
    data = settings_data(file, overrides, given)
    return check_settings(kind, data, f" in `{file}`" if file else "")


def settings_data(
    file: Path | None, overrides: Sequence[str], given: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the content of a TOML file after `section.field=value` overrides, with phases by name.

    `given` are sections whose fields take precedence over both.
    """
    try:
        data: dict[str, Any] = read_toml_file(file, SETTINGS) if file is not None else {}
    except OSError as error:
        raise ConfigError(f"cannot read `{file}`: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"cannot read `{file}`: {error}") from error
    if isinstance(phases := data.get("phases"), list):
        data["phases"] = _phases_by_name(phases, file)
    apply_overrides(data, overrides, example="`section.field=value`, for example `schedule.steps=20`")
    return merge_tables(data, given)


def read_toml_value(text: str) -> Any:
    """Return a TOML value; anything else, such as a bare word, is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def apply_overrides(
    settings: dict[str, Any],
    overrides: Sequence[str],
    *,
    example: str,
    in_sections: bool = True,
    read_value: Callable[[str], Any] = read_toml_value,
) -> None:
    """Set fields in nested tables of settings.

    `in_sections` means that every field belongs to a section. `example` shows the form of an override in the
    hint. Raises `ConfigError` for an override without a name or a value, and for an override of a field
    inside a value that is not a table.
    """
    for override in overrides:
        name, equals, value = override.partition("=")
        *path, last = name.strip().split(".")
        if not (equals and last and all(path)) or (in_sections and not path):
            fault = "is not a setting" if equals else "does not set a value"
            raise ConfigError(f"`{override}` {fault}", hint=f"write it as {example}")
        table: Any = settings
        for part in path:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError(
                    f"`{override}`: `{part}` is not a section", hint=f"set `{part}` itself, not a field of it"
                )
        table[last] = read_value(value.strip())


def merge_tables(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return two tables merged, including nested tables; other values in `above` replace those in `below`."""
    whole = dict(below)
    for name, value in above.items():
        known = whole.get(name)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        whole[name] = merge_tables(known, value) if both and known is not None else value
    return whole


def _phases_by_name(phases: list[Any], file: Path | None) -> dict[str, Any]:
    """Return `[[phases]]` by name, in order; the name of a phase without a name is its kind."""
    named: dict[str, Any] = {}
    for number, phase in enumerate(phases, start=1):
        if not isinstance(phase, dict):
            raise ConfigError(f"phase {number} in `{file}` is not a table", hint="write `[[phases]]`")
        name = str(phase.get("name", phase.get("kind", number)))
        if name in named:
            raise ConfigError(
                f"two phases in `{file}` are called `{name}`", hint=f'give phase {number} a `name = "..."`'
            )
        named[name] = {key: value for key, value in phase.items() if key != "name"}
    return named


def check_settings(kind: type[AnySection], data: Mapping[str, Any], where: str) -> AnySection:
    """Return validated settings; raises `ConfigError` that names the field and `where` it is."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise _refusal(kind, error, where) from error


def _refusal(kind: type[BaseModel], error: ValidationError, where: str) -> ConfigError:
    """Return the error for the first setting that is unknown or has an invalid value."""
    problems = error.errors(include_url=False)
    # A misspelled name often leaves a required field unset, so unknown names come first.
    problem = next((entry for entry in problems if entry["type"] == "extra_forbidden"), problems[0])
    *sections, name = [str(part) for part in problem["loc"]] or [""]
    place = ".".join([*sections, name]) or "the settings"
    for section in sections:  # follow the path to the section of the setting
        inner = kind.model_fields[section].annotation if section in kind.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        kind = inner
    listed = ", ".join(f"`{field}`" for field in kind.model_fields)
    hint = f"the fields of `{'.'.join(sections)}` are {listed}" if sections else f"the sections are {listed}"
    if problem["type"] == "missing" and place == "model":
        option = name_option("model", "smollm2")
        return ConfigError(
            f"there is no model to train{where}", hint="pass " + option + ", or set `path` under `[model]`"
        )
    if problem["type"] == "missing":
        return ConfigError(f"`{place}`{where} is missing", hint=hint)
    if problem["type"] != "extra_forbidden":
        got = f", got `{problem['input']}`" if isinstance(problem["input"], str | int | float) else ""
        return ConfigError(f"`{place}`{where}: {first_fault(error)[1]}{got}")
    whole = {field: ".".join([*sections, field]) for field in kind.model_fields}
    hint = did_you_mean(name, whole, shown=whole) or hint
    return ConfigError(f"unknown setting `{place}`{where}", hint=hint)
