"""The Python API of `shoal estimate` and `shoal assess`: python examples/foresee.py

Asks which of three ways to serve a 30B mixture of experts answers fastest, and what a token costs; then
prices a pipeline of one's own, stage by stage.
"""

from __future__ import annotations

from shoal.catalogue.loader import load_catalogue
from shoal.core.specs import LayerRange
from shoal.core.units import digits_text, seconds_text, usd_text
from shoal.planner import cost_model
from shoal.planner.assumptions import default_assumptions
from shoal.planner.cluster import parse_cluster, slowest_link
from shoal.planner.cost_model import StepShape
from shoal.planner.estimate import estimate_model
from shoal.planner.model_source import find_model


def main() -> None:
    catalogue = load_catalogue()
    model = find_model("qwen3-30b-a3b", "q4_k_m", catalogue)
    given = default_assumptions(catalogue)

    for machines in ("1xRTX-5090", "2xRTX-3060", "4xN100"):
        cluster = parse_cluster([machines], catalogue)
        found = estimate_model(cluster, model, slowest_link(cluster, catalogue), given)
        assert found.one_stream is not None, "an estimate of a model has one"
        assert found.upkeep is not None, "and its upkeep"
        print(
            f"{machines}: {seconds_text(found.one_stream.expected_s)} a token, "
            f"{usd_text(found.upkeep.electricity_usd_per_million)} of electricity a million tokens"
        )

    # The cost model itself: two stages of a slow and a fast machine, two steps in flight.
    link = catalogue.link("gigabit")
    pieces = [model.slice_demand(LayerRange(0, 36)), model.slice_demand(LayerRange(36, 48))]
    speeds = [catalogue.machine("rtx-5090").speed, catalogue.machine("desktop-ddr5").speed]
    step = StepShape.decode(num_sequences=1, context_tokens=4096)
    stage_s = [
        cost_model.slice_time(piece, step, speed).total_s for piece, speed in zip(pieces, speeds, strict=True)
    ]
    row_s = cost_model.cut_hop_s(model, 36, link, num_tokens=1, bytes_per_value=4)
    hops_s = [cost_model.hop_s(link, 0), row_s, cost_model.hop_s(link, 0)]
    rate = cost_model.decode_tok_per_s(stage_s, hops_s, steps_in_flight=2, tokens_per_step=1)
    print(f"stages {', '.join(map(seconds_text, stage_s))}: {digits_text(rate)} tok/s for two streams")


if __name__ == "__main__":
    main()
