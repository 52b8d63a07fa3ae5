"""What a local model wrote in a turn: its calls of tools and its reasoning, apart from its words.

    written.py     one attempted call: where it stands, what it says or what is wrong with it
    json_calls.py  calls that are JSON objects: Hermes, Mistral, Llama 3 and objects that stand by themselves
    tagged.py      calls in tags (Qwen3-Coder) and calls in the form of Python (LFM2)
    turns.py       the table of formats, how one model speaks, found from its chat template, and its turns

The parsers that others keep were measured first. transformers' (5.23, with TRL 1.16's schemas) and vLLM's
(0.31) lose the whole turn where one call of several is malformed, keep the last piece of text alone, cut
LFM2's arguments at a comma, and do not tell what was wrong; `renderers` (0.1) does, but has neither LFM2 nor
SmolLM3 nor Mistral. So one reader of our own is used, whatever samples: it never raises, and no call hides
another.
"""
