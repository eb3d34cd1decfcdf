"""Steering vectors that a User saves by name, over HTTP."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import numpy as np
import pytest
from django.conf import settings
from django.db import IntegrityError, connection, transaction
from safetensors.numpy import load

from accounts.models import User
from accounts.people import delete as delete_user
from completions.failures import Failure
from inference import catalogue
from inference.engine.messages import Steering
from tests.pages.client import send, signed_in
from vectors import saved
from vectors.models import Origin, SavedVector

WIDTH, LAYERS = 64, 4


@pytest.fixture
def user(database: None, tiny_catalogue) -> User:
    return User.objects.create_user(f"{uuid4().hex}@example.org")


@pytest.fixture
def browser(user: User):
    return signed_in(user)


def numbers(rows: int = 1, width: int = WIDTH) -> np.ndarray:
    draw = np.random.default_rng(rows * 1000 + width)
    return draw.standard_normal((rows, width)).astype("<f4")


def vector(rows: np.ndarray | None = None, **fields: object) -> dict[str, object]:
    rows = numbers() if rows is None else rows
    layers = {"layer_indices": [*range(len(rows))]}
    return {"activations": rows.astype(float).tolist(), **layers, "scale": 4, **fields}


def asked(name: str = "pirate", **fields: object) -> dict[str, object]:
    body = {"name": name, "model": "tiny", "vector": vector(), "origin": "pasted"}
    return body | fields


def save(browser, name: str = "pirate", **fields: object) -> dict[str, object]:
    answer = send(browser, "/playground/vectors/save", asked(name, **fields))
    assert answer.status_code == 200, answer.content
    return answer.json()["vector"]


def refusal(browser, **fields: object) -> tuple[int, str, str | None]:
    answer = send(browser, "/playground/vectors/save", asked(**fields))
    error = answer.json()["error"]
    return answer.status_code, error["message"], error["param"]


def listed(browser) -> dict[str, object]:
    return browser.get("/playground/vectors").json()


def limited(settings, **limits: int) -> None:
    settings.BASALT = settings.BASALT.model_copy(update=limits)


def test_a_vector_is_saved_with_what_belongs_to_it_and_read_back_to_the_bit(browser) -> None:
    rows = numbers(2)
    body = vector(rows, layer_indices=[3, 0], norm_match=True, position_spans=[[4, 5], [0, 2]])
    made = save(browser, vector=body, origin="file", origin_name="pirate.npy")
    digest = hashlib.sha256(rows.tobytes()).hexdigest()
    expected = {
        "name": "pirate",
        "model": "tiny",
        "layers": [3, 0],
        "width": WIDTH,
        "scale": 4,
        "norm_match": True,
        "spans": [[0, 2], [4, 5]],
        "digest": digest,
        "origin": "from the file pirate.npy",
    }
    assert {name: made[name] for name in expected} == expected
    assert listed(browser)["vectors"] == [made]
    answer = browser.get(f"/playground/vectors/{made['id']}/file")
    assert answer["Content-Disposition"] == 'attachment; filename="pirate.safetensors"'
    assert answer["Cache-Control"] == "no-store"
    [(_, found)] = load(answer.content).items()
    assert found.dtype == np.float32
    assert found.tobytes() == rows.tobytes()
    size = int.from_bytes(answer.content[:8], "little")
    about = json.loads(answer.content[8 : 8 + size])["__metadata__"]
    assert json.loads(about["layer_indices"]) == [3, 0]
    assert json.loads(about["position_spans"]) == [[0, 2], [4, 5]]
    assert (about["sha256"], about["scale"], about["norm_match"]) == (digest, "4.0", "true")


def test_what_is_kept_are_float32_bytes_whatever_was_sent(user: User) -> None:
    wide = numbers(3)
    bits = wide.view("<u4") >> 16
    steering = Steering(
        layers=(0, 1, 2),
        data=bits.astype("<u2").tobytes(),
        dtype="bfloat16",
        shape=(3, WIDTH),
    )
    model = catalogue.current().entry("tiny")
    assert model is not None
    made = saved.save(
        user_id=user.id, name="half", model=model, steering=steering, origin=Origin.PASTED
    )
    kept = SavedVector.objects.get(id=made.id)
    assert bytes(kept.numbers) == (bits << 16).astype("<u4").tobytes()
    assert kept.size == 3 * WIDTH * 4
    assert (kept.scale, kept.norm_match, kept.spans) == (1.0, False, None)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"vector": vector(numbers(1, 63))}, "apply_steering_vectors", "needs 64 numbers"),
        ({"vector": vector(layer_indices=[4])}, "apply_steering_vectors", "has Layers 0 to 3"),
        ({"vector": vector(layer_indices=[0, 1])}, "apply_steering_vectors", "one row for each"),
        ({"vector": vector() | {"activations": [[1e39] * 64]}}, "apply_steering_vectors", "e+38"),
        ({"vector": vector(scael=1)}, "apply_steering_vectors", "scael"),
        ({"vector": vector() | {"activations": [[[0.5] * 64]]}}, "vector", "for each position"),
        ({"model": "none-such"}, "model", "none-such"),
        ({"name": " "}, "name", "1 to 60 characters"),
        ({"name": "n" * 61}, "name", "1 to 60 characters"),
        ({"name": "a\0b"}, "name", "U+0000"),
        ({"origin": "elsewhere"}, "origin", "origin"),
        ({"more": 1}, "more", "more"),
    ],
)
def test_what_cannot_be_saved_is_refused_with_its_reason(
    browser, fields: dict[str, object], param: str, words: str
) -> None:
    status, message, at = refusal(browser, **fields)
    assert (status, at) == (400, param)
    assert words in message
    assert listed(browser)["vectors"] == []


def test_a_name_is_given_once_whatever_its_letter_case(browser) -> None:
    first, second = save(browser, "Pirate"), save(browser, "other")
    expected = (409, "You have a saved vector named pirate: choose another name.", "name")
    assert refusal(browser, name="pirate") == expected
    path = f"/playground/vectors/{second['id']}/rename"
    assert send(browser, path, {"name": "PIRATE"}).status_code == 409
    assert send(browser, path, {"name": " "}).status_code == 400
    renamed = send(browser, path, {"name": " Sailor "}).json()["vector"]
    assert renamed == second | {"name": "Sailor"}
    # A name may change its letter case, and a deleted one is free again.
    path = f"/playground/vectors/{first['id']}"
    assert send(browser, f"{path}/rename", {"name": "pirate"}).status_code == 200
    assert send(browser, f"{path}/delete").status_code == 200
    save(browser, "PIRATE")
    assert [each["name"] for each in listed(browser)["vectors"]] == ["PIRATE", "Sailor"]


def test_a_user_saves_so_many_and_so_much(browser, settings) -> None:
    limited(settings, max_saved_vectors=2, max_saved_vector_bytes=3 * WIDTH * 4)
    save(browser, "one")
    status, message, _ = refusal(browser, name="big", vector=vector(numbers(3)))
    assert status == 409
    assert "768 bytes in all: 256 are used, and this one has 768" in message
    save(browser, "two", vector=vector(numbers(2)))
    assert listed(browser)["room"] == {
        "vectors": 2,
        "size": 768,
        "most_vectors": 2,
        "most_size": 768,
    }
    status, message, _ = refusal(browser, name="three")
    assert status == 409
    assert message.startswith("You have 2 saved vectors, the most that a User may have.")
    other = signed_in(User.objects.create_user(f"{uuid4().hex}@example.org"))
    save(other, "one")


def test_saves_at_once_do_not_pass_the_limit_together(user: User, settings) -> None:
    limited(settings, max_saved_vectors=3)
    model = catalogue.current().entry("tiny")
    assert model is not None
    row = numbers()
    steering = Steering(layers=(0,), data=row.tobytes(), dtype="float32", shape=row.shape)

    def one(place: int) -> bool:
        try:
            saved.save(
                user_id=user.id,
                name=f"at once {place}",
                model=model,
                steering=steering,
                origin=Origin.PASTED,
            )
        except Failure:
            return False
        finally:
            connection.close()
        return True

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(one, range(8)))
    assert made.count(True) == SavedVector.objects.of(user.id).count() == 3


def test_a_vector_is_its_users_alone(browser) -> None:
    made = save(browser)
    other = signed_in(User.objects.create_user(f"{uuid4().hex}@example.org"))
    assert listed(other)["vectors"] == []
    path = f"/playground/vectors/{made['id']}"
    assert other.get(f"{path}/file").status_code == 404
    assert send(other, f"{path}/rename", {"name": "mine"}).status_code == 404
    assert send(other, f"{path}/delete").status_code == 404
    assert listed(browser)["vectors"] == [made]
    other.logout()
    assert other.get("/playground/vectors").status_code == 302
    assert send(other, "/playground/vectors/save", asked()).status_code == 401


def test_a_deleted_users_vectors_are_erased_with_them(browser, user: User) -> None:
    save(browser)
    kept = signed_in(User.objects.create_user(f"{uuid4().hex}@example.org"))
    still = save(kept)
    delete_user(user_id=user.id, by=None)
    assert not SavedVector.objects.of(user.id).exists()
    assert [each["id"] for each in listed(kept)["vectors"]] == [still["id"]]


def test_the_database_takes_no_vector_without_a_row_for_each_layer(browser) -> None:
    made = save(browser)
    for wrong in ({"width": WIDTH - 1}, {"layers": [0, 1]}, {"layers": [], "numbers": b""}):
        with pytest.raises(IntegrityError, match="vector_row_for_each_layer"), transaction.atomic():
            SavedVector.objects.filter(id=made["id"]).update(**wrong)


def test_the_list_reads_no_numbers(browser, django_assert_num_queries) -> None:
    for name in ("one", "two", "three"):
        save(browser, name)
    # The session, the User, the vectors, the sums.
    with django_assert_num_queries(4) as queries:
        listed(browser)
    assert not [query for query in queries if '"numbers"' in query["sql"]]
    assert settings.BASALT.max_saved_vectors == 100
