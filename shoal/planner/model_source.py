"""From what a person types after --model to what that model asks of machines.

A name of the catalogue, a .gguf file, a config.json or the folder that holds one. The only planner
module that opens model files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from shoal.catalogue.hf_config import read_hf_config
from shoal.catalogue.loader import Catalogue
from shoal.catalogue.model_anatomy import ModelAnatomy
from shoal.core.errors import ConfigError
from shoal.planner.demand import CACHE_VALUE_BYTES, demand_of
from shoal.planner.gguf_demand import read_gguf_demand
from shoal.planner.model_demand import ModelDemand

CONFIG_NAME: Final = "config.json"
DEFAULT_QUANTISATION: Final = "f16"
MAX_CONFIG_BYTES: Final = 10 * 2**20


def find_model(
    name: str,
    quantisation: str | None,
    catalogue: Catalogue,
    *,
    cache_value_bytes: float = CACHE_VALUE_BYTES,
) -> ModelDemand:
    """quantisation: None means as published, or 16 bits where the catalogue does not say.

    Raises ConfigError for an unknown name (with the nearest), a file that cannot be read, or a
    quantisation for a GGUF file, which has its own.
    """
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if quantisation is not None:
            raise ConfigError(
                f"{path} has its own quantisation, so --quant {quantisation} cannot apply.",
                next_step="Leave --quant away, or name a model of the catalogue.",
            )
        return read_gguf_demand(path, cache_value_bytes=cache_value_bytes)
    anatomy = _read_config(path) if _is_config(path) else catalogue.model(name)
    wanted = quantisation or anatomy.native or DEFAULT_QUANTISATION
    return demand_of(anatomy, catalogue.quantisation(wanted), cache_value_bytes=cache_value_bytes)


def _is_config(path: Path) -> bool:
    return path.suffix == ".json" or (path / CONFIG_NAME).exists()


def _read_config(path: Path) -> ModelAnatomy:
    file = path / CONFIG_NAME if path.is_dir() else path
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{file} is larger than a model's configuration can be.")
        config = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read as a model's config.json: {error}.") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{file} does not hold an object.")
    name = config.get("_name_or_path") or (file.parent.name if file.name == CONFIG_NAME else file.stem)
    return read_hf_config(config, name=str(name), where=str(file))
