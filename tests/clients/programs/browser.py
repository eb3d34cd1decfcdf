"""Open the page of `page/` in Chromium, from an origin of its own, and let it run its cases.

Reads CHROMIUM, SDK (the folder of the npm package), BASE_URL, KEY, SMALL_KEY, SPENT_KEY and MODEL;
prints one JSON object. A process of its own: Playwright's event loop and Django's database calls
do not go together in one thread.
"""

import json
import os
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import sync_playwright

PAGE = Path(__file__).parents[1] / "page"
SDK = Path(os.environ["SDK"])
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


class Files(SimpleHTTPRequestHandler):
    """The page, and the SDK's modules as npm delivers them."""

    extensions_map = {".html": "text/html", ".mjs": "text/javascript"}

    def translate_path(self, path: str) -> str:
        name = path.lstrip("/")
        if name.startswith("openai/"):
            return str(SDK / name.removeprefix("openai/"))
        return str(PAGE / name)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    where = {
        "base": os.environ["BASE_URL"],
        "key": os.environ["KEY"],
        "smallKey": os.environ["SMALL_KEY"],
        "spentKey": os.environ["SPENT_KEY"],
        "model": os.environ["MODEL"],
    }
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=ARGUMENTS)
        page = browser.new_page()
        page.on("console", lambda message: print("console:", message.text, file=sys.stderr))
        page.on("pageerror", lambda error: print("page:", error, file=sys.stderr))
        page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
        page.wait_for_function("() => window.run !== undefined")
        print(json.dumps(page.evaluate("where => window.run(where)", where)))
        browser.close()


if __name__ == "__main__":
    main()
