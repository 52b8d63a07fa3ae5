"""Models: trained weights with the files needed to load them, in revisions."""
