"""Users, owners, API tokens: who somebody is and what they may publish."""
