"""Documents: finding files, reading their formats, splitting them into chunks."""
