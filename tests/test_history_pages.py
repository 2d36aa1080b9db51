"""The pages of curves: they open from a folder, without a network, on a desk and on a phone."""

import json
import re
import time
from pathlib import Path

import pytest
from browser import keep, show

from convalgos.core.errors import missing
from convalgos.tools.history import asv
from convalgos.tools.history.offline import make_offline

pytestmark = pytest.mark.skipif(bool(missing("asv")), reason=str(missing("asv")))

ROOT = Path(__file__).parents[1]
SITE = ROOT / "asv_bench" / "site"
CHOICE = "track.Pick.track_choice"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Those of the results in this repository."""
    return asv.publish(tmp_path_factory.mktemp("curves")).parent


def test_everything_the_page_loads_lies_beside_it(pages):
    loaded = re.findall(
        r'<(?:script|link)[^>]*?(?:src|href)="([^"]+)"', (pages / "index.html").read_text(), re.S
    )
    assert len(loaded) > 15 and all((pages / name).is_file() for name in loaded)
    data = (pages / "data.js").read_text()
    assert json.loads(data[data.index("{") : -2])["index.json"]["project"] == "convalgos"


def test_what_is_not_vendored_is_told(tmp_path):
    page = '<head>\n<script src="https://cdn.example/a/unheard-of.min.js" crossorigin></script>\n</head>'
    (tmp_path / "index.html").write_text(page)
    with pytest.raises(ValueError, match=r"unheard-of\.min\.js from the network"):
        make_offline(tmp_path, SITE)
    assert (tmp_path / "index.html").read_text() == page and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_as_a_file(browser, pages, width):
    show(browser, pages / "index.html", width)
    wait(browser, "document.querySelectorAll('.benchmark-container').length > 5")
    browser.execute_script(f"location.hash = '#{CHOICE}'")
    wait(browser, "document.querySelectorAll('#main-graph .flot-y-axis .flot-tick-label').length > 1")
    keep(browser, f"curves-{width}")
    ticks = "[...document.querySelectorAll('#main-graph .flot-y-axis .flot-tick-label')]"
    names = browser.execute_script(f"return {ticks}.map(tick => tick.textContent)")
    assert any(name.startswith("cpu.") for name in names), names
    assert all(re.match(r"cpu\.|an earlier algorithm", name) for name in names), names
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    said = [entry["message"] for entry in browser.get_log("browser")]
    assert not [words for words in said if "ERR_" in words or "CORS" in words], said
    asked = [json.loads(e["message"])["message"] for e in browser.get_log("performance")]
    urls = [e["params"]["request"]["url"] for e in asked if e["method"] == "Network.requestWillBeSent"]
    assert urls and all(url.startswith(("file:", "data:")) for url in urls)


def wait(browser, what, seconds=30):
    """Until this is true in the page."""
    end = time.monotonic() + seconds
    while not browser.execute_script(f"return {what}"):
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.1)
