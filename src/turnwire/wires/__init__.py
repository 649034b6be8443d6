"""Every wire out: each module writes a log in one client protocol, as a pure function of the log."""
