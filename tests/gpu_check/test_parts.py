"""The programs of ``make gpu-check`` that look at the machine, at attention and at processes: what
they find, and that they see what is wrong (specification sections 8 and 10)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from torch import Tensor
from transformers import AttentionInterface

from benchmarks.common import load_model
from gpu_check import attention, installed, several
from gpu_check.checks import CHECKS
from gpu_check.running import judged, last_line
from mempo.learning import shared_prefix
from mempo.training.module import MemPOModule


def state(name: str, figure: float) -> str:
    (check,) = (one for one in CHECKS if one.name == name)
    return judged(check, figure, "")[0]


def test_another_version_and_a_missing_package_are_told() -> None:
    assert list(installed.unmet(Requirement("torch>=2"))) == []
    assert list(installed.unmet(Requirement(f"torch=={torch.__version__}"))) == []
    (other,) = installed.unmet(Requirement("torch==1.0"))
    assert other == f"torch is {torch.__version__}, and torch==1.0 was tested: make install"
    (missing,) = installed.unmet(Requirement("no-such-package-of-ours==1"))
    assert missing.startswith("no-such-package-of-ours==1 is not installed: make install")


def test_a_gpu_that_torch_does_not_see_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert list(installed.driver(0)) == []
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert list(installed.driver(1)) == []
    monkeypatch.setattr("torch.version.cuda", None)
    assert list(installed.driver(0)) == [
        "there is an NVIDIA driver, and torch is a build for CPUs: make clean-install GPU=1"
    ]
    monkeypatch.setattr("torch.version.cuda", "13.0")
    (hidden,) = installed.driver(0)
    assert "CUDA_VISIBLE_DEVICES may hide it" in hidden
    assert state("devices and versions", 1.0) == "failed"


def test_a_card_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls of a GPU, answered for one: an old card, half of which somebody uses, that computes
    wrongly."""

    class Old:
        name, major, minor = "Old", 7, 5

    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: Old())
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda index: (8 * 2**30, 16 * 2**30))
    monkeypatch.setattr(installed, "product_error", lambda device: float("nan"))
    found = list(installed.card(3))
    assert found[0] == "GPU 3, Old, has no bfloat16: model.dtype=float32"
    assert found[1].startswith("GPU 3: something holds 8.0 GiB of it")
    assert found[2].startswith("GPU 3 computes a matrix product wrongly")
    monkeypatch.undo()
    # Every factor is rounded by at most 2^-9 of itself, 0.0017 of the norm on average.
    assert 1e-3 < installed.product_error(torch.device("cpu")) < 5e-3


@pytest.fixture
def forgetful() -> Iterator[None]:
    """Attention behind a kept prefix that misses the prefix's first token."""
    right = shared_prefix.causal_behind_prefix

    def wrong(
        module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **more: Any
    ) -> Any:
        return right(module, query, key[:, :, 1:], value[:, :, 1:], *rest, **more)

    AttentionInterface.register("sdpa_behind_prefix", wrong)
    yield
    AttentionInterface.register("sdpa_behind_prefix", right)


def test_every_attention_agrees_and_a_fused_kernel_ran() -> None:
    found = attention.compare(load_model("tiny")[0], "float32")
    assert state("attention", found["worst_mean_difference"]) == "passed"
    assert 0 < found["sdpa, prompts in one pass"] < 1e-5
    assert found["kernels"] == ["_scaled_dot_product_flash_attention_for_cpu"]
    assert found["fused"] == 1


@pytest.mark.usefixtures("forgetful")
def test_attention_that_misses_a_token_is_seen() -> None:
    found = attention.compare(load_model("tiny")[0], "float32")
    assert state("attention", found["worst_mean_difference"]) == "failed"
    assert found["worst_mean_difference"] == found["sdpa, prompts kept"]
    assert found["sdpa, plain"] < 1e-5


@pytest.mark.slow
def test_an_update_and_its_saved_model_and_wrong_ones_of_both(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def figures() -> dict[str, Any]:
        words = ["several.py", "--strategy", "auto", "--devices", "1", "--lora", "--cpu"]
        monkeypatch.setattr("sys.argv", words)
        several.main()
        return last_line(capsys.readouterr().out)

    names = "gradient, one process, LoRA", "saved model, one process, LoRA"

    def states(found: dict[str, Any]) -> list[str]:
        keys = "gradient_difference", "saved_difference"
        return [state(name, found[key]) for name, key in zip(names, keys, strict=True)]

    good = figures()
    assert states(good) == ["passed", "passed"]
    assert good["gradient_difference"] < 1e-5
    right, step = MemPOModule.loss, several.Observed._step

    def heavier(self: MemPOModule, batch: Any) -> Any:
        loss, metrics = right(self, batch)
        return 1.01 * loss, metrics

    monkeypatch.setattr(MemPOModule, "loss", heavier)
    found = figures()
    assert states(found) == ["failed", "passed"]
    assert found["gradient_difference"] == pytest.approx(0.01, rel=1e-2)
    monkeypatch.setattr(MemPOModule, "loss", right)

    def moves(self: several.Observed) -> None:
        step(self)
        with torch.no_grad():
            next(p for n, p in self.model.named_parameters() if ".lora_A." in n).mul_(1.01)

    monkeypatch.setattr(several.Observed, "_step", moves)
    assert states(figures()) == ["passed", "failed"]
