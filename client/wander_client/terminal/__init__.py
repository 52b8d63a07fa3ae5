"""The terminal: output in four modes, escaping, how commands are declared."""
