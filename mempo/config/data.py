"""The tasks: the generated world and files of questions (``conf/data/``)."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from mempo.config.paths import SettingPath
from mempo.config.strict import STRICT


@dataclass(frozen=True, config=STRICT)
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


@dataclass(frozen=True, config=STRICT)
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
    questions: SettingPath | None = None
    corpus: SettingPath | None = None
    heldout_questions: SettingPath | None = None
    heldout_fraction: float = Field(default=0.2, gt=0.0, lt=1.0)
    split: str = "train"
    heldout_split: str | None = None
    subset: str | None = None
    answer_separator: str | None = Field(default="<|answer_split|>", min_length=1)
    aliases: SettingPath | None = None
    fanoutqa: Literal["subquestions", "siblings", "questions"] = "subquestions"

    @model_validator(mode="after")
    def _check(self) -> DataConfig:
        if self.format == "world":
            return self
        if self.aliases is not None and self.format != "hotpotqa":
            raise ValueError(
                f"data.aliases={self.aliases}: only the rows of data=hotpotqa name the answers "
                "that it lists (2WikiMultihopQA's answer_id): leave it out"
            )
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
