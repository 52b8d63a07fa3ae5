"""Train from the command line: plans, phases, panel, verification."""
