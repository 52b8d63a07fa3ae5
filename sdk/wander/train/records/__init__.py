"""The files that a training run writes, and the repetition of a run from them."""
