"""The tasks: the generated world and files of questions (``conf/data/``)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Final, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from mempo.config.paths import SettingPath
from mempo.config.strict import STRICT


@dataclass(frozen=True, config=STRICT)
class WorldConfig:
    """The generated world (``mempo/world/world.py``): one world for training, one held out."""

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


FileFormat = Literal[
    "local", "search_r1", "asearcher", "hotpotqa", "musique", "open_qa", "fanoutqa"
]
"""The formats whose questions stand in files."""

FanoutRows = Literal["subquestions", "siblings", "questions"]

FORMATS_WITH_PASSAGES: Final = ("hotpotqa", "musique", "fanoutqa")
"""The formats whose rows may bring a corpus along."""

OTHER_SOURCES: Final = "other"
"""What metrics call the sources beyond those that have a name of their own; no data set's name."""

_SET_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_SEPARATOR: Final = "<|answer_split|>"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class QuestionFilesConfig:
    """The files of one data set, and how their rows are read."""

    questions: SettingPath | None = None
    corpus: SettingPath | None = None
    heldout_questions: SettingPath | None = None
    split: str = "train"
    heldout_split: str | None = None
    subset: str | None = None
    answer_separator: str | None = Field(default=_SEPARATOR, min_length=1)
    aliases: SettingPath | None = None
    fanoutqa: FanoutRows = "subquestions"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MixedSetConfig(QuestionFilesConfig):
    """One data set of ``data.mix``: a format with its files, as ``DataConfig`` has them for one
    alone. ``share`` is its part of every epoch relative to the others', ``count`` the most
    questions that are taken of it. What is ``None`` here and not optional is ``data``'s own."""

    format: FileFormat
    share: float | None = Field(default=None, gt=0.0)
    count: int | None = Field(default=None, ge=1)
    heldout_fraction: float | None = Field(default=None, gt=0.0, lt=1.0)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DataConfig(QuestionFilesConfig):
    """Which tasks. ``world`` is generated; every other format reads ``questions`` and ``corpus``:
    ``local`` from this project's own JSON lines, the rest from the files of their data sets
    (``mempo/data/formats/``), some of which bring their corpus along. ``mix`` takes several of
    them, by name (``mempo/data/mix.py``)."""

    format: Literal[
        "world",
        "mix",
        "local",
        "search_r1",
        "asearcher",
        "hotpotqa",
        "musique",
        "open_qa",
        "fanoutqa",
    ]
    objectives: int = Field(default=2, ge=1)
    train_objectives: tuple[int, int] | None = None
    seed: int = 0
    skip_bad_rows: bool = False
    world: WorldConfig = field(default_factory=WorldConfig)
    heldout_fraction: float = Field(default=0.2, gt=0.0, lt=1.0)
    mix: dict[str, MixedSetConfig] | None = None
    mix_objectives: Literal["within", "across"] = "within"

    @model_validator(mode="after")
    def _check(self) -> DataConfig:
        if self.mix and self.format != "mix":
            raise ValueError(
                f"data.mix names data sets, which data={self.format} does not read: choose "
                "data=mix, or leave them out"
            )
        if self.train_objectives is not None:
            _check_train_objectives(self, *self.train_objectives)
        if self.format == "mix":
            _check_mix(self)
        elif self.format != "world":
            _check_files(self, self.format, "data")
        return self

    @property
    def train_counts(self) -> range:
        """The numbers of questions that training tasks have."""
        fewest, most = self.train_objectives or (self.objectives, self.objectives)
        return range(fewest, most + 1)

    def sets(self) -> Mapping[str, DataConfig]:
        """The data sets of ``data.mix`` by name, each with the settings that it has alone."""
        return {name: self._alone(one) for name, one in (self.mix or {}).items()}

    def _alone(self, one: MixedSetConfig) -> DataConfig:
        own = {part.name: getattr(one, part.name) for part in dataclasses.fields(one)}
        del own["share"], own["count"]
        for name in ("corpus", "heldout_fraction"):
            own[name] = getattr(self, name) if own[name] is None else own[name]
        return dataclasses.replace(self, mix=None, **own)


def _check_train_objectives(data: DataConfig, fewest: int, most: int) -> None:
    if not 1 <= fewest <= most:
        raise ValueError(
            f"data.train_objectives=[{fewest},{most}]: give the fewest and the most questions of a "
            "training task, such as [1,4]"
        )
    if data.format == "mix":
        raise ValueError(
            "data.train_objectives is not read with data=mix, whose shares are of tasks with "
            "data.objectives questions: leave it at null"
        )


def _check_files(one: QuestionFilesConfig, chosen: str, prefix: str) -> None:
    """What the settings of a format may not say together; ``prefix`` is what errors call them."""
    data = f"data={chosen}" if prefix == "data" else f"{prefix}.format={chosen}"
    if one.aliases is not None and chosen != "hotpotqa":
        raise ValueError(
            f"{prefix}.aliases={one.aliases}: only the rows of data=hotpotqa name the answers "
            "that it lists (2WikiMultihopQA's answer_id): leave it out"
        )
    own = chosen == "local"
    file = "<file.jsonl>" if own else "<file, folder or hub name>"
    if not one.questions and chosen != "fanoutqa":
        raise ValueError(
            f"{prefix}.questions is empty: {data} needs {prefix}.questions={file}"
            + (" and data.corpus=<file.jsonl>" if own else "")
        )
    if own and (one.split, one.heldout_split, one.subset) != ("train", None, None):
        raise ValueError(
            f"{prefix}.split, {prefix}.heldout_split and {prefix}.subset have no meaning with "
            f"{data}, which reads single files: leave them out, or choose another data format"
        )
    if not one.heldout_questions and one.heldout_split == one.split:
        raise ValueError(
            f"{prefix}.heldout_split={one.heldout_split} is the split to train on: name another, "
            f"or leave it out, which holds out {prefix}.heldout_fraction of the questions"
        )


def _check_mix(data: DataConfig) -> None:
    if not data.mix:
        raise ValueError(
            "data.mix is empty: data=mix needs data sets by name, such as "
            "'data.mix={hotpotqa: {format: hotpotqa, questions: A.json}, "
            "nq: {format: open_qa, questions: B.jsonl, corpus: C.jsonl}}'"
        )
    for setting in ("questions", "heldout_questions", "heldout_split"):
        if getattr(data, setting) is not None:
            raise ValueError(
                f"data.{setting}={getattr(data, setting)} is not read with data=mix: every data "
                f"set has its own, data.mix.NAME.{setting}"
            )
    for name, one in data.mix.items():
        if not _SET_NAME.fullmatch(name) or name == OTHER_SOURCES:
            raise ValueError(
                f"data.mix.{name}: a data set's name has letters, digits, _ and - only, and is not "
                f"{OTHER_SOURCES}: give it another"
            )
        _check_files(one, one.format, f"data.mix.{name}")
    with_share = [name for name, one in data.mix.items() if one.share is not None]
    without = [name for name in data.mix if name not in with_share]
    if with_share and without:
        raise ValueError(
            f"data.mix.{without[0]}.share is missing, and data.mix.{with_share[0]}.share is given: "
            "give all of them, or none, which takes the sets by their sizes"
        )
    corpora = {one.corpus or data.corpus: name for name, one in data.mix.items()}
    if data.mix_objectives == "across" and len(corpora) > 1:
        raise ValueError(
            "data.mix_objectives=across puts questions of several data sets into one task, which "
            f"has one corpus, and {' and '.join(list(corpora.values())[:2])} have different ones: "
            "give data.corpus=<file.jsonl> and no others, or take data.mix_objectives=within"
        )
