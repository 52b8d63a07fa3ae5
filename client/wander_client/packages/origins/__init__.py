"""Where imported packages come from, and how they become packages of a hub."""
