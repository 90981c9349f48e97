// The expiry page as a user sees it: what it shows, what its buttons do, by keyboard, on a phone, in the dark; and the HTTP endpoint.
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import http from "node:http";
import { MongoClient } from "mongodb";
import { chromium } from "playwright-core";
import { run, test, until } from "../drivers/node/harness.mjs";

const base = process.env.HTTP_URL;
const shots = process.env.MAYFLY_SCREENSHOTS ?? "build/screenshots";
mkdirSync(shots, { recursive: true });
const client = await new MongoClient(process.env.MONGODB_URI).connect();
const db = client.db("shop"), admin = client.db("admin");
const browser = await chromium.launch({
  executablePath: "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync"],
});
const problems = [];
async function open(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 1000 }, ...options });
  const page = await context.newPage();
  page.on("pageerror", (e) => problems.push(String(e)));
  page.on("console", (m) => { if (m.type() === "error") problems.push(m.text()); });
  page.on("request", (r) => { if (!r.url().startsWith(base) && !r.url().startsWith("data:")) problems.push(`asked for ${r.url()}`); });
  await page.goto(base);
  await page.locator("#connection.live").waitFor();
  return page;
}
// A request with headers a browser would not let a page set.
function raw(method, path, headers, body) {
  return new Promise((resolve, reject) => {
    const request = http.request(base + path, { method, headers }, (response) => {
      let text = "";
      response.on("data", (d) => { text += d; });
      response.on("end", () => resolve({ status: response.statusCode, headers: response.headers, text }));
    });
    request.on("error", reject);
    request.end(body);
  });
}

// Sessions fall due over the next hour, carts over the next day; some documents expire by themselves.
await db.collection("sessions").createIndex({ at: 1 }, { expireAfterSeconds: 600 });
await db.collection("carts").createIndex({ touched: 1 }, { expireAfterSeconds: 7200 });
const now = (await admin.command({ clock: 1 })).now ?? new Date();
const minute = 60_000;
await db.collection("sessions").insertMany(Array.from({ length: 3000 }, (_, i) =>
  ({ user: i, at: new Date(+now - 10 * minute + 2 * minute + (i % 55) * minute + (i % 7) * 3000) })));
await db.collection("carts").insertMany(Array.from({ length: 2000 }, (_, i) => ({ touched: new Date(+now + i * 40_000) })));

const page = await open();

test("the page shows every rule with its state and next deadline", async () => {
  const row = page.locator("#rules tbody tr", { hasText: "shop.sessions" });
  await row.waitFor();
  assert.match(await row.innerText(), /at_1/);
  assert.match(await row.innerText(), /active/);
  assert.match(await row.innerText(), /in \d+ (s|min)/);
  assert.equal(await page.locator("#rules tbody tr").count(), 2);
});

test("the forecast has a bar for what is due", async () => {
  await page.locator("#forecast-chart rect.bar-expire").first().waitFor();
  const summary = await page.locator("#forecast-summary").innerText();
  assert.match(summary, /in this time/);
  assert.ok((await page.locator("#forecast-chart rect").count()) > 30);
  await page.getByRole("button", { name: "Day", exact: true }).click();
  await until("the day's forecast", async () => (await page.locator("#forecast-summary").innerText()) !== summary);
  assert.equal(await page.getByRole("button", { name: "Day", exact: true }).getAttribute("aria-pressed"), "true");
  await page.getByRole("button", { name: "Hour", exact: true }).click();
  await until("the hour's forecast", async () => (await page.locator("#forecast-summary").innerText()) === summary);
});

test("pause and resume by keyboard", async () => {
  const pause = page.getByRole("button", { name: "Pause shop.sessions at_1" });
  await pause.focus();
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Resume shop.sessions at_1" }).waitFor();
  const status = await db.command({ ttlStatus: "sessions" });
  assert.equal(status.rules[0].state, "paused");
  await page.locator("#message.good", { hasText: "Paused" }).waitFor();
  await page.locator("#message.good", { hasText: "Paused" }).waitFor();
  // The button is the same one, still focused.
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Pause shop.sessions at_1" }).waitFor();
  assert.equal((await db.command({ ttlStatus: "sessions" })).rules[0].state, "active");
});

test("what is removed appears without a reload", async () => {
  await admin.command({ clock: { advanceSeconds: 1800 } });
  await until("removals", async () => (await page.locator("#tile-deleted").innerText()) !== "0");
  assert.ok((await db.collection("sessions").countDocuments()) < 3000);
  await page.locator("#history-chart rect.bar-reaped").first().waitFor();
});

test("settings are set, and refused with the server's words", async () => {
  await page.locator("#rate").fill("5000");
  await page.locator("#rate-form button").click();
  await page.locator("#message.good", { hasText: "5,000" }).waitFor();
  assert.equal(Number((await admin.command({ getParameter: 1, ttlMaxDocsPerSecond: 1 })).ttlMaxDocsPerSecond), 5000);
  await page.locator("#purge").fill("86400");
  await page.locator("#purge-form button").click();
  await page.locator("#message.good", { hasText: "86,400" }).waitFor();
  assert.equal(Number((await admin.command({ getParameter: 1, metadataPurgeIntervalSecs: 1 })).metadataPurgeIntervalSecs), 86400);
  const bad = await page.evaluate(async () => {
    const r = await fetch("/api/action", { method: "POST", headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ action: "rateLimit", value: -1 }) });
    return [r.status, await r.json()];
  });
  assert.equal(bad[0], 400);
  assert.equal(bad[1].code, 2);
});

