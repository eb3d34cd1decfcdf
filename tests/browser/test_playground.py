"""The Playground in a real browser: one model, its Runs as they grow, tokens, copies, settings."""

import json
import re
import subprocess

import pytest
from playwright.sync_api import Page, expect

from billing.models import OwnerKind
from billing.owners import register
from jobs.models import Run
from tests.accounts.factory import make_user
from tests.billing.factory import make_user_with, take
from tests.browser.conftest import Desk, PageFor, is_too_wide, serious_faults
from tests.live import eventually

pytestmark = pytest.mark.usefixtures("runner", "engine")

TOLD = "/playground?m=model%3Dtold%26max_tokens%3D8"
REAL = "/playground?m=model%3Ddesk%26max_tokens%3D6%26seed%3D1"
CLIPBOARD = ["clipboard-read", "clipboard-write"]


def prompt_of(page: Page):
    return page.get_by_role("textbox", name="Prompt")


def setting(page: Page, name: str):
    return page.locator(f"#{name}")


def copied(page: Page) -> str:
    return page.evaluate("navigator.clipboard.readText()")


def press_run(page: Page) -> None:
    page.get_by_role("button", name=re.compile("^Run")).press("Enter")


def ran(page: Page, count: int = 1) -> None:
    expect(page.locator(".run").get_by_role("button", name="Open in Loom")).to_have_count(count)


@pytest.fixture
def rich():
    return make_user_with(budget=1_000_000)


@pytest.mark.row("A-222", "A-225", "A-237", "A-238", "A-240", "A-246", "A-272")
def test_a_run_grows_under_its_prompt_and_is_followed_again(page_for: PageFor, rich, told) -> None:
    page = page_for(rich, TOLD)
    box = prompt_of(page)
    box.focus()
    page.keyboard.press("Tab")
    expect(box).to_have_value("The sky is")
    page.keyboard.press("Tab")
    expect(box).not_to_be_focused()
    page.locator("#model-button").click()
    choice = page.get_by_role("menuitem", name="Told Llama")
    assert choice.get_attribute("title") == "told"
    choice.press("Enter")
    box.press("Control+Enter")
    asked = told.next()
    asked.say(" blue")
    own = page.locator(".own")
    expect(own).to_have_text(" blue")
    page.reload()
    expect(own).to_have_text(" blue")
    expect(box).to_have_value("The sky is")
    asked.say(" and")
    expect(own).to_have_text(" blue and")
    page.goto("/jobs")
    asked.say(" wide")
    page.goto("/playground")
    expect(own).to_have_text(" blue and wide")
    page.get_by_role("button", name="Stop", exact=True).first.click()
    expect(page.locator("#runs").get_by_text("Stopped")).to_be_visible()
    expect(own).to_have_text(" blue and wide")
    assert asked.aborted.wait(10)
    run = Run.objects.get(user=rich)
    eventually(lambda: Run.objects.get(id=run.id).completion_tokens == 3)


@pytest.mark.row("A-247", "A-248")
def test_a_cold_model_is_waited_for_in_one_line(page_for: PageFor, rich) -> None:
    page = page_for(rich, "/playground?m=model%3Dcold%26max_tokens%3D4")
    prompt_of(page).fill("Where")
    press_run(page)
    line = page.locator(".run .waiting")
    expect(line).to_have_text(re.compile(r"^Waiting for a GPU, about [34] minutes left$"))
    page.locator("#stop").click()
    expect(page.locator("#runs").get_by_text("Stopped")).to_be_visible()


