"""Sections of training settings, their TOML files, and arguments for TRL and PEFT."""
