"""The Loom page in a real browser."""

import json
import re
from datetime import date
from uuid import uuid4

import pytest
from playwright.sync_api import Locator, Page, expect

from billing.allowance import BudgetExceeded, Short
from completions.failures import budget_exceeded, error_object
from looms import edits
from looms.models import Loom, Node
from tests.accounts.factory import make_user
from tests.billing.factory import make_user_with
from tests.browser.conftest import PageFor, is_too_wide, serious_faults
from tests.live import eventually

CLIPBOARD = ["clipboard-read", "clipboard-write"]
LOGPROBS = {
    "tokens": [" upon", "\n", " a"],
    "token_logprobs": [-0.05, -1.0, -6.0],
    "top_logprobs": [
        {" upon": -0.05, " in": -3.0},
        {"\n": -1.0, " then": -0.5},
        {" a": -6.0, " the": -0.1},
    ],
    "text_offset": [0, 5, 6],
}


def plant(user, tree: dict[str, str | None], title: str = "", **fields: object) -> Loom:
    """A Loom of texts, each under the text that it names; `fields` are of the last Node."""
    nodes: dict[str, Node] = {}
    for number, (text, parent) in enumerate(tree.items()):
        nodes[text] = Node(
            id=uuid4(), number=number, text=text, parent=nodes[parent] if parent else None
        )
    loom = edits.plant(user_id=user.id, title=title, nodes=list(nodes.values()))
    if fields:
        Node.objects.filter(id=nodes[text].id).update(**fields)
    return loom


def tale(user, **fields: object) -> Loom:
    return plant(
        user, {"Once": None, " upon\n a": "Once", " in": "Once", " time": " in"}, "A tale", **fields
    )


def row(page: Page, words: str) -> Locator:
    return page.get_by_role("treeitem", name=re.compile(re.escape(words))).first


def texts(loom: Loom) -> list[str]:
    return list(
        Node.objects.alive().filter(loom=loom).order_by("number").values_list("text", flat=True)
    )


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=re.compile(rf"^{name}\b")).click()


@pytest.mark.row("A-312", "A-313", "A-365", "A-310", "A-112", "A-311")
def test_a_first_loom_starts_with_the_example_and_the_list_folds_away(page_for: PageFor) -> None:
    user = make_user()
    page = page_for(user, "/loom")
    prompt = page.get_by_label("Prompt")
    expect(prompt).to_be_focused()
    prompt.press("Tab")
    example = prompt.input_value()
    assert example == prompt.get_attribute("placeholder")
    prompt.press("Tab")
    expect(page.get_by_role("button", name="Start the Loom")).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/loom/[0-9a-f-]{36}$"))
    assert texts(Loom.objects.get(user=user)) == [example]
    looms = page.get_by_role("list").filter(has_text="Untitled Loom")
    expect(looms).to_be_visible()
    page.get_by_role("button", name="Your Looms").click()
    expect(looms).to_be_hidden()
    page.goto("/loom/new")
    expect(page.get_by_role("button", name="Your Looms")).to_have_attribute(
        "aria-expanded", "false"
    )
    page.get_by_role("button", name="Your Looms").click()
    expect(looms).to_be_visible()
    for number in range(60):
        plant(user, {"Once": None}, f"Loom {number}")
    page.reload()
    column = page.locator(".looms-list")
    assert column.evaluate("it => it.scrollHeight > it.clientHeight")
    button = page.get_by_role("link", name="New Loom").bounding_box()
    assert button["y"] + button["height"] <= 800
    page.get_by_label("Loom file").set_input_files(
        {"name": "x.json", "mimeType": "application/json", "buffer": b'{"version": 2}'}
    )
    page.get_by_role("button", name="Import").click()
    expect(page.get_by_role("alert").filter(has_text='"nodes" is missing')).to_be_visible()
    file = {"loom": {"title": "Mine"}, "nodes": [{"id": "a", "text": "From a file"}]}
    page.get_by_label("Loom file").set_input_files(
        {"name": "x.json", "mimeType": "application/json", "buffer": json.dumps(file).encode()}
    )
    page.get_by_role("button", name="Import").click()
    expect(page.locator("#loom-title")).to_have_text("Mine (imported)")
    expect(row(page, "From a file")).to_be_visible()


