"""Rows of a file, a folder or a data set of the hub, through ``datasets``.

JSON and tables are read as text and parsed here, line by line or element by element. The reader of
``datasets`` makes one column type of all values of a field: texts that look like dates become
dates, a text ``"1873"`` beside a list becomes a number, and no fault is given a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from mempo.data.formats.row import QuestionRow, QuestionSource
from mempo.row_files.endings import (
    JSON,
    READ_ERRORS,
    TABLES,
    ending,
    is_packed,
    open_plain,
)
from mempo.row_files.rows import DataError, Row
from mempo.row_files.rows_of import rows_of_lines
from mempo.runtime.errors import ConfigError

_TEXTS: Final = (*JSON, *TABLES)
_PARQUET: Final = ".parquet"
_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_PREFIX: Final = "hf://"


def read_rows(source: QuestionSource) -> Iterator[QuestionRow | DataError]:
    """The rows of a source; a row that cannot be parsed comes as the error that says why.

    Its place is a ``.json``, ``.jsonl``, ``.tsv``, ``.csv`` (each perhaps packed as ``.gz``) or
    ``.parquet`` file, a folder of such files (its splits
    as ``datasets`` finds them by file name or in a README; folders of ``save_to_disk`` too), or a
    hub name, ``owner/name``. JSON is one object per line, a list of objects, or an object that
    holds that list in ``Data``.

    Raises ``ConfigError`` that names the setting where there is no such source or split, and
    ``DataError`` for a file that cannot be read at all.
    """
    path = Path(source.place).expanduser()
    if path.is_file():
        yield from _file_rows(str(path))
    elif path.is_dir() and ((path / "dataset_dict.json").exists() or _is_saved(path)):
        yield from _saved_rows(replace(source, place=str(path)))
    elif path.is_dir():
        yield from _data_set_rows(replace(source, place=str(path)))
    elif is_hub_name(source.place):
        yield from _data_set_rows(source)
    else:
        raise ConfigError(
            f"{source.setting}={source.place}: no such file or folder (hub names are owner/name)"
        )


def is_hub_name(source: str) -> bool:
    """Whether ``source`` can only be a hub name: ``owner/name`` without a data file's ending."""
    return bool(_HUB_NAME.fullmatch(source)) and ending(source) not in (*_TEXTS, _PARQUET)


def _is_saved(path: Path) -> bool:
    return (path / "state.json").exists()


def _saved_rows(source: QuestionSource) -> Iterator[QuestionRow]:
    saved = _datasets().load_from_disk(source.place)
    if isinstance(saved, dict):
        if source.split not in saved:
            raise _no_split(source, saved)
        saved = saved[source.split]
    yield from _numbered(saved, source.place)


def _data_set_rows(source: QuestionSource) -> Iterator[QuestionRow | DataError]:
    """A folder or a hub name: its files one by one where we read their kind, so that faults have
    lines; else the rows as ``datasets`` gives them."""
    datasets, split = _datasets(), source.split
    try:
        builder = datasets.load_dataset_builder(source.place, source.subset)
        files = builder.config.data_files
        if files is not None and split not in files:
            raise _no_split(source, files)
        names = [str(name) for name in files[split]] if files is not None else []
        if names and all(ending(name) in (*_TEXTS, _PARQUET) for name in names):
            for name in names:
                yield from _file_rows(name)
        else:
            rows = datasets.load_dataset(source.place, source.subset, split=split)
            yield from _numbered(rows, source.place)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        if isinstance(error, (ConfigError, DataError)):
            raise
        raise ConfigError(
            f"{source.setting}={source.place}: datasets cannot open it ({_one_line(error)})"
        ) from error


def _no_split(source: QuestionSource, splits: Mapping[str, Any]) -> ConfigError:
    return ConfigError(
        f'{source.setting}={source.place}: it has no split "{source.split}", only '
        f"{', '.join(map(str, splits))}: set data.split or data.heldout_split"
    )


def _file_rows(file: str) -> Iterator[QuestionRow | DataError]:
    kind = ending(file)
    try:
        if kind == _PARQUET and not is_packed(file):
            yield from _numbered(_load("parquet", file), file)
        elif kind in _TEXTS:
            for row in rows_of_lines(lambda: _lines(file), file):
                yield question_row(row)
        else:
            raise DataError(
                f"{file}: files of this kind are not read: give .jsonl, .json, .tsv or .csv (each "
                "may be packed as .gz), or .parquet"
            )
    except (*READ_ERRORS, ValueError, _datasets().exceptions.DatasetsError) as error:
        if isinstance(error, (ConfigError, DataError)):
            raise
        raise DataError(f"{file}: cannot be read ({_one_line(error)})") from error


def question_row(row: Row | DataError) -> QuestionRow | DataError:
    """The row as one that asks a question."""
    return row if isinstance(row, DataError) else QuestionRow(row.fields, row.place, row.default_id)


def _load(kind: str, file: str, **options: Any) -> Any:
    """The rows of one file. What lies on this machine is streamed, without a copy in the cache."""
    local = not file.startswith(_HUB_PREFIX)
    return _datasets().load_dataset(
        kind, data_files=file, split="train", streaming=local, **options
    )


def _datasets() -> Any:
    """The package, imported when it is needed: that takes seconds.

    It reports every load to the hub, also of files on this machine, and waits for seconds where
    there is no network. That is turned off.
    """
    import datasets

    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    return datasets


def _numbered(rows: Any, source: str) -> Iterator[QuestionRow]:
    stem = PurePosixPath(source).stem
    for number, fields in enumerate(rows, start=1):
        yield QuestionRow(fields, f"{source}, row {number}", f"{stem}-{number}")


def _lines(file: str) -> Iterator[tuple[int, bytes]]:
    """Every line with its number, from 1.

    Latin-1 keeps every byte, so that a line that is not UTF-8 is a fault of that line alone.
    ``datasets`` unpacks what comes from the hub.
    """
    if is_packed(file) and not file.startswith(_HUB_PREFIX):
        with open_plain(Path(file)) as packed:
            yield from enumerate(packed, start=1)
        return
    rows = _load("text", file, sample_by="line", encoding="latin-1")
    for number, row in enumerate(rows, start=1):
        yield number, row["text"].encode("latin-1")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
