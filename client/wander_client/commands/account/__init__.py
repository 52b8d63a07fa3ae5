"""Commands for tokens, keys and rights."""
