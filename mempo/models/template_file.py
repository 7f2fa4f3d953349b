"""A chat template from a file, for ``model.chat_template``."""

from __future__ import annotations

from pathlib import Path

import jinja2

from mempo.runtime.errors import ConfigError


def read_chat_template(path: str) -> str:
    """The template in a file, for ``model.chat_template``.

    Raises ``ConfigError`` when there is no such file, or it is no template.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(
            f"model.chat_template={path}: no such file; give the path of a chat template (jinja), "
            "or null for the tokenizer's own"
        )
    try:
        text = file.read_text(encoding="utf-8").removesuffix("\n")
        jinja2.Environment(extensions=["jinja2.ext.loopcontrols"], autoescape=False).parse(text)
    except (UnicodeDecodeError, jinja2.TemplateSyntaxError) as error:
        raise ConfigError(f"model.chat_template={path}: no chat template ({error})") from None
    return text