@pytest.mark.case("L06")
@pytest.mark.row("A-292", "A-293", "A-294", "A-295", "A-296", "A-255", "A-299")
def test_tokens_open_and_another_goes_on_in_a_new_run(page_for: PageFor, rich) -> None:
    page = page_for(rich, REAL)
    prompt_of(page).fill("A bell")
    press_run(page)
    ran(page)
    tokens = page.locator(".token")
    assert tokens.count() == 6
    expect(page.locator(".legend li")).to_have_text(
        ["90% or more", "50% to 90%", "10% to 50%", "1% to 10%", "Under 1%"]
    )
    assert all(
        band in "01234" for band in tokens.evaluate_all("all => all.map(e => e.dataset.band)")
    )
    tokens.first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(tokens.nth(2)).to_be_focused()
    page.keyboard.press("Enter")
    likely = page.locator(".likeliest li")
    assert likely.count() >= 5
    expect(likely.locator(".likely-share").first).to_have_text(re.compile("%$"))
    other = page.locator("button.likely").filter(has_text=re.compile(r"id \d+")).first
    chosen = int(re.search(r"id (\d+)", other.inner_text())[1])
    first = Run.objects.get(user=rich)
    other.press("Enter")
    expect(page.get_by_role("heading", name=re.compile("^Run 2"))).to_be_visible()
    ran(page)
    from jobs.runs import body_of, output_of

    before = json.loads(output_of(first))
    second = Run.objects.get(user=rich, number=2)
    ids = [*before["prompt_token_ids"][0], *before["choices"][0]["token_ids"][:2], chosen]
    assert body_of(second)["prompt"] == ids
    assert body_of(second)["seed"] == 1
    assert second.prompt.startswith("A bell")
    expect(prompt_of(page)).to_have_value("A bell")
    page.locator("#heatmap").uncheck()
    expect(page.locator(".token[data-band]")).to_have_count(0)
    assert "heatmap=off" in page.url
    page.reload()
    expect(page.locator("#heatmap")).not_to_be_checked()


@pytest.mark.row("A-297", "A-298", "A-109", "A-283", "A-245", "A-278", "A-282", "A-284", "A-279")
@pytest.mark.row("A-281")
def test_what_is_copied_of_a_run(page_for: PageFor, rich, told, desk: Desk) -> None:
    page = page_for(
        rich,
        "/playground?m=model%3Dtold%26max_tokens%3D2%26n%3D2%26logprobs%3D0%26temperature%3D0.5",
        permissions=CLIPBOARD,
    )
    prompt = 'It\'s $HOME\n"quoted" \\ and `run`'
    prompt_of(page).fill(prompt)
    press_run(page)
    asked = told.next()
    for index, text in enumerate(("one\n\ttwo", "three")):
        asked.say(text, index=index, finish="stop")
    asked.finish()
    ran(page)
    expect(page.get_by_role("heading", name="Choice 1")).to_be_visible()
    expect(page.get_by_role("heading", name="Choice 2")).to_be_visible()
    own = page.locator(".own").first
    marks = own.evaluate("e => [...e.children].map(c => getComputedStyle(c, '::before').content)")
    assert marks == ['"⏎"', '"⇥"']
    assert own.inner_text().strip("\n") == "one\n\ttwo" or own.text_content() == "one\n\ttwo"
    page.locator(".run").get_by_role("button", name="Copy").click()
    page.get_by_role("menuitem", name="The text", exact=True).click()
    expect(page.get_by_text("Copied")).to_be_visible()
    assert copied(page) == "1.\none\n\ttwo\n\n2.\nthree"
    page.locator(".run").get_by_role("button", name="Copy").click()
    page.get_by_role("menuitem", name="The prompt and the text").click()
    eventually(lambda: copied(page) == f"1.\n{prompt}one\n\ttwo\n\n2.\n{prompt}three")

    def choose(name: str) -> None:
        page.get_by_role("button", name="Menu of Run 1").click()
        page.get_by_role("menuitem", name=name, exact=True).click()

    page.get_by_role("button", name="Menu of Run 1").click()
    expect(page.locator("#run-menu [role=menuitem]")).to_have_text(
        [
            "Show",
            "Use these settings",
            "Copy settings",
            "Copy prompt",
            "Copy output",
            "Copy as API request",
            "Delete",
        ]
    )
    page.keyboard.press("Escape")
    choose("Copy prompt")
    eventually(lambda: copied(page) == prompt)
    choose("Copy settings")
    eventually(lambda: copied(page).startswith("{"))
    settings = {"model": "told", "max_tokens": 2, "temperature": 0.5, "n": 2}
    assert json.loads(copied(page)) == settings
    choose("Copy as API request")
    eventually(lambda: copied(page).startswith("curl"))
    command = copied(page)
    assert "$ACS_API_KEY" in command
    assert "sk-acs-" not in command
    script = command.replace("curl -sN", "printf '%s\\n'", 1)
    printed = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=True, env={"ACS_API_KEY": "k"}
    ).stdout
    body = json.loads(printed[printed.index("{") :])
    assert body == {**settings, "prompt": prompt, "stream": True}
    assert "Authorization: Bearer k" in printed
    prompt_of(page).fill("something else")
    setting(page, "temperature").fill("1.5")
    expect(page.locator(".differ")).to_contain_text("T 1.5")
    choose("Use these settings")
    expect(prompt_of(page)).to_have_value(prompt)
    expect(setting(page, "temperature")).to_have_value("0.5")
    expect(page.locator(".differ")).to_have_text("")


