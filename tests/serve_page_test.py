#!/usr/bin/env python3
"""The page of `pith serve` in headless Chromium: by keyboard, at two widths and in both themes,
without a complaint on the console and with nothing loaded from elsewhere. PITH_PICTURES=FOLDER keeps
screenshots."""

import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from serve.browser import Browser, program  # noqa: E402
from serve.harness import SKIPPED, Server  # noqa: E402

if program() is None:
    print("serve_page_test: skipped: there is no Chromium (tools/setup.sh browser)")
    sys.exit(SKIPPED)

TEXT = "The ship lay at anchor in the harbour of a small island, and the men were on shore. "
SMALL = "small=keydiff(budget=48)+int4,sink=4,window=16"
# Every pair of a text's colour and what is behind it must be told apart (WCAG AA).
CONTRAST = """(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => (c /= 255) <= .03928 ? c / 12.92 :
    ((c + .055) / 1.055) ** 2.4).reduce((s, c, i) => s + c * [.2126, .7152, .0722][i], 0);
  const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  return [...document.querySelectorAll('p, span, button, div, mark, h1, h2')].filter((e) => e.offsetParent
    && !e.disabled && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())).filter((e) => {
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))];
    return (Math.max(a, b) + .05) / (Math.min(a, b) + .05) < 4.5; }).map((e) => e.outerHTML.slice(0, 90));
})()"""


class Page(unittest.TestCase):
    def picture(self, browser, name):
        if os.environ.get("PITH_PICTURES"):
            browser.picture(f"{os.environ['PITH_PICTURES']}/{name}.png")

    def check_look(self, browser, width):
        self.assertLessEqual(browser.run("document.documentElement.scrollWidth"), width)
        self.assertEqual(browser.run(CONTRAST), [])

    def ask(self, browser, text, answers):
        browser.run("document.getElementById('text').focus()")
        browser.type(text)
        browser.key("Enter")
        browser.wait(f"document.querySelectorAll('.facts').length >= {answers}")

    def test_chat_and_comparison(self):
        with Server("--preset", SMALL) as server, Browser() as browser:
            for width, dark in ((1280, False), (390, True), (1280, True), (390, False)):
                with self.subTest(width=width, dark=dark):
                    browser.open(server.url, width, 844, dark)
                    browser.wait("document.querySelectorAll('#model-a option').length === 2")
                    self.check_look(browser, width)
                    self.picture(browser, f"start-{width}-{dark}")
                    browser.run("document.getElementById('length').value = '80'")
                    self.ask(browser, TEXT, 1)
                    browser.wait("document.querySelector('.grid') !== null")
                    self.check_look(browser, width)
                    self.picture(browser, f"chat-{width}-{dark}")
                    browser.run("document.getElementById('compare').click()")
                    self.ask(browser, TEXT * 6, 2)
                    browser.wait("document.querySelectorAll('.verdict').length === 2")
                    browser.wait("document.querySelectorAll('.bar-name').length === 3")
                    differs = browser.run("document.querySelectorAll('.verdict.differs').length")
                    marks = browser.run("document.querySelectorAll('.answer mark').length")
                    self.assertEqual(marks, differs)
                    self.check_look(browser, width)
                    self.picture(browser, f"compare-{width}-{dark}")
            self.assertEqual(browser.complaints(), [])
            for address in browser.asked():
                self.assertTrue(address.startswith(server.url), address)

    def test_an_answer_is_text_whatever_it_says(self):
        with Server() as server, Browser() as browser:
            browser.open(server.url)
            html = browser.run("""import('/page/markdown.js').then(({ render }) => {
              const box = document.createElement('div');
              box.append(render("<img src=x onerror=alert(1)> **b** `<i>`\\n\\n- one\\n- two\\n" +
                "```\\n<b>\\n```\\n# <s>"));
              document.body.append(box);
              return box.innerHTML; })""")
            self.assertEqual(html, "<p>&lt;img src=x onerror=alert(1)&gt; <strong>b</strong> "
                             "<code>&lt;i&gt;</code></p><ul><li>one</li><li>two</li></ul>"
                             "<pre><code>&lt;b&gt;\n</code></pre><h3>&lt;s&gt;</h3>")
            self.assertEqual(browser.complaints(), [])

    def test_a_key_is_asked_for_and_an_answer_can_be_stopped(self):
        with Server("--api-key", "secret-key") as server, Browser() as browser:
            browser.open(server.url)
            browser.wait("document.getElementById('key-dialog').open")
            browser.type("secret-key")
            browser.key("Enter", windowsVirtualKeyCode=13, text="\r")
            browser.wait("document.querySelectorAll('#model-a option').length === 1")
            browser.run("document.getElementById('length').value = '2000'")
            browser.run("document.getElementById('text').focus()")
            browser.type("The ship lay")
            browser.key("Enter")
            browser.wait("document.querySelector('.answer')?.textContent.length > 20")
            browser.run("document.getElementById('stop').click()")
            browser.wait("document.querySelector('.facts')?.textContent === 'Stopped.'")


if __name__ == "__main__":
    unittest.main()