test("pictures: light, dark, a phone", async () => {
  await page.screenshot({ path: `${shots}/expiry-light.png`, fullPage: true });
  const dark = await open({ colorScheme: "dark" });
  await dark.locator("#forecast-chart rect").first().waitFor();
  await dark.screenshot({ path: `${shots}/expiry-dark.png`, fullPage: true });
  const colour = (p) => p.evaluate(() => getComputedStyle(document.body).backgroundColor);
  assert.notEqual(await colour(dark), await colour(page));
  await dark.context().close();
  const phone = await open({ viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true, deviceScaleFactor: 2 });
  await phone.locator("#forecast-chart rect").first().waitFor();
  await phone.locator("#rules tbody tr").first().waitFor();
  await phone.screenshot({ path: `${shots}/expiry-phone.png`, fullPage: true });
  const overflow = await phone.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.ok(overflow <= 0, `the page is ${overflow} pixels wider than the phone`);
  await phone.context().close();
});

test("everything can be reached with the tab key", async () => {
  const p = await open();
  await p.locator("#rules tbody tr").first().waitFor();
  const reached = new Set();
  for (let i = 0; i < 40; ++i) {
    await p.keyboard.press("Tab");
    reached.add(await p.evaluate(() => document.activeElement.getAttribute("aria-label") || document.activeElement.id || document.activeElement.textContent.trim()));
  }
  for (const name of ["Skip to the rules", "Hour", "Day", "30 days", "Pause shop.carts touched_1", "rate", "purge"])
    assert.ok(reached.has(name), `${name} was not reached; there were ${[...reached].join(", ")}`);
  await p.context().close();
});

test("no errors, nothing asked of other hosts", async () => {
  // The refused action above is the one that the browser reports.
  assert.deepEqual(problems.filter((p) => !p.includes("400")), []);
});

test("actions from elsewhere are refused", async () => {
  const body = JSON.stringify({ action: "rateLimit", value: 1 });
  const host = new URL(base).host;
  const json = { "Content-Type": "application/json" };
  for (const headers of [{ ...json }, { ...json, Origin: "http://evil.example" }, { Origin: `http://${host}`, "Content-Type": "text/plain" },
    { ...json, Host: "evil.example", Origin: "http://evil.example" }])
    assert.equal((await raw("POST", "/api/action", headers, body)).status, 403);
  assert.equal((await raw("POST", "/", json, body)).status, 405);
  assert.equal((await raw("PUT", "/api/action", json, body)).status, 405);
  assert.equal(Number((await admin.command({ getParameter: 1, ttlMaxDocsPerSecond: 1 })).ttlMaxDocsPerSecond), 5000);
  const own = { ...json, Origin: `http://${host}` };
  for (const bad of ["{", "[]", "{}", '{"action": 1}', '{"action": "pause"}', '{"action": "pause", "ns": "x"}', '{"action": "rateLimit", "value": "9"}'])
    assert.equal((await raw("POST", "/api/action", own, bad)).status, 400, bad);
  assert.equal((await raw("POST", "/api/action", own, "x".repeat(100_000))).status, 413);
});

test("health, readiness and metrics", async () => {
  assert.equal((await raw("GET", "/healthz", {})).text, "ok\n");
  assert.equal((await raw("GET", "/readyz", {})).text, "ready\n");
  assert.equal((await raw("HEAD", "/healthz", {})).text, "");
  assert.equal((await raw("GET", "/nothing", {})).status, 404);
  assert.equal((await raw("GET", "/api/forecast?range=year", {})).status, 400);
  const metrics = await raw("GET", "/metrics", {});
  assert.match(metrics.headers["content-type"], /^text\/plain; version=0\.0\.4/);
  assert.match(metrics.headers["content-security-policy"], /default-src 'none'/);
  const line = (name) => Number(metrics.text.split("\n").find((l) => l.startsWith(`${name} `))?.split(" ")[1]);
  const status = await admin.command({ serverStatus: 1 });
  assert.equal(line("mayfly_ttl_deleted_documents_total"), Number(status.metrics.ttl.deletedDocuments));
  assert.ok(line("mayfly_ttl_deleted_documents_total") > 0);
  assert.ok(line("process_resident_memory_bytes") > 1e6);
  assert.match(metrics.text, /mayfly_ttl_rule_state\{ns="shop\.sessions",kind="ttlIndex",index="at_1",state="active"\} 1/);
  assert.match(metrics.text, /mayfly_operation_duration_seconds_bucket\{type="read",le="\+Inf"\} \d+/);
  // Every sample belongs to a family that was announced.
  const announced = new Set([...metrics.text.matchAll(/^# TYPE (\S+)/gm)].map((m) => m[1]));
  for (const l of metrics.text.split("\n").filter((l) => l && !l.startsWith("#")))
    assert.ok(announced.has(l.match(/^[a-zA-Z_:]+/)[0].replace(/_(bucket|sum|count)$/, "")) || announced.has(l.match(/^[a-zA-Z_:]+/)[0]), l);
});

await run(async () => { await browser.close(); await client.close(); });
