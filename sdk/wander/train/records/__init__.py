"""What a training run leaves behind, and how it is repeated from that."""
