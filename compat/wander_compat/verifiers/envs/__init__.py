"""The environments of the classic API, and the detection of the generation that one was written for."""
