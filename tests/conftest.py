"""What holds for all tests."""

from __future__ import annotations

import sys

import shoal.engine.llama_library  # noqa: F401 - before a test's own llama_cpp: row kernels go in front


def pytest_unconfigure() -> None:
    """llama_cpp opens the null device twice when it is imported and never closes it, which Python complains
    about at its end."""
    module = sys.modules.get("llama_cpp._utils")
    for name in ("outnull_file", "errnull_file"):
        file = getattr(module, name, None)
        if file is not None:
            file.close()
