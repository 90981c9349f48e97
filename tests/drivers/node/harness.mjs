// A test is a name and an async function; the last line printed counts them.
const tests = [];
export const test = (name, fn) => tests.push([name, fn]);
export async function run(after) {
  let passed = 0, failed = 0;
  for (const [name, fn] of tests) {
    try { await fn(); passed++; }
    catch (e) { failed++; console.log(`FAIL ${name}: ${e.stack ?? e}`); }
  }
  await after?.();
  console.log(`${passed} passed, ${failed} failed`);
  process.exit(failed ? 1 : 0);
}
// How long a test waits for what may hang, in milliseconds: longer on a slow machine (golden/waits.py).
export const patience = Math.ceil(60_000 * Number(process.env.MAYFLY_SLOWNESS || 1));
// Waits until fn() is truthy; the bound is a failure, not a pause.
export async function until(what, fn) {
  const end = Date.now() + patience;
  for (;;) {
    const v = await fn();
    if (v) return v;
    if (Date.now() > end) // clock: a deadline that only a hang misses
      throw new Error(`waited ${patience} ms for ${what}`);
    await new Promise((r) => setImmediate(r));
  }
}
// A TCP port of the loopback interface that nobody else's test takes: one of those that golden/ports.py has reserved for
// this process (with_server.py, with_ports.py).
const ports = (process.env.FREE_PORTS ?? "").split(",").filter(Boolean).map(Number);
export function freePort() {
  if (ports.length === 0) throw new Error("FREE_PORTS has no more ports: start this by with_server.py or with_ports.py");
  return ports.shift();
}
