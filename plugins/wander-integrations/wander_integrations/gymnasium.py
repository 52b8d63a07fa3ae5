"""Gymnasium environments whose observations and actions have a text form. Needs the extra `gymnasium`.

    env = GymnasiumEnv("Taxi-v4", max_turns=30, reward_bounds=(-300, 20))

Text, discrete spaces, and arrays, tuples and dictionaries of these have a text form. So does an environment
that renders `ansi`. For all others, pass functions: `observe` returns text, `act` an action.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wander.errors import ConfigError, did_you_mean, require_extra
from wander.parsers import XMLParser
from wander.types import State

from wander_integrations.games import Game, GameEnv, NoAction

if TYPE_CHECKING:
    from gymnasium import Space

Observe = Callable[[Any, Any], str]
"""Function that returns the text of an environment's observation."""
Act = Callable[[Any, str], Any]
"""Function that returns the action for a text; raises `NoAction`."""

MAX_TURNS = 100
"""Maximum number of turns in an environment that sets no limit, such as CliffWalking."""
ACTIONS = {
    "FrozenLake": ("left", "down", "right", "up"),
    "FrozenLake8x8": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "CliffWalkingSlippery": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
    "Blackjack": ("stick", "hit"),
}
"""Names of the actions of Gymnasium's own environments, from 0."""
PROMPT = (
    "You play {name}. Each turn you are shown where the game stands and answer with one action: {actions}. "
    "Put it into <action> and </action>, as in <action>{sample}</action>."
)
COLORS = ("grey", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
COLORED = re.compile(r"\x1b\[([0-9;]*)m(.*?)\x1b\[0m", re.DOTALL)


class GymnasiumEnv(GameEnv):
    """Plays a Gymnasium environment: an id, or a function that returns one.

    - `options`: keyword arguments of `gymnasium.make`, or of the function; the `options` in the `info` of an
      example are added to them.
    - `actions`: names of the discrete actions, from 0; the model may say name or number.
    - `observe`, `act`: how an observation becomes text and text an action, in place of the spaces' own form.
    - `max_turns`: by default, the environment's own limit, or 100.

    `reset` gets a seed that depends on the example and the run. The reward is the sum of the steps' rewards:
    declare `reward_bounds` if it can leave 0 to 1. Raises `ConfigError` for an id that does not exist, for
    missing packages, and for a space without a text form.
    """

    def __init__(
        self,
        make: str | Callable[..., Any],
        *,
        options: Mapping[str, Any] | None = None,
        actions: Sequence[str] | None = None,
        observe: Observe | None = None,
        act: Act | None = None,
        max_turns: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._make: Callable[..., Any] = make if callable(make) else functools.partial(_make, make)
        self._options = dict(options or {})
        self._observe = observe
        probe = self._make(**self._options)
        probe.close()
        spec = probe.spec
        known = spec.id.rpartition("/")[2].rpartition("-v")[0] if spec else ""
        name = spec.id if spec else type(probe.unwrapped).__name__
        if observe is None and probe.render_mode != "ansi":
            _check_form(probe.observation_space, name, "observations", "observe", _without_text)
        if act is None:
            _check_form(probe.action_space, name, "actions", "act", _without_words)
            form = _Actions(probe.action_space, ACTIONS.get(known, ()) if actions is None else actions, name)
            kwargs.setdefault(
                "system_prompt", PROMPT.format(name=name, actions=form.listed(), sample=form.sample())
            )
            act, self.no_action = form.read, f"That is no action. Answer with {form.listed()}."
        self._act: Act = act
        kwargs.setdefault("parser", XMLParser(["action"], answer_field="action"))
        limit = spec.max_episode_steps if spec else None
        super().__init__(max_turns=limit or MAX_TURNS if max_turns is None else max_turns, **kwargs)

    def open(self, state: State) -> _Episode:
        """Return an episode of a fresh environment."""
        options = {**self._options, **state["info"].get("options", {})}
        return _Episode(self._make(**options), self._observe, self._act)


class _Episode(Game):
    """One episode of one environment."""

    def __init__(self, env: Any, observe: Observe | None, act: Act) -> None:
        super().__init__()
        self._env, self._observe, self._act = env, observe, act

    def begin(self, seed: int) -> str:
        """Reset the environment."""
        self.earned[None] = 0.0
        observation, _ = self._env.reset(seed=seed)
        return self._said(observation)

    def step(self, action: str) -> str:
        """Take one step."""
        observation, reward, terminated, truncated, _ = self._env.step(self._act(self._env, action))
        self.earned[None] += float(reward)
        self.over = bool(terminated or truncated)
        return self._said(observation)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _said(self, observation: Any) -> str:
        if self._observe is not None:
            return self._observe(self._env, observation)
        if self._env.render_mode == "ansi":
            return plain_text(str(self._env.render()))
        return text_of(self._env.observation_space, observation)


class _Actions:
    """Reads an action from a text: a name, whole numbers, or the text itself."""

    def __init__(self, space: Space[Any], names: Sequence[str], name: str) -> None:
        self._space, self._names = space, tuple(each.lower() for each in names)
        self._kind = type(space).__name__
        self._lowest, self._highest = _bounds(space)
        count = self._highest[0] - self._lowest[0] + 1 if self._kind == "Discrete" else 0
        if names and len(names) != count:
            raise ConfigError(f"`{name}` has the actions `{space}`, not the {len(names)} of `actions`")

    def listed(self) -> str:
        """Return a description of the allowed actions."""
        if self._names:
            return ", ".join(f"`{name}`" for name in self._names)
        if self._kind == "Text":
            return "text"
        lowest, highest = (" ".join(map(str, bound)) for bound in (self._lowest, self._highest))
        if self._kind == "Discrete":
            return f"a whole number from {lowest} to {highest}"
        return f"{len(self._lowest)} whole numbers, separated by blanks, from `{lowest}` to `{highest}`"

    def sample(self) -> str:
        """Return an example of an action."""
        if self._kind == "Text":
            return "..."
        return self._names[0] if self._names else " ".join(map(str, self._lowest))

    def read(self, env: Any, said: str) -> Any:
        """Return the action; raises `NoAction`."""
        if said.lower() in self._names:
            return self._lowest[0] + self._names.index(said.lower())
        if self._kind == "Text":
            if not self._space.contains(said):
                raise NoAction
            return said
        words = said.replace(",", " ").split()
        if len(words) != len(self._lowest) or not all(re.fullmatch(r"-?\d{1,9}", word) for word in words):
            raise NoAction
        numbers = [int(word) for word in words]
        bounds = zip(self._lowest, numbers, self._highest, strict=True)
        if not all(low <= number <= high for low, number, high in bounds):
            raise NoAction
        if self._kind == "Discrete":
            return numbers[0]
        action = self._space.sample()
        action.flat = numbers
        return action


def _bounds(space: Space[Any]) -> tuple[list[int], list[int]]:
    """Return the lowest and the highest action as numbers; empty lists for text."""
    kind = type(space).__name__
    if kind == "Discrete":
        return [int(space.start)], [int(space.start + space.n) - 1]
    if kind == "MultiDiscrete":
        return space.start.flatten().tolist(), (space.start + space.nvec - 1).flatten().tolist()
    size = math.prod(space.shape) if kind == "MultiBinary" else 0
    return [0] * size, [1] * size


def text_of(space: Space[Any], value: Any) -> str:
    """Return the text of an observation, with one line for each key of a dictionary or item of a tuple."""
    kind = type(space).__name__
    if kind == "Text":
        return str(value)
    if kind == "Discrete":
        return str(int(value))
    if kind == "Dict":
        return "\n".join(f"{key}: {text_of(part, value[key])}" for key, part in space.spaces.items())
    if kind == "Tuple":
        parts = zip(space.spaces, value, strict=True)
        return ", ".join(text_of(part, each) for part, each in parts)
    if value.ndim < 2:
        return " ".join(str(int(each)) for each in value.flatten())
    text = str(value)
    return str(value.tolist()) if "..." in text else text  # it leaves out the middle of 1,000 numbers


def plain_text(rendered: str) -> str:
    """Return what was rendered without colors, and below it in words which characters had one."""
    rendered = rendered.strip("\n")
    plain, marks, end = "", [], 0
    for found in COLORED.finditer(rendered):
        plain += rendered[end : found.start()]
        codes = [int(code) for code in found[1].split(";") if 30 <= int(code or 0) <= 47]
        color = COLORS[codes[0] % 10] if codes and codes[0] % 10 < len(COLORS) else "marked"
        line, column = plain.count("\n") + 1, len(plain) - plain.rfind("\n")
        what = f"`{found[2]}`" if found[2].strip() else "the blank"
        marks.append(f"{color}: {what} in line {line}, column {column}")
        plain += found[2]
        end = found.end()
    return "\n".join([plain + rendered[end:], *marks])


def _make(name: str, /, **options: Any) -> Any:
    """Make an environment by its id, with `ansi` rendering if it has that."""
    with require_extra("gymnasium", needed_for=f"playing `{name}`", of="wander-integrations"):
        import gymnasium
    module, _, plain_name = name.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        found = gymnasium.spec(plain_name)
        if "render_mode" not in options:
            plain = gymnasium.make(found, disable_env_checker=True, **options)
            if "ansi" not in plain.metadata.get("render_modes", ()):
                return plain
            plain.close()
            options["render_mode"] = "ansi"
        return gymnasium.make(found, disable_env_checker=True, **options)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise ConfigError(
            f"`{name}` needs what is not installed: {error}",
            hint="install it, and name it in the dependencies of your package",
        ) from error
    except gymnasium.error.UnregisteredEnv as error:
        hint = did_you_mean(plain_name, gymnasium.registry, cutoff=0.7)
        hint = hint or "name the module that registers it, as in `module:Name-v0`"
        raise ConfigError(f"gymnasium has no environment `{name}`", hint=hint) from error
    except (TypeError, gymnasium.error.Error) as error:
        raise ConfigError(f"gymnasium cannot make `{name}` with `{options}`: {error}") from error


def _check_form(
    space: Space[Any], name: str, what: str, argument: str, without: Callable[[Space[Any]], Any]
) -> None:
    """Raise `ConfigError` if a part of a space lacks a text form."""
    if (odd := without(space)) is not None:
        raise ConfigError(
            f"the {what} of `{name}` have no text form: `{odd!s:.120}`",
            hint=f"pass `{argument}=`, a function of the environment and the {what[:-1]}",
        )


def _without_text(space: Space[Any]) -> Space[Any] | None:
    """Return the first part of a space that lacks a text form, or None."""
    if type(space).__name__ in ("Dict", "Tuple"):
        inner = space.spaces
        parts = inner.values() if isinstance(inner, Mapping) else inner
        return next((odd for odd in map(_without_text, parts) if odd is not None), None)
    return _without_words(space)


def _without_words(space: Space[Any]) -> Space[Any] | None:
    """Return the space, or None if a line of text can name each of its values."""
    return None if type(space).__name__ in ("Text", "Discrete", "MultiDiscrete", "MultiBinary") else space
