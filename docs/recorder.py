"""Records a draft's activations inside a server: one safetensors file a forward pass. Copy it beside the server.

Needs torch and safetensors only. `recording_activations.md` says how SGLang and vLLM are told to use it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

FOLDER = Path(os.environ.get("EAGLE3_RECORDING", "recording"))
#: The first draft layer in both engines; in SGLang's latent-attention drafts it is "midlayer".
LAYER = os.environ.get("EAGLE3_LAYER", "layers.0")


def first(value: Any) -> Tensor:
    """An engine's linear layers give (output, bias), its fused norms (normed, residual)."""
    return value[0] if isinstance(value, tuple) else value


def stream(inputs: tuple, output: Any) -> Tensor:
    """The residual stream that a final norm reads: a fused norm adds it up and gives it second."""
    return output[1] if isinstance(output, tuple) else inputs[0]


#: module → tap → where in the module's inputs and output it is
TAPS: dict[str, dict[str, Callable[[tuple, Any], Tensor]]] = {
    f"{LAYER}.input_layernorm": {"embed_normed": lambda i, o: first(o)},
    f"{LAYER}.hidden_norm": {"fused": lambda i, o: i[0], "hidden_normed": lambda i, o: first(o)},
    f"{LAYER}.self_attn.attn": {"q": lambda i, o: i[0], "k": lambda i, o: i[1]},
    f"{LAYER}.self_attn.o_proj": {"attention": lambda i, o: first(o)},
    f"{LAYER}.post_attention_layernorm": {"post_attention": lambda i, o: first(o)},
    f"{LAYER}.mlp": {"mlp": lambda i, o: first(o)},
    "norm": {"pre_norm": stream},
}


class Recorder:
    """Keeps what one pass of the draft makes and writes it when the pass ends.

    Where the target's modules bear the same names and are hooked too, `opened_by` is the one module that only
    the draft has: what comes before it in a pass is the target's, and dropped.
    """

    def __init__(self, opened_by: str | None = None) -> None:
        self.opened_by, self.open = opened_by, opened_by is None
        self.found: dict[str, Tensor] = {}
        self.passes = 0

    def keep(self, module: str, inputs: tuple, output: Any) -> None:
        """Copy a module's taps at once: engines overwrite activations in place."""
        self.open = self.open or module == self.opened_by
        if self.open:
            for tap, pick in TAPS[module].items():
                self.found[tap] = pick(inputs, output).detach().flatten(0, -2).cpu().clone()

    def close(self, token_ids: Tensor) -> None:
        """The pass has ended: write its file, unless it was the target's."""
        if self.open and self.found:
            FOLDER.mkdir(parents=True, exist_ok=True)
            tensors = {**self.found, "token_ids": token_ids.detach().flatten().cpu().clone()}
            save_file(tensors, FOLDER / f"pass_{os.getpid()}_{self.passes:05d}.safetensors")
            self.passes += 1
        self.found, self.open = {}, self.opened_by is None


def attach(model: nn.Module, whole: nn.Module) -> Recorder:
    """Hook a draft's modules by name; `whole` is the module that the engine calls with `input_ids`."""
    recorder, modules = Recorder(), dict(model.named_modules())
    for name in TAPS.keys() & modules.keys():
        modules[name].register_forward_hook(lambda m, i, o, name=name: recorder.keep(name, i, o))

    def close(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        recorder.close(kwargs["input_ids"] if "input_ids" in kwargs else args[0])

    whole.register_forward_hook(close, with_kwargs=True)
    return recorder


class VllmWorker:
    """For vLLM's `worker_extension_cls`; then `llm.collective_rpc("record_draft")`."""

    def record_draft(self) -> None:
        draft = self.model_runner.drafter.model
        attach(draft.model, draft)


SGLANG = Recorder(opened_by=f"{LAYER}.hidden_norm")


def sglang_hook(config: dict) -> Callable:
    """For SGLang's `--forward-hooks`, which names modules of the target and of the draft alike."""

    def hook(module: nn.Module, inputs: tuple, output: Any) -> None:
        if config["module"]:
            SGLANG.keep(config["module"], inputs, output)
        else:
            SGLANG.close(inputs[0])

    return hook


def sglang_specs() -> str:
    """The value of SGLang's `--forward-hooks`."""
    specs = [
        {
            "name": name or "whole",
            "target_modules": [f"model.{name}" if name else "model"],
            "hook_factory": "recorder:sglang_hook",
            "config": {"module": name},
        }
        for name in [*TAPS, ""]
    ]
    return json.dumps(specs)


if __name__ == "__main__":
    sys.stdout.write(sglang_specs() + "\n")
