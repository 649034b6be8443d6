"""Channels that come with Turnwire: extensions like any other, each in its folder with its `manifest.yaml`."""
