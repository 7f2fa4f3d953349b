"""Instruction templates: what the first user turn says (specification section 4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import jinja2

from mempo.agent.protocol import DEFAULT_PROTOCOL, MEMORY_OPEN
from mempo.config import DEFAULT_TOOLS, ToolConfig, writes_memory
from mempo.runtime.errors import ConfigError

_FOLDER = Path(__file__).parent
_QUESTION: Final = "{{ question }}"


def template_text(
    name: str, tools: Sequence[ToolConfig] = DEFAULT_TOOLS, memory: bool = True
) -> str:
    """The text of ``load_template(name)`` as it stands in its file, with what it says of the
    tools."""
    text = _file(name).read_text(encoding="utf-8").strip()
    if _is_packaged(name):
        return load_template(name, tools).render(question=_QUESTION, memory=memory)
    listed = [f"{tool.tag} {tool.argument} {tool.description}" for tool in described(tools)]
    return "\n".join([text, *listed]) if "tools" in text else text


def described(tools: Sequence[ToolConfig]) -> list[ToolConfig]:
    """The tools that instructions name."""
    return [tool for tool in tools if tool.description is not None]


def _is_packaged(name: str) -> bool:
    return (_FOLDER / f"{name}.txt").exists()


def _file(name: str) -> Path:
    path = _FOLDER / f"{name}.txt" if _is_packaged(name) else Path(name).expanduser()
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in _FOLDER.glob("*.txt")))
        raise ConfigError(
            f"model.prompt_template={name}: no such template; use one of {known}, or the path of "
            "a text file"
        )
    return path


def load_template(name: str, tools: Sequence[ToolConfig] = DEFAULT_TOOLS) -> jinja2.Template:
    """A template of this folder by name, or a file by path.

    The template must use ``{{ question }}``, and may go through ``tools``, each with ``tag``,
    ``argument`` and ``description``. ``memory`` is true unless it is rendered with
    ``memory=False``, as for contexts without one (``check_template``). Raises
    ``ConfigError`` when there is no such file, and where a tool of one's own is not named.
    """
    path = _file(name)
    text = path.read_text(encoding="utf-8").strip()
    if _QUESTION not in text:
        raise ConfigError(
            f"model.prompt_template={name}: the template does not contain {_QUESTION}"
        )
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    try:
        template = environment.from_string(
            text, globals={"tools": described(tools), "memory": True}
        )
        shown = template.render(question="?")
    except jinja2.TemplateError as error:
        line = getattr(error, "lineno", None)
        place = f"{path}, line {line}" if line else str(path)
        raise ConfigError(f"model.prompt_template={name}: {place}: {error}") from None
    for tool in described(tools):
        if tool.tag not in DEFAULT_PROTOCOL.tools and f"<{tool.tag}>" not in shown:
            raise ConfigError(
                f"model.prompt_template={name}: the template does not name the tool <{tool.tag}>: "
                "write it, or go through {{ tools }} as mempo/agent/prompts/default.txt does; "
                "a tool with description: null need not be named"
            )
    return template


def check_template(name: str, tools: Sequence[ToolConfig], contexts: Iterable[str]) -> None:
    """Raises ``ConfigError`` for a template that cannot be used (``load_template``), or that asks
    for a memory in one of ``contexts`` that has none."""
    template = load_template(name, tools)
    for context in contexts:
        if writes_memory(context):
            continue
        if MEMORY_OPEN in template.render(question="?", memory=False):
            raise ConfigError(
                f"model.prompt_template={name}: it asks for {MEMORY_OPEN} in the context {context} "
                "too, which has no memory: put what it says of memories between {% if memory %} "
                "and {% endif %}, as mempo/agent/prompts/default.txt does"
            )
