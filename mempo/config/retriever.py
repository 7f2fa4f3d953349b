"""Search and page access (``conf/retriever/``)."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from mempo.config.paths import SettingPath
from mempo.config.strict import STRICT


@dataclass(frozen=True, config=STRICT)
class RetrieverConfig:
    """Search and page access (specification sections 3 and 11).

    ``kind``: ``rank_bm25`` holds the corpus in memory, ``bm25s`` reads an ``index`` on disk, and
    ``http`` asks a server at ``url`` that speaks ``protocol``. ``timeout_s`` bounds a whole tool
    call, retries included; the other times are of single requests. All times in seconds.
    """

    kind: Literal["rank_bm25", "bm25s", "http"] = "rank_bm25"
    top_k: int = Field(default=5, ge=1, le=1000)
    title_weight: int = Field(default=1, ge=1, le=1000)
    passage_chars: int = Field(default=5000, ge=1)
    page_chars: int = Field(default=25000, ge=1)
    short_chars: int = Field(default=100, ge=1)
    timeout_s: float = Field(default=30.0, gt=0)
    max_tool_error_rate: float = Field(default=0.2, ge=0.0, le=1.0)
    workers: int = Field(default=8, ge=1)
    index: SettingPath | None = None
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
