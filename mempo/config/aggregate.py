"""The whole configuration, and what its sections may not say together."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic.dataclasses import dataclass

from mempo.config.contexts import writes_memory
from mempo.config.data import FORMATS_WITH_PASSAGES, DataConfig
from mempo.config.engine import EngineConfig
from mempo.config.evaluation import EvaluationConfig
from mempo.config.method import (
    AlgorithmConfig,
    LossConfig,
    MemoryConfig,
    OutcomeConfig,
    ScoringConfig,
)
from mempo.config.model import ModelConfig
from mempo.config.paths import SettingPath
from mempo.config.reporting import CallbacksConfig, WandbConfig
from mempo.config.retriever import RetrieverConfig
from mempo.config.reward import RewardConfig
from mempo.config.rollout import RolloutConfig
from mempo.config.strict import STRICT
from mempo.config.tools import ACCESS, DEFAULT_TOOLS, SEARCH, ToolConfig, check_together, entries
from mempo.config.training import OptimizerConfig, SftConfig, TrainerConfig

OVERLAP_IMPORTANCE_CAP: Final = 2.0
"""``loss.importance_cap`` where ``rollout.overlap`` samples from older weights."""


@dataclass(frozen=True, config=STRICT)
class Config:
    """Everything that ``conf/`` may say."""

    algorithm: AlgorithmConfig
    model: ModelConfig
    data: DataConfig
    retriever: RetrieverConfig
    rollout: RolloutConfig
    engine: EngineConfig
    reward: RewardConfig
    scoring: ScoringConfig
    outcome: OutcomeConfig
    memory: MemoryConfig
    loss: LossConfig
    optimizer: OptimizerConfig
    sft: SftConfig
    trainer: TrainerConfig
    evaluation: EvaluationConfig
    logger: WandbConfig
    callbacks: CallbacksConfig
    tools: Annotated[tuple[ToolConfig, ...], BeforeValidator(entries)] = DEFAULT_TOOLS
    stage: Literal["rl", "sft"] = "rl"
    seed: int = Field(default=0, ge=0)
    dry_run: bool | Literal["measured"] = False
    cache_dir: SettingPath = ".cache/mempo"
    run_dir: SettingPath = "runs/latest"
    ckpt_path: SettingPath | None = None
    resume: Literal["auto"] | None = None

    @property
    def importance_cap(self) -> float | None:
        """``loss.importance_cap``, and ``OVERLAP_IMPORTANCE_CAP`` where ``rollout.overlap`` samples
        from older weights and none is given."""
        if self.loss.importance_cap is None and self.rollout.overlap:
            return OVERLAP_IMPORTANCE_CAP
        return self.loss.importance_cap

    @property
    def engine_dtype(self) -> Literal["float32", "bfloat16"]:
        """What the engine computes in: ``engine.dtype``, of which ``auto`` is ``model.dtype``."""
        return self.model.dtype if self.engine.dtype == "auto" else self.engine.dtype

    @model_validator(mode="after")
    def _check(self) -> Config:
        if self.memory.weight > 0 and self.rollout.max_rounds < 2:
            raise ValueError(
                "rollout.max_rounds=1 leaves no scored round: raise it, or set memory.weight=0"
            )
        if self.memory.weight > 0 and not self.scoring.enabled:
            raise ValueError(
                "scoring.enabled=false leaves no memory rewards: set memory.weight=0 as well"
            )
        if self.scoring.mask == "full" and self.scoring.threshold is None:
            raise ValueError(
                "scoring.mask=full picks the tokens that pass scoring.threshold, which is null: "
                "set scoring.threshold, or scoring.mask=separate"
            )
        if self.resume is not None and self.ckpt_path is not None:
            raise ValueError(
                f"resume={self.resume} looks for a checkpoint in run_dir, and ckpt_path names one: "
                "leave one of them out"
            )
        if self.rollout.overlap and self.engine.tensor_parallel > 1:
            raise ValueError(
                "rollout.overlap=true steps the engine on a thread, and an engine that processes "
                "share (engine.tensor_parallel) cannot be: set one of them back"
            )
        if self.sft.enabled and self.sft.train == "adapters" and self.model.lora is None:
            raise ValueError(
                "sft.train=adapters: there are none; add them with lora=default, or set "
                "sft.train=all"
            )
        self._check_context()
        self._check_tools()
        self._check_corpus()
        return self

    def _check_context(self) -> None:
        context = self.rollout.context
        if self.memory.weight > 0 and not writes_memory(context):
            raise ValueError(
                f"rollout.context={context} has no memory, so there is none to reward: set "
                "memory.weight=0 (algorithm=grpo), or train in another context"
            )
        if context == "mem1" and self.scoring.history == "trajectory":
            raise ValueError(
                "scoring.history=trajectory puts together what the rounds saw, and a round of "
                "rollout.context=mem1 sees nothing of the round before it but its memory: set "
                "scoring.history=visible"
            )
        from_files = self.sft.enabled and self.sft.source == "file"
        if from_files and self.sft.context is None and context in ("mem1", "retrieval_memory"):
            raise ValueError(
                f"sft.source=file cannot lay rounds out as rollout.context={context} shows them: "
                "say with sft.context how, full or memory"
            )

    def _check_tools(self) -> None:
        check_together(self.tools)
        used = {(tool._target_, tool.tag) for tool in self.tools}
        needed = {(tool._target_, tool.tag) for tool in (SEARCH, ACCESS)}
        if self.sft.enabled and self.sft.source == "world" and needed - used:
            raise ValueError(
                "tools: the demonstrations of the generated world search and open pages, and tools "
                "leaves search or access out: list both, or choose sft=none or sft=file"
            )

    def _check_corpus(self) -> None:
        if self.data.format == "world":
            if self.retriever.kind != "rank_bm25":
                raise ValueError(
                    f"retriever.kind={self.retriever.kind} cannot search data.format=world, whose "
                    "passages are generated in memory: leave the retriever out, or choose "
                    "data=local"
                )
        elif self.data.format == "mix":
            sets = self.data.sets()
            for name, one in sets.items():
                own = (self.data.mix or {})[name].corpus is not None
                _check_files_corpus(one, self.retriever, f"data.mix.{name}", own)
            if self.retriever.index and len({one.corpus for one in sets.values()}) > 1:
                raise ValueError(
                    f"retriever.index={self.retriever.index} is one corpus's, and data.mix has "
                    "several: leave it out, which takes the index beside each corpus"
                )
        else:
            _check_files_corpus(self.data, self.retriever, "data", True)


def _check_files_corpus(
    data: DataConfig, retriever: RetrieverConfig, prefix: str, own: bool
) -> None:
    """``prefix`` is what errors call the settings of the questions, and of their corpus where it is
    their ``own``."""
    kind, corpus = retriever.kind, f"{prefix if own else 'data'}.corpus"
    if kind == "http":
        if data.corpus:
            raise ValueError(
                f"{corpus}={data.corpus} is not read with retriever.kind=http, which "
                "searches its server's corpus: leave it out, or choose another retriever"
            )
    elif not data.corpus and (kind == "bm25s" or data.format not in FORMATS_WITH_PASSAGES):
        named = f"data={data.format}" if prefix == "data" else f"{prefix}.format={data.format}"
        raise ValueError(
            f"{prefix}.corpus is empty: {named} needs {prefix}.corpus=<file.jsonl>, "
            "the passages to search, or a server that has them (retriever=http)"
        )
