"""The nouns that every other package speaks in. No I/O here."""
