"""What cannot be trained, or cannot be reached, is told before it is loaded (around the method)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mempo.command.cli import compose
from mempo.command.preflight import check_paths
from mempo.runtime.errors import ConfigError
from tests.support.programs import ROOT


def check(folder: Path, configuration: dict[str, Any], *overrides: str) -> None:
    (folder / "config.json").write_text(json.dumps(configuration))
    check_paths(compose("train", ["model=pretrained", f"model.path={folder}", *overrides]))


QWEN = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 8}
COHERE = {
    "architectures": ["Cohere2ForCausalLM"],
    "model_type": "cohere2",
    "sliding_window": 4096,
    "max_position_embeddings": 8192,
}
MAMBA = {"architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba"}
MIXED = {
    "architectures": ["SomeForCausalLM"],
    "model_type": "some",
    "layer_types": ["linear_attention", "full_attention"],
}
ON_GPU = "trainer.accelerator=gpu"
GEMMA = {"architectures": ["Gemma2ForCausalLM"], "attn_logit_softcapping": 50.0}


@pytest.mark.parametrize(
    ("configuration", "overrides", "words"),
    [
        (QWEN, [], r"Qwen3MoeForCausalLM.*choose a model without experts"),
        ({"architectures": ["MixtralForCausalLM"], "num_local_experts": 8}, [], "experts"),
        ({"architectures": ["DeepseekV3ForCausalLM"], "n_routed_experts": 256}, [], "experts"),
        (QWEN, ["trainer=fsdp2", ON_GPU], r"Qwen3MoeForCausalLM.*choose a model without experts"),
        (MAMBA, [ON_GPU], r"FalconMambaForCausalLM.*recurrent layers.*trainer\.accelerator=cpu"),
        (MIXED, [ON_GPU], r"SomeForCausalLM.*recurrent layers"),
        (COHERE, [], r"Cohere2ForCausalLM.*engine\.max_model_len=4096"),
        (COHERE, ["engine.max_model_len=4097"], r"one token more"),
        (GEMMA, ["model.attention=sdpa"], r"Gemma2ForCausalLM.*model\.attention=auto"),
        ({"architectures": ["T5ForX"], "is_encoder_decoder": True}, [], "encoder and a decoder"),
        ({"architectures": ["BertForMaskedLM"]}, [], "no output layer for the next token"),
        (
            {"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {"a": 1}},
            [],
            "reads more than text",
        ),
        (
            {"architectures": ["LlamaForCausalLM"], "quantization_config": {"bits": 4}},
            [],
            "quantized",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_by_name(
    tmp_path: Path, configuration: dict[str, Any], overrides: list[str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        check(tmp_path, configuration, *overrides)


@pytest.mark.parametrize(
    ("configuration", "overrides"),
    [
        ({"architectures": ["Qwen2ForCausalLM"], "num_experts": 0}, ["trainer=fsdp2"]),
        (COHERE, ["engine.max_model_len=4096"]),
        (GEMMA, []),
        (GEMMA | {"layer_types": ["sliding_attention", "full_attention"]}, [ON_GPU]),
        (MAMBA, ["trainer.accelerator=cpu"]),
        (MIXED, ["trainer.accelerator=cpu"]),
        ({"architectures": ["GPT2LMHeadModel"]}, []),
    ],
)
def test_what_can_be_trained_passes(
    tmp_path: Path, configuration: dict[str, Any], overrides: list[str]
) -> None:
    check(tmp_path, configuration, *overrides)


def test_a_configuration_that_is_no_json_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"its config\.json cannot be read"):
        check_paths(compose("train", ["model=pretrained", f"model.path={tmp_path}"]))


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Takes every connection and never answers."""
    server = socket.create_server(("127.0.0.1", 0))
    taken: list[socket.socket] = []

    def take() -> None:
        while True:
            try:
                taken.append(server.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=take)
    thread.start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()
    for connection in taken:
        connection.close()


def environment(endpoint: str, cache: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    return {**kept, "HF_ENDPOINT": endpoint, "HF_HOME": str(cache), "NO_PROXY": "127.0.0.1"}


def test_a_hub_that_never_answers_is_told_within_seconds(
    silent_server: str, tmp_path: Path
) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [
            *(sys.executable, "train.py", "model=pretrained", "model.path=some/model"),
            f"run_dir={tmp_path / 'run'}",
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        env=environment(silent_server, tmp_path),
    )
    assert done.returncode != 0
    assert "model some/model: there is no such folder, and the hub" in done.stderr + done.stdout
    assert "give a folder with the model in model.path" in done.stderr + done.stdout
    assert time.monotonic() - began < 25  # 5 of them are the wait, the rest imports
    assert "Traceback" not in done.stderr


def test_a_model_that_was_downloaded_is_read_without_the_hub(
    silent_server: str, tmp_path: Path
) -> None:
    revision = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--some--model"
    snapshot = repository / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    (snapshot / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    program = (
        "import time; from mempo.models.hub import read_configuration as read\n"
        "began = time.monotonic(); print(read('some/model'), read('some/model'))\n"
        "assert time.monotonic() - began < 15"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        env=environment(silent_server, tmp_path),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("LlamaForCausalLM") == 2
