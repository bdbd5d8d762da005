"""`scenario.toml`, read strictly: every field known, every quantity with its unit, every name in the
catalogue. Errors name file, line and field, and the nearest known name."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from shoal.catalogue.loader import Catalogue
from shoal.catalogue.provenance import Provenance
from shoal.catalogue.toml_table import TomlFile, TomlTable
from shoal.core.errors import ConfigError
from shoal.core.names import nearest_text
from shoal.core.units import HOUR_S, Dimension
from shoal.planner.cluster import Cluster, parse_cluster
from shoal.planner.model_source import find_model
from shoal.simulator.lengths import Fixed, Geometric, Lengths, LogNormal, Uniform
from shoal.simulator.scenario import LARGEST_FINE, Churn, Mode, Scenario, Serving
from shoal.simulator.virtual_head import PING_INTERVAL_S, PING_PATIENCE_S
from shoal.simulator.workload import Bursts, Closed, Pattern, Poisson, Workload, read_trace

T = TypeVar("T")

SECTIONS: Final = ("scenario", "serving", "requests", "failures")
OWN: Final = Provenance("the scenario itself")
PATTERNS: Final = ("poisson", "bursts", "trace", "closed")
LENGTHS: Final = ("fixed", "uniform", "geometric", "lognormal")
# What the watchdog needs on average: pings up to the first one beyond its patience, less half an interval,
# since a machine dies between two.
USUAL_NOTICE_S: Final = (PING_PATIENCE_S // PING_INTERVAL_S + 0.5) * PING_INTERVAL_S
STARTS: Final = ("present", "usual")
DEFAULT_CELL: Final = 16


def read_scenario(path: Path, catalogue: Catalogue) -> Scenario:
    """Raises ConfigError for anything that is missing, misspelt, without unit or cannot be."""
    try:
        text = path.read_text()
        content = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The scenario {path} cannot be read: {error}.") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The scenario {path} is not TOML: {error}.") from error
    for key in content:
        if key not in SECTIONS:
            raise ConfigError(
                f"{path} has [{key}], which is no section{nearest_text(key, SECTIONS)}.",
                next_step=f"Sections are {', '.join(SECTIONS)}.",
            )
    return _Reader(TomlFile(str(path), text), content, catalogue, path.parent).read()


class _Reader:
    def __init__(self, file: TomlFile, content: dict[str, Any], catalogue: Catalogue, folder: Path) -> None:
        self._file = file
        self._content = content
        self._catalogue = catalogue
        self._folder = folder

    def read(self) -> Scenario:
        known = self._catalogue
        main = self._table("scenario")
        cluster = _located(main, "machines", lambda text: parse_cluster([text], known))
        quant = main.text("quant") if main.has("quant") else None
        model = _located(main, "model", lambda text: find_model(text, quant, known))
        link = known.link(min(cluster.links, key=lambda name: known.link(name).bytes_per_s))
        if main.has("link"):
            link = _located(main, "link", known.link)
        mode = self._mode(main, cluster)
        duration_s = main.quantity("duration", Dimension.SECONDS)
        if duration_s <= 0:
            raise main.error("duration", "is 0; it must be more")
        load = main.optional_quantity("load_rate", Dimension.BYTES_PER_S) or link.bytes_per_s
        name = main.text("name", self._file.name.rsplit("/", 1)[-1].removesuffix(".toml"))
        notice_s = main.optional_quantity("notice", Dimension.SECONDS)
        usd_per_kwh = main.optional_quantity("electricity", Dimension.USD_PER_KWH)
        main.end()
        serving = self._serving(cluster)
        workload = self._workload(serving)
        return Scenario(
            name=name,
            mode=mode,
            cluster=cluster,
            model=model,
            link=link,
            duration_s=duration_s,
            serving=serving,
            workload=workload,
            churn=self._churn(),
            load_bytes_per_s=load,
            notice_s=USUAL_NOTICE_S if notice_s is None else notice_s,
            usd_per_kwh=known.price("electricity") if usd_per_kwh is None else usd_per_kwh,
            lifetime_s=known.price("hardware-lifetime"),
        )

    def _table(self, section: str) -> TomlTable:
        table = self._content.get(section)
        if not isinstance(table, dict):
            raise ConfigError(f"{self._file.name} has no table [{section}].")
        return TomlTable(self._file, (section,), table, (), OWN)

    def _mode(self, main: TomlTable, cluster: Cluster) -> Mode:
        default = Mode.FINE if cluster.num_machines <= LARGEST_FINE else Mode.COARSE
        mode = Mode(_choice(main, "mode", tuple(mode.value for mode in Mode), default.value))
        if mode is Mode.FINE and cluster.num_machines > LARGEST_FINE:
            raise main.error(
                "mode", f"is fine, which takes up to {LARGEST_FINE} machines, not {cluster.num_machines:,}"
            )
        return mode

    # ------------------------------------------------------------ sections

    def _serving(self, cluster: Cluster) -> Serving:
        table = self._table("serving")
        default = cluster.num_machines if cluster.num_machines < 2 * DEFAULT_CELL else DEFAULT_CELL
        cell = table.integer("cell_machines", default, least=1)
        if cell > cluster.num_machines:
            raise table.error("cell_machines", f"is {cell}, of {cluster.num_machines} machines")
        survive = table.integer("survive", 0)
        spares = table.integer("spares", min(survive, cell - 1))
        if spares >= cell:
            raise table.error("spares", f"is {spares}, which leaves none of {cell} machines to serve")
        serving = Serving(
            cell_machines=cell,
            spares=spares,
            survive=survive,
            streams=table.integer("streams", 8, least=1),
            context_tokens=table.integer("context", 4096, least=2),
            chunk_tokens=table.integer("chunk", 128, least=1),
            max_waiting=table.integer("max_waiting", 64),
            row_value_bytes=table.integer("row_value_bytes", 4, least=1),
            gateway_cells=table.integer("gateway_cells", 64, least=1),
            is_exact=table.flag("exact"),
        )
        table.end()
        return serving

    def _workload(self, serving: Serving) -> Workload:
        table = self._table("requests")
        pattern = self._pattern(table)
        prompt = _lengths(table, "prompt", serving)
        output = _lengths(table, "output", serving)
        table.end()
        workload = Workload(pattern, prompt, output)
        if workload.longest_tokens > serving.context_tokens:
            raise table.error(
                "output",
                f"and prompt may come to {workload.longest_tokens} tokens; the context of [serving] "
                f"has {serving.context_tokens}",
            )
        return workload

    def _pattern(self, table: TomlTable) -> Pattern:
        match _choice(table, "arrivals", PATTERNS, "poisson"):
            case "bursts":
                return Bursts(
                    table.quantity("calm_rate", Dimension.REQUESTS_PER_S),
                    table.quantity("burst_rate", Dimension.REQUESTS_PER_S),
                    _positive_s(table, "calm_time"),
                    _positive_s(table, "burst_time"),
                )
            case "trace":
                return read_trace(self._folder / table.text("trace"))
            case "closed":
                think_s = table.optional_quantity("think_time", Dimension.SECONDS)
                return Closed(table.integer("users", least=1), think_s or 0.0)
            case _:
                return Poisson(
                    table.quantity("rate", Dimension.REQUESTS_PER_S), table.numbers("day_profile", 24)
                )

    def _churn(self) -> Churn | None:
        if "failures" not in self._content:
            return None
        table = self._table("failures")
        model = _located(table, "model", self._catalogue.failure)
        starts = _choice(table, "start", STARTS, "present")
        polite = table.optional_quantity("polite", Dimension.SHARE) or 0.0
        if polite > 1:
            raise table.error("polite", "is more than 100 %")
        grace_s = table.optional_quantity("grace", Dimension.SECONDS)
        start_s = table.optional_quantity("start_time", Dimension.SECONDS)
        table.end()
        return Churn(
            model=model,
            all_present=starts == "present",
            polite_share=polite,
            grace_s=30.0 if grace_s is None else grace_s,
            start_s=9 * HOUR_S if start_s is None else start_s,
        )


# ---------------------------------------------------------------- fields


def _located(table: TomlTable, key: str, read: Callable[[str], T]) -> T:
    """What `key` names; an error about it names the place as well."""
    text = table.text(key)
    try:
        return read(text)
    except ConfigError as error:
        raise ConfigError(
            f"{key} of {table.where(key)}: {error.message}", next_step=error.next_step
        ) from error


def _choice(table: TomlTable, key: str, choices: tuple[str, ...], default: str) -> str:
    value = table.text(key, default)
    if value not in choices:
        raise table.error(key, f"is {value!r}, not one of {', '.join(choices)}{nearest_text(value, choices)}")
    return value


def _positive_s(table: TomlTable, key: str) -> float:
    seconds = table.quantity(key, Dimension.SECONDS)
    if seconds <= 0:
        raise table.error(key, "is 0; it must be more")
    return seconds


def _lengths(parent: TomlTable, key: str, serving: Serving) -> Lengths:
    table = parent.table(key)
    longest = max(1, serving.context_tokens // 2)
    match _choice(table, "kind", LENGTHS, "fixed"):
        case "uniform":
            found: Lengths = Uniform(table.integer("least", least=1), table.integer("most", least=1))
            if isinstance(found, Uniform) and found.most < found.least:
                raise table.error("most", f"is {found.most}, below least")
        case "geometric":
            found = Geometric(table.number("mean"), table.integer("most", longest, least=1))
            if isinstance(found, Geometric) and found.mean_tokens < 1:
                raise table.error("mean", "is below 1 token")
        case "lognormal":
            found = LogNormal(
                table.number("median"), table.number("sigma"), table.integer("most", longest, least=1)
            )
        case _:
            found = Fixed(table.integer("tokens", least=1))
    table.end()
    return found