@pytest.mark.row("A-226", "A-228", "A-229", "A-230", "A-232", "A-254", "A-261")
def test_settings_out_of_range_are_marked_in_words(page_for: PageFor, rich) -> None:
    page = page_for(rich, "/playground?m=model%3Ddesk%26top_p%3Dx%26echo%3Dmaybe&m=broken%")
    fault = page.locator("#top_p-fault")
    expect(fault).to_have_text("Top p: not a number.")
    prompt_of(page).fill("A bell")
    setting(page, "top_p").fill("0")
    expect(fault).to_have_text("Top p: more than 0 and at most 1.")
    expect(page.locator("#run")).to_be_disabled()
    setting(page, "max_tokens").fill("32001")
    expect(page.locator("#max_tokens-fault")).to_have_text("Max tokens: at most 32,000.")
    setting(page, "max_tokens").fill("512")
    expect(page.locator("#max_tokens-fault")).to_contain_text("512 tokens")
    setting(page, "max_tokens").fill("8")
    setting(page, "temperature").fill("2.5")
    expect(page.locator("#temperature-fault")).to_be_visible()
    page.locator("#temperature-slider").focus()
    page.keyboard.press("Home")
    expect(setting(page, "temperature")).to_have_value("0")
    setting(page, "n").fill("2")
    expect(page.locator("#n-fault")).to_contain_text("at this temperature")
    setting(page, "temperature").fill("1")
    setting(page, "read").fill("all")
    expect(page.locator("#n-fault")).to_have_text("Choices: 1 with Read Layers.")
    page.get_by_role("button", name="Reset to default").click()
    for name, value in (("top_p", "1"), ("max_tokens", "64"), ("n", "1"), ("read", "")):
        expect(setting(page, name)).to_have_value(value)
    expect(prompt_of(page)).to_have_value("A bell")
    expect(page.locator("#form .fault:visible")).to_have_count(0)


@pytest.mark.row("A-254", "A-253", "A-252")
def test_a_refusal_marks_its_setting_or_says_where_to_ask_for_tokens(page_for: PageFor) -> None:
    user = make_user_with(budget=20)
    page = page_for(user, REAL)
    prompt_of(page).fill("A bell")
    setting(page, "max_tokens").fill("64")
    press_run(page)
    refused = page.locator(".run .fault")
    expect(refused).to_contain_text("This request can use up to")
    expect(refused).not_to_contain_text("http")
    link = refused.get_by_role("link", name="Request more tokens")
    assert link.get_attribute("href") == "/usage/request"
    assert not Run.objects.filter(user=user).exists()
    page.route(
        "**/playground/runs",
        lambda route: route.fulfill(
            json={
                "results": [
                    {
                        "run": None,
                        "error": {
                            "message": "basalt/desk-llama has Layers 0 to 3: it has no Layer 9.",
                            "code": "invalid_request",
                            "param": "output_residual_stream",
                        },
                    }
                ]
            }
        ),
    )
    press_run(page)
    fault = page.locator("#read-fault")
    expect(fault).to_contain_text("it has no Layer 9")
    setting(page, "read").fill("3")
    expect(fault).to_be_hidden()


