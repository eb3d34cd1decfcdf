"""Saved Steering vectors in a real browser; what axe says with all of the Playground open."""

import hashlib
import re

import numpy as np
import pytest
from playwright.sync_api import Page, expect
from safetensors.numpy import load_file

from inference import catalogue
from inference.engine.messages import Steering
from jobs.models import Run
from jobs.runs import body_of
from tests.billing.factory import make_user_with
from tests.browser.conftest import Desk, PageFor, is_too_wide, serious_faults
from tests.browser.test_playground import REAL, press_run, prompt_of, ran
from vectors import saved
from vectors.models import Origin, SavedVector

pytestmark = pytest.mark.usefixtures("runner", "engine")

ROWS = np.random.default_rng(5).standard_normal((2, 64)).astype("<f4")
DIGEST = hashlib.sha256(ROWS.tobytes()).hexdigest()


@pytest.fixture
def rich():
    return make_user_with(budget=1_000_000)


def keep(user, desk: Desk, name: str, shape: tuple[int, int] = (1, 64), **fields: object) -> None:
    """Save a vector for a model that is as deep and as wide as the vector needs."""
    model = catalogue.load_catalogue(desk.catalogue).entry("desk")
    assert model is not None
    layers, width = shape
    steering = Steering(
        layers=fields.pop("layers", tuple(range(layers))),
        data=np.ones(shape, "<f4").tobytes(),
        dtype="float32",
        shape=shape,
        **fields,
    )
    saved.save(
        user_id=user.id,
        name=name,
        model=model.model_copy(update={"hidden_size": width, "n_layers": 32}),
        steering=steering,
        origin=Origin.PASTED,
    )


def add_dialog(page: Page):
    page.get_by_role("button", name="Add vector").press("Enter")
    return page.get_by_role("dialog", name="Add a Steering vector")


def paste(page: Page, name: str) -> None:
    dialog = add_dialog(page)
    dialog.get_by_label("Or pasted numbers").fill(str(ROWS.astype(float).tolist()))
    dialog.get_by_label("Name", exact=True).fill(name)
    # Row 0 is for Layer 2: the order is that in which the Layers are named.
    dialog.get_by_label("Layers", exact=True).fill("2, 0")
    dialog.get_by_label("Scale").fill("4")
    dialog.get_by_label("Positions").fill("0-1, 3")
    dialog.get_by_role("button", name="Add vector").click()
    expect(dialog).to_be_hidden()


def test_a_vector_is_saved_from_the_panel_and_steers_again(
    page_for: PageFor, rich, desk: Desk
) -> None:
    keep(rich, desk, "taken")
    page = page_for(rich, REAL)
    paste(page, "half")
    row = page.locator("#vectors li")
    expect(row).to_contain_text("Layers 2, 0 × 4 · positions 0-1, 3")
    page.get_by_role("button", name="Save half").press("Enter")
    name = page.get_by_role("dialog", name="Save this vector")
    name.get_by_label("Name", exact=True).fill("Taken")
    page.keyboard.press("Enter")
    expect(name.get_by_role("alert")).to_contain_text("You have a saved vector named Taken")
    name.get_by_label("Name", exact=True).fill("pirate")
    page.keyboard.press("Enter")
    expect(name).to_be_hidden()
    expect(row).to_contain_text("pirate")
    expect(page.get_by_role("button", name="Save pirate")).to_have_count(0)
    kept = SavedVector.objects.get(user=rich, name="pirate")
    assert (kept.layers, kept.spans, kept.digest) == ([2, 0], [[0, 2], [3, 4]], DIGEST)
    assert (kept.model, kept.origin) == ("desk", Origin.PASTED)

    page.reload()
    dialog = add_dialog(page)
    choice = dialog.get_by_role("radio", name="pirate")
    expect(choice).to_have_accessible_description(re.compile(f"sha256 {DIGEST[:12]}$"))
    choice.focus()
    page.keyboard.press("Space")
    expect(dialog.get_by_label("Layers", exact=True)).to_have_value("2, 0")
    expect(dialog.get_by_label("Scale")).to_have_value("4")
    expect(dialog.get_by_label("Positions")).to_have_value("0-1, 3")
    dialog.get_by_label("Scale").fill("2")
    expect(page.locator("#vector-read")).to_contain_text("2 × 64 numbers")
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    # With another scale it is not what was saved, so it can be saved itself.
    expect(page.get_by_role("button", name="Save pirate")).to_be_visible()
    prompt_of(page).fill("A bell")
    press_run(page)
    ran(page)
    [sent] = body_of(Run.objects.get(user=rich))["apply_steering_vectors"]
    assert np.array(sent.pop("activations"), "<f4").tobytes() == ROWS.tobytes()
    assert sent == {"layer_indices": [2, 0], "scale": 2, "position_spans": [[0, 2], [3, 4]]}


