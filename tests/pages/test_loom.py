"""The Loom pages: which Loom opens, what the list holds, and what a change or a file does."""

import json
from datetime import timedelta
from io import BytesIO
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone

from accounts.models import User
from looms import edits
from looms.models import Growth, Loom, Node
from tests.accounts.factory import make_user
from tests.billing.factory import make_user_with
from tests.pages.client import send, signed_in

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("tiny_catalogue")]


def plant(user: User, *texts: str, title: str = "") -> Loom:
    """A Loom whose Nodes are a chain of these texts."""
    nodes: list[Node] = []
    for number, text in enumerate(texts or ("Once",)):
        parent = nodes[-1] if nodes else None
        nodes.append(Node(id=uuid4(), parent=parent, number=number, text=text))
    return edits.plant(user_id=user.id, title=title, nodes=nodes)


def nodes_of(loom: Loom) -> list[Node]:
    return list(Node.objects.alive().filter(loom=loom).order_by("number"))


def change(browser: Client, loom: Loom, node: Node, what: str, body: object = None):
    return send(browser, f"/loom/{loom.id}/nodes/{node.id}/{what}", body)


def state(browser: Client, loom: Loom) -> dict:
    return browser.get(f"/loom/{loom.id}/state").json()


def imported(browser: Client, content: object):
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    file = BytesIO(raw)
    file.name = "loom.json"
    return browser.post("/loom/import", {"file": file}, headers={"X-Requested-With": "basalt"})


@pytest.mark.row("A-307", "A-313", "C-533")
def test_the_page_opens_the_loom_changed_last_or_the_start() -> None:
    user = make_user()
    browser = signed_in(user)
    assert browser.get("/loom").url == "/loom/new"
    start = browser.get("/loom/new").content.decode()
    assert "Start the Loom" in start
    assert "Import a Loom" in start
    made = send(browser, "/loom/make", {"prompt": "The sky is"})
    first = Loom.objects.get(id=made.json()["id"])
    root = nodes_of(first)[0]
    assert (root.text, root.status, root.parent_id) == ("The sky is", "completed", None)
    second = plant(user)
    Loom.objects.filter(id=second.id).update(changed_at=timezone.now() - timedelta(days=1))
    assert browser.get("/loom").url == f"/loom/{first.id}"
    edits.update_loom(user_id=user.id, loom_id=second.id, title="Later")
    assert browser.get("/loom").url == f"/loom/{second.id}"


@pytest.mark.row("A-308", "A-309", "A-578", "A-314")
def test_the_list_has_pins_first_then_the_last_changed_and_no_more_than_it_may() -> None:
    user = make_user()
    browser = signed_in(user)
    now = timezone.now()
    looms = [plant(user, title=f"Loom {number}") for number in range(103)]
    for number, loom in enumerate(looms):
        Loom.objects.filter(id=loom.id).update(changed_at=now - timedelta(hours=number))
    for number in (50, 60):
        assert send(browser, f"/loom/{looms[number].id}/pin").status_code == 204

    def listed() -> list[str]:
        html = browser.get("/loom/new").content.decode()
        return [each.partition("</span>")[0] for each in html.split("<span data-loom-name>")[1:]]

    assert listed()[:4] == ["Loom 60", "Loom 50", "Loom 0", "Loom 1"]
    assert len(listed()) == 100
    assert "Loom 102" not in listed()
    assert browser.get(f"/loom/{looms[102].id}").status_code == 200
    send(browser, f"/loom/{looms[60].id}/unpin")
    send(browser, f"/loom/{looms[50].id}/unpin")
    assert listed()[:3] == ["Loom 0", "Loom 1", "Loom 2"]
    assert listed()[50] == "Loom 50"
    root = nodes_of(looms[70])[0]
    change(browser, looms[70], root, "edit", {"text": "Twice"})
    assert listed()[0] == "Loom 70"


@pytest.mark.row("A-315", "A-317", "C-537")
def test_a_title_is_trimmed_and_cut_and_an_empty_one_is_drawn_by_the_next_branch() -> None:
    user = make_user_with(budget=10_000)
    browser = signed_in(user)
    loom = plant(user, "A first line that is longer than forty characters\nand a second")
    assert "Untitled Loom" in browser.get(f"/loom/{loom.id}").content.decode()
    assert send(browser, f"/loom/{loom.id}/rename", {"title": f"  {'x' * 130} "}).status_code == 200
    assert state(browser, loom)["title"] == "x" * 120
    send(browser, f"/loom/{loom.id}/rename", {"title": "   "})
    assert state(browser, loom)["title"] == ""
    grown = change(browser, loom, nodes_of(loom)[0], "branch", {"model": "tiny", "n": 1})
    assert grown.status_code == 200, grown.content
    assert grown.json()["title"] == "A first line that is longer than forty c"


