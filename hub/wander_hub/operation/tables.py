"""Every table of the hub: to import this module registers all with `Base`, for migrations and backups."""

from __future__ import annotations

from wander_hub import audit
from wander_hub.accounts import models as accounts
from wander_hub.environments import models as environments
from wander_hub.environments import spelling
from wander_hub.http import limits
from wander_hub.index import models as index
from wander_hub.jobs import models as jobs
from wander_hub.leaderboards import models as leaderboards
from wander_hub.mirrors import models as mirrors
from wander_hub.models import models
from wander_hub.operation import models as operation
from wander_hub.people import models as people
from wander_hub.publishers import models as publishers
from wander_hub.quotas import models as quotas
from wander_hub.rights import models as rights
from wander_hub.runs import models as runs
from wander_hub.upload import models as upload
from wander_hub.verification import models as verification
from wander_hub.webhooks import models as webhooks

MODULES = (
    audit,
    accounts,
    environments,
    spelling,
    limits,
    index,
    jobs,
    leaderboards,
    mirrors,
    models,
    operation,
    people,
    publishers,
    quotas,
    rights,
    runs,
    upload,
    verification,
    webhooks,
)
"""Where the tables are described."""
