"""The configuration tree: everything in ``conf/`` composes, and every wrong setting says so
(around the method)."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from itertools import product
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import pytest
from hydra.errors import ConfigCompositionException, MissingConfigException
from omegaconf import DictConfig, OmegaConf

from mempo.command.cli import CONF_DIR, compose, compose_tree, to_config
from mempo.config import Config
from mempo.config.paths import path_settings
from mempo.runtime.errors import ConfigError, MempoError
from mempo.runtime.friendly_errors import friendly_errors
from mempo.training.module import learning_rate_factor

PROGRAMS = ("train", "evaluate")

# What a variant cannot do without.
NEEDS = {
    ("model", "pretrained"): ["model.path=some/folder"],
    ("sft", "file"): ["sft.path=trajectories.jsonl"],
    ("reward", "judge"): ["reward.judge.url=http://127.0.0.1:8000/v1", "reward.judge.model=judge"],
    ("engine", "openai"): ["engine.url=http://127.0.0.1:8000/v1"],
    ("data", "hotpotqa"): ["data.questions=questions.json"],
    ("data", "musique"): ["data.questions=questions.jsonl"],
    ("data", "mix"): [
        "data.mix={one: {format: hotpotqa, questions: a.json}, two: {format: open_qa, "
        "questions: b.jsonl}}",
        "data.corpus=corpus.jsonl",
    ],
    **{
        ("data", name): ["data.questions=questions.jsonl", "data.corpus=corpus.jsonl"]
        for name in ("local", "search_r1", "asearcher", "open_qa")
    },
}

# What does not go together: options that need another one, and are tried with that instead.
INSTEAD = {
    ("retriever", "bm25s"): ("data", "local"),  # a generated world has no corpus file
    ("retriever", "http"): ("data", "local"),
}

GROUPS = {
    folder.name: sorted(file.stem for file in folder.glob("*.yaml"))
    for folder in sorted(CONF_DIR.iterdir())
    if folder.is_dir()
}


def choices(*pairs: tuple[str, str]) -> list[str]:
    for needy, instead in INSTEAD.items():
        if needy in pairs:
            pairs = (*(pair for pair in pairs if pair[0] != instead[0]), instead)
    if ("retriever", "http") in pairs:
        return [f"{group}={option}" for group, option in pairs] + [
            "retriever.url=http://127.0.0.1:8000",
            "data.questions=questions.jsonl",
            *(setting for pair in pairs if pair[0] != "data" for setting in NEEDS.get(pair, [])),
        ]
    overrides = [f"{group}={option}" for group, option in pairs]
    return overrides + [setting for pair in pairs for setting in NEEDS.get(pair, [])]


def covering(groups: dict[str, list[str]]) -> list[tuple[tuple[str, str], ...]]:
    """Few combinations of one option per group that hold every pair of options of two groups."""
    names = list(groups)
    missing = {
        frozenset(pair)
        for a, b in product(names, names)
        if a < b
        for pair in product([(a, x) for x in groups[a]], [(b, y) for y in groups[b]])
    }
    rows: list[tuple[tuple[str, str], ...]] = []
    while missing:
        row: list[tuple[str, str]] = sorted(sorted(missing, key=sorted)[0])
        for name in names:
            if all(name != group for group, _ in row):
                row.append(
                    max(
                        ((name, option) for option in groups[name]),
                        key=lambda new: sum(frozenset((new, old)) in missing for old in row),
                    )
                )
        missing -= {frozenset((a, b)) for a, b in product(row, row)}
        rows.append(tuple(row))
    return rows


# Whole settings, and what --multirun alone reads.
APART = ("experiment", "sweep")
COMBINATIONS = covering({k: v for k, v in GROUPS.items() if k not in APART})


def test_combinations_hold_every_option() -> None:
    seen = {pair for row in COMBINATIONS for pair in row}
    assert seen == {(g, o) for g, options in GROUPS.items() if g not in APART for o in options}
    assert {"algorithm", "model", "data", "retriever", "rollout", "trainer", "logger"} <= set(
        GROUPS
    )


@pytest.mark.parametrize("row", COMBINATIONS, ids=lambda row: ",".join(o for _, o in row))
def test_every_combination_composes_and_loads(row: tuple[tuple[str, str], ...]) -> None:
    overrides = choices(*row)
    config = compose("train", overrides)
    assert config.algorithm.name == dict(row)["algorithm"]
    assert config.model.name == dict(row)["model"]


def test_both_programs_have_the_same_groups_and_settings() -> None:
    train, evaluate = (dict(compose_tree(program)) for program in PROGRAMS)
    assert (
        train.keys() - {"ckpt_path", "resume"} == evaluate.keys()
    )  # evaluate.py goes on from nothing
    assert {key for key in evaluate if train[key] != evaluate[key]} == {"logger"}


OWN_FILES = ("debug", "smollm2_local")


@pytest.mark.parametrize("experiment", GROUPS["experiment"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_experiment_composes_and_loads(program: str, experiment: str) -> None:
    # An experiment on one's own data takes the two files from the command line.
    files = ["data.questions=q.jsonl", "data.corpus=c.jsonl"] if experiment in OWN_FILES else []
    compose(program, [f"experiment={experiment}", *files])


@pytest.mark.parametrize("model", GROUPS["model"])
def test_conf_names_every_setting(model: str) -> None:
    """``conf/`` is the map of the program: no setting of the dataclasses is left to a default."""
    tree = compose_tree("train", choices(("model", model)))
    assert missing_settings(Config, tree) == []


def missing_settings(kind: Any, node: DictConfig, prefix: str = "") -> list[str]:
    hints = get_type_hints(kind)
    missing: list[str] = []
    for one in fields(kind):
        if one.name not in node:
            missing.append(prefix + one.name)
            continue
        if get_origin(hints[one.name]) is dict:
            continue  # named by the person; what each leaves out is as elsewhere
        nested = (hints[one.name], *getattr(hints[one.name], "__args__", ()))
        value = node._get_node(one.name)
        for candidate in nested:
            if is_dataclass(candidate) and isinstance(value, DictConfig) and not value._is_none():
                missing += missing_settings(candidate, value, f"{prefix}{one.name}.")
    return missing


@pytest.mark.parametrize("file", sorted(CONF_DIR.glob("*/*.yaml")), ids=lambda f: f.stem)
def test_files_begin_with_what_they_are(file: Path) -> None:
    lines = [line for line in file.read_text().splitlines() if not line.startswith("# @package")]
    assert lines[0].startswith("# ")


@pytest.mark.parametrize("group", sorted(set(GROUPS) - {*APART}))
def test_every_setting_has_a_comment(group: str) -> None:
    """In at least one file of its folder, behind it or on the node that holds it."""
    explained: set[str] = set()
    named: set[str] = set()
    for file in (CONF_DIR / group).glob("*.yaml"):
        for line in file.read_text().splitlines():
            match = re.match(r"\s*([a-z_]+):(.*)", line)
            if match and match[1] != "defaults":
                named.add(match[1])
                if "#" in match[2]:
                    explained.add(match[1])
    sizes = {
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "vocab_size", "max_position_embeddings", "tie_word_embeddings",
    }  # fmt: skip
    plain = {"name", "format", "kind", "system_prompt", "reward", "algorithm", "memory_context"}
    assert named - explained <= sizes | plain


def test_variants_of_the_algorithm() -> None:
    """Specification sections 5 to 8."""
    variants = {name: compose("train", [f"algorithm={name}"]) for name in GROUPS["algorithm"]}
    default, reference = variants["mempo"], variants["mempo_reference"]
    paper, grpo = variants["mempo_paper"], variants["grpo"]
    assert compose("train").algorithm.name == "mempo"
    assert (default.scoring.threshold, default.scoring.empty) == (None, "unfiltered")
    assert (default.memory.weight, default.memory.std_floor) == (1.0, 1e-3)
    assert (default.outcome.std_floor, default.loss.aggregation) == (0.0, "token_mean")
    assert (reference.scoring.threshold, reference.scoring.empty) == (0.5, "one")
    assert reference.memory.std_floor == 0.0
    assert paper.loss.aggregation == "trajectory_mean"
    assert (paper.loss.kl_coefficient, paper.scoring.threshold) == (1e-3, None)
    assert grpo.memory.weight == 0.0
    assert (grpo.loss, grpo.outcome, grpo.scoring) == (
        default.loss, default.outcome, default.scoring,
    )  # fmt: skip


@pytest.mark.parametrize("program", ["train", "evaluate"])
@pytest.mark.parametrize("model", ["tiny", "smollm2_135m", "qwen2_5_7b"])
def test_the_reference_is_the_released_code_whole_whatever_the_model(
    program: str, model: str
) -> None:
    """Specification sections 6, 7 and 9: filter, degenerate case, floor, scored text, context."""
    config = compose(program, ["algorithm=mempo_reference", f"model={model}"])
    assert config.algorithm.name == "mempo_reference"
    assert (config.scoring.threshold, config.scoring.empty) == (0.5, "one")
    assert (config.scoring.mask, config.scoring.gold) == ("separate", "first")
    template, filler = config.scoring.answer_template, config.scoring.filler
    assert template.format(filler=filler, gold="Paris") == (
        "\n<think>I can answer now.\n</think>\n<answer>\nParis\n</answer>"
    )
    assert (config.outcome.std_floor, config.outcome.normalize_std) == (0.0, True)
    assert (config.memory.weight, config.memory.pool) == (1.0, "group")
    assert (config.memory.std_floor, config.memory.normalize_std) == (0.0, True)
    assert not config.memory.only_if_outcome_nonnegative
    assert config.memory.length_penalty == 0.0
    loss = config.loss
    assert (loss.clip_low, loss.clip_high, loss.dual_clip) == (0.2, 0.2, 3.0)
    assert (loss.aggregation, loss.kl_coefficient) == ("token_mean", 0.0)
    assert (loss.entropy_coefficient, loss.importance_cap) == (0.0, None)
    assert config.rollout.context == "full"
    for context in (config.rollout.memory_context, config.evaluation.memory_context):
        assert (context.newest, context.keep_steps) == ("short", 1)
    # Other variants keep the model's answer form and the readable context.
    default = compose(program, ["algorithm=mempo", f"model={model}"])
    assert default.evaluation.memory_context.newest == "full"
    assert default.scoring.filler == ("Done." if model == "tiny" else "I can answer now.")


def test_the_command_line_overrides_the_reference() -> None:
    config = compose(
        "train",
        ["algorithm=mempo_reference", "scoring.filler=x", "rollout.memory_context.newest=full"],
    )
    assert (config.scoring.filler, config.rollout.memory_context.newest) == ("x", "full")
    assert config.evaluation.memory_context.newest == "short"


def test_model_files_choose_a_fitting_learning_rate_and_overrides_win() -> None:
    assert compose("train", ["model=tiny"]).optimizer.learning_rate == 3e-4
    assert compose("train", ["model=qwen2_5_7b"]).optimizer.learning_rate == 1e-6
    assert compose("train", ["model=qwen2_5_7b"]).sft.learning_rate == 1e-5
    assert compose("train", ["model=qwen2_5_7b", "sft=pretrained"]).sft.learning_rate == 1e-5
    chosen = compose("train", ["model=tiny", "optimizer=default", "optimizer.learning_rate=0.5"])
    assert chosen.optimizer.learning_rate == 0.5


@pytest.mark.parametrize("model", sorted(set(GROUPS["model"]) - {"tiny"}))
def test_a_real_model_starts_from_itself_or_from_files(model: str) -> None:
    """The world's memories leave out what they know, to leave the tiny model something to learn."""
    needs = NEEDS.get(("model", model), [])
    assert not compose("train", [f"model={model}", *needs]).sft.enabled
    files = compose("train", [f"model={model}", *needs, "sft=file", "sft.path=[a.jsonl, b]"]).sft
    assert (files.enabled, files.source, files.paths) == (True, "file", ("a.jsonl", "b"))
    assert compose("train", [f"model={model}", *needs, "sft=pretrained"]).sft.source == "world"


