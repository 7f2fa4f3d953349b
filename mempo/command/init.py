"""``mempo init tool|reward|callback NAME``: a small package of one's own that works at once."""

from __future__ import annotations

import argparse
import keyword
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Final

from mempo.config import DEFAULT_TOOLS
from mempo.config.tools import TAKEN_TAGS
from mempo.runtime.errors import MempoError
from mempo.runtime.friendly_errors import friendly_errors
from mempo.runtime.program import command, interpreter

_FOLDER: Final = Path(__file__).with_name("scaffolds")
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Kind:
    """What can be begun: ``holds`` says what its package has, ``settings`` train with it."""

    holds: str
    settings: str


KINDS: Final = {
    "tool": Kind("a tool that the agent can call, beside search and access", "tools={name}"),
    "reward": Kind("a function that says how good an answer is", "experiment={name}"),
    "callback": Kind("a callback that runs beside those of a run", "callbacks={name}"),
}
"""Each has a folder of templates in ``scaffolds/``."""


@friendly_errors()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=command("init", "mempo.command.init"),
        description="Writes a small package into the current folder: the code, its configuration "
        "and a test, and prints the command that trains with it (docs/extending.md).",
        epilog="\n".join(f"{name:<10}{kind.holds}" for name, kind in KINDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=KINDS, metavar="|".join(KINDS))
    parser.add_argument("name", metavar="NAME", help="of the package, and of a tool its tag")
    options = parser.parse_args(arguments)
    for path in write_package(options.kind, options.name, Path.cwd()):
        print(f"wrote {path.relative_to(Path.cwd())}")
    print(f"test it:    {interpreter()} -m pytest {options.name}")
    print(f"train:      {training_command(options.kind, options.name)}")


def training_command(kind: str, name: str) -> str:
    """The command that trains with the package for one epoch of the two-minute check."""
    settings = KINDS[kind].settings.format(name=name)
    check = "" if settings.startswith("experiment=") else " experiment=debug"
    train = command("train", "mempo.command.train")
    return f"{train} --config-dir {name}/conf {settings}{check} trainer.max_epochs=1"


def write_package(kind: str, name: str, folder: Path) -> list[Path]:
    """Writes the package ``name`` into ``folder``; the files in their order. Raises ``MempoError``
    for a name that cannot be taken."""
    _check(kind, name, folder)
    words = {"name": name, "Class": _class_name(kind, name)}
    written = []
    for template, place in _templates(kind):
        path = folder / name / place.replace("NAME", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template(template).substitute(words), encoding="utf-8")
        written.append(path)
    return written


def _class_name(kind: str, name: str) -> str:
    return "".join(part.capitalize() for part in (*name.split("_"), kind))


def _templates(kind: str) -> Iterator[tuple[str, str]]:
    """Texts and the places of their files."""
    for file in sorted((_FOLDER / kind).rglob("*.txt")):
        place = file.relative_to(_FOLDER / kind).as_posix().removesuffix(".txt")
        yield file.read_text(encoding="utf-8"), place


def _check(kind: str, name: str, folder: Path) -> None:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise MempoError(
            f"{name}: a package's name is a lower-case letter, then letters, digits and _, as in "
            "my_tool"
        )
    if (folder / name).exists():
        raise MempoError(f"{name}: it is there already: choose another name, or remove it")
    if find_spec(name) is not None:
        raise MempoError(f"{name}: an installed module has that name: choose another")
    if kind == "tool" and name in (*TAKEN_TAGS, *(tool.tag for tool in DEFAULT_TOOLS)):
        raise MempoError(f"{name}: the agent writes that tag already: choose another name")


if __name__ == "__main__":
    main()
