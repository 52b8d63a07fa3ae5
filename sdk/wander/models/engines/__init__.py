"""What samples for a policy under training: transformers in this process, or vLLM in it or beside it.

Importing this package is light; each engine is a module of its own.
"""
