"""What llama.cpp says of itself."""

from __future__ import annotations

from pathlib import Path

from shoal.engine.llama_runtime import llama_runtime


def test_the_cpu_features_in_use_are_among_those_of_this_cpu() -> None:
    features = llama_runtime().cpu_features()
    assert features
    assert all(name and name == name.strip() and "=" not in name for name in features)
    flags = Path("/proc/cpuinfo").read_text()
    for name, flag in (("AVX2", "avx2"), ("AVX512_VNNI", "avx512_vnni"), ("FMA", "fma")):
        assert name not in features or flag in flags
