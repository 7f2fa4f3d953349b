"""``evaluate.py`` takes the settings of the runs that it is given (around the method).

The runs are folders with the settings that ``train.py`` writes and a model folder without weights
worth the name: what is composed needs no more.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from omegaconf import DictConfig, OmegaConf

from mempo.command.cli import compose, compose_tree
from mempo.command.preflight import check_evaluated_paths
from mempo.command.run_settings import EvaluationSettings, evaluation_settings
from mempo.config import DEFAULT_TOOLS, Config
from mempo.evaluation.settings import deciding_settings
from mempo.runtime.errors import ConfigError
from tests.support.programs import ROOT, run_program

LOCAL = ["data=local", "data.questions=q.jsonl", "data.corpus=c.jsonl"]


def make_run(folder: Path, overrides: Sequence[str], started_in: Path | None = None) -> Path:
    """A finished run of ``train.py`` with these overrides."""
    make_model(folder / "model")
    (folder / ".hydra").mkdir()
    tree = compose_tree("train", overrides, run_dir=folder)
    tree.run_dir = "${hydra:runtime.output_dir}"  # as Hydra writes it
    OmegaConf.save(tree, folder / ".hydra" / "config.yaml")
    runtime = {"hydra": {"runtime": {"cwd": str(started_in or Path.cwd())}}}
    OmegaConf.save(OmegaConf.create(runtime), folder / ".hydra" / "hydra.yaml")
    return folder


def make_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def settings(*overrides: str) -> EvaluationSettings:
    return evaluation_settings(overrides, "runs/evaluated")


def deciding(config: Config) -> object:
    return deciding_settings(
        config, ("model", "data", "retriever", "engine", "reward", "evaluation", "scoring")
    )


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=smollm2_135m", *LOCAL],
        ["experiment=smollm2_local", "data.questions=q.jsonl", "data.corpus=c.jsonl"],
        ["model=qwen2_5_7b", "algorithm=mempo_paper", "retriever=http", "retriever.url=http://a:1",
         "data=asearcher", "data.questions=q.jsonl"],
        ["model=pretrained", "model.path=gone/away", "model.system_prompt=null", *LOCAL],
        ["experiment=debug", "model.prompt_template=default", "data.objectives=3"],
    ],
    ids=["smollm2", "experiment", "qwen", "pretrained", "tiny"],
)  # fmt: skip
def test_a_run_is_evaluated_with_its_own_settings(overrides: list[str], tmp_path: Path) -> None:
    """Nothing of the tiny model's settings, which ``conf/evaluate.yaml`` begins with, is left."""
    run = make_run(tmp_path / "run", overrides)
    trained = compose("train", overrides)
    for named in (run, run / "model"):
        path = f"evaluation.model_path={named}"
        found = settings(path)
        expected = compose("train", [*overrides, path])
        assert deciding(found.config) == deciding(expected)
        assert found.config.model == trained.model
        assert found.config.scoring.answer_template == trained.scoring.answer_template
        assert found.told == [f"settings of {run}"]
        assert found.tree is not None
        assert found.tree.model.name == trained.model.name


def test_smollm2s_settings_are_not_the_tiny_models(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ["model=smollm2_135m", *LOCAL, "model.dtype=bfloat16"])
    config = settings(f"evaluation.model_path={run}").config
    assert (config.model.prompt_template, config.model.system_prompt) == (
        "default",
        "You are a helpful assistant.",
    )
    assert config.model.dtype == "bfloat16"
    assert config.evaluation.max_round_tokens == 1024  # the tiny model's: 160
    assert (config.data.format, config.data.objectives) == ("local", 1)
    assert (config.retriever.top_k, config.retriever.title_weight) == (5, 1)


def test_the_command_line_wins_and_is_told(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ["model=smollm2_135m", *LOCAL, "evaluation.tasks=5"])
    found = settings(
        f"evaluation.model_path={run}", "data.objectives=4", "evaluation.tasks=64", "seed=7"
    )
    assert (found.config.data.objectives, found.config.evaluation.tasks) == (4, 64)
    assert found.config.seed == 7
    assert found.config.data.questions == "q.jsonl"
    assert found.told == [
        f"settings of {run}; changed here: data.objectives=4, evaluation.tasks=64"
    ]


def test_groups_of_the_command_line_win_whole(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run",
        [*LOCAL[:2], "retriever=http", "retriever.url=http://a:1", "model=smollm2_135m"],
    )
    path = f"evaluation.model_path={run}"
    config = settings(path, "retriever=rank_bm25", "data.corpus=c.jsonl").config
    assert config.retriever == compose("evaluate", ["retriever=rank_bm25"]).retriever
    assert config.model.name == "smollm2_135m"
    config = settings(path, "data=world", "retriever=world", "model=tiny").config
    plain = compose("evaluate", ["retriever=world"])
    assert (config.data, config.retriever, config.model) == (
        plain.data,
        plain.retriever,
        plain.model,
    )


