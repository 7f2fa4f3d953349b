"""Debian's Chromium, driven by selenium; tests that need it are skipped elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")

NEEDS_BROWSER = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None,
        reason="no Chromium with its driver: apt-get install chromium chromium-driver",
    ),
]


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A driver with a window of 1366 × 768; ``profile`` is an empty folder."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1366,768",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    service = webdriver.ChromeService(executable_path=DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_page_load_timeout(60)
    try:
        yield driver
    finally:
        driver.quit()


def errors(browser: Any) -> list[str]:
    """What the browser's console holds since the last call, of severe kind."""
    return [one["message"] for one in browser.get_log("browser") if one["level"] == "SEVERE"]


def wait_for(browser: Any, script: str) -> None:
    """Until the expression is true in the page."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 60).until(lambda driver: driver.execute_script(f"return {script}"))
