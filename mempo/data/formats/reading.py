"""Rows of a JSON file, a parquet file, a folder or a data set of the hub, through ``datasets``.

JSON is read as text and parsed here, line by line or element by element. The JSON reader of
``datasets`` makes one column type of all values of a field: texts that look like dates become
dates, a text ``"1873"`` beside a list becomes a number, and no fault is given a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from mempo.data.formats.row import QuestionRow, QuestionSource
from mempo.runtime.errors import ConfigError
from mempo.runtime.rows import DataError, parse_object, plain_line, require_text, seen

_JSON: Final = (".json", ".jsonl", ".ndjson")
_PARQUET: Final = ".parquet"
_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_PREFIX: Final = "hf://"
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_WRAPPERS: Final = ("Data", "data")
_BOM: Final = "\ufeff"


def read_rows(source: QuestionSource) -> Iterator[QuestionRow | DataError]:
    """The rows of a source; a row that cannot be parsed comes as the error that says why.

    Its place is a ``.json``, ``.jsonl`` or ``.parquet`` file, a folder of such files (its splits
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
    ending = PurePosixPath(source).suffix.lower()
    return bool(_HUB_NAME.fullmatch(source)) and ending not in (*_JSON, _PARQUET)


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
        if names and all(PurePosixPath(n).suffix.lower() in (*_JSON, _PARQUET) for n in names):
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
    ending = PurePosixPath(file).suffix.lower()
    try:
        if ending == _PARQUET:
            yield from _numbered(_load("parquet", file), file)
        elif ending in _JSON:
            yield from _json_rows(file, ending == ".json")
        else:
            raise DataError(
                f"{file}: files of this kind are not read: give .jsonl, .json or .parquet"
            )
    except (OSError, ValueError, _datasets().exceptions.DatasetsError) as error:
        if isinstance(error, (ConfigError, DataError)):
            raise
        raise DataError(f"{file}: cannot be read ({_one_line(error)})") from error


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


def _texts(file: str, sample_by: str) -> Iterator[bytes]:
    """The bytes of every line, or of the whole document.

    Latin-1 keeps every byte, so that a line that is not UTF-8 is a fault of that line alone.
    """
    for row in _load("text", file, sample_by=sample_by, encoding="latin-1"):
        yield row["text"].encode("latin-1")


def _json_rows(file: str, may_be_document: bool) -> Iterator[QuestionRow | DataError]:
    first = next((line for line in _texts(file, "line") if line.strip()), b"")
    if _begins_document(first.removeprefix(_BOM.encode()).lstrip(), may_be_document):
        (document,) = _texts(file, "document")
        yield from _document_rows(document, file)
        return
    stem = PurePosixPath(file).stem
    for number, line in enumerate(_texts(file, "line"), start=1):
        place = f"{file}:{number}"
        try:
            fields = parse_object(plain_line(line, number), place)
            yield QuestionRow(fields, place, f"{stem}-{number}")
        except DataError as error:
            yield error


def _begins_document(line: bytes, may_be_document: bool) -> bool:
    """Whether the first line begins one JSON value over the whole file."""
    if line.startswith(b"["):
        return True
    if not may_be_document or not line.startswith(b"{"):
        return False
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return True
    return any(isinstance(row.get(name), list) for name in _WRAPPERS)


def _document_rows(document: bytes, file: str) -> Iterator[QuestionRow | DataError]:
    try:
        text = document.decode("utf-8").removeprefix(_BOM)
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 ({error}): save the file as UTF-8") from None
    start = _skip(text, 0)
    if text.startswith("[", start):
        yield from _list_rows(text, start, file)
        return
    stem = PurePosixPath(file).stem
    whole, _ = _decode(text, start, file)
    rows = next((whole[name] for name in _WRAPPERS if isinstance(whole.get(name), list)), None)
    if rows is None:
        raise DataError(
            f"{file}: one JSON object with the keys {', '.join(whole) or '(none)'}: give one "
            f'object per line, a list of objects, or that list in "{_WRAPPERS[0]}"'
        )
    for number, fields in enumerate(rows, start=1):
        yield _row(fields, f"{file}, row {number}", f"{stem}-{number}")


def _list_rows(text: str, start: int, file: str) -> Iterator[QuestionRow | DataError]:
    """The elements of a JSON list, each with the line it begins on."""
    stem = PurePosixPath(file).stem
    position = _skip(text, start + 1)
    line, counted, number = 1, 0, 0
    closed = text.startswith("]", position)
    while not closed:
        line += text.count("\n", counted, position)
        counted = position
        number += 1
        fields, position = _decode(text, position, file)
        yield _row(fields, f"{file}:{line}, row {number}", f"{stem}-{number}")
        position = _skip(text, position)
        closed = text.startswith("]", position)
        if not closed:
            if not text.startswith(",", position):
                raise DataError(
                    f"{file}:{text.count(chr(10), 0, position) + 1}: not JSON: a comma or ] must "
                    f"follow row {number}"
                )
            position = _skip(text, position + 1)


def _row(fields: Any, place: str, default_id: str) -> QuestionRow | DataError:
    if isinstance(fields, dict):
        try:
            require_text(fields, place)
        except DataError as error:
            return error
        return QuestionRow(fields, place, default_id)
    return DataError(f"{place}: the row is no JSON object, it is {seen(fields)}")


def _decode(text: str, position: int, file: str) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise DataError(f"{file}:{error.lineno}: not JSON ({error.msg})") from None
    except RecursionError:
        raise DataError(f"{file}: not usable JSON: it is nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits
        raise DataError(f"{file}: not usable JSON ({error})") from None


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None
    return match.end()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
