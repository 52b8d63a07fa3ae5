"""Games of textarena, for one or several players. Needs the extra `textarena`.

env = TextArenaEnv("Mastermind-v0")
env = TextArenaEnv("TicTacToe-v0")  # two players: self-play, or `--player player_1=...`
"""

from __future__ import annotations

import contextlib
import random
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from wander.errors import ConfigError, WanderError, did_you_mean, require_extra
from wander.parsers import MaybeThinkParser
from wander.types import State

from wander_integrations.games import Game, GameEnv

MAX_TURNS = 200
"""Turns of all players. Most games have a lower limit of their own."""
MOST_PLAYERS = 15
VARIANTS = ("-raw", "-train")
"""Suffixes of ids: the same games with other observations."""


class TextArenaEnv(GameEnv):
    """Plays a game of textarena by its id.

    - `num_players`: by default, the lowest number that the game accepts. Several players are called
      `player_0`, `player_1`... The model plays each of them unless `--player` names another model.
    - `settings`: keyword arguments of the game.

    The action is the completion without the reasoning before `</think>`. If the game cannot read it, the game
    says so. The game gives the rewards at its end, mostly 1, 0 and -1. Raises `ConfigError` for a game that
    does not exist, or that needs missing data, a module, a key or a newer Python.
    """

    def __init__(
        self,
        game: str,
        *,
        num_players: int | None = None,
        settings: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._id, self._settings = game, dict(settings or {})
        self._count = _count_players(game, self._settings, num_players)
        names = [f"player_{number}" for number in range(self._count)] if self._count > 1 else []
        defaults = {
            "max_turns": MAX_TURNS,
            "parser": MaybeThinkParser(),
            "reward_bounds": (-1.0, 1.0),
            "players": names,
        }
        super().__init__(**{**defaults, **kwargs})

    def open(self, state: State) -> Game:
        """Return a fresh game."""
        return _TextArenaGame(self._id, self._settings, self._count)


class _TextArenaGame(Game):
    """One game, which draws from a generator of its own although the library uses the global one."""

    def __init__(self, name: str, settings: Mapping[str, Any], count: int) -> None:
        super().__init__()
        self._name, self._settings, self._count = name, settings, count
        self._random = random.getstate()
        self._game: Any = None

    def begin(self, seed: int) -> str:
        """Make the game, which may draw already, and reset it."""
        with self._alone():
            random.seed(seed)
            self._game = _make(self._name, self._settings)
            self._game.reset(num_players=self._count, seed=seed)
            return self._observed()

    def step(self, action: str) -> str:
        """Take the action of the current player."""
        with self._alone():
            self.over, _ = self._game.step(action)
            said = self._observed()
            if self.over:
                rewards, about = self._game.close()
                self.earned = {
                    self._player_at(each): float(reward) for each, reward in (rewards or {}).items()
                }
                reason = next((each["reason"] for each in (about or {}).values() if each.get("reason")), None)
                said = f"{said}\n\nThe game is over{f': {reason}' if reason else '.'}".strip()
        return said

    def is_for_one(self) -> bool:
        """Return whether the game is for one player. Some others accept one player and never end."""
        return type(self._game.state).__name__ == "SinglePlayerState"

    def _observed(self) -> str:
        """Record the next player, and return the new messages for that player."""
        place, told = self._game.get_observation()
        self.player = self._player_at(place)
        names = self._game.state.role_mapping
        kinds = [getattr(kind, "name", "") for _, _, kind in told]
        last_board = max((number for number, kind in enumerate(kinds) if kind == "GAME_BOARD"), default=0)
        lines = []
        for number, (sender, message, _) in enumerate(told):
            if kinds[number] == "PLAYER_ACTION" and sender == place:
                continue  # it has said so itself
            if kinds[number] != "GAME_BOARD" or number == last_board:  # earlier boards are of no use
                lines.append(
                    message if sender < 0 else f"[{names.get(sender, f'Player {sender}')}] {message}"
                )
        return "\n".join(lines).strip()

    def _player_at(self, place: int) -> str | None:
        return f"player_{place}" if self._count > 1 else None

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Run the library with this game's random state, and keep its output off stdout."""
        others = random.getstate()
        random.setstate(self._random)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        finally:
            self._random = random.getstate()
            random.setstate(others)


def _count_players(name: str, settings: Mapping[str, Any], asked: int | None) -> int:
    """Return the number of players; raises `ConfigError` if the game rejects that number."""
    refusal: Exception | None = None
    for count in range(1, MOST_PLAYERS + 1) if asked is None else (asked,):
        game = _TextArenaGame(name, settings, count)
        try:
            game.begin(0)
        except WanderError:
            raise
        except FileNotFoundError as error:
            raise ConfigError(f"`{name}` lacks a file that textarena does not ship: {error}") from error
        except Exception as error:  # noqa: BLE001 - games raise any error for a wrong number of players
            refusal = error
            continue
        if count > 1 or asked is not None or game.is_for_one():
            return count
    raise ConfigError(
        f"`{name}` cannot be played by {asked or f'1 to {MOST_PLAYERS}'}: {refusal}",
        hint="leave `num_players` out for the fewest it takes",
    ) from refusal


def _make(name: str, settings: Mapping[str, Any]) -> Any:
    """Make a game that shows new messages only, and reads actions like its default variant."""
    with require_extra("textarena", needed_for=f"playing `{name}`", of="wander-integrations"):
        import textarena
        from textarena.envs.registration import ENV_REGISTRY
    plain = name
    for end in VARIANTS:
        plain = plain.removesuffix(end)
    if plain not in ENV_REGISTRY:
        known = sorted(each for each in ENV_REGISTRY if not each.endswith(VARIANTS))
        raise ConfigError(f"textarena has no game `{name}`", hint=did_you_mean(plain, known, cutoff=0.5))
    raw = f"{plain}-raw" if f"{plain}-raw" in ENV_REGISTRY else plain
    try:
        with warnings.catch_warnings(action="ignore"):  # of the syntax of the games' modules
            made = textarena.make(raw, **settings)
    except SyntaxError as error:
        raise ConfigError(
            f"the module of `{name}` is in the syntax of another Python ({error})",
            hint="try Python 3.12 or newer",
        ) from error
    except Exception as error:
        if type(error) is LookupError:  # nltk's error for missing data, which has many lines
            names = dict.fromkeys(re.findall(r"nltk\.download\('(\w+)'\)", str(error)))
            data = " ".join(names) or "words"
            raise ConfigError(
                f"`{name}` needs the data `{data}` of nltk, which are not on this machine",
                hint=f"run `python -m nltk.downloader {data}` where there is a network, and set NLTK_DATA",
            ) from error
        raise ConfigError(f"textarena cannot make `{name}`: {error}") from error
    for wrapper in ENV_REGISTRY[plain].default_wrappers or ():
        if issubclass(wrapper, textarena.ActionWrapper):
            made = wrapper(made)
    return made
