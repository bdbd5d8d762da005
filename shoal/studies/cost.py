"""Study (c): two 5090s, five motley boxes or one rented H100: cost per million tokens."""

from __future__ import annotations

from dataclasses import replace

from shoal.catalogue.loader import load_catalogue
from shoal.catalogue.machine import LinkKind
from shoal.core.units import bytes_text, digits_text
from shoal.planner.assumptions import Assumptions, default_assumptions
from shoal.planner.cluster import Cluster, parse_cluster, slowest_link
from shoal.planner.deployment import DoesNotFit, candidate_deployments, fastest_for
from shoal.planner.estimate import Throughput, estimate_model
from shoal.planner.layout import Layouts
from shoal.planner.model_demand import ModelDemand
from shoal.planner.model_source import find_model
from shoal.simulator.plots import Line, Plot
from shoal.studies.page import Page, TableBlock

CHOICES = (
    ("two RTX 5090", "2xrtx-5090"),
    ("five motley boxes", "rtx-3090, rtx-3060, rtx-4060, desktop-ddr5, rtx-4070"),
    ("one rented H100", "1xh100"),
)
MOTLEY = CHOICES[1][1]
LARGE = ("llama-70b", "q4_k_m")
MODELS = (("qwen3-30b-a3b", "q4_k_m"), LARGE)
STREAMS = (1, 8, 64)


def cost() -> Page:
    rows, lines = [], []
    for model in MODELS:
        for name, machines in CHOICES:
            found = [_figures(machines, *model, streams, is_rented="rented" in name) for streams in STREAMS]
            rows += [
                (model[0], name, str(streams), *texts)
                for streams, (texts, _) in zip(STREAMS, found, strict=True)
            ]
            known = [(float(s), usd) for s, (_, usd) in zip(STREAMS, found, strict=True) if usd is not None]
            if known:
                lines.append(Line(f"{name}, {model[0]}", [s for s, _ in known], [usd for _, usd in known]))
    columns = (
        "model",
        "machines",
        "streams",
        "at a time",
        "tokens/s",
        "electricity",
        "hardware",
        "rent",
        "in all",
    )
    return Page(
        name="cost",
        title="Two 5090s, five motley boxes, or one rented H100?",
        summary=(
            "USD per million tokens of answers, at the number of streams that are there all the time. A "
            "machine "
            "that is bought costs its price over its lifetime and its electricity, a rented one its rent; "
            "idle "
            "hours cost as much as busy ones, so few streams are dear everywhere. Where all streams at the "
            f"same time do not fit, or are served more slowly, some wait for others. {_why_few_at_a_time()}"
        ),
        tables=(TableBlock("USD per million tokens", columns, rows),),
        computed="The cost model's throughput at each number of streams, and the catalogue's prices over it.",
        assumed=(
            "Work around the clock; three years of life, no resale, no interest, nobody's time. Prices "
            "and rents "
            "are the catalogue's and change by the month; those of used cards are not verified. Two 5090s "
            "are in "
            "two machines over the catalogue's link. No tensor parallelism, which would help the two 5090s."
        ),
        falsified_by=(
            "A measured throughput outside a factor of 1.5 of the table's on the same machines; a rent or "
            "price "
            "that differs by more than a third from the catalogue's."
        ),
        plots=(
            Plot("cost", "USD per million tokens", "streams", "USD", lines, is_x_log=True, is_y_log=True),
        ),
    )


def _figures(
    machines: str, name: str, quant: str, streams: int, *, is_rented: bool
) -> tuple[tuple[str, ...], float | None]:
    known = load_catalogue()
    cluster = parse_cluster([machines], known)
    given = replace(default_assumptions(known), context_tokens=2048)
    model, link = find_model(name, quant, known), slowest_link(cluster, known)
    throughput = _throughput(cluster, model, link, given, streams)
    rate = throughput.streams_tok_per_s
    million_s = 1e6 / rate
    hours = million_s / 3600
    electricity = cluster.power_w / 1000 * hours * given.usd_per_kwh
    own_electricity = None if is_rented else electricity
    price, hourly = cluster.price_usd, cluster.rent_usd_per_hour
    hardware = None if is_rented or price is None else price * million_s / given.lifetime_s
    rent = None if not is_rented or hourly is None else hourly * hours
    total = rent if hardware is None else hardware + electricity
    texts = (
        str(throughput.streams_at_once),
        digits_text(rate),
        *("-" if usd is None else digits_text(usd) for usd in (own_electricity, hardware, rent, total)),
    )
    return texts, total


def _throughput(
    cluster: Cluster, model: ModelDemand, link: LinkKind, given: Assumptions, streams: int
) -> Throughput:
    """With as many of `streams` at a time as fit; the others wait."""
    for at_once in range(streams, 0, -1):
        try:
            found = estimate_model(cluster, model, link, replace(given, streams=at_once)).throughput
        except DoesNotFit:
            continue
        assert found is not None
        return found
    raise DoesNotFit(f"{model.name} does not fit {cluster} with a single stream.")


def _why_few_at_a_time() -> str:
    """What room for all streams at once would do to motley boxes."""
    known = load_catalogue()
    cluster = parse_cluster([MOTLEY], known)
    model, link = find_model(*LARGE, known), slowest_link(cluster, known)
    given = replace(default_assumptions(known), streams=max(STREAMS), context_tokens=2048)
    few = _throughput(cluster, model, link, given, given.streams)
    best = fastest_for(candidate_deployments(model, cluster, link, given), given.streams)
    kinds = [kind for kind, count in cluster.members for _ in range(count)]
    every = Layouts(model, link, given).balance(kinds)
    assert every is not None
    slow = every.stages[-1]  # the fastest machines come first
    caches = bytes_text(given.streams * model.kv_bytes(given.context_tokens))
    return (
        f"Room for the caches of all {given.streams} streams of the 70B model ({caches}) would move "
        f"{slow.piece.layers.num_layers} of its {model.num_layers} layers from the motley boxes' cards to "
        "the slow memory of the desktop, and leave "
        f"{digits_text(every.decode_tok_per_s(given.streams))} tokens/s; {few.streams_at_once} streams at a "
        f"time, in {best.num_pipelines} pipelines, get "
        f"{digits_text(few.streams_tok_per_s)}."
    )
