"""A client that combines several clients, one for each player of an environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wander.clients.base import Client, ModelRequest, ModelResponse, WrappedClient
from wander.errors import ConfigError
from wander.types import EnvironmentInfo, SamplingArgs


class PlayersClient(WrappedClient):
    """A model that plays all players except those with another client.

    `others` maps each remaining player to its client, or to the text `scripted:module:function` for a
    function of the environment's own package. Such a function is called in the environment's process, so a
    replay meets the same player. This client does not close the clients that it combines.
    """

    def __init__(self, client: Client, others: Mapping[str, Client | str]) -> None:
        super().__init__(client)
        self.scripts = {player: spec for player, spec in others.items() if isinstance(spec, str)}
        self.others = {player: other for player, other in others.items() if isinstance(other, Client)}
        self._clients = list(dict.fromkeys([client, *self.others.values()]))

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the completion of the client of the player to move."""
        return await self.others.get(request.player or "", self._client).complete(request)

    def begin(self, rollout_id: str) -> None:
        """Notify all clients that a rollout starts."""
        for client in self._clients:
            client.begin(rollout_id)

    def end(self, rollout_id: str) -> None:
        """Notify all clients that a rollout ended."""
        for client in self._clients:
            client.end(rollout_id)

    async def check(self) -> None:
        """Check whether all clients can be used."""
        for client in self._clients:
            await client.check()

    def check_tools(self) -> None:
        """Check whether all clients accept tools."""
        for client in self._clients:
            client.check_tools()

    def check_sampling(self, sampling: SamplingArgs) -> None:
        """Check whether all clients accept these sampling arguments."""
        for client in self._clients:
            client.check_sampling(sampling)


def require_players(info: EnvironmentInfo, named: Iterable[str], *, first: bool = False) -> None:
    """Raise `ConfigError` if a named player does not exist in the environment.

    The run's model plays the first player. Naming that player is also an error, unless `first` is true.
    """
    for player in named:
        if not info.players:
            raise ConfigError(
                f"`{info.name}` has no players: only the run's model plays its rollouts, not `{player}`",
                hint="leave out the player, or load the environment with arguments that give it players",
            )
        if player not in info.players:
            known = ", ".join(f"`{name}`" for name in info.players)
            raise ConfigError(f"`{info.name}` has no player `{player}`", hint=f"its players are {known}")
        if player == info.players[0] and not first:
            raise ConfigError(
                f"`{player}` is played by the run's model, and its reward is the run's reward",
                hint=f"name another of the players: {', '.join(f'`{name}`' for name in info.players[1:])}",
            )
