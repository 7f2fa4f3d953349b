"""Classes of transformers that vLLM decorates, put back as they were.

vLLM serves the families that it has no class of its own for (Phi, OLMo 2, SmolLM3, GLM, GPT-NeoX)
through transformers, and decorates their class there for its compiler. The policy in this process
is of the same class: its passes would ask for settings of an engine that it is no part of.
"""

from __future__ import annotations

import inspect
from typing import Any


def give_classes_back(model: Any) -> None:
    """Leaves the decoration to the modules of the engine's ``model``, by a class of their own, and
    takes it from the class that others share."""
    from transformers import PreTrainedModel
    from vllm.compilation.wrapper import TorchCompileWithNoGuardsWrapper as Decoration

    own: dict[type[Any], type[Any]] = {}
    for module in model.modules():
        shared = type(module)
        if isinstance(module, PreTrainedModel) and Decoration in shared.__bases__:
            own.setdefault(shared, _subclass(shared, Decoration))
            module.__class__ = own[shared]
    for shared in own:
        _undo(shared, Decoration)


def _subclass(shared: Any, decoration: type[Any]) -> type[Any]:
    members = {"__init__": shared.__init__, "__call__": shared.__call__}
    return type(shared.__name__, (shared, decoration), {**members, "__module__": shared.__module__})


def _undo(shared: Any, decoration: type[Any]) -> None:
    shared.__init__ = inspect.getclosurevars(shared.__init__).nonlocals["old_init"]
    del shared.__call__
    shared.__bases__ = tuple(base for base in shared.__bases__ if base is not decoration)
