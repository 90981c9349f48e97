// The expiry page as a user sees it: what it shows, what its buttons do, by keyboard, on a phone, in the dark; and the HTTP endpoint.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import http from "node:http";
import { MongoClient } from "mongodb";
import { freePort, patience, run, test, until } from "../drivers/node/harness.mjs";
import { launch, newPage } from "./chromium.mjs";

const base = process.env.HTTP_URL;
const shots = process.env.MAYFLY_SCREENSHOTS ?? "build/screenshots";
mkdirSync(shots, { recursive: true });
const client = await new MongoClient(process.env.MONGODB_URI, { serverSelectionTimeoutMS: patience }).connect();
const db = client.db("shop"), admin = client.db("admin");
const browser = await launch();
const problems = [];
async function open(options = {}) {
  const page = await newPage(browser, options);
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

test("the store is shown", async () => {
  await until("runs", async () => Number(await page.locator("#tile-runs").innerText()) >= 1);
  assert.match(await page.locator("#tile-debt").innerText(), /^\d+\.\d MB$/);
  assert.ok(Number(await page.locator("#tile-amplification").innerText()) >= 1);
  assert.equal(await page.locator("#tile-stalls").innerText(), "0");
});

test("backups, and links that end here, are shown", async () => {
  assert.equal(await page.locator("#tile-backup").innerText(), "–");
  assert.equal(await page.locator("#archive").isVisible(), false);
  const folder = mkdtempSync(`${tmpdir()}/mayfly-page-backups-`);
  await admin.command({ backup: 1, path: `${folder}/b` });
  await until("a backup", async () => /\d/.test(await page.locator("#tile-backup").innerText()));
  await assert.rejects(admin.command({ backup: 1, path: `${folder}/none/none/b` }));
  await page.locator("#notices", { hasText: "The last backup failed" }).waitFor();
  await admin.command({ backup: 1, path: `${folder}/b` });
  rmSync(folder, { recursive: true });
  const links = client.db("mayflyLink").collection("links");
  await links.insertOne({ _id: "from far", phase: "follow", lagMillis: 1500, updatedAt: new Date(), source: { set: "rs7" } });
  await page.locator("#notices", { hasText: "from far" }).waitFor();
  await links.updateOne({ _id: "from far" }, { $set: { paused: true } });
  await page.locator("#notices", { hasText: /from far.*paused/ }).waitFor();
  await links.deleteOne({ _id: "from far" });
  await until("no link", async () => !(await page.locator("#notices").innerText()).includes("from far"));
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

test("what keeps documents from expiring is said: a held rule, a paused one, a hold, the monitor off", async () => {
  await admin.command({ setParameter: 1, ttlGuardMinDocs: 10, ttlGuardAction: "hold" });
  const at = (await admin.command({ clock: 1 })).now, day = 86_400_000;
  await db.collection("mails").insertMany(Array.from({ length: 50 }, () => ({ received: new Date(+at - 9 * day) })));
  await db.command({ createIndexes: "mails", indexes: [{ key: { received: 1 }, name: "received_1", expireAfterSeconds: 86400 }] });
  await db.command({ ttlPause: "carts", index: "touched_1", until: new Date(+at + 3 * day) });
  await db.command({ ttlHold: "sessions", filter: { user: 17 }, reason: "case 17" });
  await admin.command({ setParameter: 1, ttlMonitorEnabled: false });
  await page.locator("#rules tr", { hasText: "shop.mails" }).locator(".note", { hasText: "held by the guard: 50 documents at once, 100 %" }).waitFor();
  await page.locator("#rules tr", { hasText: "shop.carts" }).locator(".note", { hasText: /until \d/ }).waitFor();
  assert.equal(await page.getByRole("button", { name: "Pause shop.mails received_1" }).count(), 0);
  await page.locator("#notices", { hasText: "TTL monitor is off" }).waitFor();
  assert.match(await page.locator("#notices").innerText(), /Held in shop\.sessions: documents with \{"user":17\} \(case 17\)/);
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.ok(overflow <= 0, `the page is ${overflow} pixels too wide`);
  await page.screenshot({ path: `${shots}/expiry-held.png`, fullPage: true });
  await admin.command({ setParameter: 1, ttlMonitorEnabled: true });
  await db.command({ ttlHoldRelease: "sessions", holdId: (await db.command({ ttlStatus: "sessions" })).holds[0].holdId });
  await page.locator("#notices").waitFor({ state: "hidden" });
  await db.command({ ttlResume: "carts", index: "touched_1" });
  await db.collection("mails").drop();
  await admin.command({ setParameter: 1, ttlGuardMinDocs: 10000, ttlGuardAction: "warn" });
});

test("a time series: its rule, how many points go, and that a date ends its expiry", async () => {
  const at = (await admin.command({ clock: 1 })).now;
  const before = await page.locator("#forecast-summary").innerText();
  assert.ok(!before.includes("time series"));
  await db.createCollection("weather", { timeseries: { timeField: "at", metaField: "sensor" }, expireAfterSeconds: 60 });
  // From half an hour ago on, an hour long: due within half an hour.
  await db.collection("weather").insertMany(Array.from({ length: 600 }, (_, i) =>
    ({ at: new Date(+at - 30 * minute + i * 1000), sensor: i % 3, celsius: 20 + i / 100 })));
  const row = page.locator("#rules tbody tr", { hasText: "shop.weather" });
  await row.waitFor();
  assert.match(await row.innerText(), /active/);
  assert.match(await row.innerText(), /in \d+ (s|min)/);
  assert.ok(!(await page.locator("#rules").innerText()).includes("system.buckets"));
  await page.locator("#forecast-summary", { hasText: /of time series 600 points, \d+\.\d MB/ }).waitFor();
  await page.screenshot({ path: `${shots}/expiry-series.png`, fullPage: true });
  await db.collection("weather").insertOne({ at: new Date("1960-01-01"), sensor: 1 });
  await row.locator(".note", { hasText: /1970/ }).waitFor();
  assert.match(await row.innerText(), /suspended/);
  await db.collection("weather").drop();
  await row.waitFor({ state: "detached" });
});

test("ten thousand rules: those that need looking at are shown, the others are found", async () => {
  const tenants = client.db("tenants");
  for (let i = 0; i < 1000; ++i)
    await tenants.command({ createIndexes: `tenant_${String(i).padStart(3, "0")}`, indexes: Array.from({ length: 10 }, (_, k) =>
      ({ key: { [`f${k}`]: 1 }, name: `f${k}_1`, expireAfterSeconds: 100 + k })) });
  await tenants.command({ ttlPause: "tenant_777", index: "f3_1" });
  await page.locator("#rules-count", { hasText: "200 of 10,002" }).waitFor();
  await page.getByRole("button", { name: "Resume tenants.tenant_777 f3_1" }).waitFor();
  assert.equal(await page.locator("#rules tbody tr").count(), 200);
  await page.locator("#filter").fill("TENANT_042.f5");
  await page.locator("#rules-count", { hasText: "1 of 10,002" }).waitFor();
  assert.equal(await page.locator("#rules tbody tr").count(), 1);
  await page.locator("#filter").fill("no such & thing");
  await page.locator("#rules-empty", { hasText: "No rule has this" }).waitFor();
  assert.ok(await page.locator("#filter").isVisible());
  await page.locator("#filter").fill("");
  await page.locator("#rules-count", { hasText: "200 of" }).waitFor();
  const status = await (await fetch(`${base}/api/status`)).text();
  assert.ok(status.length < 200_000, `an event of ${status.length} bytes`);
  const forecast = await (await fetch(`${base}/api/forecast?range=hour`)).json();
  assert.ok(Object.keys(forecast.intervals[0].byRule).length <= 100);
  await client.db("tenants").dropDatabase();
  await page.locator("#rules-tools").waitFor({ state: "hidden" });
});

test("after a server was killed and started again the page goes on by itself", async () => {
  const data = mkdtempSync(`${tmpdir()}/mayfly-page-`);
  const port = freePort();
  const start = () => spawn(process.env.MAYFLYD ?? "build/release/mayflyd",
    ["--dbpath", `${data}/data`, "--port", "0", "--nounixsocket", "--httpPort", String(port)], { stdio: "ignore" });
  const up = () => until("the server", async () => (await fetch(`http://127.0.0.1:${port}/readyz`).catch(() => ({ ok: false }))).ok);
  let server = start();
  try {
    await up();
    const p = await newPage(browser);
    await p.goto(`http://127.0.0.1:${port}/`);
    await p.locator("#connection.live").waitFor();
    server.kill("SIGKILL");
    await p.locator("#connection.lost").waitFor();
    server = start();
    await up();
    await p.locator("#connection.live").waitFor();
    const uptime = async () => (await p.locator("#server").innerText()).match(/up (.*?) ·/)?.[1];
    const first = await uptime();
    await until("events of the new server", async () => (await uptime()) !== first);
    await p.context().close();
  } finally {
    server.kill("SIGKILL");
    rmSync(data, { recursive: true, force: true });
  }
});

test("no errors, nothing asked of other hosts", async () => {
  // The refused action above is the one that the browser reports.
  assert.deepEqual(problems.filter((p) => !p.includes("400")), []);
});

test("actions from elsewhere are refused", async () => {
  const body = JSON.stringify({ action: "rateLimit", value: 1 });
  const host = new URL(base).host;
  const json = { "Content-Type": "application/json" };
  for (const headers of [{ ...json }, { ...json, Origin: "http://evil.example" }, { Origin: `http://${host}`, "Content-Type": "text/plain" }])
    assert.equal((await raw("POST", "/api/action", headers, body)).status, 403);
  assert.equal((await raw("POST", "/api/action", { ...json, Host: "evil.example", Origin: "http://evil.example" }, body)).status, 421);
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
