"""What the ids of a draft meant in training, by each trainer's own source, and the ids that name given boundaries."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from eagle3lib.ecosystems import FORMS, TRAINERS, LayerIds, TargetShape
from eagle3lib.errors import InputError

LLAMA = TargetShape(30, "LlamaForCausalLM")
QWEN = TargetShape(36, "Qwen3ForCausalLM")
DEEP_QWEN = TargetShape(94, "Qwen3MoeForCausalLM")
GPT_OSS = TargetShape(36, "GptOssForCausalLM")
DEEPSEEK = TargetShape(61, "DeepseekV3ForCausalLM")
KIMI = TargetShape(61, "KimiK25ForConditionalGeneration")


def flat(ids):
    return {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}


def top(ids):
    return {"eagle_aux_hidden_state_layer_ids": ids}


def trained(name, config, target):
    return TRAINERS[name].boundaries(TRAINERS[name].read_ids(config), target)


def test_every_trainer_is_there():
    assert set(TRAINERS) == {
        "eagle", "modelopt", "modelopt_vllm", "nemo", "specforge", "speculators", "speculators_old", "torchspec",
    }  # fmt: skip


@pytest.mark.parametrize(("target", "expected"), [(LLAMA, (2, 15, 27)), (QWEN, (2, 18, 33)), (KIMI, (2, 30, 58))])
def test_all_but_two_agree_without_ids(target, expected):
    """B(2), B(n // 2), B(n - 3), which each writes in its own numbers."""
    found = {name: trained(name, {}, target) for name in TRAINERS}
    assert found.pop("speculators_old") == tuple(b + 1 for b in expected)
    assert found.pop("modelopt_vllm") == tuple(b - 1 for b in expected)
    assert set(found.values()) == {expected}


def test_eagle_has_no_ids():
    """SafeAILab/EAGLE eagle/traineagle3/modeling_llama_kv.py: `idx==len(self.layers)-3 or idx==len(self.layers)//2 or
    idx==2` before block idx, in one condition, so once each."""
    eagle = TRAINERS["eagle"]
    assert trained("eagle", top([5, 6, 7]) | flat([5, 6, 7]), LLAMA) == (2, 15, 27)
    assert trained("eagle", {}, TargetShape(6)) == (2, 3)
    assert eagle.ids((2, 15, 27), LLAMA).ids == ()
    assert "B(2), B(15), B(27) of this target and nothing else" in eagle.ids((3, 16, 28), LLAMA).problem


def test_speculators_own_checks():
    """vllm-project/speculators models/utils.py `resolve_target_layer_ids`: distinct, within 0 to n; n is the final
    state's. The library's own function says the same of every list tried."""
    utils = pytest.importorskip("speculators.models.utils")
    ours, n = TRAINERS["speculators"], 6
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "get_verifier_config", lambda *_, **__: SimpleNamespace(num_hidden_layers=n))
        for ids in [None, [], *map(list, itertools.product(range(-1, n + 2), repeat=2))]:
            read = ours.read_ids(top(ids))
            try:
                theirs = utils.resolve_target_layer_ids(ids, "any")
            except ValueError:
                with pytest.raises(InputError):
                    ours.boundaries(read, TargetShape(n))
            else:
                assert ours.boundaries(read, TargetShape(n)) == tuple(sorted(set(theirs)))


@pytest.mark.parametrize("ids", [[], [2, 2, 3], [-1, 2, 3], [2, 3, 31]])
def test_speculators_refuses(ids):
    with pytest.raises(InputError, match="distinct ids"):
        trained("speculators", top(ids), LLAMA)


def test_speculators_old_data_generation():
    """vllm-project/speculators data_generation/vllm_hidden_states_generator.py, since removed: [2, n // 2, n - 3,
    n - 1] by default, ids within 0 to n - 1; custom_worker.py captures behind each block, from low to high."""
    old = TRAINERS["speculators_old"]
    assert trained("speculators_old", top([2, 14, 24]), TargetShape(32)) == (3, 15, 25)
    assert old.stored(LayerIds(None, "absent"), LLAMA) == (3, 16, 28, 30)
    stored = old.stored(LayerIds((2, 30, 58), "argument"), KIMI)
    assert old.slots_and_teacher(stored) == ((3, 31), 59)
    with pytest.raises(InputError, match="within 0 to 29"):
        old.stored(LayerIds((2, 15, 30), "argument"), LLAMA)
    assert old.ids((3, 16, 28), LLAMA).ids == (2, 15, 27)
    assert r"B(0) is none" in old.ids((0, 3, 16), LLAMA).problem


