"""The operating system: what child processes inherit, and files from untrusted sources."""
