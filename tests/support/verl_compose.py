"""verl's real configuration under our overrides: Hydra reads its own files and ours, as `main_ppo` does."""

from pathlib import Path
from typing import Any

from arpo.config.load import load
from arpo.config.schema import Config
from arpo.verl.command import arguments
from arpo.verl.overrides import Place, translate

PLACE = Place(Path("/runs/x/verl"), Path("/runs/x/verl/train.parquet"), Path("/runs/x/verl/heldout.parquet"), 100, 2)


def config_of(*overrides: str, preset: str | None = None) -> Config:
    return load([], overrides, preset=preset, environ={}).config


def composed(config: Config, *extra: str, place: Place = PLACE) -> Any:
    """verl's DictConfig for a configuration of ours and raw overrides of verl's."""
    from hydra import compose, initialize_config_dir

    import verl

    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        return compose("ppo_trainer", overrides=arguments(translate(config, place), extra))
