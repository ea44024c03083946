"""What servers are started with, by engine: healthy texts as people write them."""

from __future__ import annotations

#: The last lines of a `server_args=` line as SGLang printed it in 2025 and early 2026, shortened.
SGLANG_PRINTED = (
    "[2025-11-06 01:22:00] server_args=ServerArgs(model_path='/models/Qwen3-4B (new)', tokenizer_mode='auto',"
    " model_loader_extra_config='{\"a\": [1, 2]}', trust_remote_code=False, context_length=None, dtype='auto',"
    " quantization=None, kv_cache_dtype='auto', mem_fraction_static=0.835, disable_radix_cache=False,"
    " lora_target_modules={'q_proj', 'k_proj'}, speculative_algorithm='EAGLE3',"
    " speculative_draft_model_path='drafts/it\\'s mine', speculative_num_steps=3, speculative_eagle_topk=4,"
    " speculative_num_draft_tokens=8, speculative_accept_threshold_single=1.0, speculative_accept_threshold_acc=1.0,"
    " speculative_token_map=None, disable_overlap_schedule=False, custom_sigquit_handler=<function f at 0x7f>)"
)

#: What 0.5.23 prints instead, shortened.
SGLANG_DICTIONARY = (
    "[2026-10-02 10:00:00] server_args={'model_path': 'meta-llama/Llama-3.1-8B-Instruct', 'context_length': 32768,"
    " 'speculative_algorithm': 'EAGLE3', 'speculative_num_steps': 3, 'speculative_eagle_topk': 1,"
    " 'speculative_num_draft_tokens': 4, 'speculative_accept_threshold_single': 1.0, 'disable_radix_cache': True,"
    " 'served_model_name': 'a=b, c:d', 'json_model_override_args': '{}'}"
)

SGLANG = """
export CUDA_VISIBLE_DEVICES=0,1
# the server
python3 -m sglang.launch_server \\
    --model-path moonshotai/Kimi-K2.5 --tp 8 --trust-remote-code \\
    --speculative-algorithm EAGLE3 --speculative-draft-model-path=drafts/kimi \\
    --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 \\
    --context-length 65536 --mem-fraction 0.8
"""

VLLM = (
    "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 32K --dtype bfloat16 --speculative_config"
    ' \'{"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}\''
)

VLLM_PRINTED = (
    "(EngineCore pid=7) INFO 04-27 08:47:10 [core.py:105] Initializing a V1 LLM engine (v0.19.1) with config:"
    " model='/m', speculative_config=SpeculativeConfig(method='eagle3', model='/d', num_spec_tokens=3),"
    " tokenizer='/m', dtype=torch.bfloat16, max_seq_len=8192, quantization=fp8, kv_cache_dtype=auto,"
    " structured_outputs_config=StructuredOutputsConfig(backend='auto', x=''), enable_prefix_caching=True"
)

TENSORRT_LLM = """
kv_cache_config:
  enable_block_reuse: false
max_seq_len: 8192
speculative_config:
  decoding_type: Eagle3
  max_draft_len: 3
  speculative_model: nvidia/Llama-3.3-70B-Eagle3
"""

LLAMA_CPP = (
    "llama-server -m smollm2-f16.gguf -md draft.gguf --spec-type draft-eagle3 --spec-draft-n-max 4 --temp 0 -c 4096"
)

HEALTHY = {
    "sglang": (SGLANG, SGLANG_PRINTED, SGLANG_DICTIONARY),
    "vllm": (VLLM, VLLM_PRINTED, '{"method": "eagle3", "model": "d", "num_speculative_tokens": 3}'),
    "tensorrt_llm": (TENSORRT_LLM, "{decoding_type: Eagle, max_draft_len: 3, speculative_model: d}"),
    "llama_cpp": (LLAMA_CPP, "LLAMA_ARG_SPEC_DRAFT_N_MAX=3 ./llama-server -m a -md b --spec-type draft-eagle3"),
}
