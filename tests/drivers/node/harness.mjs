import net from "node:net";

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
// Waits until fn() is truthy; the bound is a failure, not a pause.
export async function until(what, fn, ms = 60000) {
  const end = Date.now() + ms;
  for (;;) {
    const v = await fn();
    if (v) return v;
    if (Date.now() > end) // clock: a deadline that only a hang misses
      throw new Error(`waited ${ms} ms for ${what}`);
    await new Promise((r) => setImmediate(r));
  }
}
// A TCP port of the loopback interface that nobody listens on now. It lies below those that the system gives to
// clients, and above those of the Python tests (golden/ports.py).
export const freePort = () => new Promise((resolve) => {
  const port = 20000 + Math.floor(Math.random() * 10000);
  const server = net.createServer().listen(port, "127.0.0.1", () => server.close(() => resolve(port)));
  server.on("error", () => resolve(freePort()));
});
