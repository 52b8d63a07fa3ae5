"""SFT and GRPO on any environment."""
