"""Local language models: the tiny policy, SmolLM2, loading, chat formatting and sampling.

Importing this package is light; torch and transformers are imported by the modules that need them.
"""

import os

# OpenMP's threads spin while they wait, which starves whatever shares the cores: environments, a hub, another
# run. On two busy cores one backward pass of the tiny policy took 14.9 s spinning and 0.6 s sleeping. The
# variable is read when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
