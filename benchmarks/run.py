"""Run every benchmark: `make bench`, or `python benchmarks/run.py [--quick]`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS = ("evaluator.py", "replay.py", "index_server.py", "posting.py")

if __name__ == "__main__":
    here = Path(__file__).parent
    statuses = [
        subprocess.run([sys.executable, str(here / name), *sys.argv[1:]], check=False).returncode
        for name in BENCHMARKS
    ]
    sys.exit(max(statuses))
