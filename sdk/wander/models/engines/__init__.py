"""Engines that sample for a policy under training: transformers in this process, or vLLM here or on a server.

Importing this package is fast, because each engine is a separate module.
"""
