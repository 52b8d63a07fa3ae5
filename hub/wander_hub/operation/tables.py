"""Every table of the hub. Importing this module registers all tables with `Base`, for migrations and
backups."""

# ruff: noqa: F401 - each import registers tables

from __future__ import annotations

import wander_hub.accounts.models
import wander_hub.audit
import wander_hub.environments.models
import wander_hub.http.limits
import wander_hub.index.models
import wander_hub.jobs.models
import wander_hub.leaderboards.models
import wander_hub.models.models
import wander_hub.operation.models
import wander_hub.people.models
import wander_hub.publishers.models
import wander_hub.quotas.models
import wander_hub.rights.models
import wander_hub.runs.models
import wander_hub.sealed.models
import wander_hub.transfers.models
import wander_hub.verification.models
import wander_hub.webhooks.models
