"""The terminal: output in four modes, escaping of untrusted text, and declaration of commands."""
