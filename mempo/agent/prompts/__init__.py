"""Instruction templates: what the first user turn says (specification section 4)."""

from __future__ import annotations

from pathlib import Path

import jinja2

from mempo.runtime.errors import ConfigError

_FOLDER = Path(__file__).parent


def template_text(name: str) -> str:
    """The text of ``load_template(name)`` as it stands in its file."""
    return _file(name).read_text(encoding="utf-8").strip()


def _file(name: str) -> Path:
    packaged = _FOLDER / f"{name}.txt"
    path = packaged if packaged.exists() else Path(name).expanduser()
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in _FOLDER.glob("*.txt")))
        raise ConfigError(
            f"model.prompt_template={name}: no such template; use one of {known}, or the path of "
            "a text file"
        )
    return path


def load_template(name: str) -> jinja2.Template:
    """A template of this folder by name, or a file by path.

    The template must use ``{{ question }}``. Raises ``ConfigError`` when there is no such file.
    """
    path, text = _file(name), template_text(name)
    if "{{ question }}" not in text:
        raise ConfigError(
            f"model.prompt_template={name}: the template does not contain {{{{ question }}}}"
        )
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    try:
        template = environment.from_string(text)
        template.render(question="?")
    except jinja2.TemplateError as error:
        line = getattr(error, "lineno", None)
        place = f"{path}, line {line}" if line else str(path)
        raise ConfigError(f"model.prompt_template={name}: {place}: {error}") from None
    return template