@pytest.mark.row("A-235", "A-111", "A-114", "A-258", "A-259", "A-255", "A-256", "A-257", "A-099")
def test_what_the_browser_remembers_and_the_address_holds(page_for: PageFor, rich) -> None:
    page = page_for(rich, "/playground")
    prompt_of(page).fill("A secret prompt")
    setting(page, "temperature").fill("0.25")
    page.keyboard.press("Control+b")
    expect(page.locator("#settings")).to_be_visible()
    page.keyboard.press("Control+b")
    page.locator("#settings-toggle").click()
    expect(page.locator("#settings")).to_be_hidden()
    assert "temperature%3D0.25" in page.url
    assert "model%3Ddesk" in page.url
    assert "secret" not in page.url
    page.goto("/usage")
    page.get_by_role("link", name="Playground", exact=True).click()
    assert "temperature%3D0.25" in page.url
    expect(prompt_of(page)).to_have_value("A secret prompt")
    expect(page.locator("#settings")).to_be_hidden()
    other = page_for(make_user(), page.url)
    expect(setting(other, "temperature")).to_have_value("0.25")
    expect(prompt_of(other)).to_have_value("")


@pytest.mark.row("A-073", "A-260", "A-049")
def test_sign_out_and_another_user_forget_draft_and_address(page_for: PageFor, rich) -> None:
    from tests.browser.conftest import sign_in

    page = page_for(rich, "/playground?m=model%3Dtold")
    prompt_of(page).fill("mine alone")
    page.get_by_role("button", name=rich.get_short_name()).click()
    page.get_by_role("menuitem", name="Sign out").click()
    page.wait_for_url(re.compile("/sign-in|/$|/sign-out"))
    assert page.evaluate("localStorage.getItem('playground.draft')") is None
    assert page.evaluate("localStorage.getItem('playground.address')") is None
    sign_in(page.context, rich, page.url.split("/", 3)[0] + "//" + page.url.split("/")[2])
    page.goto("/playground")
    prompt_of(page).fill("mine again")
    sign_in(page.context, make_user(), page.url.split("/", 3)[0] + "//" + page.url.split("/")[2])
    page.goto("/playground")
    expect(prompt_of(page)).to_have_value("")


@pytest.mark.row("A-246", "A-233", "A-234")
def test_layers_are_read_and_steered(page_for: PageFor, rich) -> None:
    page = page_for(rich, "/playground?m=model%3Ddesk%26max_tokens%3D4%26read%3D0-2%26seed%3D1")
    prompt_of(page).fill("A bell")
    page.get_by_role("button", name="Add vector").click()
    dialog = page.get_by_role("dialog", name="Add a Steering vector")
    dialog.get_by_label("Or pasted numbers").fill("1, 2, 3")
    expect(dialog.get_by_role("alert")).to_contain_text("64 numbers")
    dialog.get_by_label("Or pasted numbers").fill(json.dumps([[0.5] * 64]))
    dialog.get_by_label("Name").fill("half")
    dialog.get_by_role("button", name="Add vector").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Layers")
    dialog.get_by_label("Layers").fill("1")
    dialog.get_by_label("Scale").fill("4")
    dialog.get_by_label("Positions").fill("0-1")
    dialog.get_by_role("button", name="Add vector").click()
    expect(page.locator("#vectors li")).to_contain_text("half")
    assert "0.5" not in page.url
    press_run(page)
    ran(page)
    expect(page.locator(".facts").first).to_contain_text("steer 1 × 4")
    grid = page.locator("canvas.norms")
    grid.focus()
    expect(page.locator(".norm-says")).to_have_text(re.compile(r"^Layer 2, token 0 .*: \d"))
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".norm-says")).to_have_text(re.compile(r"^Layer 1, token 1 "))
    page.locator(".norms-box summary").click()
    expect(page.locator(".norms-box tbody tr")).to_have_count(3)
    with page.expect_download() as download:
        page.get_by_role("link", name="Numbers as .npy").click()
    import numpy as np

    numbers = np.load(download.value.path())
    run = Run.objects.get(user=rich)
    assert numbers.shape == (3, run.prompt_tokens + 3, 64)
    row = page.locator(".norms-box tbody tr").first.inner_text().split()
    assert row[0] == "0"
    assert float(row[4]) == pytest.approx(float(np.linalg.norm(numbers[0, 0])), rel=1e-4)
    from jobs.runs import body_of

    [vector] = body_of(run)["apply_steering_vectors"]
    assert vector == {
        "activations": [[0.5] * 64],
        "layer_indices": [1],
        "scale": 4,
        "position_spans": [[0, 2]],
    }