def test_the_small_experiment_starts_in_the_world() -> None:
    local = ["experiment=smollm2_local", "data.questions=q", "data.corpus=c"]
    sft = compose("train", local).sft
    assert (sft.enabled, sft.source, sft.steps, sft.worlds) == (True, "world", 30, 8)
    assert compose("train", ["model=tiny"]).sft.drop_probability == 0.45


def test_run_dir() -> None:
    assert compose("train", run_dir="some/run folder").run_dir == "some/run folder"
    assert compose("train", ["run_dir=other"], run_dir="some/run").run_dir == "other"


def test_the_home_folder_is_expanded_in_every_path_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert set(path_settings(Config)) == {
        *("run_dir", "cache_dir", "ckpt_path", "retriever.index"),
        *("model.path", "model.prompt_template", "model.chat_template"),
        *("data.questions", "data.heldout_questions", "data.corpus", "data.aliases"),
        *("evaluation.model_path", "evaluation.models", "sft.path", "reward.judge.prompt"),
    }
    needs = ["data=hotpotqa", "data.questions=q", "data.corpus=c", "retriever.kind=bm25s"]
    for setting in path_settings(Config):
        file = ["sft.source=file"] if setting == "sft.path" else []
        value: Any = compose("train", [*needs, *file, f'{setting}="~/a ~"'])
        for name in setting.split("."):
            value = getattr(value, name)
        assert value == "/home/someone/a ~", setting
    for models in ({"one": "/home/someone/m"}, ("/home/someone/m",)):
        given = "{one: '~/m'}" if isinstance(models, dict) else "['~/m']"
        assert compose("train", [f"evaluation.models={given}"]).evaluation.models == models
    assert compose("train", ['scoring.filler="~ no"']).scoring.filler == "~ no"
    with pytest.raises(ConfigError, match=r"^cache_dir: there is no home folder ~no.one: "):
        compose("train", ['cache_dir="~no.one/x"'])


