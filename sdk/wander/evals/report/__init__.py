"""Reports of runs: tables, charts, a page."""