@pytest.mark.row("A-285", "A-286", "A-276", "A-300", "A-301")
def test_runs_are_shown_exported_and_deleted(page_for: PageFor, rich) -> None:
    page = page_for(rich, REAL)
    prompt_of(page).fill("A bell")
    for number in (1, 2):
        press_run(page)
        expect(page.get_by_role("heading", name=re.compile(f"^Run {number}"))).to_be_visible()
        ran(page)
    page.get_by_role("button", name="Show Run 1").press("Enter")
    expect(page.get_by_role("heading", name=re.compile("^Run 1"))).to_be_visible()
    ran(page)
    exports = {"Export": [1], "Export chosen": [2], "Export every run": [1, 2]}
    page.get_by_label("Choose Run 2").check()
    for name, numbers in exports.items():
        page.get_by_role("button", name=name, exact=True).click()
        with page.expect_download() as download:
            page.get_by_role("menuitem", name="JSON", exact=True).click()
        assert download.value.suggested_filename == "playground-runs.json"
        found = json.loads(download.value.path().read_text())
        assert [each["number"] for each in found] == numbers
    page.get_by_role("button", name="Menu of Run 1").click()
    page.get_by_role("menuitem", name="Delete").click()
    question = page.get_by_role("dialog", name="Delete Run 1?")
    question.get_by_role("button", name="Cancel").click()
    assert Run.objects.of(rich.id).count() == 2
    page.get_by_role("button", name="Menu of Run 1").click()
    page.get_by_role("menuitem", name="Delete").click()
    question.get_by_role("button", name="Delete run").click()
    expect(page.get_by_role("button", name="Show Run 1")).to_have_count(0)
    expect(page.get_by_role("heading", name=re.compile("^Run 1"))).to_have_count(0)
    assert Run.objects.of(rich.id).count() == 1


def test_a_run_opens_as_a_loom(page_for: PageFor, rich) -> None:
    page = page_for(rich, REAL + "%26n%3D2")
    prompt_of(page).fill("A bell")
    press_run(page)
    ran(page)
    page.get_by_role("button", name="Open in Loom").click()
    page.wait_for_url(re.compile("/loom/"))
    from looms.models import Node

    nodes = Node.objects.filter(loom__user=rich).order_by("number")
    texts = [node.text for node in nodes]
    assert texts[0] == "A bell"
    assert len(texts) == 3
    assert nodes[1].logprobs
    assert nodes[1].parent_id == nodes[0].id


