"""An engine on a machine without a C++ compiler (specification section 10)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mempo.models.tiny import build_tiny_model, train_tokenizer
from tests.engine.test_vllm_engine import ARCHITECTURE, TEXTS

ROOT = Path(__file__).resolve().parents[2]
COMPILERS = re.compile(r"(^|-)(gcc|g\+\+|cc|c\+\+|clang|clang\+\+)(-[\d.]+)?$")
PROGRAM = """
import sys
from mempo.config import EngineConfig
from mempo.engine.interface import Sampling
from mempo.engine.vllm_engine import Engine

engine = Engine(sys.argv[1], EngineConfig(max_num_seqs=8))
engine.submit("a", list(range(10, 40)), 8, 7, Sampling())
found = []
while engine.has_unfinished():
    found += engine.step()
print("sampled", *found[0].ids)
"""


@pytest.mark.slow
def test_an_engine_samples_where_there_is_no_compiler(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TEXTS, ARCHITECTURE.vocab_size)
    build_tiny_model(ARCHITECTURE, tokenizer, seed=1).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    plain = {name: value for name, value in os.environ.items() if name not in ("CXX", "CC")}
    without = tmp_path / "bin"
    without.mkdir()
    for folder in map(Path, os.environ["PATH"].split(os.pathsep)):
        for file in folder.iterdir() if folder.is_dir() else ():
            link = without / file.name
            if not COMPILERS.search(file.name) and not link.exists():
                link.symlink_to(file)
    printed: list[str] = []
    for path in (os.environ["PATH"], str(without)):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**plain, "PATH": path, "TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/{len(printed)}"},
        )
        assert done.returncode == 0, done.stderr[-2000:]
        printed.append(done.stdout.splitlines()[-1])
    assert printed[0] == printed[1]
    assert printed[0].startswith("sampled ")
