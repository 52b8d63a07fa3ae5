"""Parsing of a local model's turns into tool calls, reasoning and text.

    written.py     an attempted call: its position, its content or its problem
    json_calls.py  calls that are JSON objects: Hermes, Mistral, Llama 3 and bare objects
    tagged.py      calls in tags (Qwen3-Coder) and calls in the form of Python (LFM2)
    turns.py       the table of formats, the detection of a model's format, and the parsing of its turns

Existing parsers were evaluated first. Those of transformers (5.23, with TRL 1.16's schemas) and vLLM (0.31)
lose the whole turn if one of several calls is malformed, keep only the last piece of text, cut LFM2's
arguments at a comma, and do not report the problem. `renderers` (0.1) reports problems, but supports neither
LFM2 nor SmolLM3 nor Mistral. This package is therefore used for all engines: it never raises an error, and no
call hides another.
"""
