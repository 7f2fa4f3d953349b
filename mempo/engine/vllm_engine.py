"""The in-process vLLM engine: submit, step, sync, sleep, close (specification section 10).

Requests go in one by one and come out as they finish. Token ids go in and come out; the engine
reads no chat template and no ``generation_config``. vLLM is imported when an engine is built, so
that the rest of the project works without it.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mempo.config import EngineConfig
from mempo.engine.ending import shut_down
from mempo.engine.errors import EngineError
from mempo.engine.host_state import (
    host_state_kept,
    llvmlite_hidden,
    rank_in_environment,
)
from mempo.engine.interface import Generation, Sampling
from mempo.engine.start_arguments import (
    ANY_USE,
    ENVIRONMENT,
    ENVIRONMENT_DEFAULTS,
    Device,
    Use,
    device_arguments,
    engine_device,
    shared_arguments,
)
from mempo.engine.start_errors import check_build, start_remedy
from mempo.engine.sync_proof import Delivery, packed_layers, renaming, undelivered
from mempo.engine.transformers_backend import give_classes_back
from mempo.runtime.gather import is_distributed
from mempo.runtime.library_warnings import quick_imports

__all__ = ["Engine", "EngineError"]


class Engine:
    """One vLLM engine on this process's device.

    Args:
        model: a Hugging Face folder or hub name; its weights are the first to sample from.
        config: settings of the engine.
        use: what it is started for: the policy's dtype, its longest context, and whether weights
            are synced before anything is sampled.
        end_ids: ids at which a turn ends besides the model's own end-of-sequence id, when the chat
            template closes turns with another mark.
        stop_strings: texts at which sampling stops; they stay in the output.
        device: the kind of device, the trainer's (``engine_device``); without one a GPU if there is
            any.

    Raises:
        EngineError: the engine cannot start; the message says which setting to change.

    The engine is awake after construction and after every ``sync``. ``sleep`` gives its memory
    back and makes the weights invalid; the only way to wake it is ``sync``, so a wake without
    weights cannot be written. A sync wakes the weights alone: the memory of keys and values comes
    back with the first request, when what a sync gathers is gone.
    """

    def __init__(
        self,
        model: str,
        config: EngineConfig,
        use: Use = ANY_USE,
        end_ids: Iterable[int] = (),
        stop_strings: Sequence[str] = (),
        device: Device | None = None,
    ) -> None:
        self._device: Device = device or engine_device("auto")
        self._asleep = False
        self._cache_asleep = False
        self._end_ids = sorted(end_ids)
        self._stop_strings = list(stop_strings)
        self._requests = 0
        self._keys: dict[str, str] = {}
        self._synced_names: frozenset[str] = frozenset()
        self._needs_sync = use.synced
        self._group_is_foreign = is_distributed()
        with host_state_kept():
            self._llm = _start(model, config, use, self._device)
            self._llm.apply_model(give_classes_back)
        self.max_model_len = int(self._llm.model_config.max_model_len)

    # Requests

    def submit(
        self, key: str, prompt_ids: list[int], max_tokens: int, seed: int, sampling: Sampling
    ) -> None:
        """Queues one request. Sampling stops at a stop text or at the model's end-of-turn mark,
        both kept in the ids."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        if self._asleep:
            raise EngineError("the engine is asleep: sync the weights before submitting requests")
        if self._needs_sync:
            raise EngineError("the engine has no weights yet: sync them before submitting requests")
        self._wake_cache()
        if len(prompt_ids) + max_tokens > self.max_model_len:
            raise EngineError(
                f"a request of {len(prompt_ids)} + {max_tokens} tokens does not fit the engine's "
                f"context of {self.max_model_len}"
            )
        greedy = sampling.temperature == 0.0
        parameters = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=max(sampling.top_k, 0),
            seed=None if greedy else seed,
            max_tokens=max_tokens,
            logprobs=0,
            stop=self._stop_strings,
            stop_token_ids=self._end_ids,
            include_stop_str_in_output=True,
            skip_special_tokens=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._requests += 1
        request_id = str(self._requests)
        self._keys[request_id] = key
        self._llm.llm_engine.add_request(request_id, {"prompt_token_ids": prompt_ids}, parameters)

    def step(self) -> list[Generation]:
        """One engine step; the requests that finished in it."""
        return [
            self._generation(output) for output in self._llm.llm_engine.step() if output.finished
        ]

    def has_unfinished(self) -> bool:
        """True while requests are queued or running."""
        return bool(self._llm.llm_engine.has_unfinished_requests())

    def abort_all(self) -> None:
        """Drops all requests, after an error elsewhere."""
        self._llm.llm_engine.abort_request(list(self._keys))
        self._keys.clear()

    # Weights and memory

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Loads all weights by Hugging Face name and forgets every cached prefix.

        The first sync is proven to reach every parameter, later ones to bring the same names
        (``sync_proof.py``). Raises ``EngineError`` that names what did not arrive, and when the
        prefix cache cannot be reset: old prefixes would mix with new weights.
        """
        if self._keys:
            raise EngineError("weights cannot be synced while requests are running")
        if self._asleep:
            self._llm.wake_up(tags=["weights"])
            self._asleep, self._cache_asleep = False, True
        proven = bool(self._synced_names)
        delivery = Delivery(weights, look=not proven)
        with host_state_kept():
            zeroed = {} if proven else self._zeroed_digests()
            self._llm.collective_rpc(
                "reload_weights",
                kwargs={"weights_iterator": iter(delivery), "is_checkpoint_format": True},
            )
            self._llm.apply_model(_repack_tied_head)
        self._check_delivery(delivery, zeroed)
        if not self._llm.reset_prefix_cache():
            raise EngineError(
                "the engine did not reset its prefix cache after a weight sync; sampling from it "
                "would mix old and new weights"
            )
        self._needs_sync = False

    def _wake_cache(self) -> None:
        """The memory of keys and values, which a sync left asleep."""
        if self._cache_asleep:
            gc.collect()
            torch.cuda.empty_cache()
            self._llm.wake_up(tags=["kv_cache"])
            self._cache_asleep = False

    def _zeroed_digests(self) -> dict[str, str]:
        self._llm.collective_rpc("reset_weights")
        return self._digests()

    def _digests(self) -> dict[str, str]:
        """A digest of each parameter of this process's part."""
        found: dict[str, str] = self._llm.collective_rpc("compute_weight_checksums")[0]
        return found

    def _check_delivery(self, delivery: Delivery, zeroed: Mapping[str, str]) -> None:
        came = frozenset(delivery.names)
        if zeroed:
            (renamed,) = self._llm.apply_model(renaming)
            delivery.rename(renamed)
            (packed,) = self._llm.apply_model(packed_layers)
            missing = undelivered(zeroed, self._digests(), delivery, packed)
        else:
            missing = sorted(self._synced_names ^ came)
        if missing or not came:
            raise EngineError(
                f"a weight sync did not bring what the engine needs: {len(missing)} weights are "
                f"missing, such as {', '.join(missing[:3]) or 'all of them'}. The engine would "
                "sample from other weights than are trained; the model's family may not be served "
                "(docs/models.md)"
            )
        self._synced_names = came

    def sleep(self) -> None:
        """Frees weights and cache on a GPU (vLLM's sleep level 2); does nothing on a CPU."""
        if self._device == "cuda" and not self._asleep:
            self._wake_cache()  # vLLM sleeps as a whole
            self._llm.sleep(level=2)
            self._asleep = True

    def close(self) -> None:
        """Releases the engine, and leaves a process group that was there before it. Safe to call
        twice."""
        llm, self._llm = self._llm, None
        if llm is None:
            return
        self._keys.clear()
        shut_down(llm, self._group_is_foreign)
        del llm
        if self._device == "cuda":
            gc.collect()
            torch.cuda.empty_cache()

    def _generation(self, output: Any) -> Generation:
        completion = output.outputs[0]
        ids = list(completion.token_ids)
        logprobs = [
            float(entry[token].logprob)
            for token, entry in zip(ids, completion.logprobs, strict=True)
        ]
        reason = completion.finish_reason
        if reason not in ("stop", "length"):
            raise EngineError(f"the engine ended a request with {reason!r}")
        return Generation(self._keys.pop(output.request_id), ids, logprobs, reason)


