"""What a shell evaluates to complete ``mempo``: ``eval "$(mempo --completion bash)"``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from mempo.runtime.friendly_errors import end_with

# Settings are completed by Hydra, which expects the program's name alone before them. A setting
# contains "=", so the word is the line's own, not the shell's.
_BASH: Final = """\
_mempo() {{
    local word choices line=${{COMP_LINE:0:COMP_POINT}}
    word=${{line##* }}
    if (( COMP_CWORD == 1 )); then
        choices="{names}"
    else
        case "${{COMP_WORDS[1]}}" in
            train|evaluate)
                line=${{line#*"${{COMP_WORDS[1]}}"}}
                choices=$(COMP_LINE="mempo$line" COMP_POINT=$COMP_POINT \\
                    "${{COMP_WORDS[0]}}" "${{COMP_WORDS[1]}}" -sc query=bash 2> /dev/null) ;;
            ask|collect)
                if [[ $word == -* ]]; then
                    choices="--compare --context --help --json {serving}"
                    if [[ ${{COMP_WORDS[1]}} == collect ]]; then
                        choices="--attempts --data --help --metric --output --per-question"
                        choices+=" --share --split --tasks --teacher --threshold"
                    fi
                elif (( COMP_CWORD > 2 )) && [[ $word == *=* || $word != */* ]]; then
                    choices=$(COMP_LINE="mempo $word" COMP_POINT=$((6 + ${{#word}})) \\
                        "${{COMP_WORDS[0]}}" evaluate -sc query=bash 2> /dev/null)
                else
                    COMPREPLY=($(compgen -f -- "$word")); return
                fi ;;
            *) COMPREPLY=($(compgen -f -- "$word")); return ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$choices" -- "$word"))
}}
COMP_WORDBREAKS=${{COMP_WORDBREAKS//=}}
complete -o nospace -o default -F _mempo mempo
"""

_SERVING: Final = "--host --port --rounds --serve --token-variable"

_ZSH: Final = "autoload -Uz compinit bashcompinit\ncompinit\nbashcompinit\n"
"""Zsh runs the completion of bash."""


def completion_script(shell: Sequence[str], names: Iterable[str]) -> str:
    """The script for ``["bash"]`` or ``["zsh"]``; ends the program for another shell."""
    script = _BASH.format(names=" ".join(names), serving=_SERVING)
    before = {"bash": "", "zsh": _ZSH}
    if len(shell) != 1 or shell[0] not in before:
        end_with("--completion is followed by bash or zsh")
    return before[shell[0]] + script
