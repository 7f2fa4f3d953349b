"""What generates: the in-process engine, or a server (``conf/engine/``)."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from mempo.config.strict import STRICT

_PATHS = ("/completions", "/chat", "/models")


@dataclass(frozen=True, config=STRICT)
class EngineConfig:
    """What generates. ``kind``: ``vllm`` runs in this process; ``openai`` asks any server at
    ``url`` that speaks OpenAI's protocol, which serves no training.

    Of a server: ``served_model`` is its name for the model, ``protocol`` how it is asked
    (``completions`` with token ids, ``chat`` with messages, ``auto`` the first where it can), and
    ``api_key_env`` the environment variable that holds its key, which is written nowhere.
    ``timeout_s`` bounds a whole request, retries included; the other times are of single tries. All
    times in seconds.
    """

    kind: Literal["vllm", "openai"] = "vllm"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    max_model_len: int | None = Field(default=None, ge=64)
    max_num_seqs: int = Field(default=128, ge=1)
    cpu_kv_cache_gib: float = Field(default=1.0, gt=0)
    gpu_memory_utilization: float = Field(default=0.4, gt=0, le=1.0)
    gpu_memory_alone: float = Field(default=0.9, gt=0, le=1.0)
    gpu_kv_cache_gib: float | None = Field(default=None, gt=0)
    gpu_step_tokens: int = Field(default=8192, ge=64)
    tensor_parallel: int = Field(default=1, ge=1)
    enable_prefix_caching: bool = True
    sleep: bool = True
    url: str | None = None
    served_model: str | None = None
    protocol: Literal["auto", "completions", "chat"] = "auto"
    api_key_env: str = "OPENAI_API_KEY"
    connect_timeout_s: float = Field(default=5.0, gt=0)
    read_timeout_s: float = Field(default=300.0, gt=0)
    timeout_s: float = Field(default=900.0, gt=0)
    retries: int = Field(default=3, ge=0)
    backoff_s: float = Field(default=0.5, ge=0)
    ready_timeout_s: float = Field(default=300.0, gt=0)

    @model_validator(mode="after")
    def _check(self) -> EngineConfig:
        if self.kind == "openai":
            self._check_server()
        else:
            for name in ("url", "served_model"):
                if (value := getattr(self, name)) is not None:
                    raise ValueError(
                        f"engine.{name}={value} is not read by engine.kind=vllm: leave it out, or "
                        "choose engine=openai"
                    )
        return self

    def _check_server(self) -> None:
        if not self.url:
            raise ValueError(
                "engine.url is empty: engine=openai needs engine.url=http://<host>:<port>/v1"
            )
        if re.match(r"https?://[^/?#\s]*@", self.url):
            raise ValueError(
                "engine.url holds a user or a key, which would stand in files: leave it out, and "
                f"put the key into the environment variable {self.api_key_env} (engine.api_key_env)"
            )
        if not re.fullmatch(r"https?://[^/?#\s]+(/[^?#\s]*)?", self.url):
            raise ValueError(
                f"engine.url={self.url} is no address of a server: write http://<host>:<port>/v1"
            )
        if any(path in self.url.removesuffix("/") for path in _PATHS):
            raise ValueError(
                f"engine.url={self.url} names one of the server's paths: end it before, mostly "
                "with /v1"
            )
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", self.api_key_env):
            raise ValueError(
                "engine.api_key_env is the name of an environment variable, such as "
                "OPENAI_API_KEY, and never the key itself"
            )
        for name in ("connect_timeout_s", "read_timeout_s"):
            if getattr(self, name) > self.timeout_s:
                raise ValueError(
                    f"engine.{name}={getattr(self, name):g} is longer than engine.timeout_s="
                    f"{self.timeout_s:g}, which ends the whole request: lower the first or raise "
                    "the second"
                )
