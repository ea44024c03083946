"""A published case, worked through: a sparse target served at 46.7 tokens/s with a draft and at 90.0 without.

A user's report on an EAGLE-3 draft for Kimi-K2.5 in SGLang. Measured: 90.0 tokens/s without speculation; 46.7 at
accept length 1.9 with 16 draft tokens; 56.8 at 1.6 while `--speculative-num-steps 1` held the draft at two nodes; and
54.8 with 16 once the draft was fed what it was trained on. With which topk and how many steps the 16 were drafted was
not said.
"""

from __future__ import annotations

from dataclasses import dataclass

from eagle3lib.bootstrap import Estimate
from eagle3lib.case import CostPoint, CostSection
from eagle3lib.roofline import DEVICES, widening
from eagle3lib.speeds import Quantity, Source, Speed, beyond_reading, break_even, exact, measured_speeds
from eagle3lib.target_shape import target_cost
from eagle3lib.throughput import fit

BASELINE, AFTER_THE_FIX = 90.0, 54.8
SIXTEEN = CostPoint(tokens_per_second=46.7, acceptance_length=1.9, draft_tokens=16)
TWO = CostPoint(tokens_per_second=56.8, acceptance_length=1.6, steps=1, topk=1, draft_tokens=2)
CASE = CostSection(baseline=BASELINE, points=(TWO, SIXTEEN))
#: The shapes that 16 draft tokens can stand for: a chain, or a tree of so many levels and so wide a beam.
READINGS = ((15, 1), (3, 8), (5, 4))
#: The target's shape, from its config.json; only its routed experts are stored in 4 bits.
KIMI = {
    "hidden_size": 7168, "num_hidden_layers": 61, "vocab_size": 163840, "intermediate_size": 18432,
    "num_attention_heads": 64, "num_key_value_heads": 64, "kv_lora_rank": 512, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 384,
    "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "torch_dtype": "bfloat16",
    "quantization_config": {
        "config_groups": {"group_0": {"weights": {"num_bits": 4}}},
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
    },
}  # fmt: skip
#: A dense target beside it: Llama-3.1-8B, from its config.json.
LLAMA = {
    "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 128256, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "torch_dtype": "bfloat16",
}  # fmt: skip


@dataclass(frozen=True)
class Story:
    """What follows from the three speeds, milliseconds and tokens a round.

    Attributes:
        token_ms: without speculation.
        sixteen, two: the served rounds.
        needed_sixteen, needed_two: break-even acceptance lengths.
        after: acceptance length that 54.8 tokens/s imply, at the sixteen's round.
        a_node, intercept, root_alone: of the line through the two rounds.
        twice: reading all weights twice, the most that two verified tokens can read.
        unexplained: of the two-token round, what such reading does not explain: draft and overhead.
    """

    token_ms: float
    sixteen: Speed
    two: Speed
    needed_sixteen: float
    needed_two: float
    after: float
    a_node: float
    intercept: float
    root_alone: float
    twice: float
    unexplained: float

    @property
    def quantities(self) -> list[Quantity]:
        """In the order of the argument, each with its source."""
        measured, fitted, assumed = Source.MEASURED, Source.FITTED, Source.ASSUMED
        line = "line through the two rounds, linear in nodes, root counted"
        rows = [
            ("a token without speculation", self.token_ms, "ms", measured, f"1 / {BASELINE:.1f} tokens/s"),
            ("round of 16 draft tokens", self.sixteen.round_ms.value, "ms", measured, "1.9 tokens at 46.7 tokens/s"),
            ("its break-even AL", self.needed_sixteen, "tokens", measured, "round / token"),
            ("round of 2 draft tokens", self.two.round_ms.value, "ms", measured, "1.6 tokens at 56.8 tokens/s"),
            ("its break-even AL", self.needed_two, "tokens", measured, "round / token"),
            ("AL after the fix", self.after, "tokens", assumed, "54.8 tokens/s, the round of 16 taking as long"),
            ("a node, drafted and verified", self.a_node, "ms", fitted, f"{line}; the two are not separable"),
            ("no node at all", self.intercept, "ms", fitted, line),
            ("the root alone", self.root_alone, "ms", fitted, line),
            ("reading all weights twice", self.twice, "ms", assumed, "two tokens share nothing, experts included"),
            ("draft and overhead of the round of 2", self.unexplained, "ms", fitted, "at least: what reading leaves"),
        ]
        return [Quantity(name, exact(value), unit, source, why) for name, value, unit, source, why in rows]


def story() -> Story:
    """The published case by the cost model's own functions."""
    alone, two, sixteen = measured_speeds(CASE, None)
    model = fit([alone, two, sixteen])
    token = alone.round_ms
    return Story(
        token_ms=token.value,
        sixteen=sixteen,
        two=two,
        needed_sixteen=break_even(sixteen.round_ms, token).value,
        needed_two=break_even(two.round_ms, token).value,
        after=AFTER_THE_FIX * sixteen.round_ms.value / 1e3,
        a_node=model.rounds.slope.value,
        intercept=model.rounds.at(0).value,
        root_alone=model.rounds.at(1).value,
        twice=two.nodes * token.value,
        unexplained=beyond_reading(two, token),
    )


def readings(steps: int = 3) -> list[dict]:
    """What each reading of the 16 draft tokens makes of a chain of `steps`: it cannot be told which was served.

    A chain drafts as often as it verifies more nodes. A tree drafts a few times, so that the difference between the two
    rounds may be drafting alone, and a step of it dear.
    """
    rows = []
    for told, topk in READINGS:
        point = SIXTEEN.model_copy(update={"steps": told, "topk": topk})
        speeds = measured_speeds(CASE.model_copy(update={"points": (TWO, point)}), None)
        model = fit(speeds)
        apart = speeds[-1].round_ms.value - speeds[-2].round_ms.value
        chain: Estimate = model.round_ms(steps).value
        needed = break_even(chain, model.token_ms)
        rows.append(
            {
                "16 read as": f"chain, steps {told}" if topk == 1 else f"topk {topk}, steps {told}",
                "AL at most": told + 1,
                "ms a step": apart / (told - 1),
                "ms a node": model.rounds.slope.value,
                "ms from": chain.low,
                "ms to": chain.high,
                "break-even from": needed.low,
                "break-even to": needed.high,
            }
        )
    return rows


def widenings() -> dict[str, dict[int, float]]:
    """Decoding steps that a verification costs at batch 1, by nodes: a dense target, and this one by its experts.

    The ratio hardly depends on the device while both read for longer than they multiply.
    """
    targets = {
        "Llama-3.1-8B (dense)": target_cost(LLAMA, "Llama-3.1-8B"),
        "Kimi-K2.5 (sparse)": target_cost(KIMI, "Kimi-K2.5"),
    }
    nodes = (1, 2, 4, 8, 16)
    return {name: {m: widening(target, DEVICES["H200"], m) for m in nodes} for name, target in targets.items()}
