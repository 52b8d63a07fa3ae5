"""The endpoint that a program in a box calls as its model, in the dialects of OpenAI and Anthropic."""
