"""What vLLM's workers learn from us, as a `worker_extension_cls`: reporting entropies, and taking weights completely.

The engine in this process brings it along. A server on a CPU that is to take weights must be started with
`--worker-extension-cls arpo.engine.vllm_worker.WorkerExtension`; on GPUs vLLM's own `reload_weights` does all.

The module imports vLLM and is loaded by name in its workers and nowhere else.
"""

from typing import Any

from vllm.platforms import current_platform
from vllm.v1.sample.sampler import Sampler

from arpo.engine.vllm_entropy import EntropySampler


class WorkerExtension:
    """Methods that vLLM adds to its workers, to be called by `collective_rpc`."""

    model_runner: Any
    reload_weights: Any

    def arpo_report_entropies(self, wanted: bool) -> str:
        """Put our sampler in the place of vLLM's, or vLLM's back. Returns why it cannot, or ""."""
        runner = self.model_runner
        sampler: Any = getattr(runner, "sampler", None)
        if getattr(runner, "speculative_config", None) is not None:
            return "speculative decoding samples elsewhere"
        if type(sampler) not in (Sampler, EntropySampler):
            return f"{type(runner).__module__} samples by {type(sampler).__module__}, which the plug-in does not know"
        kind = EntropySampler if wanted else Sampler
        runner.sampler = kind(logprobs_mode=sampler.logprobs_mode, use_fp64_gumbel=sampler.use_fp64_gumbel)
        return ""

    def arpo_reload_weights(self, weights_path: str) -> None:
        """Load the checkpoint in the folder `weights_path` in place.

        On CPUs an output head keeps a re-packed copy of its matrix. Where the matrix is the input embedding's (tied),
        vLLM 0.32 loads that and leaves the copy as it was; so it is packed again.
        """
        self.reload_weights(weights_path=weights_path)
        if not current_platform.is_cpu():
            return
        model = self.model_runner.get_model()
        owners: dict[int, Any] = {}
        for module in model.modules():
            weight = getattr(module, "weight", None)
            method = getattr(module, "quant_method", None)
            if weight is None or method is None:
                continue
            if owners.setdefault(weight.data_ptr(), module) is not module and weight.numel():
                method.process_weights_after_loading(module)