@pytest.mark.row("A-316", "A-318", "A-319", "A-320")
def test_looms_are_renamed_pinned_and_deleted_by_the_title_and_from_the_list(
    page_for: PageFor,
) -> None:
    user = make_user()
    other = tale(user)
    long = "A title that is " + "long " * 20
    loom = plant(user, {"Once": None}, long.strip())
    page = page_for(user, f"/loom/{loom.id}")
    title = page.locator("#loom-title")
    expect(title).to_have_attribute("title", long.strip())
    assert page.locator(".bar").get_by_role("button", name="Rename").count() == 0
    title.click()
    dialog = page.get_by_role("dialog", name="Rename this Loom")
    dialog.get_by_label("Title").fill("Short")
    dialog.get_by_role("button", name="Save").click()
    expect(title).to_have_text("Short")
    page.locator(".bar").get_by_role("button", name="Pin").click()
    expect(page.locator(".bar").get_by_role("button", name="Unpin")).to_be_visible()
    page.get_by_role("button", name="Menu of A tale").click()
    menu = page.get_by_role("menu", name="A tale")
    names = menu.get_by_role("menuitem").all_inner_texts()
    assert names == ["Pin", "Rename", "Delete"]
    menu.get_by_role("menuitem", name="Delete").click()
    question = page.get_by_role("dialog", name="Delete this Loom?")
    question.get_by_role("button", name="Cancel").click()
    assert Loom.objects.of(user.id).count() == 2
    page.get_by_role("button", name="Menu of A tale").click()
    menu.get_by_role("menuitem", name="Delete").click()
    question.get_by_role("button", name="Delete Loom").click()
    expect(page.get_by_role("button", name="Menu of A tale")).to_have_count(0)
    assert page.url.endswith(str(loom.id))
    assert not Loom.objects.of(user.id).filter(id=other.id).exists()
    page.get_by_role("button", name="Delete Loom").click()
    question.get_by_role("button", name="Delete Loom").click()
    page.wait_for_url("**/loom/new")


