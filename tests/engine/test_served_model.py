"""``vllm serve`` gives what the in-process engine gives, token by token (specification section
4)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mempo.ask.agent import LoadedAgent
from mempo.ask.loading import load_agent
from mempo.demonstrations.shipped import SHIPPED
from mempo.trajectory import Trajectory
from tests.support.servers import free_port

pytestmark = pytest.mark.slow

QUESTIONS = [
    "Who is the teacher of the author of Almond Chronicle?",
    "Who is the author of Acorn Fable?; What is the birthplace of the author of Acorn Fable?",
]
SERVER_SECONDS = 300
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """vLLM's own server with the shipped model."""
    port, log = free_port(), tmp_path_factory.mktemp("server") / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1",
                "--port", str(port), "--model", str(SHIPPED), "--served-model-name", "tiny",
                "--dtype", "float32", "--enforce-eager", "--max-model-len", "2048",
                "--max-num-seqs", "8", "--no-enable-chunked-prefill", "--max-num-batched-tokens",
                "2048",
            ],
            stdout=output, stderr=subprocess.STDOUT, cwd=ROOT,
            env={
                **os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_NO_USAGE_STATS": "1",
            },
        )  # fmt: skip
        try:
            _wait(f"http://127.0.0.1:{port}/v1/models", process, log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait(30)


def _wait(page: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + SERVER_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(page, timeout=5):
                return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.3)
    raise AssertionError(log.read_text()[-3000:])


def loaded(*overrides: str) -> LoadedAgent:
    own = ["model=tiny", "engine.max_model_len=2048", "engine.max_num_seqs=8"]
    return load_agent(SHIPPED, overrides=[*overrides, *own], seed=3)


def ask(overrides: Sequence[str], sampled: str) -> list[Trajectory]:
    with loaded(*overrides, sampled) as agent:
        return agent.ask_many(QUESTIONS)


def test_the_server_gives_the_tokens_of_the_engine(url: str) -> None:
    sampled = "evaluation.temperature=1"
    there = ask(["engine=openai", f"engine.url={url}"], sampled)
    here = ask([], sampled)
    for one, other in zip(there, here, strict=True):
        assert len(one.rounds) > 1
        for part, expected in zip(one.sequences, other.sequences, strict=True):
            assert part.ids == expected.ids
            assert part.mask == expected.mask
            assert part.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
        assert (one.answer, one.ending) == (other.answer, other.ending)


def test_the_same_server_answers_chats(url: str) -> None:
    greedy = "evaluation.prefill_memory=false"
    exact = ask(["engine=openai", f"engine.url={url}"], greedy)
    chats = ask(["engine=openai", f"engine.url={url}", "engine.protocol=chat"], greedy)
    for one, other in zip(chats, exact, strict=True):
        assert [round_.text for round_ in one.rounds] == [round_.text for round_ in other.rounds]
        assert one.ending == other.ending
