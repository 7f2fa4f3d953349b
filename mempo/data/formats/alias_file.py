"""2WikiMultihopQA's ``id_aliases.json``: more names of the answers, by their Wikidata id."""

from __future__ import annotations

from pathlib import Path

from mempo.row_files.rows import DataError
from mempo.row_files.rows_of import file_rows


def read_aliases(path: Path) -> dict[str, tuple[str, ...]]:
    """The names of each id: ``aliases``, then ``demonyms``, as 2WikiMultihopQA's own evaluation
    takes them. A line is ``{"Q_id", "aliases", "demonyms"}``.

    Raises ``DataError`` with file and line for any other shape.
    """
    found: dict[str, tuple[str, ...]] = {}
    for row in file_rows(path):
        if isinstance(row, DataError):
            raise row
        names: list[str] = []
        for name in ("aliases", "demonyms"):
            value = row.fields.get(name) or []
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                raise row.fault(f'the field "{name}" must be a list of texts')
            names += [one.strip() for one in value if one.strip()]
        key = row.text("Q_id")
        found[key] = tuple(dict.fromkeys((*found.get(key, ()), *names)))
    return found
