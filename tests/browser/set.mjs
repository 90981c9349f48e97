// The members of a set on the page: who leads and since when, how far behind the others are, what cannot be reached; on a phone too.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { MongoClient } from "mongodb";
import { freePort, patience, run, test, until } from "../drivers/node/harness.mjs";
import { launch, newPage } from "./chromium.mjs";

const shots = process.env.MAYFLY_SCREENSHOTS ?? "build/screenshots";
mkdirSync(shots, { recursive: true });
const folder = mkdtempSync(`${tmpdir()}/mayfly-set-page-`);
const members = [];
for (let i = 0; i < 3; i++) {
  const port = freePort(), web = freePort();
  members.push({ port, name: `127.0.0.1:${port}`, url: `http://127.0.0.1:${web}/`, process: spawn(process.env.MAYFLYD ?? "build/release/mayflyd",
    ["--replSet", "rs0", "--dbpath", `${folder}/${i}`, "--port", String(port), "--nounixsocket", "--httpPort", String(web)], { stdio: "ignore" }) });
}
const connect = (uri) => new MongoClient(uri, { serverSelectionTimeoutMS: patience }).connect();
const direct = (m) => connect(`mongodb://${m.name}/?directConnection=true`);
const first = await direct(members[0]);
await first.db("admin").command({ replSetInitiate: { _id: "rs0", members: members.map((m, _id) => ({ _id, host: m.name })) } });
const client = await connect(`mongodb://${members.map((m) => m.name).join(",")}/?replicaSet=rs0`);
await client.db("shop").collection("sessions").createIndex({ at: 1 }, { expireAfterSeconds: 600 });
await client.db("shop").collection("sessions").insertMany(Array.from({ length: 500 }, (_, i) => ({ user: i, at: new Date(Date.now() - 60_000 * (i % 9)) })));
const status = async (m) => { const c = await direct(m); try { return await c.db("admin").command({ replSetGetStatus: 1 }); } finally { await c.close(); } };
await until("all to follow", async () => (await status(members[0])).members.filter((m) => m.stateStr === "SECONDARY").length === 2);
const leader = async () => { for (const m of members) if (!m.asleep) { const s = (await status(m)).members.find((x) => x.stateStr === "PRIMARY"); if (s) return s.name; } return null; };

const browser = await launch();
const problems = [];
async function open(url, options = {}) {
  const page = await newPage(browser, options);
  page.on("pageerror", (e) => problems.push(String(e)));
  page.on("console", (m) => { if (m.type() === "error") problems.push(m.text()); });
  await page.goto(url);
  await page.locator("#connection.live").waitFor();
  await page.locator("#members tbody tr").nth(2).waitFor();
  return page;
}
const rows = async (page) => Object.fromEntries((await page.locator("#members tbody tr").evaluateAll((all) => all.map((tr) => [...tr.cells].map((td) => td.innerText.trim()))))
  .map(([name, ...rest]) => [name.split(" ")[0], rest]));

const was = await until("a primary", leader);
const old = members.find((m) => m.name === was), [watched, third] = members.filter((m) => m !== old);
const page = await open(watched.url);

test("every member shows the set, and who leads since when", async () => {
  for (const m of members) {
    const p = m === watched ? page : await open(m.url);
    await until("both to follow", async () => Object.values(await rows(p)).filter((r) => r[0] === "SECONDARY").length === 2);
    const all = await rows(p);
    assert.deepEqual(Object.keys(all).sort(), members.map((x) => x.name).sort());
    assert.equal(all[was][0], "PRIMARY");
    assert.match(all[was][3], /\d\d:\d\d/);
    for (const r of Object.values(all)) assert.match(r[1], /^[\d.]+ (ms|s)$/);
    assert.match(await p.locator("#members-line").innerText(), new RegExp(`^${was} leads, elected .* ago \\(term \\d+\\)\\. 2 of 3 voting members are a majority\\.$`));
    assert.match(await p.locator(`#members tr[data-key="${m.name}"]`).innerText(), /this one/);
  }
  await page.locator("#members-section").screenshot({ path: `${shots}/members.png` });
});

test("a transaction that holds back expiry is shown, and gone when it ends", async () => {
  const leading = await open(old.url), due = client.db("shop").collection("due");
  await due.createIndex({ at: 1 }, { expireAfterSeconds: 0 });
  // Due at once, but nothing goes before the transaction has it.
  const monitor = (on) => client.db("admin").command({ setParameter: 1, ttlMonitorEnabled: on });
  await monitor(false);
  await due.insertOne({ _id: 1, at: new Date(0) });
  const session = client.startSession();
  session.startTransaction();
  assert.equal((await due.updateOne({ _id: 1 }, { $set: { kept: true } }, { session })).modifiedCount, 1);
  await monitor(true);
  const notice = leading.locator("#notices p", { hasText: "An open transaction holds back expiry in shop.due" });
  await until("the transaction on the page", async () => await notice.count() === 1);
  assert.match(await notice.innerText(), /begun .* ago by 127\.0\.0\.1:\d+.*, 1 document locked; it is aborted at .* at the latest\./);
  await leading.locator("#notices").screenshot({ path: `${shots}/transaction.png` });
  await session.abortTransaction();
  await until("the document to go", async () => await due.countDocuments() === 0);
  await until("the notice to go", async () => await notice.count() === 0);
  await session.endSession();
});

test("after a failover the page shows who leads now, and that the old one is not reachable", async () => {
  old.asleep = true;
  old.process.kill("SIGSTOP");
  await until("another primary on the page", async () => { const all = await rows(page); return all[watched.name]?.[0] === "PRIMARY" || all[third.name]?.[0] === "PRIMARY"; });
  await until("the old one to be down", async () => (await rows(page))[was][0].startsWith("not reachable"));
  const down = (await rows(page))[was];
  assert.equal(down[1], "–");
  assert.match(down[2], /ago$/);
  assert.equal(down[3], "–");
  await page.locator("#members-section").screenshot({ path: `${shots}/members-failover.png` });
});

test("on a phone nothing runs over the edge and every figure has its name", async () => {
  const p = await open(watched.url, { viewport: { width: 360, height: 800 }, isMobile: true, colorScheme: "dark" });
  assert.ok(await p.evaluate(() => document.documentElement.scrollWidth <= document.documentElement.clientWidth), "the page is wider than the phone");
  assert.ok(await p.locator("#members").evaluate((t) => t.getBoundingClientRect().right <= document.documentElement.clientWidth));
  assert.match(await p.locator("#members tbody tr").first().evaluate((tr) => getComputedStyle(tr.cells[2], "::before").content), /Lag/);
  await p.locator("#members-section").screenshot({ path: `${shots}/members-phone.png` });
});

test("when it is back, all is well again", async () => {
  old.process.kill("SIGCONT");
  old.asleep = false;
  await until("two to follow", async () => Object.values(await rows(page)).filter((r) => r[0] === "SECONDARY").length === 2);
  assert.notEqual((await rows(page))[was][1], "–");
  assert.deepEqual(problems, []);
});

await run(async () => {
  await browser.close();
  await first.close();
  await client.close();
  for (const m of members) m.process.kill("SIGKILL");
  rmSync(folder, { recursive: true, force: true, maxRetries: 10 });
});