@pytest.mark.row("A-324", "A-325", "A-326", "A-327", "A-559")
def test_a_branch_answers_with_its_nodes_and_the_page_keeps_what_it_asked_for() -> None:
    user = make_user_with(budget=10_000)
    browser = signed_in(user)
    loom = plant(user)
    body = {"model": "tiny", "n": 3, "max_tokens": 7, "temperature": 0.5, "stop": ["\n"]}
    grown = change(browser, loom, nodes_of(loom)[0], "branch", body).json()
    assert [node["status"] for node in grown["nodes"]] == ["completed", *["queued"] * 3]
    assert {name: grown["last"][name] for name in body} == body
    assert grown["last"].get("seed") is None
    assert grown["last"].get("logprobs") is None
    seeds = [json.loads(each.options)["seed"] for each in nodes_of(loom)[1:]]
    assert [seed - seeds[0] for seed in seeds] == [0, 1, 2]
    assert Growth.objects.filter(node__loom=loom, key=None).count() == 3
    # The count is that of the Branch, also after one of its Nodes is gone.
    Growth.objects.filter(node__loom=loom).delete()
    Node.objects.filter(loom=loom).update(status="completed")
    change(browser, loom, nodes_of(loom)[1], "delete")
    assert state(browser, loom)["last"]["n"] == 3


