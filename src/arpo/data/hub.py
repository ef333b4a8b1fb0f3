"""Data sets of the library datasets: by name from the hub, by path, or as `save_to_disk` left them.

`hf:NAME[/CONFIG][@SPLIT]`, e.g. `hf:openai/gsm8k/main@train`: a name of one or two parts, a third one is the config; a
path begins with `/`, `./` or `../`. A data set with several splits wants one to be named: training on whichever comes
first would be a guess, and the guess may be the test split. Columns are read as they are stored, pictures and sound
undecoded.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arpo.data.rows import HUB, Row, is_saved
from arpo.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset

_BATCH = 1024


@dataclass(frozen=True, slots=True)
class Named:
    """A source `hf:...` in its parts. `path`: a name of the hub or a path on this machine."""

    path: str
    config: str | None
    split: str | None

    @property
    def local(self) -> bool:
        """Whether it is a path."""
        return self.path.startswith(("/", "./", "../", "~"))


def parse(source: str) -> Named:
    """The parts of `hf:NAME[/CONFIG][@SPLIT]`. Raises DataError."""
    body, at, split = source.removeprefix(HUB).rpartition("@")
    if not at or "/" in split:  # the @ of a folder's name
        body, split = source.removeprefix(HUB), ""
    parts = body.split("/")
    named = Named(body, None, split or None)
    if named.local:
        return named
    if not all(parts) or len(parts) > 3:
        raise DataError(f"{source}: a data set is named hf:NAME, hf:OWNER/NAME or hf:OWNER/NAME/CONFIG, then @SPLIT")
    return Named("/".join(parts[:2]), parts[2] if len(parts) == 3 else None, split or None)


def named_rows(source: str) -> Iterator[Row]:
    """The rows of `hf:...`. Raises DataError saying what to do where it cannot be loaded."""
    named = parse(source)
    folder = Path(named.path).expanduser()
    if named.local and is_saved(folder):
        yield from saved_rows(folder / named.split if named.split else folder)
        return
    yield from _rows(_loaded(source, named), source, source)


def saved_rows(folder: Path) -> Iterator[Row]:
    """The rows of a folder that `save_to_disk` wrote. Raises DataError for several splits, or a damaged folder."""
    import datasets
    import pyarrow as pa

    try:
        found = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise DataError(f"{folder}: not a folder of save_to_disk that is whole ({_line(error)})") from error
    if isinstance(found, datasets.DatasetDict):
        raise DataError(
            f"{folder}: holds the splits {', '.join(found)}; name one of them, {folder}/{next(iter(found))}"
        )
    yield from _rows(found, str(folder), folder.name)


def _loaded(source: str, named: Named) -> "Dataset":
    import datasets

    path = str(Path(named.path).expanduser()) if named.local else named.path
    try:
        found = datasets.load_dataset(path, named.config, split=named.split)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise DataError(f"{source}: cannot be loaded: {_line(error)}{_remedy(named, error)}") from error
    if not isinstance(found, datasets.DatasetDict):
        return found
    if len(found) > 1:
        raise DataError(
            f"{source}: holds the splits {', '.join(found)}; name one of them, {source}@{next(iter(found))}"
        )
    return next(iter(found.values()))


def _remedy(named: Named, error: Exception) -> str:
    """What to do where the hub is out of reach; nothing where it has answered."""
    import datasets

    unreachable = isinstance(error, ConnectionError | datasets.exceptions.DatasetNotFoundError)
    if named.local or not unreachable:
        return ""
    return (
        ". If this machine has no network: on one that has, `hf download --repo-type dataset "
        f"{named.path} --local-dir FOLDER`, copy FOLDER here and name the files of one split in it, such as "
        "'FOLDER/main/train-*.parquet'; if the data set is private or gated, log in with `hf auth login`"
    )


def _rows(found: "Dataset", file: str, name: str) -> Iterator[Row]:
    start = 1
    for table in found.with_format("arrow").iter(batch_size=_BATCH):
        rows: list[dict[str, Any]] = table.to_pylist()
        yield from (Row(file, name, number, columns) for number, columns in enumerate(rows, start))
        start += len(rows)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
