"""Takes in what comes in parts (versions, models, runs) by one set of tables, steps, routes and limits."""
