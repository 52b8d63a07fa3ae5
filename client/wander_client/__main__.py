"""Make `python -m wander_client` run `wander`."""

import sys

from wander_client.main import main

sys.exit(main())
