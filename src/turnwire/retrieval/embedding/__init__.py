"""Texts as vectors, so that what means the same is found when the words differ.

`contract` says what an embedder is. `minilm` runs a small one in this process, with `wordpiece` as its
tokenizer; `endpoint` asks an OpenAI-compatible server for one.
"""
