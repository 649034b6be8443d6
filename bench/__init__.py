"""What a streamed token costs, measured side by side with what people write by hand.

Run `python -m bench --quick`; `README.md` in this folder tells the method.
"""
