"""Models: trained weights with what it takes to load them, revision by revision."""
