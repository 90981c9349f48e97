// Chromium as the tests of the page use it. Whatever it waits for, it waits with the patience of all tests.
import { chromium } from "playwright-core";
import { patience } from "../drivers/node/harness.mjs";

export const launch = () => chromium.launch({
  executablePath: "/usr/bin/chromium",
  timeout: patience,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync"],
});
// A page in a context of its own.
export async function newPage(browser, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 1000 }, ...options });
  context.setDefaultTimeout(patience);
  return context.newPage();
}