@pytest.mark.parametrize("program", PROGRAMS)
def test_misspelled_override_gets_hydras_own_message(program: str) -> None:
    with pytest.raises(ConfigCompositionException, match=r"Could not override 'rollout.grup_size'"):
        compose(program, ["rollout.grup_size=4"])


def test_added_setting_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.grup_size: there is no such setting"):
        compose("train", ["+rollout.grup_size=4"])


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_unknown_variant_lists_the_known_ones(group: str) -> None:
    with pytest.raises(MissingConfigException) as caught:
        compose("train", [f"{group}=no_such_variant"])
    assert all(option in str(caught.value) for option in GROUPS[group])


LOCAL = ["data=local", "data.questions=q"]
SERVED = ["engine=openai", "engine.url=http://h/v1"]
HTTP = [*LOCAL, "retriever=http", "retriever.url=http://127.0.0.1:8000"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rollout.group_size=1"], ["rollout.group_size=1", "at least 2", "16"]),
        (["rollout.max_rounds=1"], ["rollout.max_rounds=1", "memory.weight=0"]),
        (["rollout.max_rounds=many"], ["rollout.max_rounds='many'", "integer"]),
        (["rollout.temperature=0"], ["rollout.temperature=0", "greater than 0"]),
        (["rollout.top_p=0.9"], ["rollout.top_p=0.9", "leave it at 1", "evaluation.top_p"]),
        (["rollout.top_k=20"], ["rollout.top_k=20", "leave it at -1", "evaluation.top_k"]),
        (["evaluation.top_p=0"], ["evaluation.top_p=0", "greater than 0"]),
        (["rollout.context=both"], ["rollout.context='both'", "'full' or 'memory'"]),
        (["rollout.memory_context.keep_steps=0"], ["rollout.memory_context", "keep_steps", "all"]),
        (["memory.weight=-1"], ["memory.weight=-1", "greater than or equal to 0"]),
        (["memory.pool=batch"], ["memory.pool='batch'", "'group' or 'round'"]),
        (["scoring.threshold=1.5"], ["scoring.threshold=1.5", "less than 1"]),
        (["scoring.mask=full"], ["scoring.mask=full", "scoring.threshold", "separate"]),
        (["scoring.enabled=false"], ["scoring.enabled=false", "memory.weight=0"]),
        (["scoring.reward=log"], ["scoring.reward='log'", "'probability' or 'log_probability'"]),
        (
            ["scoring.baseline=previous", "scoring.mask=full", "scoring.threshold=0.5"],
            ["scoring.mask=full", "scoring.mask=separate", "scoring.baseline=history"],
        ),
        (
            ["scoring.baseline=previous", "scoring.history=trajectory"],
            ["scoring.history=trajectory", "scoring.history=visible", "scoring.baseline=history"],
        ),
        (["memory.gamma=1.5"], ["memory.gamma=1.5", "less than or equal to 1"]),
        (["scoring.answer_template=x"], ["scoring.answer_template", "{gold}"]),
        (["loss.clip_low=1.5"], ["loss.clip_low=1.5", "less than 1"]),
        (["loss.dual_clip=1"], ["loss.dual_clip=1", "greater than 1"]),
        (["optimizer.learning_rate=0"], ["optimizer.learning_rate=0", "greater than 0"]),
        (["data.world.min_hops=3"], ["data.world.min_hops=3", "data.world.max_hops", "lower"]),
        (["data=local"], ["data.questions is empty", "data.questions=<file.jsonl>"]),
        (["data=local", "data.questions=q"], ["data.corpus is empty", "data.corpus=<file.jsonl>"]),
        ([*LOCAL, "retriever=http"], ["retriever.url is empty", "retriever.url=http://"]),
        ([*HTTP, "retriever.url=localhost:80"], ["retriever.url=localhost:80", "http://<host>"]),
        ([*HTTP, "retriever.url=http://h/retrieve"], ["retriever.url=http://h/retrieve", "leave"]),
        ([*HTTP, "retriever.title_weight=3"], ["retriever.title_weight=3", "--title-weight"]),
        ([*HTTP, "retriever.read_timeout_s=60"], ["retriever.read_timeout_s=60", "timeout_s=30"]),
        ([*HTTP, "retriever.retries=-1"], ["retriever.retries=-1", "greater than or equal"]),
        ([*HTTP, "retriever.protocol=rest"], ["retriever.protocol='rest'", "'asearcher'"]),
        ([*HTTP, "data.corpus=c"], ["data.corpus=c is not read", "retriever.kind=http"]),
        ([*HTTP, "retriever.index=i"], ["retriever.index=i is not read", "retriever=bm25s"]),
        (["retriever.url=http://h"], ["retriever.url=http://h is not read", "retriever=http"]),
        (["engine=openai"], ["engine.url is empty", "engine.url=http://<host>:<port>/v1"]),
        ([*SERVED, "engine.url=localhost:80"], ["engine.url=localhost:80", "http://<host>"]),
        ([*SERVED, "engine.url=http://a:sk-1@h/v1"], ["a user or a key", "OPENAI_API_KEY"]),
        ([*SERVED, "engine.url=http://h/v1/chat/completions"], ["one of the server's paths"]),
        ([*SERVED, "engine.api_key_env=sk-1"], ["the name of an environment variable"]),
        ([*SERVED, "engine.read_timeout_s=1000"], ["engine.read_timeout_s=1000", "timeout_s=900"]),
        (["engine.url=http://h/v1"], ["engine.url=http://h/v1 is not read", "engine=openai"]),
        (["retriever=bm25s"], ["retriever.kind=bm25s", "data.format=world", "data=local"]),
        (["retriever.kind=elastic"], ["retriever.kind='elastic'", "'bm25s' or 'http'"]),
        (["model=pretrained"], ["model.path is empty", "hub name"]),
        (["model.architecture=null"], ["model.architecture is missing"]),
        (["sft.answer_share=0.9"], ["sft.answer_share", "1.7", "add up to 1"]),
        (["sft=file"], ["sft.path is empty", "sft.source=file", "docs/cold_start.md"]),
        (["sft.path=a"], ["sft.path=a is not read", "sft.source=world", "sft=file"]),
        (["sft.source=chat"], ["sft.source='chat'", "'world' or 'file'"]),
        (["sft=none", "sft.source=file", "sft.path=a"], ["sft.enabled=false", "sft=file"]),
        (["sft.heldout_share=0.1"], ["sft.heldout_share=0.1 is not read", "leave it at 0"]),
        (["sft=file", "sft.path=a", "sft.may_break=[9]"], ["sft.may_break", "9", "8"]),
        (["sft.train=adapters"], ["sft.train=adapters", "lora=default", "sft.train=all"]),
        (["trainer.strategy=fsdp"], ["trainer.strategy=fsdp", "trainer=fsdp2"]),
        (["trainer.strategy=deepspeed_stage_3"], ["deepspeed_stage_3", "vLLM", "trainer=fsdp2"]),
        (["trainer.strategy=ddp_spawn"], ["trainer.strategy=ddp_spawn", "trainer=ddp"]),
        (
            ["trainer=ddp", "trainer.sharding.replicas=2"],
            ["trainer.sharding.replicas is not read with trainer.strategy=ddp", "trainer=fsdp2"],
        ),
        (["trainer.strategy=tpu"], ["trainer.strategy='tpu'", "'auto'", "'fsdp2'"]),
        (["trainer.lightning.profiler=best"], ["trainer.lightning.profiler", "'simple'"]),
        (["evaluation.contexts=[all]"], ["evaluation.contexts", "'all'", "'memory' or 'full'"]),
        (["seed=-1"], ["seed=-1", "greater than or equal to 0"]),
        (["cache_dir=${nowhere}"], ["cache_dir", "nowhere"]),
        (["cache_dir=???"], ["cache_dir", "Missing mandatory value"]),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) and "=" in value[-1] else "",
)
def test_wrong_value_names_setting_and_remedy(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        compose("train", overrides)
    for word in words:
        assert word in str(caught.value)


def test_a_key_in_the_address_is_not_told_again() -> None:
    with pytest.raises(ConfigError) as caught:
        compose("train", ["engine=openai", "engine.url=http://a:sk-1@h/v1"])
    assert "sk-1" not in str(caught.value)


def test_several_wrong_values_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        compose("train", ["rollout.top_p=2", "loss.clip_high=0"])
    assert {line.split("=")[0] for line in str(caught.value).splitlines()} == {
        "rollout.top_p",
        "loss.clip_high",
    }


def test_to_config_takes_a_composed_tree() -> None:
    tree = compose_tree("train", ["seed=7"])
    OmegaConf.set_readonly(tree, True)
    assert to_config(tree).seed == 7


@pytest.mark.parametrize("error", [MempoError("say what"), ConfigError("say what")])
def test_friendly_errors_end_with_message_and_code_2(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    @friendly_errors()
    def program() -> None:
        raise error

    for _ in range(2):  # a decorated function may be called again
        with pytest.raises(SystemExit) as caught:
            program()
        assert caught.value.code == 2
        assert capsys.readouterr().err == "error: say what\n"


def test_other_errors_keep_their_traceback() -> None:
    with pytest.raises(ZeroDivisionError), friendly_errors():
        _ = 1 / 0


def test_help_explains_the_program_and_lists_groups(tmp_path: Path) -> None:
    """Hydra's help needs ``hydra.main``; a stand-in program has the same configuration."""
    for name in PROGRAMS:
        program = tmp_path / f"{name}.py"
        program.write_text(
            "import hydra\n"
            f"@hydra.main('{CONF_DIR}', '{name}', version_base='1.3')\n"
            "def main(cfg): pass\n"
            "main()\n"
        )
        result = subprocess.run(
            [sys.executable, str(program), "--help"], capture_output=True, text=True, check=True
        )
        for group, options in GROUPS.items():
            assert f"{group}: {', '.join(options)}" in result.stdout
        for word in ("MemPO", "usage:", "examples", "main settings", "run_dir"):
            assert word in result.stdout
        assert ("resume " in result.stdout.partition("main settings")[2]) == (name == "train")


@pytest.mark.parametrize(
    ("overrides", "factors"),
    [
        ([], [1.0, 1.0, 1.0, 1.0, 1.0]),
        (["optimizer.warmup_epochs=2"], [1 / 3, 2 / 3, 1.0, 1.0, 1.0]),
        (["optimizer.decay=linear"], [1.0, 0.8, 0.6, 0.4, 0.2]),
        (["optimizer.decay=linear", "optimizer.warmup_epochs=1"], [0.5, 1.0, 0.75, 0.5, 0.25]),
        (["optimizer.decay=linear", "optimizer.warmup_epochs=9"], [0.1, 0.2, 0.3, 0.4, 0.5]),
    ],
)
def test_learning_rate_by_step(overrides: list[str], factors: list[float]) -> None:
    settings = compose("train", ["model=qwen2_5_0_5b", *overrides]).optimizer
    found = [learning_rate_factor(settings, step, 5) for step in range(5)]
    assert found == pytest.approx(factors)
    assert learning_rate_factor(settings, 50, 5) in (0.0, 1.0)


def test_settings_need_no_torch() -> None:
    """A wrong setting is told at once, not after the seconds that torch takes to import."""
    program = "import sys, mempo.config; assert not {'torch', 'lightning', 'vllm'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_mempo_plus_is_mempo_in_the_memory_context() -> None:
    plus = compose("train", ["algorithm=mempo_plus"])
    assert plus.algorithm.name == "mempo_plus"
    usual = compose("train", ["rollout.context=memory"])
    assert dataclasses.replace(plus, algorithm=usual.algorithm) == usual
    # It comes behind the limits of rollouts, and what the command line says wins.
    full = compose("train", ["algorithm=mempo_plus", "rollout.context=full", "rollout=short"])
    assert (full.rollout.context, full.rollout.max_round_tokens) == ("full", 160)