@pytest.mark.row("A-224")
@pytest.mark.parametrize(
    ("warm", "starts"), [({"told"}, "told"), ({"desk", "told"}, "desk"), (set(), "desk")]
)
def test_a_new_playground_starts_on_a_warm_model(
    page_for: PageFor, rich, warm: set[str], starts: str
) -> None:
    page = page_for(rich, "/jobs")

    def with_warm(route) -> None:
        answer = route.fetch()
        html = answer.text()
        found = re.search(r'(<script id="playground-state"[^>]*>)(.*?)(</script>)', html)
        state = json.loads(found[2])
        for model in state["models"]:
            model["warm"] = model["id"] in warm
        route.fulfill(response=answer, body=html.replace(found[2], json.dumps(state)))

    page.route("**/playground", with_warm)
    page.goto("/playground")
    expect(page.locator("#model-button")).to_have_attribute("title", starts)


def test_a_run_by_keyboard_alone(page_for: PageFor, rich) -> None:
    page = page_for(rich, REAL)

    def tab_to(target, most: int = 60) -> None:
        for _ in range(most):
            if target.evaluate("e => e === document.activeElement"):
                return
            page.keyboard.press("Tab")
        raise AssertionError("not reached by Tab")

    tab_to(prompt_of(page))
    page.keyboard.type("A bell")
    page.keyboard.press("Control+Enter")
    ran(page)
    tab_to(page.locator(".token").first)
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(page.locator(".likeliest")).to_be_visible()
    tab_to(page.locator("button.likely").first)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=re.compile("^Run 2"))).to_be_visible()
    ran(page)
    menu = page.get_by_role("button", name="Menu of Run 1")
    tab_to(menu, 120)
    page.keyboard.press("Enter")
    expect(page.get_by_role("menuitem", name="Show")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=re.compile("^Run 1"))).to_be_visible()


def test_a_phone_says_beside_run_which_setting_is_at_fault(page_for: PageFor, rich) -> None:
    page = page_for(rich, REAL + "%26top_p%3D2", phone=True)
    prompt_of(page).fill("A bell")
    expect(page.locator("#settings")).to_be_hidden()
    expect(page.get_by_role("button", name=re.compile("^Run"))).to_be_disabled()
    expect(page.locator("#holds")).to_have_text("Top p: more than 0 and at most 1.")
    expect(page.locator("#holds")).to_be_visible()
    assert not is_too_wide(page)
    page.locator("#settings-toggle").click()
    page.locator("#top_p").fill("1")
    expect(page.locator("#holds")).to_have_text(re.compile(r"^holds \d+ tokens of "))


@pytest.mark.row("A-133", "A-275")
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_a_phone_runs_and_no_serious_fault_is_found(page_for: PageFor, rich, colours: str) -> None:
    page = page_for(rich, REAL + "%26read%3Dall", phone=True, color_scheme=colours)
    prompt_of(page).fill("A bell")
    expect(page.locator("#settings")).to_be_hidden()
    page.locator("#settings-toggle").click()
    expect(page.locator("#settings")).to_be_visible()
    assert serious_faults(page) == []
    page.get_by_role("button", name="Close the settings").click()
    run = page.get_by_role("button", name=re.compile("^Run"))
    box = run.bounding_box()
    assert box["y"] + box["height"] <= 844
    assert box["height"] >= 44
    run.click()
    ran(page)
    page.locator(".token").nth(1).click()
    expect(page.locator(".likeliest")).to_be_visible()
    assert serious_faults(page) == []
    assert not is_too_wide(page)
    rows = page.locator("#runs-scroll")
    assert rows.evaluate("e => e.scrollWidth > e.clientWidth")
    menu = page.get_by_role("button", name="Menu of Run 1")
    edge = rows.bounding_box()
    at = menu.bounding_box()
    assert at["x"] + at["width"] <= edge["x"] + edge["width"] + 1
    assert menu.evaluate("e => getComputedStyle(e.closest('td')).position") == "sticky"


def test_a_hold_of_the_next_run_stands_beside_its_button(page_for: PageFor) -> None:
    user = make_user_with(budget=5_000)
    take(user, 1_000, register(OwnerKind.WEB))
    page = page_for(user, REAL)
    prompt_of(page).fill("A bell")
    expect(page.locator("#holds")).to_have_text(re.compile(r"^holds \d+ tokens of 4,000$"))
