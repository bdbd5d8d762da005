"""Parts that tests of several packages share."""
