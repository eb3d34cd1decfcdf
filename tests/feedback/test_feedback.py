"""`Send feedback`, its screenshots, and the team's tracker (A-377 to A-388)."""

import io
import json
import struct
import threading
import zlib
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone
from PIL import Image

from accounts.models import User
from feedback import tracker
from feedback.models import Note, Screenshot
from inference import valkey

pytestmark = pytest.mark.django_db

ERRORS = [{"when": "2026-11-30T10:00:00Z", "what": "GET /usage: 500", "requestId": "req_1"}]
MOST = 2 * 2**20


@pytest.fixture(autouse=True)
def fresh_limits() -> Iterator[None]:
    yield
    for name in valkey.connection().scan_iter(f"{valkey.PREFIX}rate:*"):
        valkey.connection().delete(name)


@pytest.fixture
def person() -> User:
    return User.objects.create_user("ada@example.org", name="Ada")


@pytest.fixture
def client(person: User) -> Client:
    client = Client(headers={"User-Agent": "Mosaic 1.0", "X-Requested-With": "basalt"})
    client.force_login(person)
    return client


def picture(kind: str = "PNG", size: tuple[int, int] = (8, 6), **options) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, (200, 30, 60)).save(out, kind, **options)
    return out.getvalue()


def send(client: Client, *images: bytes, **changes):
    body = {
        "kind": "bug",
        "text": "It broke.",
        "page": "/loom/42?x=1",
        "errors": json.dumps(ERRORS),
        **changes,
    }
    files = [SimpleUploadedFile(f"{i}.png", data) for i, data in enumerate(images)]
    return client.post("/feedback", {**body, "images": files} if files else body)


@pytest.mark.row("A-383", "A-386")
def test_a_note_is_kept_with_what_went_along(client, person):
    answer = send(client, text="First\r\nsecond")
    assert answer.json() == {"told": "Thanks, your note reached the team."}
    note = Note.objects.get()
    assert (note.kind, note.text, note.page) == ("bug", "First\nsecond", "/loom/42?x=1")
    assert (note.user, note.browser) == (person, "Mosaic 1.0")
    assert note.errors == [["2026-11-30T10:00:00Z", "GET /usage: 500", "req_1"]]


@pytest.mark.row("A-378")
def test_a_note_is_about_one_of_three_things(client):
    for kind in ("bug", "feature", "general"):
        assert send(client, kind=kind).status_code == 200
    assert send(client, kind="praise").status_code == 400
    assert Note.objects.count() == 3


@pytest.mark.row("A-379", "A-126")
def test_a_note_has_one_to_5000_characters(client):
    assert send(client, text="x" * 5000).status_code == 200
    for text in ("", "  \n", "x" * 5001, "a\0b"):
        answer = send(client, text=text)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "text"
    assert Note.objects.count() == 1


@pytest.mark.row("A-381")
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_the_four_types_are_taken_by_their_content(client, kind):
    answer = send(client, picture(kind))
    assert answer.status_code == 200, answer.content
    shot = Screenshot.objects.get()
    assert (shot.width, shot.height) == (8, 6)
    with shot.file.open() as kept:
        again = Image.open(io.BytesIO(kept.read()))
        assert again.format == shot.format
        assert again.convert("RGB").getpixel((1, 1))[0] > 150


@pytest.mark.row("A-381")
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"<svg xmlns='http://www.w3.org/2000/svg'><script>1</script></svg>", "is no PNG"),
        (b"%PDF-1.4", "is no PNG"),
        (picture("BMP"), "is no PNG"),
        (picture("TIFF"), "is no PNG"),
        (picture("JPEG", (200, 200))[:-300], "broken"),
        (b"", "is no PNG"),
    ],
)
def test_another_type_is_refused_whatever_its_name(client, data, why):
    answer = send(client, picture(), data)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "images"
    assert error["message"].startswith("1.png ")
    assert why in error["message"]
    assert not Note.objects.exists()


@pytest.mark.row("A-381")
def test_five_images_of_two_megabytes_are_taken_and_no_more(client):
    noise = picture() + b"\0" * (MOST - len(picture()))
    assert len(noise) == MOST
    assert send(client, *[noise] * 5).status_code == 200
    assert Screenshot.objects.count() == 5
    six = send(client, *[picture()] * 6)
    assert six.status_code == 400
    assert "5 images at most" in six.json()["error"]["message"]
    large = send(client, noise + b"\0")
    assert large.status_code == 400
    assert "larger than 2 MB" in large.json()["error"]["message"]
    assert Note.objects.count() == 1


def test_an_image_that_unpacks_to_too_much_is_refused(client):
    def chunk(name: bytes, data: bytes) -> bytes:
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    bomb = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1_000_000))
        + chunk(b"IEND", b"")
    )
    assert send(client, bomb).status_code == 400
    assert not Note.objects.exists()


def test_nothing_of_the_senders_bytes_is_kept(client):
    marked = Image.new("RGB", (8, 6))
    exif = marked.getexif()
    exif[0x010E] = "where the sender lives"
    out = io.BytesIO()
    marked.save(out, "JPEG", exif=exif)
    payload = out.getvalue() + b"<script>alert(1)</script>"
    assert b"where the sender lives" in payload
    assert send(client, payload).status_code == 200
    with Screenshot.objects.get().file.open() as kept:
        data = kept.read()
    assert b"where the sender lives" not in data
    assert b"script" not in data


