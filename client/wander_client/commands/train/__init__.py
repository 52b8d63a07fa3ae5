"""Commands that make, train and export models."""
