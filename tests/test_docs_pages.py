"""The built pages in a browser: on a phone, in the dark, in print. `make docs` builds them.

With CONVALGOS_ARTIFACTS=folder pictures of them are left there.
"""

from pathlib import Path

import pytest
from browser import keep, show

SITE = Path(__file__).parents[1] / "docs" / "_build" / "html"
PAGES = [
    p for p in ("index", "api/calls", "results", "algorithms/cpu-winograd") if (SITE / f"{p}.html").exists()
]
pytestmark = pytest.mark.skipif(not SITE.exists(), reason="needs docs/_build/html, which `make docs` builds")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_reads_on_a_phone_in_the_dark_and_in_print(browser, page):
    path, name = SITE / f"{page}.html", "docs_" + page.replace("/", "_")
    colours = {}
    for scheme in ("light", "dark"):
        show(browser, path, width=390, scheme=scheme)
        assert "convalgos" in browser.title
        keep(browser, f"{name}_phone_{scheme}")
        wide, colour = browser.execute_script(
            "return [document.documentElement.scrollWidth, getComputedStyle(document.body).backgroundColor]"
        )
        assert wide <= 390, "the page scrolls sideways"
        colours[scheme] = sum(map(int, colour.strip("rgb()").split(",")))
    assert colours["dark"] < 150 < 600 < colours["light"]

    show(browser, path, width=720)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    keep(browser, f"{name}_print")
    shown = browser.execute_script(
        "return [...document.querySelectorAll('.sidebar-drawer, .toc-drawer, .mobile-header')]"
        ".filter(e => getComputedStyle(e).display !== 'none').length"
    )
    assert shown == 0, "navigation is printed"
    ends = "return [...document.querySelectorAll('table')].map(e => e.getBoundingClientRect().right)"
    assert all(end <= 720 for end in browser.execute_script(ends)), "a table is wider than paper"
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_the_curves_are_in_the_site(browser):
    show(browser, SITE / "history.html")
    browser.find_element("css selector", "a.curves").click()
    assert (
        browser.execute_script("return Object.keys(ASV_DATA).length") > 10
    )  # what the curves are drawn from
