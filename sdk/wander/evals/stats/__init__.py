"""Statistics of runs: summaries, intervals, comparisons, agreement."""
