"""The whole target through transformers: its blocks, final norm and head, found by structure and proved.

Only capturing needs it (the optional extra `capture`); an investigation never loads a target whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eagle3lib.device import resolve_device
from eagle3lib.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PROBE_TOKENS = 4


@dataclass(frozen=True)
class WholeTarget:
    """A causal language model whose parts are known.

        h_0 = B(0);  h_k+1 = block_k(h_k);  z = head(norm(h_n));  logits = scale · z  or  cap · tanh(z / cap)

    Attributes:
        name: what the model is called in files and messages.
        blocks: the decoder blocks in the order in which they run: block k reads B(k).
        final_norm: reads B(n) and gives final_normed.
        scale, cap: what the model makes of its head's output; no cap for most.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    name: str
    blocks: tuple[nn.Module, ...]
    final_norm: nn.Module
    scale: float = 1.0
    cap: float | None = None

    @property
    def n_layers(self) -> int:
        """n: the boundaries are B(0) .. B(n)."""
        return len(self.blocks)

    @property
    def device(self) -> torch.device:
        """Where the token ids go."""
        return self.model.get_input_embeddings().weight.device

    @property
    def vocab_size(self) -> int:
        """Rows of the head."""
        return self.model.get_output_embeddings().weight.shape[0]

    def logits(self, normed: Float[Tensor, "T H"]) -> Float[Tensor, "T V"]:
        """The model's own logits of rows of final_normed, float32; for a few rows at a time."""
        head = self.model.get_output_embeddings()
        return _finish(head(normed.to(head.weight.device)).float(), self.scale, self.cap)


def load_whole_target(path: str | Path, dtype: str = "auto", device: str = "auto") -> WholeTarget:
    """Load a causal language model: a Hugging Face folder or name, a GGUF file, or a folder with one.

    Args:
        dtype: of the run: "float32", "bfloat16", "float16", or "auto" for the checkpoint's own.

    Raises:
        InputError: if transformers is not installed, cannot load the model, or its parts are not recognised.
    """
    transformers = _transformers()
    path = Path(path).expanduser()
    ggufs = [path] if path.suffix == ".gguf" else sorted(path.glob("*.gguf")) if path.is_dir() else []
    source, name = {"pretrained_model_name_or_path": str(path)}, path.name
    if len(ggufs) == 1 and not (path / "config.json").exists():
        source, name = (
            {"pretrained_model_name_or_path": str(ggufs[0].parent), "gguf_file": ggufs[0].name},
            ggufs[0].stem,
        )
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=dtype)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise InputError(
            f"Expected a causal language model that transformers {transformers.__version__} can load at {path},"
            f" found none: {_first_line(error)}"
        ) from None
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    except (OSError, ValueError, KeyError, ImportError):
        tokenizer = None  # token ids can still be captured; a prompt in words is refused where it is met
    return recognise(model.to(resolve_device(device)), tokenizer, name)


def recognise(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None, name: str | None = None
) -> WholeTarget:
    """Find a loaded model's blocks, final norm and head, and prove them by running a few tokens.

    The blocks are the largest list of as many modules as the config counts layers, in a module that holds the
    token embedding too. The pass of a few tokens must show that each runs once and in order on one residual
    stream; that one module alone, reading the last block's output, stands between it and the head; and that the
    head's output is the logits, up to one scale or a soft cap. What passes has its B(0) .. B(n) where they are
    said to be; any other model is refused.

    Raises:
        InputError: with the part that is not as expected.
    """
    model.eval()
    kind, head = type(model).__name__, model.get_output_embeddings()
    if head is None or getattr(model.config, "is_encoder_decoder", False):
        raise _unlike(kind, "it is not a decoder with a language-model head")
    blocks = _find_blocks(model, kind)
    calls, outputs, logits = _probe(model, blocks, head)
    order = [call.module for call in calls if call.module in blocks]
    if order != blocks or len(set(blocks)) < len(blocks):
        raise _unlike(kind, f"its {len(blocks)} blocks do not each run once and in order")
    if odd := [k for k, call in enumerate(c for c in calls if c.module in blocks) if not _is_stream(call.read)]:
        raise _unlike(kind, f"block {odd[0]} does not read one residual stream [batch, tokens, hidden]")
    after = calls[1 + next(i for i, call in enumerate(calls) if call.module is blocks[-1]) :]
    if len(after) != 2 or after[1].module is not head:
        names = {module: name for name, module in model.named_modules()}
        found = ", ".join(names[call.module] for call in after if call.module is not head) or "nothing"
        raise _unlike(kind, f"between its last block and its head runs {found}, where one final norm was expected")
    last = outputs[blocks[-1]]
    if not (_is_stream(after[0].read) and torch.equal(after[0].read, last[0] if isinstance(last, tuple) else last)):
        raise _unlike(kind, "its final norm reads something else than the last block's output")
    scale, cap = _readout(outputs[head].float(), logits.float(), model, kind)
    known = name or Path(str(getattr(model.config, "_name_or_path", "") or kind)).name
    return WholeTarget(model, tokenizer, known, tuple(blocks), after[0].module, scale, cap)


