"""Information about a published environment from the hub and this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wander.wire import EnvironmentDetail, VersionDetail

from wander_client.packages.origins.source import origin_in
from wander_client.packages.store import EnvironmentStore

if TYPE_CHECKING:
    from wander_client.context import Invocation
    from wander_client.names import EnvironmentName


class PublishedEnvironment(EnvironmentDetail):
    """An environment on a hub, with one of its versions."""

    version: VersionDetail
    """The named version, or the newest."""
    installed: list[str]
    """Versions that are installed on this machine."""
    origin: str | None
    """Origin of an imported environment according to its README, or None."""


def describe(context: Invocation, name: EnvironmentName) -> PublishedEnvironment:
    """Return the details of an environment. Raises `NotFound` if it does not exist."""
    with context.hub() as hub:
        detail = hub.environment(name.owner, name.name)
        version = hub.version(name.owner, name.name, name.version) if name.version else detail.latest
    store = EnvironmentStore(context.settings.data_dir, context.output.warn)
    local = store.find(name, context.settings.hub)
    return PublishedEnvironment(
        **dict(detail),
        version=version,
        installed=[item.record.version for item in local],
        origin=origin_in(detail.readme),
    )
