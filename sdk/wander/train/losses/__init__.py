"""What is the same for every loss of a trainer of TRL's (`steps`), and the losses that are not GRPO's."""