@pytest.mark.row("A-322", "A-332", "A-582", "A-362", "A-363", "A-364", "A-109")
def test_a_node_is_read_with_its_heatmap_and_a_token_opens_the_likeliest(
    page_for: PageFor,
) -> None:
    user = make_user()
    loom = plant(user, {"Once": None, " upon\n a": "Once"}, logprobs=json.dumps(LOGPROBS))
    page = page_for(user, f"/loom/{loom.id}", permissions=CLIPBOARD)
    row(page, "upon").click()
    expect(page.locator("#text-above")).to_have_text("Once")
    tokens = page.locator("#text-own .token")
    expect(tokens).to_have_count(3)
    bands = [each.get_attribute("data-band") for each in tokens.all()]
    assert bands == ["0", "2", "4"]
    mark = page.locator("#text-own .mark-line")
    assert "⏎" in mark.evaluate("it => getComputedStyle(it, '::before').content")
    assert page.locator("#text-whole").evaluate("it => it.textContent") == "Once upon\n a"
    tokens.first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(tokens.nth(2)).to_be_focused()
    expect(page.locator("#text-above")).to_have_text("Once")
    page.keyboard.press("Enter")
    likeliest = page.get_by_role("list", name=re.compile("Likeliest tokens"))
    assert likeliest.get_by_role("listitem").count() == 2
    expect(likeliest).to_contain_text("90.5%")
    likeliest.get_by_role("button").click()
    eventually(lambda: texts(loom)[-1] == " upon\n the")
    expect(page.locator("#text-own")).to_have_text(" upon\n the")
    press(page, "Copy text")
    expect(page.get_by_text("Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "Once upon\n the"
    with page.expect_download() as path:
        press(page, "Path as text")
    assert path.value.suggested_filename == "loom-path.txt"
    assert path.value.path().read_text() == "Once upon\n the"
    with page.expect_download() as export:
        page.locator(".bar").get_by_role("link", name="Export").click()
    assert export.value.suggested_filename == f"loom-{loom.id}.json"
    assert json.loads(export.value.path().read_text())["version"] == 2


@pytest.mark.row("A-345", "A-347", "A-348", "A-350", "A-361", "A-584", "A-356")
def test_a_node_is_edited_and_split_where_the_cursor_stands(page_for: PageFor) -> None:
    user = make_user()
    loom = plant(user, {"Once": None, "🙂 upon a": "Once", " time": "🙂 upon a"})
    page = page_for(user, f"/loom/{loom.id}")
    row(page, "upon").click()
    page.keyboard.press("s")
    dialog = page.get_by_role("dialog", name="Edit this Node")
    box = dialog.get_by_label("Text")
    dialog.get_by_role("button", name="Split at the cursor").click()
    expect(dialog.get_by_role("alert")).to_have_text(
        "Move the cursor to where the text should be cut."
    )
    assert len(texts(loom)) == 3
    for key in ("End", "Home"):
        box.press("Control+" + key)
        dialog.get_by_role("button", name="Split at the cursor").click()
        expect(dialog.get_by_role("alert")).to_be_visible()
        assert len(texts(loom)) == 3
    # A selection cuts at its start.
    box.press("Control+Home")
    for _ in range(2):
        box.press("ArrowRight")
    for _ in range(3):
        box.press("Shift+ArrowRight")
    dialog.get_by_role("button", name="Split at the cursor").click()
    expect(dialog).to_be_hidden()
    assert texts(loom) == ["Once", "🙂 ", " time", "upon a"]
    lower = Node.objects.get(loom=loom, text="upon a")
    assert Node.objects.get(loom=loom, text=" time").parent_id == lower.id
    page.keyboard.press("e")
    box.fill("In")
    dialog.get_by_role("button", name="Save").click()
    expect(page.locator("#text-own")).to_have_text("In")
    assert texts(loom)[1] == "In"
    page.keyboard.press("e")
    box.fill("nothing of it")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert texts(loom)[1] == "In"


@pytest.mark.row("A-351", "A-352", "A-353", "A-356", "A-358", "A-359", "A-360")
def test_siblings_roots_and_deletions_by_key_and_button(page_for: PageFor) -> None:
    user = make_user()
    loom = tale(user)
    page = page_for(user, f"/loom/{loom.id}")
    root = row(page, "Once")
    expect(root).to_have_attribute("aria-selected", "true")
    for key in ("i", "Delete"):
        page.keyboard.press(key)
    assert page.locator("dialog[open]").count() == 0
    row(page, "in").click()
    page.keyboard.press("i")
    dialog = page.get_by_role("dialog", name="Write a sibling")
    dialog.get_by_label("Text").press_sequentially(" gise?")
    dialog.get_by_role("button", name="Add sibling").click()
    expect(page.locator("#text-own")).to_have_text(" gise?")
    page.keyboard.press("Delete")
    question = page.get_by_role("dialog", name="Delete this Node?")
    page.keyboard.press("g")
    question.get_by_role("button", name="Delete Node").click()
    expect(row(page, "Once")).to_have_attribute("aria-selected", "true")
    assert texts(loom) == ["Once", " upon\n a", " in", " time"]
    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Keys")
    expect(keys).to_contain_text("Branch")
    page.keyboard.press("Escape")
    expect(keys).to_be_hidden()
    buttons = page.locator(".node-actions button:visible")
    assert buttons.last.inner_text().startswith("Keys")
    press(page, "New root")
    dialog = page.get_by_role("dialog", name="Write a new root")
    dialog.get_by_label("Text").fill("Anew")
    dialog.get_by_role("button", name="Replace the tree").click()
    expect(row(page, "Anew")).to_be_visible()
    assert texts(loom) == ["Anew"]
    press(page, "Undo")
    expect(row(page, "time")).to_be_visible()
    assert texts(loom) == ["Once", " upon\n a", " in", " time"]
    page.keyboard.press("Control+Shift+Z")
    expect(row(page, "Anew")).to_be_visible()


@pytest.mark.row("A-357", "A-338", "A-339", "A-340", "A-341", "A-342", "A-113")
def test_arrows_move_in_the_tree_and_the_graph_shows_the_same(page_for: PageFor) -> None:
    user = make_user()
    loom = tale(user, status="failed", error=json.dumps({"message": "no", "code": "x"}))
    empty = Node.objects.get(loom=loom, text=" in")
    Node.objects.filter(id=empty.id).update(text="", status="cancelled")
    page = page_for(user, f"/loom/{loom.id}")

    def selected() -> str:
        return page.locator('[aria-selected="true"]:visible').inner_text()

    for key, words in (
        ("ArrowDown", "upon a"),
        ("ArrowDown", "No text yet"),
        ("ArrowRight", "time"),
        ("ArrowLeft", "No text yet"),
        ("ArrowUp", "upon a"),
        ("End", "time"),
        ("Home", "Once"),
    ):
        page.keyboard.press(key)
        eventually(lambda words=words: words in selected())
    page.get_by_role("button", name="Graph").click()
    graph = page.get_by_role("tree", name="Nodes as a graph")
    nodes = graph.get_by_role("treeitem")
    expect(nodes).to_have_count(4)
    assert graph.locator("path.graph-line").first.get_attribute("d").count("M") == 3
    expect(nodes.filter(has_text="No text yet").locator(".mark")).to_have_attribute(
        "data-shape", "ring"
    )
    expect(nodes.filter(has_text="time").locator(".mark")).to_have_attribute("data-shape", "failed")
    expect(nodes.filter(has_text="upon")).to_have_attribute("title", "upon a")
    page.keyboard.press("ArrowDown")
    expect(nodes.filter(has_text="upon")).to_have_attribute("aria-selected", "true")
    width = graph.locator(".graph-all").evaluate("it => it.offsetWidth")
    page.get_by_role("button", name="Zoom in").click()
    assert graph.locator(".graph-all").evaluate("it => it.offsetWidth") > width
    page.get_by_role("button", name="Zoom out").click()
    page.get_by_role("button", name="Zoom out").click()
    assert graph.locator(".graph-all").evaluate("it => it.offsetWidth") < width
    page.get_by_role("button", name="Fit").click()
    assert not graph.evaluate("it => it.scrollWidth > it.clientWidth + 1")
    other = tale(user)
    page.goto(f"/loom/{other.id}")
    expect(page.get_by_role("tree", name="Nodes as a graph")).to_be_visible()
    expect(page.get_by_role("button", name="Graph")).to_have_attribute("aria-pressed", "true")


@pytest.mark.row("A-338", "A-340")
def test_a_tree_of_two_thousand_nodes_draws_what_is_in_view(page_for: PageFor) -> None:
    user = make_user()
    nodes: list[Node] = []
    for number in range(2000):
        parent = nodes[(number - 1) // 3] if number else None
        nodes.append(Node(id=uuid4(), number=number, text=f" text {number}", parent=parent))
    loom = edits.plant(user_id=user.id, title="Large", nodes=nodes)
    page = page_for(user, f"/loom/{loom.id}")
    rows = page.locator("#rows .row")
    expect(rows.first).to_be_visible()
    assert rows.count() < 100
    page.keyboard.press("End")
    expect(page.locator('#rows [aria-selected="true"]')).to_be_in_viewport()
    assert rows.count() < 100
    expect(page.get_by_role("button", name="Graph")).to_be_in_viewport()
    page.get_by_role("button", name="Graph").click()
    dots = page.locator("#graph .graph-node")
    expect(page.locator('#graph [aria-selected="true"]')).to_be_in_viewport()
    assert 0 < dots.count() < 300
    page.locator("#graph").evaluate("it => it.scrollTo(0, 0)")
    expect(page.locator('#graph [aria-selected="true"]')).to_have_count(0)


@pytest.mark.row("A-327", "A-328", "A-329", "A-344", "A-583", "A-326", "A-579", "A-342")
def test_a_branch_grows_before_ones_eyes_in_two_tabs_and_is_stopped(
    page_for: PageFor, runner, told
) -> None:
    user = make_user_with(budget=10_000)
    loom = tale(user)
    page = page_for(user, f"/loom/{loom.id}")
    second = page_for(user, f"/loom/{loom.id}")
    page.get_by_label("Model").select_option("told")
    page.get_by_label("Branches").fill("2")
    page.get_by_label("Max tokens").fill("5")
    row(page, "in").click()
    page.keyboard.press("g")
    first, other = told.next(), told.next()
    first.say(" a")
    expect(second.locator(".row", has_text="growing")).to_have_count(2)
    first.say(" far")
    for each in (page, second):
        expect(row(each, "a far")).to_be_visible()
    for name in ("Edit", "Split", "Delete Node"):
        expect(page.get_by_role("button", name=re.compile(f"^{name}"))).to_be_disabled()
    expect(page.locator("#why-not")).to_contain_text("A Node grows")
    row(page, "upon").click()
    expect(page.get_by_role("button", name=re.compile("^Edit"))).to_be_enabled()
    expect(page.get_by_role("button", name=re.compile("^Sibling"))).to_be_disabled()
    page.reload()
    expect(row(page, "a far")).to_be_visible()
    first.say(" land", finish="length")
    first.finish()
    expect(page.locator(".row", has_text="growing")).to_have_count(1)
    row(page, "a far land").click()
    expect(page.get_by_role("button", name=re.compile("^Branch"))).to_be_enabled()
    other.say(" my")
    expect(row(page, "my")).to_be_visible()
    press(page, "Stop")
    for each in (page, second):
        expect(each.locator(".row", has_text="stopped")).to_have_count(1)
        expect(row(each, "my")).to_be_visible()
    assert other.aborted.wait(10)
    seeds = [
        json.loads(options)["seed"]
        for options in Node.objects.filter(loom=loom, model="told")
        .order_by("number")
        .values_list("options", flat=True)
    ]
    assert seeds[1] == seeds[0] + 1
    expect(page.get_by_label("Seed")).to_have_value("")


@pytest.mark.row("A-337", "A-330", "A-331", "A-253")
def test_a_refused_setting_is_marked_and_a_cold_model_says_how_far_it_is(
    page_for: PageFor, runner
) -> None:
    user = make_user_with(budget=60)
    loom = tale(user)
    page = page_for(user, f"/loom/{loom.id}")
    branches = page.get_by_label("Branches")
    branches.fill("9")
    expect(branches).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_text("Branches: at least 1 and at most 8.")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("^Branch"))).to_be_disabled()
    branches.fill("1")
    expect(branches).not_to_have_attribute("aria-invalid", "true")
    page.get_by_label("Max tokens").fill("900")
    press(page, "Branch")
    fault = page.locator("#branch-fault")
    expect(fault).to_have_text(
        re.compile("can use up to 903 tokens.* left\\. Request more tokens$")
    )
    expect(fault.get_by_role("link", name="Request more tokens")).to_have_attribute(
        "href", "/usage/request"
    )
    page.get_by_label("Max tokens").fill("3")
    page.get_by_label("Model").select_option("cold")
    press(page, "Branch")
    expect(page.locator("#start-line")).to_contain_text("left")
    press(page, "Stop")
    expect(page.locator("#start-line")).to_be_hidden()


@pytest.mark.row("A-330", "A-333")
def test_a_node_that_failed_for_its_tokens_says_why_and_links_to_more(page_for: PageFor) -> None:
    user = make_user()
    cause = BudgetExceeded(tokens=900, short=Short.BUDGET, refills_on=date(2026, 12, 1))
    failure = budget_exceeded(cause, 900)
    assert "http" in failure.message
    loom = tale(user, status="failed", error=json.dumps(error_object(failure)))
    page = page_for(user, f"/loom/{loom.id}")
    row(page, "time").click()
    fault = page.locator("#text-fault")
    expect(fault).to_have_text(
        "This request can use up to 900 tokens, more than your token budget has left. "
        "Request more tokens"
    )
    link = fault.get_by_role("link", name="Request more tokens")
    expect(link).to_have_attribute("href", "/usage/request")


def test_a_small_graph_opens_whole_and_a_large_one_at_the_node_that_is_read(
    page_for: PageFor,
) -> None:
    user = make_user()
    small = plant(user, {"Once": None, " upon": "Once", " a": " upon"})
    deep = {"Once": None} | {f" {n}": f" {n - 1}" if n else "Once" for n in range(30)}
    for loom, is_whole in ((small, True), (plant(user, deep), False)):
        page = page_for(user, f"/loom/{loom.id}")
        page.keyboard.press("End")
        page.get_by_role("button", name="Graph").click()
        graph = page.locator("#graph")
        expect(graph.locator('[aria-selected="true"]')).to_be_in_viewport()
        assert graph.evaluate("e => e.scrollWidth <= e.clientWidth") == is_whole
        assert graph.get_attribute("data-size") == "words"


@pytest.mark.row("A-133", "A-099")
def test_a_loom_fits_a_phone_and_axe_finds_no_serious_fault(page_for: PageFor) -> None:
    user = make_user()
    loom = plant(user, {"Once": None, " upon\n a": "Once"}, logprobs=json.dumps(LOGPROBS))
    phone = page_for(user, f"/loom/{loom.id}", phone=True)
    row(phone, "upon").click()
    expect(phone.locator("#text-own .token")).to_have_count(3)
    eventually(lambda: not is_too_wide(phone))
    phone.get_by_role("button", name="Settings").click()
    expect(phone.get_by_label("Temperature")).to_be_visible()
    phone.keyboard.press("Escape")
    expect(phone.get_by_label("Temperature")).to_be_hidden()
    expect(phone.get_by_role("button", name=re.compile("^Branch"))).to_be_in_viewport()
    phone.get_by_role("button", name="Graph").click()
    assert serious_faults(phone) == []
    assert not is_too_wide(phone)
    for scheme in ("light", "dark"):
        page = page_for(user, f"/loom/{loom.id}", color_scheme=scheme)
        row(page, "upon").click()
        expect(page.locator("#text-own .token")).to_have_count(3)
        page.locator("#text-own .token").first.click()
        assert serious_faults(page) == []
        page.get_by_role("button", name="Graph").click()
        assert serious_faults(page) == []
        page.get_by_role("button", name="Tree").click()
    page.goto("/loom/new")
    assert serious_faults(page) == []
