"""What the configuration may say: frozen dataclasses whose checks say what to change.

Hydra composes ``conf/`` into a plain mapping; ``load_config`` turns it into ``Config``. Unknown
keys, wrong types and settings that contradict each other raise ``ConfigError``, whose message names
the setting and the remedy. No module here imports torch, so that a wrong setting is told at once.

One module for each group of sections; ``aggregate`` holds the whole, and what its sections may not
say together.
"""

from __future__ import annotations

from mempo.config.aggregate import OVERLAP_IMPORTANCE_CAP, Config
from mempo.config.contexts import (
    CONTEXTS,
    RetrievalMemoryConfig,
    SummaryConfig,
    shows_everything,
    writes_memory,
)
from mempo.config.data import OTHER_SOURCES, DataConfig, MixedSetConfig, WorldConfig
from mempo.config.engine import EngineConfig
from mempo.config.evaluation import ContextMode, EvaluationConfig
from mempo.config.loading import load_config, require_path
from mempo.config.method import (
    AlgorithmConfig,
    LossConfig,
    MemoryConfig,
    OutcomeConfig,
    ScoringConfig,
)
from mempo.config.model import ArchitectureConfig, LoraSettings, ModelConfig
from mempo.config.reporting import CallbacksConfig, HealthConfig, WandbConfig
from mempo.config.retriever import RetrieverConfig
from mempo.config.reward import JudgeConfig, RewardConfig
from mempo.config.rollout import ContextConfig, CurriculumConfig, RolloutConfig
from mempo.config.tools import ACCESS, DEFAULT_TOOLS, SEARCH, ToolConfig
from mempo.config.training import OptimizerConfig, SftConfig, ShardingConfig, TrainerConfig

__all__ = [
    "ACCESS",
    "CONTEXTS",
    "DEFAULT_TOOLS",
    "OTHER_SOURCES",
    "OVERLAP_IMPORTANCE_CAP",
    "SEARCH",
    "AlgorithmConfig",
    "ArchitectureConfig",
    "CallbacksConfig",
    "Config",
    "ContextConfig",
    "ContextMode",
    "CurriculumConfig",
    "DataConfig",
    "EngineConfig",
    "EvaluationConfig",
    "HealthConfig",
    "JudgeConfig",
    "LoraSettings",
    "LossConfig",
    "MemoryConfig",
    "MixedSetConfig",
    "ModelConfig",
    "OptimizerConfig",
    "OutcomeConfig",
    "RetrievalMemoryConfig",
    "RetrieverConfig",
    "RewardConfig",
    "RolloutConfig",
    "ScoringConfig",
    "SftConfig",
    "ShardingConfig",
    "SummaryConfig",
    "ToolConfig",
    "TrainerConfig",
    "WandbConfig",
    "WorldConfig",
    "load_config",
    "require_path",
    "shows_everything",
    "writes_memory",
]
