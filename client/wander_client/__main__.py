"""`python -m wander_client` is `wander`."""

import sys

from wander_client.main import main

sys.exit(main())
