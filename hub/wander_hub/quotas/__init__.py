"""How much an owner may have on the hub: stored bytes, versions and runs."""