@pytest.mark.row("A-337", "A-323", "A-125")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 9}, "n"),
        ({"max_tokens": 1001}, "max_tokens"),
        ({"temperature": 2.5}, "temperature"),
        ({"model": "no-such"}, "model"),
        ({"logprobs": 101}, "logprobs"),
        ({"stop": ["a"] * 5}, "stop"),
    ],
)
def test_a_refused_branch_makes_no_node_and_names_the_setting(fields, param) -> None:
    user = make_user_with(budget=10_000)
    loom = plant(user)
    answer = change(signed_in(user), loom, nodes_of(loom)[0], "branch", {"model": "tiny"} | fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert len(nodes_of(loom)) == 1


@pytest.mark.row("A-581", "A-336")
def test_a_branch_is_refused_for_tokens_and_for_room() -> None:
    user = make_user_with(budget=30)
    browser = signed_in(user)
    loom = plant(user)
    root = nodes_of(loom)[0]
    poor = change(browser, loom, root, "branch", {"model": "tiny", "max_tokens": 100})
    assert (poor.status_code, poor.json()["error"]["code"]) == (429, "budget_exceeded")
    # Each Node holds for itself, so all of them together may ask for more than is left.
    assert change(browser, loom, root, "branch", {"model": "tiny", "n": 8}).status_code == 200
    full = plant(user)
    Node.objects.bulk_create(
        Node(
            loom=full,
            parent=nodes_of(full)[0],
            number=number,
            made_at=timezone.now(),
        )
        for number in range(1, 1999)
    )
    answer = change(browser, full, nodes_of(full)[0], "branch", {"model": "tiny", "n": 2})
    assert answer.status_code == 409
    assert "1 more" in answer.json()["error"]["message"]
    assert len(nodes_of(full)) == 1999


@pytest.mark.row("A-329", "A-354", "A-355", "A-330", "A-333")
def test_failed_and_growing_nodes_refuse_what_they_must_and_say_why() -> None:
    user = make_user_with(budget=10_000)
    browser = signed_in(user)
    loom = plant(user, "Once", " upon", " a time")
    root, failed, growing = nodes_of(loom)
    error = {"message": "Your Budget has 0 tokens left.", "code": "budget_exceeded"}
    Node.objects.filter(id=failed.id).update(status="failed", error=json.dumps(error))
    row = state(browser, loom)["nodes"][1]
    assert (row["code"], row["reason"]) == (error["code"], error["message"])
    branch = {"model": "tiny"}
    for what, body in (("branch", branch), ("edit", {"text": "x"}), ("split", {"offset": 1})):
        answer = change(browser, loom, failed, what, body)
        assert answer.status_code == 409, what
        assert "failed" in answer.json()["error"]["message"]
    Node.objects.filter(id=growing.id).update(status="running")
    for node, what, body in (
        (growing, "branch", branch),
        (growing, "edit", {"text": "x"}),
        (root, "edit", {"text": "x"}),
        (root, "split", {"offset": 1}),
        (failed, "delete", None),
    ):
        answer = change(browser, loom, node, what, body)
        assert answer.status_code == 409, what
        assert "grow" in answer.json()["error"]["message"] or "running" in answer.content.decode()
    assert send(browser, f"/loom/{loom.id}/root", {"text": "New"}).status_code == 409
    Node.objects.filter(id=growing.id).update(status="cancelled")
    assert change(browser, loom, failed, "delete").status_code == 200
    assert [node.text for node in nodes_of(loom)] == ["Once"]


@pytest.mark.row("A-346", "A-350", "A-585", "A-126")
def test_texts_are_kept_with_lf_and_cut_at_code_points() -> None:
    user = make_user()
    browser = signed_in(user)
    loom = plant(user, "Once", " 🙂 upon")
    _, node = nodes_of(loom)
    before = Loom.objects.get(id=loom.id)
    assert change(browser, loom, node, "edit", {"text": " 🙂 upon"}).status_code == 200
    same = Loom.objects.get(id=loom.id)
    assert (same.changed_at, same.revision) == (before.changed_at, before.revision)
    change(browser, loom, node, "split", {"offset": 3})
    assert [each.text for each in nodes_of(loom)] == ["Once", " 🙂 ", "upon"]
    change(browser, loom, node, "edit", {"text": "a\r\nb\rc"})
    assert nodes_of(loom)[1].text == "a\nb\nc"
    nul = change(browser, loom, node, "edit", {"text": "a\0b"})
    assert nul.status_code == 400
    assert nul.json()["error"]["message"] == "A text cannot hold the character U+0000 (NUL)."


@pytest.mark.row("A-321", "A-127", "A-129", "A-572")
def test_a_deleted_loom_and_that_of_another_user_are_not_found() -> None:
    user, other = make_user(), make_user()
    loom = plant(user)
    root = nodes_of(loom)[0]
    browser, stranger = signed_in(user), signed_in(other)
    paths = [f"/loom/{loom.id}{rest}" for rest in ("", "/state", "/export", f"/nodes/{root.id}")]
    for path in paths:
        assert browser.get(path).status_code == 200, path
        assert stranger.get(path).status_code == 404, path
    for what in ("pin", "unpin", "rename", "delete", "stop", "undo", "redo", "look", "root"):
        body = {"title": "x"} if what == "rename" else {"text": "x", "selected": None, "folded": []}
        body = {"selected": None, "folded": []} if what == "look" else body
        body = {"text": "x"} if what == "root" else body
        assert send(stranger, f"/loom/{loom.id}/{what}", body).status_code == 404, what
    for what, body in (("edit", {"text": "x"}), ("sibling", {"text": "x"}), ("delete", None)):
        assert change(stranger, loom, root, what, body).status_code == 404, what
    checked = Client(enforce_csrf_checks=True)
    checked.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    assert send(checked, f"/loom/{loom.id}/delete").status_code == 403
    assert send(browser, f"/loom/{loom.id}/delete").status_code == 204
    for path in paths:
        assert browser.get(path).status_code == 404, path


@pytest.mark.row("A-364", "A-366", "A-367", "A-371", "A-343")
def test_an_export_imports_again_as_the_same_tree_under_a_name_that_says_so() -> None:
    user = make_user()
    browser = signed_in(user)
    loom = plant(user, "Once", " upon", " a time", title="A tale")
    logprobs = {
        "tokens": [" up", "on"],
        "token_logprobs": [-1.5, -0.25],
        "top_logprobs": [{" up": -1.5}, {"on": -0.25}],
        "text_offset": [0, 3],
    }
    measured = nodes_of(loom)[1]
    Node.objects.filter(id=measured.id).update(logprobs=json.dumps(logprobs))
    Node.objects.create(loom=loom, number=9, text="A second root", made_at=timezone.now())
    answer = browser.get(f"/loom/{loom.id}/export")
    assert answer.headers["Content-Disposition"] == f'attachment; filename="loom-{loom.id}.json"'
    assert answer.json()["version"] == 2
    made = imported(browser, answer.content)
    assert made.status_code == 201, made.content
    copy = Loom.objects.get(id=made.json()["id"])
    assert copy.title == "A tale (imported)"
    assert [each.text for each in nodes_of(copy)] == [each.text for each in nodes_of(loom)]
    assert [each.parent_id is None for each in nodes_of(copy)] == [True, False, False, True]
    assert not {each.id for each in nodes_of(copy)} & {each.id for each in nodes_of(loom)}
    assert json.loads(nodes_of(copy)[1].logprobs) == logprobs
    long = imported(browser, {"loom": {"title": "y" * 200}, "nodes": [{"id": "a"}]}).json()
    assert Loom.objects.get(id=long["id"]).title == "y" * 109 + " (imported)"


@pytest.mark.row("A-368", "A-369", "A-370")
def test_a_wrong_file_says_what_is_wrong_and_makes_nothing() -> None:
    user = make_user()
    browser = signed_in(user)
    untitled = imported(browser, {"nodes": [{"id": "a", "text": "x"}]}).json()
    assert Loom.objects.get(id=untitled["id"]).title == "Imported loom (imported)"
    count = Loom.objects.of(user.id).count()
    for content, says in (
        (b"no json", "JSON"),
        ({"version": 2}, '"nodes" is missing'),
        ({"nodes": [{"id": "a"}, {"id": "a"}]}, "Two Nodes"),
        ({"nodes": [{"id": str(each)} for each in range(2001)]}, "2000"),
        ({"nodes": [{"text": "x"}]}, "id"),
    ):
        answer = imported(browser, content)
        assert answer.status_code == 400, says
        assert says in answer.json()["error"]["message"], answer.json()
    missing = browser.post("/loom/import", {}, headers={"X-Requested-With": "basalt"})
    assert missing.json()["error"]["message"] == "Choose a file first."
    assert Loom.objects.of(user.id).count() == count


@pytest.mark.row("A-332", "A-349")
def test_a_node_tells_its_tokens_with_their_alternatives_and_a_split_keeps_whole_ones() -> None:
    user = make_user()
    browser = signed_in(user)
    loom = plant(user, "Once", " upon a")
    logprobs = {
        "tokens": [" up", "on", " a"],
        "token_logprobs": [-1.5, -0.25, -2.0],
        "top_logprobs": [{" up": -1.5, " in": -1.0}, {"on": -0.25}, {" a": -2.0}],
        "text_offset": [0, 3, 5],
    }
    node = nodes_of(loom)[1]
    Node.objects.filter(id=node.id).update(logprobs=json.dumps(logprobs))
    row = state(browser, loom)["nodes"][1]
    assert row["mean"] == pytest.approx(-1.25)
    tokens = browser.get(f"/loom/{loom.id}/nodes/{node.id}").json()["tokens"]
    assert [(each["text"], each["begin"], each["end"]) for each in tokens] == [
        (" up", 0, 3),
        ("on", 3, 5),
        (" a", 5, 7),
    ]
    assert [each["text"] for each in tokens[0]["top"]] == [" in", " up"]
    change(browser, loom, node, "split", {"offset": 5})
    upper, lower = (
        browser.get(f"/loom/{loom.id}/nodes/{each.id}").json()["tokens"]
        for each in nodes_of(loom)[1:]
    )
    assert [each["text"] for each in upper] == [" up", "on"]
    assert [(each["text"], each["begin"]) for each in lower] == [(" a", 0)]
    change(browser, loom, node, "edit", {"text": " down"})
    assert browser.get(f"/loom/{loom.id}/nodes/{node.id}").json()["tokens"] is None


def test_every_change_is_undone_and_done_again() -> None:
    user = make_user()
    browser = signed_in(user)
    loom = plant(user, "Once", " upon")
    node = nodes_of(loom)[1]

    def texts() -> list[str]:
        return [each["text"] for each in state(browser, loom)["nodes"]]

    steps = [texts()]
    for what, body in (
        ("edit", {"text": " in"}),
        ("sibling", {"text": " twice"}),
        ("split", {"offset": 1}),
        ("delete", None),
    ):
        assert change(browser, loom, node, what, body).status_code == 200
        steps.append(texts())
    for before in reversed(steps[:-1]):
        assert state(browser, loom)["can_undo"]
        send(browser, f"/loom/{loom.id}/undo", {})
        assert sorted(texts()) == sorted(before)
    assert not state(browser, loom)["can_undo"]
    for after in steps[1:]:
        send(browser, f"/loom/{loom.id}/redo", {})
        assert sorted(texts()) == sorted(after)
    assert not state(browser, loom)["can_redo"]


def test_what_is_read_and_folded_opens_again_and_is_no_change() -> None:
    user = make_user()
    browser = signed_in(user)
    loom = plant(user, "Once", " upon")
    root, node = nodes_of(loom)
    look = {"selected": str(node.id), "folded": [str(root.id)]}
    changed_at = Loom.objects.get(id=loom.id).changed_at
    assert send(browser, f"/loom/{loom.id}/look", look).status_code == 204
    seen = state(browser, loom)
    assert (seen["selected"], seen["folded"]) == (look["selected"], look["folded"])
    assert Loom.objects.get(id=loom.id).changed_at == changed_at


def test_a_page_reads_a_large_loom_with_few_queries(django_assert_num_queries) -> None:
    user = make_user()
    browser = signed_in(user)
    small, large = plant(user), plant(user, *map(str, range(300)))

    def queries(loom: Loom) -> int:
        from django.db import connection
        from django.test.utils import CaptureQueriesContext

        with CaptureQueriesContext(connection) as captured:
            assert browser.get(f"/loom/{loom.id}").status_code == 200
        return len(captured)

    queries(small)
    assert queries(small) == queries(large)