@pytest.mark.row("A-384", "A-385")
def test_an_anonymous_note_names_nobody_anywhere(client, person, caplog):
    answer = send(client, picture(), anonymous="on", page="/loom/4242424242?user=ada@example.org")
    assert answer.status_code == 200
    row = Note.objects.values().get()
    kept = " ".join(str(value) for value in row.values())
    assert (row["user_id"], row["browser"], row["errors"]) == (None, "", [])
    for trace in (person.email, str(person.id), "Mosaic", "req_1", "4242424242", "Ada"):
        assert trace not in kept.replace(str(row["id"]), "").replace(str(row["sent_at"]), "")
    assert person.email not in caplog.text
    body = json.dumps(tracker._plain(Note.objects.get()))
    assert person.email not in body


@pytest.mark.row("A-384")
def test_the_database_refuses_details_of_an_anonymous_note():
    from django.db import IntegrityError, transaction

    with pytest.raises(IntegrityError), transaction.atomic():
        Note.objects.create(kind="bug", text="x", browser="Mosaic")


def test_only_a_signed_in_user_sends_and_only_so_many(client):
    assert Client().post("/feedback", {"text": "x"}).status_code == 302
    csrf = Client(enforce_csrf_checks=True)
    csrf.force_login(User.objects.get())
    assert csrf.post("/feedback", {"text": "x"}).status_code == 403
    for _ in range(30):
        assert send(client).status_code == 200
    refused = send(client)
    assert refused.status_code == 429
    assert refused["Retry-After"]


class Tracker:
    """A tracker of our own: what it was sent, and what it answers."""

    def __init__(self) -> None:
        self.taken: list[tuple[dict, str]] = []
        self.status = 201
        self.answer: object = {"id": "BAS-7", "url": "https://tracker.example.org/BAS-7"}
        tracker_ = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                tracker_.taken.append((body, self.headers.get("Authorization", "")))
                data = json.dumps(tracker_.answer).encode()
                self.send_response(tracker_.status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/issues"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(5)


@pytest.fixture
def webhook(settings) -> Iterator[Tracker]:
    running = Tracker()
    settings.BASALT = settings.BASALT.model_copy(
        update={"feedback_webhook": running.address, "feedback_token": "secret"}
    )
    yield running
    running.stop()


@pytest.mark.row("A-387")
def test_each_note_makes_one_issue_without_errors_and_ids(client, person, webhook):
    send(client, picture())
    assert tracker.make_issues() == 1
    [(body, token)] = webhook.taken
    assert token == "secret"
    note = Note.objects.get()
    assert body["id"] == str(note.id)
    assert (body["text"], body["page"], body["email"]) == (
        "It broke.",
        "/loom/42?x=1",
        person.email,
    )
    assert body["screenshots"] == [tracker.screenshot_address(note.screenshots.get().id)]
    sent = json.dumps(body)
    assert "req_1" not in sent
    assert "Mosaic" not in sent
    assert (note.issue_id, note.issue_url) == ("BAS-7", "https://tracker.example.org/BAS-7")
    assert tracker.make_issues() == 0
    assert len(webhook.taken) == 1


@pytest.mark.row("A-388")
def test_a_note_waits_while_the_tracker_is_not_there(client, webhook, settings, monkeypatch):
    with_tracker = settings.BASALT
    settings.BASALT = with_tracker.model_copy(update={"feedback_webhook": ""})
    send(client)
    assert tracker.make_issues() == 0
    settings.BASALT = with_tracker
    webhook.status = 503
    assert tracker.make_issues() == 0
    note = Note.objects.get()
    assert "503" in note.fault
    assert not note.issue_id
    webhook.status = 201
    assert tracker.make_issues() == 0, "not before its time"
    later = timezone.now() + timedelta(minutes=5)
    monkeypatch.setattr("feedback.tracker.timezone.now", lambda: later)
    assert tracker.make_issues() == 1
    assert Note.objects.get().issue_id == "BAS-7"


def test_linear_is_asked_in_its_own_words(client, person, monkeypatch, webhook, settings):
    settings.BASALT = settings.BASALT.model_copy(update={"feedback_team": "team-1"})
    monkeypatch.setattr(tracker, "LINEAR", "127.0.0.1")
    webhook.status = 200
    webhook.answer = {
        "data": {
            "issueCreate": {"success": True, "issue": {"id": "u-1", "url": "https://linear.app/i"}}
        }
    }
    send(client)
    assert tracker.make_issues() == 1
    asked = webhook.taken[0][0]
    made = asked["variables"]["input"]
    assert made["teamId"] == "team-1"
    assert made["id"] == str(Note.objects.get().id)
    assert person.email in made["description"]
    assert "issueCreate" in asked["query"]
    webhook.answer = {"errors": [{"message": "no"}]}
    send(client)
    assert tracker.make_issues() == 0
    assert Note.objects.filter(issue_id="").count() == 1
