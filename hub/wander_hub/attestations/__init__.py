"""Attestations (PEP 740): signatures of files, verified at upload and served with the index."""
