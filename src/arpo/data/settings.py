"""Where tasks come from: the configuration of the data room."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from arpo.settings import Frozen


def _listed(value: Any) -> Any:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


Files = Annotated[tuple[str, ...], BeforeValidator(_listed)]
"""One source or several: a file, a folder of shards, a pattern, or `hf:NAME[/CONFIG][@SPLIT]`."""


class FactbookSettings(Frozen):
    """Questions generated from the built-in facts, with held-out countries and (country, attribute) pairs."""

    type: Literal["factbook"] = "factbook"

    families: tuple[str, ...] | None = None
    """Question families, by name; None: all of them."""

    tasks: int = Field(4000, ge=1)
    """Training questions drawn; they are gone through in order, and again from the start when used up."""

    seed: int = 0
    """Which questions are drawn; the split itself does not depend on it."""


class FilesSettings(Frozen):
    """Tasks read from JSONL, JSON and Parquet files, folders and Hugging Face data sets (see `arpo.data.rows`)."""

    type: Literal["files"] = "files"

    train: Files = Field(min_length=1)
    heldout: Files = ()
    """Tasks for evaluation alone; without them nothing can be evaluated, and training says so at start-up."""

    max_prompt_tokens: int | None = Field(None, ge=1)
    """Tasks whose whole prompt (system prompt included) is longer are left out, counted and said; None: no limit."""


DataSettings = Annotated[FactbookSettings | FilesSettings, Field(discriminator="type")]
