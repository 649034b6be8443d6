"""Turns at set times: schedules, kept in the store, and the service that runs them."""
