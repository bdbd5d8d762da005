"""The versions of what runs here that must fit those of other machines."""

from __future__ import annotations

import sys
from importlib.metadata import version

from shoal import __version__
from shoal.control.membership import Build
from shoal.engine.llama_runtime import llama_runtime


def own_build() -> Build:
    return Build(
        shoal=__version__,
        ray=version("ray"),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        llama=version("llama-cpp-python"),
        cpu_features=llama_runtime().cpu_features(),
    )
