"""Statistics of runs: summaries, intervals, comparisons and agreement."""
