"""Shoal runs one large language model across whatever machines a LAN has.

See docs/JOURNEY.md: it follows one request through these packages, file by file.
"""

__version__ = "0.1.0"