@pytest.mark.parametrize(
    ("config", "target", "expected"),
    [
        (flat([1, 29, 57]), DEEPSEEK, (2, 30, 58)),
        (flat([1, 17, 33]), GPT_OSS, (2, 18, 34)),
        (flat([1, 11, 21]), TargetShape(24, "GptOssForCausalLM"), (2, 12, 22)),
        (flat([1, 46, 90]), DEEP_QWEN, (2, 47, 91)),
        (flat([2, 30, 58]), KIMI, (2, 30, 58)),  # SGLang 0.5.14 adds one only where the first id is 1
        (flat([27, 2, 15]), LLAMA, (3, 16, 28)),
        (top([0, 3, 16]), LLAMA, (2, 15, 27)),
    ],
)
def test_specforge(config, target, expected):
    """sgl-project/SpecForge configs/deepseek-v3-671b-eagle3.json, gpt-oss-120B-eagle3.json, gpt-oss-20B-eagle3.json,
    qwen3-235B-A22B-eagle3.json; algorithms/model_providers.py and offline_capture/sglang_backend/capture.py, with the
    SGLang that pyproject.toml pins."""
    assert trained("specforge", config, target) == expected


@pytest.mark.parametrize("ids", [[], [1, 14], [-1, 2, 15], [1, 1, 2]])
def test_specforge_refuses(ids):
    """algorithms/model_providers.py: exactly three, from 0 up; application/planning.py: distinct."""
    with pytest.raises(InputError, match="exactly three distinct ids from 0 up"):
        trained("specforge", flat(ids), LLAMA)


def test_specforge_resolves_as_its_own_code_does():
    """specforge/algorithms/model_providers.py `resolve_eagle_capture_layers`, on absent, null and every list."""
    theirs = pytest.importorskip("specforge.algorithms.model_providers").resolve_eagle_capture_layers
    run = SimpleNamespace(model=SimpleNamespace(aux_hidden_state_layer_ids=None))
    target = SimpleNamespace(num_hidden_layers=30)
    for config in [{}, flat(None), *(flat(list(ids)) for ids in itertools.permutations((-1, 0, 1, 14, 26), 3))]:
        try:
            resolved = theirs(run, config, target)
        except ValueError:
            with pytest.raises(InputError):
                trained("specforge", config, LLAMA)
        else:
            assert trained("specforge", config, LLAMA) == tuple(sorted(i + 1 for i in resolved))


@pytest.mark.parametrize(
    ("n", "ids", "expected"),
    [(48, [1, 23, 44], (2, 24, 45)), (36, [1, 17, 32], (2, 18, 33)), (24, [1, 11, 20], (2, 12, 21))],
)
def test_modelopt(n, ids, expected):
    """NVIDIA/Model-Optimizer tools/launcher/examples: Qwen3-30B-A3B, Qwen3-8B and gpt-oss-20b streaming recipes,
    "default_eagle_aux_layer_ids(48)=[1,23,44] +1, plus final"."""
    target = TargetShape(n)
    for config in (flat(ids), flat([]), flat(None), {}):
        assert trained("modelopt", config, target) == expected
    assert TRAINERS["modelopt"].ids(expected, target).ids == tuple(ids)


def test_modelopt_sorts_and_reaches_the_last_block():
    """plugins/hf_eagle.py hooks the blocks whose number is in the list; collect_hidden_states/common.py sorts."""
    assert trained("modelopt", flat([29, 1, 14, 1]), LLAMA) == (2, 15, 30)
    with pytest.raises(InputError, match=r"B\(31\) is none"):
        trained("modelopt", flat([30]), LLAMA)


def test_modelopt_with_vllm_dumps_is_one_lower():
    """collect_hidden_states/compute_hidden_states_vllm.py hands the ids to vLLM as they are, ids within 0 to n - 1."""
    assert trained("modelopt_vllm", flat([1, 14, 26]), LLAMA) == (1, 14, 26)
    assert trained("modelopt_vllm", flat([0, 14, 26]), LLAMA) == (0, 14, 26)
    with pytest.raises(InputError, match=r"B\(30\) is none"):
        trained("modelopt_vllm", flat([1, 14, 30]), LLAMA)
    with pytest.raises(InputError, match=r"cannot capture B\(0\)"):
        trained("modelopt_vllm", flat([0, 14, 26]), DEEPSEEK)


