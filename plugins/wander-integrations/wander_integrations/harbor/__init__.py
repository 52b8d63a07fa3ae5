"""Harbor's tasks as environments, and environments as Harbor's tasks."""
