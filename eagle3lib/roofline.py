"""The least time that a step of the target can take: weights, keys and values read once, and every multiplication.

    time(batch, m) = max(bytes / bandwidth, operations / rate)          m tokens of each of `batch` sequences
    bytes          = weights touched by batch · m tokens + keys and values of batch · context tokens
    operations     = 2 · weights that a token multiplies with · batch · m

Of a mixture of experts, n tokens touch E (1 - (1 - k/E)^n) of a layer's E experts, if each token chose its k of them
whatever the others chose. Tokens of one text choose alike, so this overestimates: it is what a wide verification reads
at most.

Kernels reach a half to nine tenths of either rate, and nothing here tells synchronisation, launches or the exchange
between devices: only ratios of two such times are used, or they are scaled to a measured one.
"""

from __future__ import annotations

from dataclasses import dataclass

from eagle3lib.case import CostSection
from eagle3lib.errors import InputError
from eagle3lib.target_shape import TargetCost


@dataclass(frozen=True)
class Device:
    """Data-sheet rates of one device: GB/s of its memory, TFLOP/s of dense bfloat16 multiplication."""

    label: str
    bandwidth: float
    tflops: float


#: From the vendors' data sheets, without sparsity.
DEVICES = {
    "H100": Device("NVIDIA H100 SXM 80 GB", 3350, 989),
    "H200": Device("NVIDIA H200 SXM 141 GB", 4800, 989),
    "B200": Device("NVIDIA HGX B200", 7700, 2250),
    "A100": Device("NVIDIA A100 SXM 80 GB", 2039, 312),
    "L40S": Device("NVIDIA L40S", 864, 362),
    "RTX 4090": Device("NVIDIA GeForce RTX 4090", 1008, 165),
    "MI300X": Device("AMD Instinct MI300X", 5300, 1307),
}


def device_of(section: CostSection) -> Device | None:
    """The device that a case names or describes; None where it does neither.

    Raises:
        InputError: if the name is none of `DEVICES`, or only one of its two rates is given.
    """
    if section.device is not None:
        if section.device not in DEVICES:
            raise InputError(
                f"[cost] names the device {section.device!r}; known are {', '.join(DEVICES)}. For another, state"
                " bandwidth (GB/s) and tflops instead."
            )
        return DEVICES[section.device]
    rates = (section.bandwidth, section.tflops)
    if any(rates) and not all(rates):
        raise InputError("[cost] states one of bandwidth (GB/s) and tflops; state both, or a device by name.")
    return Device("the case's device", *rates) if all(rates) else None


def distinct_experts(experts: int, chosen: int, tokens: int) -> float:
    """Expected number of a layer's experts that so many tokens touch, each choosing by itself."""
    return experts * (1 - (1 - chosen / experts) ** tokens)


@dataclass(frozen=True)
class Step:
    """One pass of the target: what it reads, its time, and whether reading or multiplying takes longer."""

    gigabytes: float
    ms: float
    bound: str


def step(target: TargetCost, device: Device, tokens: int, batch: int = 1, context: int = 0, devices: int = 1) -> Step:
    """A pass over `tokens` tokens of each of `batch` sequences: 1 is decoding, more is a verification.

    Args:
        context: tokens whose keys and values every sequence reads.
        devices: that share both the reading and the multiplying, evenly.
    """
    n = batch * tokens
    touched = distinct_experts(target.experts, target.chosen, n) if target.experts else 0.0
    routed = target.sparse_layers * touched * target.expert
    bits = target.dense * target.dense_bits + routed * target.weight_bits
    read = (bits + batch * context * target.kv_values * target.kv_bits) / 8
    multiplied = 2 * n * (target.active + context * target.attention_per_key)
    reading = read / (device.bandwidth * 1e9 * devices)
    multiplying = multiplied / (device.tflops * 1e12 * devices)
    bound = "memory" if reading >= multiplying else "arithmetic"
    return Step(read / 1e9, max(reading, multiplying) * 1e3, bound)


def widening(target: TargetCost, device: Device, tokens: int, batch: int = 1, context: int = 0) -> float:
    """How many times a decoding step a verification of `tokens` tokens takes."""
    return step(target, device, tokens, batch, context).ms / step(target, device, 1, batch, context).ms
