"""Boxes: isolated file systems in which commands and whole programs run, for environments with a shell."""

from wander.boxes.base import Box, BoxLimits, BoxSpec, ChangedFile, CommandResult, FinalState

__all__ = ["Box", "BoxLimits", "BoxSpec", "ChangedFile", "CommandResult", "FinalState"]
