"""Python's collector of cycles, in processes that serve.

What is loaded by the time that a process serves stays: some 120,000 objects of Ray, llama-cpp-python
and others. Each full collection walks all of them, which takes 30 to 50 ms in which no thread of
the process runs Python: two tokens' time.
"""

from __future__ import annotations

import gc


def keep_for_good() -> None:
    """Leave everything that exists now out of all collections to come. For a process's start only:
    cycles among these objects are never freed."""
    gc.collect()
    gc.freeze()
