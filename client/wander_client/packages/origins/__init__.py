"""Import packages from other sources and convert them so that they can be published on a hub."""
