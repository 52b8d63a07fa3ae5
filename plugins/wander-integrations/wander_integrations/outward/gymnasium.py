"""An environment as a `gymnasium.Env` whose observations and actions are text.

env = WanderEnv(wander.load("admin/tictactoe"))
text, info = env.reset(seed=1)
text, reward, terminated, truncated, info = env.step("<move>5</move>")
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any

from wander.errors import require_extra
from wander.parsers import message_text
from wander.types import Messages

from wander_integrations.episodes import Episode, Steppable

with require_extra("gymnasium", needed_for="a `gymnasium.Env`", of="wander-integrations"):
    import gymnasium

if TYPE_CHECKING:
    from wander.handle import Split

_ENDLESS = 2**31 - 1
"""Number of positions to draw from if the examples are endless."""


class TextSpace(gymnasium.Space):  # type: ignore[misc, type-arg, unused-ignore]
    """Every text; gymnasium's own `Text` has a length and an alphabet."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Return False, because text is not an array."""
        return False

    def contains(self, x: Any) -> bool:
        """Return whether a value is text."""
        return isinstance(x, str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return some letters."""
        letters = self.np_random.choice(list(string.ascii_lowercase), size=8)
        return "".join(letters)


class WanderEnv(gymnasium.Env):  # type: ignore[misc, type-arg, unused-ignore]
    """Plays an environment that `wander.load` or `wander.load_environment` returned.

    `reset` draws an example of the split by its seed, or takes `options={"position": 3}`. The observation is
    the text of what the environment says, `info["messages"]` has it whole, and `info["tools"]` what may be
    called: an action may then be an assistant message. The reward comes with the last step.
    """

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012 - gymnasium's own form

    def __init__(
        self,
        environment: Steppable,
        *,
        split: Split = "train",
        run_seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        self.environment = environment
        self.split: Split = split
        self.run_seed = run_seed
        self.render_mode = render_mode
        self.observation_space, self.action_space = TextSpace(), TextSpace()
        self.episode: Episode | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode and return what is asked first; raises `EpisodeFailed`."""
        super().reset(seed=seed)
        self.close()
        info = self.environment.info
        count = info.eval_examples if self.split == "eval" else info.train_examples
        position = (options or {}).get("position")
        if position is None:
            position = int(self.np_random.integers(count or _ENDLESS))
        self.episode = Episode(self.environment, position, split=self.split, run_seed=self.run_seed)
        return self._shown(self.episode.begin())

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Send a reply; raises `EpisodeFailed`, `ResetNeeded` before `reset`, `ModelError` after the end."""
        if self.episode is None:
            raise gymnasium.error.ResetNeeded("call `reset` before `step`")
        episode = self.episode
        text, info = self._shown(episode.step(action))
        truncated = episode.truncated
        return text, float(episode.reward or 0.0), episode.done and not truncated, truncated, info

    def render(self) -> str | None:
        """Return the conversation as text."""
        if self.episode is None:
            return None
        return "\n".join(f"{each['role']}: {message_text(each)}" for each in self.episode.messages)

    def close(self) -> None:
        """End the episode; the environment is its loader's to close."""
        if self.episode is not None:
            self.episode.close()
            self.episode = None

    def _shown(self, messages: Messages) -> tuple[str, dict[str, Any]]:
        assert self.episode is not None
        info = {"messages": messages, "tools": self.episode.tools, "metrics": self.episode.metrics}
        return "\n\n".join(message_text(each) for each in messages), info
