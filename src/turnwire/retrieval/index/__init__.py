"""The index: passages in SQLite FTS5, searched by words, and by meaning where they have vectors."""