def test_nemo():
    """NVIDIA-NeMo/Automodel eagle/target.py `validate_eagle3_aux_layer_ids`, eagle/vllm_runner.py (ids plus one)."""
    nemo = TRAINERS["nemo"]
    given = {"aux_layer_ids": [1, 4, 6]}
    assert nemo.boundaries(nemo.read_ids(given), TargetShape(8)) == (2, 5, 7)
    assert nemo.ids((2, 5, 8), TargetShape(8)).ids == (1, 4, 7)
    assert "exactly three" in nemo.ids((2, 5), TargetShape(8)).problem
    for ids, said in (([1, 2], "exactly three"), ([1, 1, 2], "distinct"), ([0, 1, 8], r"B\(9\)"), ([4, 1, 6], "order")):
        with pytest.raises(InputError, match=said):
            trained("nemo", {"aux_layer_ids": ids}, TargetShape(8))


def test_torchspec():
    """lightseekorg/TorchSpec tests/test_vllm_engine.py: [1, 17, 32] of Qwen3-8B become vLLM's [2, 18, 33], and 10
    becomes 11; configs/draft_models/kimi_k25_eagle3_mla.json: [1, 29, 57]."""
    assert trained("torchspec", flat([1, 17, 32]), QWEN) == (2, 18, 33)
    assert trained("torchspec", flat([10]), QWEN) == (11,)
    assert trained("torchspec", flat([1, 29, 57]), KIMI) == (2, 30, 58)
    assert TRAINERS["torchspec"].ids((2, 30, 58), KIMI).ids == (1, 29, 57)
    for ids, said in (([], "captures nothing"), ([15, 2], "order"), ([100], r"B\(101\)"), ([-1, 2], r"B\(0\)")):
        with pytest.raises(InputError, match=said):
            trained("torchspec", flat(ids), QWEN)


@pytest.mark.parametrize("name", TRAINERS)
def test_round_trip(name):
    """Whatever a trainer has no problem with comes back from its own ids."""
    system, any_at_all = TRAINERS[name], False
    for architecture in ("LlamaForCausalLM", "DeepseekV3ForCausalLM", "GptOssForCausalLM", "Gemma4ForCausalLM", None):
        target = TargetShape(6, architecture)
        for length in range(1, 5):
            for boundaries in itertools.permutations(range(7), length):
                captures = system.ids(boundaries, target)
                if captures.problem is None:
                    any_at_all = True
                    assert system.boundaries(LayerIds(captures.ids, system.key), target) == boundaries
    assert any_at_all


@pytest.mark.parametrize("name", TRAINERS)
def test_notes_name_what_was_read(name):
    assert TRAINERS[name].verified in TRAINERS[name].ids((2, 3, 4), LLAMA).note


def test_a_list_that_a_trainer_does_not_read_leaves_open_what_was_trained():
    """A converted copy with another list at the place the engines read."""
    specforge = TRAINERS["specforge"]
    assert specforge.trained(flat([1, 14, 26]), LLAMA) == (2, 15, 27)
    assert specforge.trained(flat([1, 14, 26]) | top([1, 14, 26]), LLAMA) == (2, 15, 27)
    assert specforge.trained(flat([1, 14, 26]) | top([2, 15, 27]), LLAMA) is None
    assert specforge.trained(top([2, 15, 27]), LLAMA) is None
    assert specforge.trained(flat([1, 14]), LLAMA) is None, "refused in training"
    assert TRAINERS["eagle"].trained(top([5, 6, 7]), LLAMA) == (2, 15, 27)


def test_forms_name_their_trainers():
    """One place for a rule: a form has none of its own."""
    assert {name: form.trainer.name for name, form in FORMS.items() if form.trainer} == {
        "eagle": "eagle", "llama_cpp": "speculators", "modelopt": "modelopt", "modelopt_megatron": "modelopt",
        "nemo": "nemo", "specforge": "specforge", "speculators": "speculators",
    }  # fmt: skip
