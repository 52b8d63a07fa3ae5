"""Users, owners and memberships."""
