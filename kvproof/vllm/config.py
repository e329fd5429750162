"""The configuration of vLLM's scheduler without a model, for the driver and for exported tests.

kvproof/bridge/export.py copies what is here into the tests that it writes.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from vllm.config import (
    AttentionConfig,
    AuxOutputConfig,
    CacheConfig,
    EncoderCacheManagerConfig,
    KVTransferConfig,
    ObservabilityConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)


def build_config(scope: dict[str, Any], connector_module: str | None = None) -> VllmConfig:
    """The VllmConfig of a scope: vLLM's class and properties over the scope's plain values.

    Its constructor would ask for a model, a device and sizes of real life, and so would those of
    the speculative, model and parallel configurations; the others are constructed and validated.
    `connector_module` has the ScriptedConnector, where the scope has a kv_role.
    """
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(scope["v2_model_runner"]))
    config = object.__new__(VllmConfig)
    config.scheduler_config = SchedulerConfig(
        max_model_len=scope["max_model_len"],
        is_encoder_decoder=False,
        max_num_seqs=scope["max_num_seqs"],
        max_num_batched_tokens=scope["max_num_batched_tokens"],
        max_num_scheduled_tokens=scope["max_num_scheduled_tokens"],
        policy=scope["policy"],
        long_prefill_token_threshold=scope["long_prefill_token_threshold"],
        enable_chunked_prefill=scope["chunked_prefill"],
        async_scheduling=scope["async_scheduling"],
        scheduler_reserve_full_isl=scope["reserve_full_isl"],
        watermark=scope["watermark"],
        disable_hybrid_kv_cache_manager=True,
    )
    config.cache_config = CacheConfig(
        block_size=scope["block_size"], enable_prefix_caching=scope["prefix_caching"]
    )
    config.cache_config.num_gpu_blocks = scope["num_blocks"]
    config.model_config = SimpleNamespace(
        max_model_len=scope["max_model_len"],
        is_diffusion=False,
        is_encoder_decoder=False,
        multimodal_config=None,
        return_sampling_mask=False,
        runner_type="generate",
        supports_multimodal_inputs=False,
        uses_mrope=False,
    )
    config.parallel_config = SimpleNamespace(
        pipeline_parallel_size=scope["pipeline_parallel_size"],
        data_parallel_index=0,
        decode_context_parallel_size=1,
        prefill_context_parallel_size=1,
    )
    config.attention_config = AttentionConfig()
    config.aux_output_config = AuxOutputConfig()
    config.ec_manager_config = EncoderCacheManagerConfig()
    config.observability_config = ObservabilityConfig()
    if scope["num_speculative_tokens"]:
        config.speculative_config = object.__new__(SpeculativeConfig)
        config.speculative_config.method = scope["spec_method"]
        config.speculative_config.num_speculative_tokens = scope["num_speculative_tokens"]
    if scope["kv_role"]:
        config.kv_transfer_config = KVTransferConfig(
            kv_connector="ScriptedConnector",
            kv_connector_module_path=connector_module,
            kv_role=scope["kv_role"],
            kv_load_failure_policy=scope["kv_load_failure_policy"],
        )
    return config