@dataclass(frozen=True, eq=False)
class _Call:
    """One module's turn in a pass, and what it read."""

    module: nn.Module
    read: Tensor | None


def _find_blocks(model: PreTrainedModel, kind: str) -> list[nn.Module]:
    n_layers = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    embedding = model.get_input_embeddings()
    stacks = [
        child
        for parent in model.modules()
        for child in parent.children()
        if isinstance(child, nn.ModuleList) and len(child) == n_layers and embedding in parent.modules()
    ]
    if not stacks:
        raise _unlike(kind, f"beside its token embedding is no list of {n_layers} blocks, as its config counts them")
    return list(max(stacks, key=lambda stack: sum(p.numel() for p in stack.parameters())))


@torch.inference_mode()
def _probe(model: PreTrainedModel, blocks: list[nn.Module], head: nn.Module) -> tuple[list[_Call], dict, Tensor]:
    """The turns of blocks, head and of all modules without children outside them, in one pass of a few tokens;
    the outputs of the last block and of the head; the logits."""
    inside = {child for whole in (*blocks, head) for child in whole.modules()} - {*blocks, head}
    watched = [m for m in model.modules() if m not in inside and (m in blocks or m is head or not list(m.children()))]
    calls: list[_Call] = []
    outputs: dict[nn.Module, Any] = {}

    def before(module: nn.Module, args: tuple, kwargs: dict) -> None:
        read = first_input(args, kwargs)
        calls.append(_Call(module, read.clone() if isinstance(read, Tensor) else None))

    def after(module: nn.Module, _args: tuple, output: Any) -> None:
        outputs[module] = output

    handles = [module.register_forward_pre_hook(before, with_kwargs=True) for module in watched]
    handles += [module.register_forward_hook(after) for module in (blocks[-1], head)]
    try:
        ids = torch.arange(PROBE_TOKENS, device=model.get_input_embeddings().weight.device)[None]
        logits = model(input_ids=ids, use_cache=False).logits
    finally:
        for handle in handles:
            handle.remove()
    return calls, outputs, logits


def first_input(args: tuple, kwargs: dict) -> Any:
    """What a module reads: its first argument, by place or by the name that transformers gives it."""
    return args[0] if args else kwargs.get("hidden_states")


def _is_stream(read: Tensor | None) -> bool:
    return read is not None and read.ndim == 3 and read.shape[:2] == (1, PROBE_TOKENS)


def _readout(z: Tensor, logits: Tensor, model: PreTrainedModel, kind: str) -> tuple[float, float | None]:
    """Scale and cap that make the head's output z the logits: 1 and none for most models."""
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    scale = 1.0 if torch.equal(z, logits) else float((z * logits).sum() / z.square().sum())
    tolerance = 4 * torch.finfo(model.dtype).eps * float(logits.abs().max())
    for candidate in [(scale, None), *([(1.0, float(cap))] if cap else [])]:
        if torch.allclose(_finish(z, *candidate), logits, rtol=0, atol=tolerance):
            return candidate
    raise _unlike(kind, "its logits are neither its head's output, nor a multiple of it, nor soft-capped from it")


def _finish(z: Tensor, scale: float, cap: float | None) -> Tensor:
    return scale * z if cap is None else cap * torch.tanh(z / cap)


@contextmanager
def plain_generation(model: PreTrainedModel) -> Iterator[None]:
    """Within the block the model generates from its own distribution alone.

    A checkpoint's generation_config may hold penalties, top-p and the like, and transformers adds them to
    whatever a call leaves unsaid; text made with them is not the target's own. Only special tokens are kept.
    """
    own = model.generation_config
    special = {key: getattr(own, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    if special["pad_token_id"] is None:  # fills rows that ended, and is cut off again
        ends = special["eos_token_id"]
        special["pad_token_id"] = ends[0] if isinstance(ends, list) else ends
    model.generation_config = _transformers().GenerationConfig(**special)
    try:
        yield
    finally:
        model.generation_config = own


def _transformers() -> ModuleType:
    try:
        import transformers
    except ImportError:
        raise InputError(
            "Capturing hidden states needs transformers, which is not installed here; install the extra:"
            " pip install -e '.[capture]' -c constraints.txt"
        ) from None
    return transformers


def _unlike(kind: str, what: str) -> InputError:
    return InputError(
        f"Expected a decoder of blocks on one residual stream, a final norm and a head, but of {kind} {what}; write its"
        " states with the example in docs/obtaining_dumps.md."
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
