"""What a hub and this machine know of a published environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wander.wire import EnvironmentDetail, VersionDetail

from wander_client.packages.origins.source import origin_in
from wander_client.packages.store import EnvironmentStore

if TYPE_CHECKING:
    from wander_client.context import Invocation
    from wander_client.names import EnvironmentName


class PublishedEnvironment(EnvironmentDetail):
    """An environment of a hub, and one of its versions."""

    version: VersionDetail
    """The one that was named, else the newest."""
    installed: list[str]
    """Versions on this machine."""
    origin: str | None
    """Where it was imported from, as its README says; None for one that was not."""


def describe(context: Invocation, name: EnvironmentName) -> PublishedEnvironment:
    """Return what there is to know; raises `NotFound`."""
    with context.hub() as hub:
        detail = hub.environment(name.owner, name.name)
        version = hub.version(name.owner, name.name, name.version) if name.version else detail.latest
    store = EnvironmentStore(context.settings.data_dir, context.output.warn)
    local = store.find(name, context.settings.hub)
    return PublishedEnvironment(
        **dict(detail),
        version=version,
        installed=[one.record.version for one in local],
        origin=origin_in(detail.readme),
    )