def test_a_bare_model_folder_asks_for_its_model(tmp_path: Path) -> None:
    """A run's settings are nowhere, and no hub name has any."""
    bare = make_model(tmp_path / "bare")
    run = make_run(tmp_path / "run", ["experiment=debug"])
    for asked in (
        f"evaluation.model_path={bare}",
        "evaluation.model_path=owner/name",
        f"evaluation.models={{trained: {run}, base: {bare}}}",
    ):
        with pytest.raises(ConfigError, match=r"without a run's settings: .*model=pretrained or"):
            settings(asked, "data.objectives=1")
    (tmp_path / "run" / ".hydra" / "config.yaml").unlink()
    with pytest.raises(ConfigError, match=rf"evaluation.model_path={run} is a model without"):
        settings(f"evaluation.model_path={run}")
    for given in ("model=smollm2_135m", "experiment=debug", "model=tiny"):
        found = settings(f"evaluation.model_path={bare}", given)
        assert found.config == compose(
            "evaluate", [f"evaluation.model_path={bare}", given], run_dir="runs/evaluated"
        )
        assert (found.told, found.own, found.tree) == ((), {}, None)
    assert settings(f"evaluation.model_path={bare}", "model=pretrained").config.model.dtype == (
        "bfloat16"
    )


def test_each_of_several_runs_brings_its_own_model(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", ["experiment=debug", "model.prompt_template=default"])
    two = make_run(tmp_path / "two", ["experiment=debug", "model.system_prompt=Speak.", "seed=3"])
    found = settings(f"evaluation.models={{a: {one}, b: {two}}}")
    spoken = {n: (c.model.prompt_template, c.model.system_prompt) for n, c in found.own.items()}
    assert spoken == {"a": ("default", "Answer."), "b": ("compact", "Speak.")}
    assert [line.split("; ")[0] for line in found.told] == [
        f"settings of {one}",
        f"settings of {two}",
    ]
    bare = make_model(tmp_path / "bare")
    found = settings(f"evaluation.models={{a: {one}, base: {bare}}}", "model=smollm2_135m")
    assert {c.model.name for c in (found.config, *found.own.values())} == {"smollm2_135m"}
    assert found.config.evaluation.max_rounds == 6  # experiment=debug's


def test_runs_with_different_tasks_or_limits_are_refused(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", ["experiment=debug"])
    two = make_run(tmp_path / "two", ["experiment=debug", "data.objectives=1", "retriever.top_k=4"])
    asked = f"evaluation.models=[{one},{two}]"
    with pytest.raises(ConfigError) as caught:
        settings(asked)
    told = str(caught.value)
    assert f"data.objectives: 2 in {one}, 1 in {two}" in told
    assert f"retriever.top_k: 1 in {one}, 4 in {two}" in told
    assert "Give them on the command line, as data.objectives=VALUE" in told
    with pytest.raises(ConfigError, match=r"top_k: 1 in"):
        settings(asked, "data.objectives=1")
    assert settings(asked, "data.objectives=1", "retriever.top_k=2").config.retriever.top_k == 2


def test_relative_paths_start_where_the_run_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        folder.mkdir()
    for name in ("q.jsonl", "mine.txt"):
        (there / name).write_text("{{ question }}")
    monkeypatch.chdir(here)
    overrides = ["model=smollm2_135m", *LOCAL, "model.prompt_template=mine.txt"]
    run = make_run(tmp_path / "run", overrides, started_in=there)
    config = settings(f"evaluation.model_path={run}").config
    assert config.data.questions == str(there / "q.jsonl")
    assert config.model.prompt_template == str(there / "mine.txt")
    assert config.data.corpus == "c.jsonl"  # not there either: told by its name
    config = settings(f"evaluation.model_path={run}", "data.questions=own.jsonl").config
    assert config.data.questions == "own.jsonl"
    monkeypatch.chdir(there)
    assert settings(f"evaluation.model_path={run}").config.data.questions == "q.jsonl"


def test_so_do_those_of_a_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        folder.mkdir()
    (there / "q.jsonl").write_text("{}")
    monkeypatch.chdir(here)
    sets = "data.mix={nq: {format: open_qa, questions: q.jsonl, corpus: c.jsonl}}"
    overrides = ["model=smollm2_135m", "data=mix", sets]
    run = make_run(tmp_path / "run", overrides, started_in=there)
    (one,) = settings(f"evaluation.model_path={run}").config.data.sets().values()
    assert (one.questions, one.corpus) == (str(there / "q.jsonl"), "c.jsonl")
    changed = settings(f"evaluation.model_path={run}", "++data.mix.nq.questions=own.jsonl").config
    assert changed.data.sets()["nq"].questions == "own.jsonl"


def test_settings_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ["experiment=debug"])
    file = run / ".hydra" / "config.yaml"
    text = file.read_text()
    file.write_text(text + "\nmodel: [")
    with pytest.raises(ConfigError, match=r"config\.yaml: the run's settings cannot be read"):
        settings(f"evaluation.model_path={run}")
    # YAML that would make objects is not read: nothing of the file is run.
    file.write_text("model: !!python/object/apply:os.system ['exit 1']\n")
    with pytest.raises(ConfigError, match=r"config\.yaml: the run's settings cannot be read"):
        settings(f"evaluation.model_path={run}")
    file.write_text(text.replace("prompt_template:", "prompt_tenplate:"))
    with pytest.raises(ConfigError, match=rf"model.prompt_tenplate: .*\n.*settings of {file}"):
        settings(f"evaluation.model_path={run}")


def test_what_only_training_reads_is_not_brought(tmp_path: Path) -> None:
    """A template file that is gone, whose text the run's model folder holds, and sampling."""
    run = make_run(tmp_path / "run", ["experiment=debug"])
    file = run / ".hydra" / "config.yaml"
    tree = cast(DictConfig, OmegaConf.load(file))
    tree.model.chat_template, tree.rollout.top_p = "gone.jinja", 0.9
    OmegaConf.save(tree, file)
    config = settings(f"evaluation.model_path={run}").config
    assert (config.model.chat_template, config.rollout.top_p) == (None, 1.0)


def test_missing_paths_are_told_before_the_imports(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ["model=smollm2_135m", *LOCAL])
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from mempo.command.evaluate import main\n"
        "try: main()\n"
        "finally: print(sorted({'vllm', 'torch', 'transformers'} & sys.modules.keys()))\n"
    )
    asked = [f"evaluation.model_path={run}", f"run_dir={tmp_path}/evaluated"]
    output = run_program(str(program), *asked, expect=2, folder=tmp_path)
    assert "error: data.corpus=c.jsonl: no such file or folder" in output
    assert output.endswith("\n[]\n")
    assert not (tmp_path / "evaluated").exists()
    output = run_program(
        str(program), *asked, "model.prompt_template=nowhere", "data=world", expect=2,
        folder=tmp_path,
    )  # fmt: skip
    assert "error: model.prompt_template=nowhere: no such template" in output
    asked[0] = f"evaluation.model_path={tmp_path}/missing"
    output = run_program(str(program), *asked, expect=2, folder=tmp_path)
    assert f"error: evaluation.model_path={tmp_path}/missing: no such folder" in output
    assert output.endswith("\n[]\n")


