"""Several clients as one: each player of an environment is asked of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wander.clients.base import Client, ModelRequest, ModelResponse, WrappedClient
from wander.errors import ConfigError
from wander.types import EnvironmentInfo, SamplingArgs


class PlayersClient(WrappedClient):
    """A model that plays whatever nobody else does.

    `others` are the clients of players whom it does not play. A text in place of a client is a function of
    the environment's own package, `scripted:module:function`: it is called where the environment runs, so
    whoever replays a rollout meets the same player. Who made the clients closes them.
    """

    def __init__(self, client: Client, others: Mapping[str, Client | str]) -> None:
        super().__init__(client)
        self.scripts = {player: spec for player, spec in others.items() if isinstance(spec, str)}
        self.others = {player: other for player, other in others.items() if isinstance(other, Client)}
        self._everybody = list(dict.fromkeys([client, *self.others.values()]))

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the completion of who is to move."""
        return await self.others.get(request.player or "", self._client).complete(request)

    def begin(self, rollout_id: str) -> None:
        """Tell everybody that a rollout starts."""
        for client in self._everybody:
            client.begin(rollout_id)

    def end(self, rollout_id: str) -> None:
        """Tell everybody that a rollout ended."""
        for client in self._everybody:
            client.end(rollout_id)

    async def check(self) -> None:
        """Find out whether everybody can be used."""
        for client in self._everybody:
            await client.check()

    def check_tools(self) -> None:
        """Find out whether everybody can be offered tools."""
        for client in self._everybody:
            client.check_tools()

    def check_sampling(self, sampling: SamplingArgs) -> None:
        """Find out whether everybody can sample so."""
        for client in self._everybody:
            client.check_sampling(sampling)


def require_players(info: EnvironmentInfo, named: Iterable[str], *, first: bool = False) -> None:
    """Raise `ConfigError` for a player whom an environment does not have.

    The first one is the run's model, and may be somebody else where `first` says so.
    """
    for player in named:
        if not info.players:
            raise ConfigError(
                f"`{info.name}` has no players: its rollouts ask the run's model alone, not `{player}`",
                hint="name no other player, or load it with the arguments under which it has players",
            )
        if player not in info.players:
            known = ", ".join(f"`{each}`" for each in info.players)
            raise ConfigError(f"`{info.name}` has no player `{player}`", hint=f"its players are {known}")
        if player == info.players[0] and not first:
            raise ConfigError(
                f"`{player}` is who the run's model plays, and whose reward counts",
                hint=f"name another of the players: {', '.join(f'`{each}`' for each in info.players[1:])}",
            )
