"""Breaks each formula of the method once and shows which tests turn red.

    python scripts/break_formulas.py            all, as a Markdown table
    python scripts/break_formulas.py loss       those whose name holds "loss"

Works on copies of the project, one for each of two workers; the project itself is left alone. Exit
status 1 when a break stayed green.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

WORKERS = 2
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Break:
    """One deliberate fault: in ``mempo/<file>``, ``old`` becomes ``new``; ``tests`` notice."""

    name: str
    file: str
    old: str
    new: str
    tests: str


BREAKS = (
    # Section 2: the protocol.
    Break("first matching close", "agent/protocol.py", "text.find(closing, match.end())",
          "text.rfind(closing, match.end())", "test_protocol"),
    Break("unclosed tag swallows the rest", "agent/protocol.py",
          "tag, closed=False)\n            return",
          "tag, closed=False)\n            position = match.end()\n            continue",
          "test_protocol"),
    Break("rule 8 spares round 1", "agent/protocol.py", "8: number > 1 and", "8: number > 0 and",
          "test_protocol"),
    Break("tags in foreign text are words", "agent/inert.py",
          "_tag(tuple(tags)).sub(r\"(\\1\\2\\3)\", text)", "text", "test_inert test_tools"),
    Break("so are the tokenizer's own marks", "agent/inert.py",
          "self._pattern.sub(lambda found: self._words[found[0]], text)", "text", "test_inert"),
    Break("and marks that a normalizer uncovers", "agent/inert.py",
          "self._without_hidden_marks(text) if self._normalizes else text", "text", "test_inert"),
    Break("in questions", "agent/rollout.py", "self.conversation.inert(task.question)",
          "task.question", "test_inert"),
    Break("in passages", "agent/tools/passages.py", "self._inert(passage.text)[:", "passage.text[:",
          "test_inert test_tools"),
    Break("in pages", "agent/tools/passages.py", "text = self._inert(page.text)",
          "text = page.text", "test_inert test_tools"),
    Break("in what one's own tools give", "agent/tools/own.py",
          "self.inert(text[: self.max_chars])", "text[: self.max_chars]", "test_own_tools"),
    # Section 3: what is shown of a result.
    Break("a page is read on where the shown text ended", "agent/state_machine.py",
          "result, shown.short_characters if only_short else shown.characters", "result, None",
          "test_observations"),
    Break("in the short form as well", "agent/state_machine.py", "if only_short else",
          "if False else", "test_observations"),
    Break("a part says that more follows", "agent/observations.py",
          "after = \"\\n\" + MORE_FOLLOWS if page.more else \"\"",
          "after = \"\" if page.more else \"\"", "test_observations"),
    Break("what a passage leaves goes to the others", "agent/observations.py",
          "left // (len(costs) - position)", "room // len(costs)", "test_observations"),
    Break("an observation keeps its budget", "agent/observations.py",
          "    if conversation.fits(wrapped, budget):\n        return page.head",
          "    if True:\n        return page.head", "test_observations"),
    Break("evaluation has a budget of its own", "evaluation/evaluate.py",
          "max_observation_tokens=config.max_observation_tokens",
          "max_observation_tokens=config.max_round_tokens", "test_evaluate"),
    # Section 5: rewards.
    Break("articles are removed", "learning/rewards.py", "(a|an|the)", "(a|the)", "test_rewards"),
    Break("F1 over multisets", "learning/rewards.py", "(Counter(left) & Counter(right)).total()",
          "len(set(left) & set(right))", "test_rewards"),
    Break("yes and no must be equal", "learning/rewards.py", "if left != right and any",
          "if False and any", "test_rewards"),
    Break("set F1 keeps articles", "learning/rewards.py",
          "set(lowered.translate(_SPACE_PUNCTUATION).split()",
          "set(_ARTICLES.sub(' ', lowered.translate(_SPACE_PUNCTUATION)).split()", "test_rewards"),
    Break("set F1 of Chinese by character", "learning/rewards.py", "if _CHINESE.search(gold)",
          "if False", "test_rewards"),
    Break("blank gold scores 0", "learning/rewards.py", "if gold and gold.strip()", "if gold",
          "test_rewards"),
    Break("an emptied text keeps its articles", "learning/rewards.py",
          " or plain.split() or lowered.split()", " or lowered.split()", "test_rewards"),
    Break("or is compared as it is", "learning/rewards.py",
          " or plain.split() or lowered.split()", " or plain.split()", "test_rewards"),
    Break("broken format scores 0", "learning/rewards.py", "if format_valid else 0.0", "",
          "test_rewards"),
    Break("missing part keeps its place", "learning/rewards.py", "answer.split(\";\")]",
          "answer.split(\";\") if part.strip()]", "test_rewards"),
    # Section 6: the memory reward.
    Break("geometric mean", "learning/memory_rewards.py", "total / (kept.sum(-1) + 1e-8)", "total",
          "test_scoring"),
    Break("filter on the probability", "learning/memory_rewards.py", "(logp > threshold)",
          "(logp >= threshold - 1)", "test_scoring"),
    Break("nothing kept: all tokens", "learning/memory_rewards.py", "if empty == \"unfiltered\":",
          "if empty == \"one\":", "test_scoring"),
    Break("memory minus full history", "learning/memory_rewards.py",
          "_value(log_memory, config) - _value(log_before, config)",
          "_value(log_before, config) - _value(log_memory, config)", "test_scoring"),
    Break("log P, not its exponential", "learning/memory_rewards.py",
          "log_probability if logarithm else", "torch.exp(log_probability) if logarithm else",
          "test_scoring"),
    Break("log P without a detour over P", "learning/memory_rewards.py",
          "log_probability if logarithm else", "torch.exp(log_probability).log() if logarithm else",
          "test_scoring"),
    Break("against the memory before", "learning/scoring.py",
          "                before = memory\n", "",
          "test_scoring test_contexts"),
    Break("the first against the question alone", "learning/scoring.py",
          "question_context(trajectory) for", "full_context(trajectory, first, None) for",
          "test_scoring test_contexts"),
    Break("the question ends with the prompt", "learning/contexts.py",
          "_start_of(trajectory.sequences[0], trajectory.prompt_length)",
          "_start_of(trajectory.sequences[0], trajectory.prompt_length - 1)", "test_contexts"),
    Break("snapshot before the round", "learning/contexts.py",
          "sequence, length = trajectory.sequences[scored.sequence], scored.snapshot_length",
          "sequence, length = trajectory.sequences[scored.sequence], scored.snapshot_length + 1",
          "test_scoring"),
    Break("memory through its closing tag", "learning/contexts.py",
          "ids[scored.start : scored.memory_span[1]]",
          "ids[scored.start : scored.memory_span[1] - 1]", "test_scoring"),
    Break("memory context ends at the tag", "learning/contexts.py",
          "if found < 0 or end == len(text):", "if True:", "test_contexts"),
    Break("history: all that was seen", "learning/contexts.py",
          "    if history is not None:\n        sequence, length",
          "    if False:\n        sequence, length", "test_contexts"),
    Break("results as first shown", "learning/contexts.py",
          "[*ids, *written, *context[result:]]", "[*ids, *written]", "test_contexts"),
    Break("answer mask on gold tokens only", "learning/scored_rows.py",
          "first < end and last > start", "last > start", "test_scoring"),
    Break("one alias for both contexts", "learning/scoring.py",
          "ScoredRow(scored, memory, text,",
          "ScoredRow(scored, memory, self._encoded(trajectory.task.gold),",
          "test_scoring test_contexts"),
    Break("aliases objective by objective", "learning/gold_choice.py",
          "return \"; \".join(chosen)", "return max(values, key=lambda text: values[text])",
          "test_contexts"),
    Break("the likeliest alias", "learning/gold_choice.py", "[max(texts", "[min(texts",
          "test_scoring test_contexts"),
    Break("every alias is tried", "learning/gold_choice.py", "[:ALIAS_LIMIT]", "[:16]",
          "test_contexts"),
    Break("a branch stands behind its prefix", "learning/tree_scoring.py",
          "branch.prefix + torch.arange(size)", "past + torch.arange(size)", "test_tree_scoring"),
    Break("a branch sees its prefix only", "learning/tree_scoring.py",
          "prefixes[slot.row, own] = branch.prefix", "prefixes[slot.row, own] = past",
          "test_tree_scoring"),
    Break("branches do not see each other", "learning/tree_scoring.py",
          "same & before", "before",
          "test_tree_scoring"),
    Break("what is shared is the same for all", "learning/shared_prefix.py",
          "if first[i] != last[i]", "if False", "test_tree_scoring"),
    # Section 7: advantages.
    Break("standard deviation with n - 1", "learning/advantages.py", "(count - 1).clamp(min=1)",
          "count", "test_advantages"),
    Break("floor under the deviation", "learning/advantages.py", ".clamp(min=std_floor)", "",
          "test_advantages"),
    Break("equal values give 0", "learning/advantages.py",
          "torch.where(constant[index], torch.zeros_like(centered), centered)", "centered",
          "test_advantages"),
    Break("groups apart", "learning/advantages.py", "return trajectory.epoch, trajectory.task.id",
          "return trajectory.epoch, \"\"", "test_advantages"),
    Break("pool by round", "learning/advantages.py", "if memory.pool == \"round\"",
          "if memory.pool == \"group\"", "test_advantages"),
    Break("memory advantage on its tags too", "learning/advantages.py",
          "range(*round_.memory_span)", "range(round_.memory_span[0] + 1, round_.memory_span[1])",
          "test_advantages"),
    Break("outcome plus weight times memory", "learning/advantages.py",
          "+= weight * round_.memory_advantage", "+= round_.memory_advantage", "test_advantages"),
    Break("length penalty per 100 tokens", "learning/advantages.py",
          "* round_.memory_tokens / 100", "* round_.memory_tokens / 10", "test_advantages"),
    Break("later memories are discounted", "learning/advantages.py",
          "values[index] += memory.gamma * values[index + 1]",
          "values[index] += memory.gamma * sum(values[index + 1 :])",
          "test_advantages"),
    Break("skip negative outcomes", "learning/advantages.py", "and advantage < 0:",
          "and advantage <= 0:", "test_advantages"),
    # Section 8: the loss.
    Break("lower clip", "learning/loss.py", "1.0 - config.clip_low", "1.0 - config.clip_high",
          "test_loss test_gradient_truth"),
    Break("the worse of the two", "learning/loss.py", "torch.maximum(plain, clipped)",
          "torch.minimum(plain, clipped)", "test_loss"),
    Break("dual clip", "learning/loss.py", "torch.minimum(pessimistic, ceiling)", "pessimistic",
          "test_loss"),
    Break("log ratio clamp", "learning/loss.py",
          "(logp - old).clamp(-config.log_ratio_clamp, config.log_ratio_clamp).exp()",
          "(logp - old).exp()", "test_loss"),
    Break("token mean", "learning/loss.py", "1.0 / total if tokens", "1.0 / (total + 1) if tokens",
          "test_loss test_gradient_truth"),
    Break("trajectory mean", "learning/loss.py", "1.0 / (tokens * count)", "1.0 / tokens",
          "test_loss test_gradient_truth"),
    Break("k2", "learning/loss.py", "0.5 * d.square()", "d.square()", "test_loss"),
    Break("k3", "learning/loss.py", "d.exp() - d - 1.0", "d.exp() - 1.0", "test_loss"),
    Break("entropy is a bonus", "learning/loss.py", "loss - config.entropy_coefficient",
          "loss + config.entropy_coefficient", "test_loss test_gradient_truth"),
    Break("importance weights are capped", "learning/loss.py",
          ".exp().clamp(max=config.importance_cap)", ".exp()", "test_loss"),
    Break("masked positions change nothing", "learning/loss.py",
          "torch.where(keep, wide, torch.zeros_like(wide))", "wide * keep", "test_loss"),
    Break("NaN stops the run", "learning/loss.py", "keep & ~torch.isfinite(values)",
          "keep & False & ~torch.isfinite(values)", "test_loss"),
    Break("sampling temperature", "learning/logprobs.py", "logits = logits / temperature",
          "logits = logits", "test_logprobs test_gradient_truth"),
    Break("constant groups alone cost nothing", "learning/micro_batches.py",
          "self.sequence.advantages is None or any(self.sequence.advantages)",
          "any(a > 0 for a in self.sequence.advantages or ())",
          "test_batches test_gradient_truth"),
    Break("padding keeps positions", "learning/logprobs.py", "(attention_mask.cumsum(-1) - 1)",
          "torch.arange(attention_mask.shape[1]).expand_as(attention_mask)", "test_logprobs"),
    Break("shared prompts have a gradient", "learning/shared_prefix.py",
          "    cache.batch_repeat_interleave(copies)",
          "    for layer in cache.layers:\n        layer.keys = layer.keys.detach()\n"
          "    cache.batch_repeat_interleave(copies)", "test_gradient_truth"),
    Break("shared rows look at their prompt", "learning/packed_attention.py",
          "torch.cat([start[2].expand(count, -1, -1, -1), value], dim=2)",
          "torch.cat([start[2].detach().expand(count, -1, -1, -1), value], dim=2)",
          "test_packed_rows test_gradient_truth"),
    Break("packed rows have positions of their own", "learning/packed_rows.py",
          "expand(len(self.own), -1))", "expand(len(self.own), -1)).sort().values",
          "test_packed_rows test_gradient_truth"),
    Break("the GPU's kernel is given each row's prompt", "learning/packed_attention.py",
          "for part in (start, each))", "for part in (each, start))", "test_packed_rows"),
    Break("what is shared predicts no policy token", "learning/micro_batches.py",
          "first_policy - 1)", "first_policy)", "test_batches"),
    Break("a step's trajectories are drawn over all processes", "training/updates.py",
          "order = sorted(everyone)", "order = sorted(own)", "test_updates"),
    # Section 9: what a round sees.
    Break("steps are counted by results", "agent/context.py", "results[-keep_steps - 1] + 1",
          "results[-keep_steps] + 1", "test_context"),
    Break("older results by their short text", "agent/context.py",
          "if is_newest and newest == \"full\"", "if newest == \"full\"", "test_context"),
    Break("the newest whole", "agent/context.py", "if is_newest and newest == \"full\"",
          "if False", "test_context"),
    Break("a doubled memory tag stands once", "agent/context.py",
          "        text = without_doubled_memory_tag(text)\n", "", "test_context"),
    Break("rule 8 is of memories alone", "agent/protocol.py", "if rule != 8 or protocol.memory",
          "if True", "test_react"),
    Break("nothing is prefilled without a memory", "agent/state_machine.py",
          "self._settings.prefill_memory and self._has_memory", "self._settings.prefill_memory",
          "test_react"),
    Break("of the past the last memory alone", "agent/baseline_windows.py",
          "cut = conversation.split_at_character(own, len(text))",
          "cut = conversation.split_at_character(own, len(decoded))", "test_mem1"),
    Break("no piece that is shown", "agent/recalled_pieces.py", "if piece not in there", "if piece",
          "test_retrieval_memory"),
    Break("summaries count as tokens", "agent/state_machine.py",
          "self._response_tokens += len(self._ids)\n", "pass\n", "test_summary"),
    Break("after a summary nothing before it", "agent/baseline_windows.py",
          "        self._first = len(self._ids)\n", "", "test_summary"),
    # Section 11: tasks of several rows.
    Break("an id reads back in one way only", "data/compose.py",
          "join_names(_JOINER, (row.id for row in rows))", "_JOINER.join(row.id for row in rows)",
          "test_local test_standalone"),
)  # fmt: skip


def main(wanted: str = "") -> int:
    """Prints the table; returns the number of breaks that no test noticed, at most 1."""
    chosen = [entry for entry in BREAKS if wanted in entry.name or wanted in entry.file]
    survivors = 0
    print("| formula | broken in | red tests | first of them |", flush=True)
    print("|---|---|---|---|", flush=True)
    ignore = shutil.ignore_patterns(".venv", ".git", "runs", ".cache", "__pycache__")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORKERS) as executor:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(WORKERS):
            copies.put(shutil.copytree(ROOT, Path(folder) / str(number), ignore=ignore))
        results = executor.map(lambda entry: _red_tests(copies, entry), chosen)
        for entry, red in zip(chosen, results, strict=True):
            survivors += not red
            first = red[0] if red else "**none**"
            print(f"| {entry.name} | `mempo/{entry.file}` | {len(red)} | {first} |", flush=True)
    return min(survivors, 1)


def files_of(root: Path, entry: Break) -> list[Path]:
    """The files of the tests that should notice, in whichever room they stand."""
    return [path for name in entry.tests.split() for path in (root / "tests").rglob(f"{name}.py")]


def _red_tests(copies: SimpleQueue[Path], entry: Break) -> list[str]:
    """The names of the tests that fail with the break in place, which is taken out again."""
    copy = copies.get()
    path = copy / "mempo" / entry.file
    text = path.read_text(encoding="utf-8")
    if text.count(entry.old) != 1:
        raise SystemExit(
            f"{entry.name}: {entry.file} holds {entry.old!r} {text.count(entry.old)} times"
        )
    path.write_text(text.replace(entry.old, entry.new), encoding="utf-8")
    chosen = ["-m", "not slow", "-k", "not peak_memory", *map(str, files_of(copy, entry))]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *chosen],
        capture_output=True,
        text=True,
        cwd=copy,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    path.write_text(text, encoding="utf-8")
    copies.put(copy)
    return re.findall(r"^(?:FAILED|ERROR) \S+?::(\w+)", done.stdout, flags=re.MULTILINE)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "wanted",
        nargs="?",
        default="",
        metavar="TEXT",
        help="only breaks whose name or file holds this text",
    )
    raise SystemExit(main(parser.parse_args().wanted))