def test_saved_vectors_are_renamed_downloaded_deleted_and_read_back(
    page_for: PageFor, rich
) -> None:
    page = page_for(rich, REAL)
    paste(page, "half")
    page.get_by_role("button", name="Save half").click()
    page.get_by_role("dialog", name="Save this vector").get_by_role("button", name="Save").click()
    expect(page.get_by_text("half is saved")).to_be_visible()
    dialog = add_dialog(page)
    expect(dialog.locator("#saved-room")).to_have_text("1 of 100 saved, 0.00 of 64 MiB")
    dialog.get_by_role("button", name="Rename half").press("Enter")
    name = page.get_by_role("dialog", name="Rename this vector")
    name.get_by_label("Name", exact=True).fill("sailor")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("button", name="Rename sailor")).to_be_focused()
    with page.expect_download() as download:
        dialog.get_by_role("link", name="Download sailor").click()
    path = download.value.path().with_name("sailor.safetensors")
    download.value.save_as(path)
    [found] = load_file(path).values()
    assert found.tobytes() == ROWS.tobytes()
    dialog.get_by_role("button", name="Delete sailor").click()
    question = page.get_by_role("dialog", name="Delete sailor?")
    question.get_by_role("button", name="Cancel").click()
    assert SavedVector.objects.of(rich.id).count() == 1
    dialog.get_by_role("button", name="Delete sailor").click()
    question.get_by_role("button", name="Delete vector").click()
    expect(dialog.get_by_role("radio")).to_have_count(0)
    assert not SavedVector.objects.of(rich.id).exists()
    # The file has the settings too, and they come back with it.
    dialog.get_by_label("From a file").set_input_files(path)
    expect(dialog.get_by_label("Name", exact=True)).to_have_value("sailor")
    expect(dialog.get_by_label("Layers", exact=True)).to_have_value("2, 0")
    expect(dialog.get_by_label("Positions")).to_have_value("0-1, 3")


def test_a_saved_vector_that_does_not_fit_says_why(page_for: PageFor, rich, desk: Desk) -> None:
    keep(rich, desk, "deep", layers=(31,))
    keep(rich, desk, "fits", norm_match=True)
    keep(rich, desk, "wide", (1, 576))
    page = page_for(rich, REAL)
    dialog = add_dialog(page)
    for name, why in (
        ("deep", "It is for Layer 31, and Desk Llama has Layers 0 to 3."),
        ("wide", "It has 576 numbers for each Layer, and Desk Llama needs 64."),
    ):
        choice = dialog.get_by_role("radio", name=name)
        expect(choice).to_be_disabled()
        expect(choice).to_have_accessible_description(re.compile(re.escape(why)))
    choice = dialog.get_by_role("radio", name="fits")
    expect(choice).to_have_accessible_description(re.compile("norm matched.*Saved for Desk Llama"))
    choice.check()
    expect(dialog.get_by_label("Match the norm")).to_be_checked()
    # Numbers that are as wide as another model are refused when they are added, too.
    dialog.get_by_label("Or pasted numbers").fill("1, 2, 3")
    expect(choice).not_to_be_checked()
    dialog.get_by_role("button", name="Add vector").click()
    expect(dialog.get_by_role("alert")).to_have_text(
        "A vector of this model has 64 numbers; these have 3."
    )
    expect(page.locator("#vectors li")).to_have_count(0)


@pytest.mark.parametrize("phone", [False, True], ids=["wide", "phone"])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_no_serious_fault_with_everything_open(
    page_for: PageFor, rich, desk: Desk, colours: str, phone: bool
) -> None:
    keep(rich, desk, "fits", norm_match=True)
    keep(rich, desk, "wide", (1, 576))
    page = page_for(rich, REAL + "%26read%3Dall", phone=phone, color_scheme=colours)
    prompt_of(page).fill("A bell")
    if phone:
        page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_text("More sampling").click()
    dialog = add_dialog(page)
    expect(dialog.get_by_role("radio")).to_have_count(2)
    assert serious_faults(page) == []
    assert not dialog.evaluate("e => e.scrollWidth > e.clientWidth")
    dialog.get_by_role("radio", name="fits").check()
    expect(page.locator("#vector-read")).to_contain_text("1 × 64 numbers")
    dialog.get_by_role("button", name="Add vector").click()
    expect(page.locator("#vectors li")).to_have_count(1)
    assert serious_faults(page) == []
    if phone:
        page.get_by_role("button", name="Close the settings").click()
    press_run(page)
    ran(page)
    page.locator(".token").nth(1).click()
    expect(page.locator(".likeliest")).to_be_visible()
    expect(page.locator("canvas.norms")).to_be_visible()
    page.locator(".norms-box summary").click()
    assert page.locator(".heat[data-band]").count() > 0
    assert serious_faults(page) == []
    assert not is_too_wide(page)


@pytest.mark.parametrize("phone", [False, True], ids=["wide", "phone"])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_no_serious_fault_in_compare(page_for: PageFor, rich, colours: str, phone: bool) -> None:
    columns = "".join(
        f"&m=model%3Ddesk%26max_tokens%3D4%26seed%3D{seed}%26read%3D0" for seed in range(3)
    )
    page = page_for(rich, f"/playground?view=compare{columns}", phone=phone, color_scheme=colours)
    prompt_of(page).fill("A bell")
    press_run(page)
    ran(page, 3)
    expect(page.locator("canvas.norms")).to_have_count(3)
    assert serious_faults(page) == []
    assert not is_too_wide(page)
    if phone:
        page.get_by_role("button", name="Settings", exact=True).click()
    expect(page.locator("#columns > li")).to_have_count(3)
    assert serious_faults(page) == []