def _repack_tied_head(model: Any) -> None:
    """Refreshes the output layer's packed copy of tied embeddings.

    On the CPU vLLM packs each layer's weight for its matrix kernel. ``reload_weights`` packs the
    layers that it loads; a tied output layer is loaded as the embedding, so its packed copy would
    keep the old weights.
    """
    head: Any = getattr(model, "lm_head", None)
    if not hasattr(head, "cpu_linear"):
        return
    # Where the embedding stands differs by family: what is tied has the same parameter.
    modules = (module for module in model.modules() if module is not head)
    if any(getattr(module, "weight", None) is head.weight for module in modules):
        head.quant_method.process_weights_after_loading(head)


def _start(model: str, config: EngineConfig, use: Use, device: Device) -> Any:
    """Builds ``vllm.LLM``. Raises ``EngineError`` that says what to change."""
    specific = device_arguments(model, config, device, use)
    if device == "cuda":  # vLLM wants its share free, whatever else was used before
        gc.collect()
        torch.cuda.empty_cache()
    for name, value in ENVIRONMENT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ.update({**ENVIRONMENT, **specific.environment})
    arguments = {**shared_arguments(config, use, is_distributed()), **specific.arguments}
    try:
        with quick_imports():
            from vllm import LLM
            from vllm.platforms import current_platform

        check_build(device, current_platform.is_cpu())
        # vLLM collects garbage at each step of its start: what was imported is none. Its own end
        # undoes it.
        gc.freeze()
        with llvmlite_hidden(), rank_in_environment(device):
            return LLM(model, **arguments)
    except ImportError as error:
        raise EngineError(
            f"vLLM cannot be imported ({error}): run `make install`, which ends with a check of "
            "the installation"
        ) from error
    except (ValueError, RuntimeError, MemoryError, OSError) as error:
        remedy = start_remedy(str(error), specific.memory_setting)
        raise EngineError(f"the engine cannot start with {model}: {error}{remedy}") from error