def with_tool(run: Path, target: str) -> Path:
    """The run with one more tool."""
    file = run / ".hydra" / "config.yaml"
    tree = cast(DictConfig, OmegaConf.load(file))
    tree.tools.append({"tag": "mine", "_target_": target, "description": "to do it"})
    OmegaConf.save(tree, file)
    return run


def test_a_run_brings_its_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from the folder that it was started in, where another one is the current one."""
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        folder.mkdir()
    (there / "a_tool_of_there.py").write_text("def tool(argument, task): return argument\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(here)
    target = "a_tool_of_there.tool"
    own = with_tool(make_run(tmp_path / "own", ["experiment=debug"], there), target)
    usual = make_run(tmp_path / "usual", ["experiment=debug"], there)
    found = settings(f"evaluation.model_path={own}", "tools.1.timeout_s=4")
    assert [(one.tag, one._target_) for one in found.config.tools[2:]] == [("mine", target)]
    assert found.config.tools[1].timeout_s == 4
    assert found.told == [
        f"settings of {own}; its own tools: {target}; changed here: tools.1.timeout_s=4"
    ]
    check_evaluated_paths(found.config)
    assert settings(f"evaluation.model_path={own}", "tools=default").config.tools == DEFAULT_TOOLS
    both = settings(f"evaluation.models={{a: {own}, b: {usual}}}").own
    assert {name: len(one.tools) for name, one in both.items()} == {"a": 3, "b": 2}
    decided = {name: deciding_settings(one, ("tools",)) for name, one in both.items()}
    assert decided["a"] != decided["b"]
    assert "timeout_s" not in decided["a"]["tools"]["2"]
    lost = with_tool(make_run(tmp_path / "lost", ["experiment=debug"], here), "nowhere_at_all.tool")
    with pytest.raises(ConfigError, match=r"tools\.2\._target_=nowhere_at_all.*no module nowhere"):
        check_evaluated_paths(settings(f"evaluation.model_path={lost}").config)


def test_damaged_tools_of_a_run_get_a_sentence(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ["experiment=debug"])
    file = run / ".hydra" / "config.yaml"
    tree = cast(DictConfig, OmegaConf.load(file))
    tree.tools = {"search": 1}
    OmegaConf.save(tree, file)
    with pytest.raises(ConfigError, match=r"config\.yaml: tools is no list: repair or remove"):
        settings(f"evaluation.model_path={run}")
