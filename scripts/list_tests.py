"""Lists every test by section of the specification, as Markdown.

    python scripts/list_tests.py            all
    python scripts/list_tests.py 6          those of section 6

A test file says in its docstring's first paragraph which sections it holds to, or that it stands
around the method.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
TITLES = {
    2: "The round protocol",
    3: "Tools",
    4: "The rollout",
    5: "Rewards",
    6: "The memory reward",
    7: "Advantages",
    8: "The loss",
    9: "Evaluation",
    10: "Weights into the engine",
    11: "Data and retrieval",
    0: "Around the method",
}
_SECTIONS = re.compile(r"sections? (\d+)(?: to (\d+))?(?: and (\d+))?")


def main(wanted: str = "") -> None:
    """Prints the list."""
    by_section: defaultdict[int, list[tuple[str, list[str]]]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [
            node.name
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        ]
        for section in _sections(ast.get_docstring(tree) or ""):
            by_section[section].append((str(path.relative_to(TESTS)), names))
    for section, title in TITLES.items():
        if wanted and str(section) != wanted:
            continue
        heading = f"Section {section}: {title}" if section else title
        print(f"\n## {heading}\n")
        for file, names in by_section[section]:
            print(f"`{file}`\n")
            for name in names:
                print(f"- {name.removeprefix('test_').replace('_', ' ')}")
            print()
    if not wanted:
        functions = {
            (file, name) for e in by_section.values() for file, names in e for name in names
        }
        print(f"{len(functions)} test functions.")


def _sections(docstring: str) -> list[int]:
    match = _SECTIONS.search(" ".join(docstring.split("\n\n")[0].split()))
    if match is None:
        return [0]
    first, last, other = (int(part) if part else None for part in match.groups())
    assert first is not None
    sections = list(range(first, (last or first) + 1))
    return sections + ([other] if other else [])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "wanted",
        nargs="?",
        default="",
        metavar="SECTION",
        help="one section of the specification, 0: around the method",
    )
    main(parser.parse_args().wanted)
