"""The endpoint that a program in a box calls as its model, in the dialects of OpenAI and Anthropic.

`server.py` serves the calls; `chat.py`, `responses.py` and `anthropic.py` translate them to and from the chat
format of `values.py`.
"""
