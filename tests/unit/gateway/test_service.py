"""What a served model tells of itself."""

from __future__ import annotations

from shoal.gateway.service import ModelService
from tests.unit.gateway.running_gateway import ScriptedGenerator, encode_chat, encode_text


def test_the_modes_have_fingerprints_of_their_own() -> None:
    common = ("model", 0, 100, 50_000, ScriptedGenerator(), encode_chat, encode_text)
    default, invariant = ModelService(*common), ModelService(*common, invariant=True)
    assert default.fingerprint != invariant.fingerprint
    assert ModelService(*common, invariant=True).fingerprint == invariant.fingerprint
