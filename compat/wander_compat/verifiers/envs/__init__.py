"""The environments of the classic API, and which generation of it one was written for."""
