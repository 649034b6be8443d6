"""Telegram: answers that grow in one message, stop at a button, and arrive once."""
