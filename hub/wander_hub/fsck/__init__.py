"""Compare what a hub keeps, and repair what can be derived."""
