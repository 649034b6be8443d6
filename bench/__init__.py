"""What a streamed token, and an answer from documents, costs, measured side by side with what people write by hand.

Run `python -m bench --quick`; `README.md` in this folder tells the method.
"""
