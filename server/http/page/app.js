"use strict";
// The expiry page: reads /events (server-sent events), /api/forecast and /api/history, and posts actions
// to /api/action. No library, no build step, nothing from elsewhere.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
let range = "hour";
let lastStatus = null;

// --- values -----------------------------------------------------------------------------------------

// Relaxed extended JSON: numbers are plain, dates are {$date: "…"} or {$date: {$numberLong: "…"}}.
function millis(value) {
  if (value === null || value === undefined) return null;
  if (typeof value === "number") return value;
  const date = value.$date;
  if (date === undefined) return null;
  return typeof date === "object" ? Number(date.$numberLong) : Date.parse(date);
}

const whole = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

function count(n) {
  if (n === null || n === undefined) return "–";
  return Math.abs(n) < 100000 ? whole.format(Math.round(n)) : compact.format(n);
}

function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1) return ms === 0 ? "0 ms" : `${Math.round(ms * 1000)} µs`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 120) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

function when(ms, now) {
  if (ms === null) return "none";
  if (ms <= now) return `due since ${duration(now - ms)}`;
  return `in ${duration(ms - now)}`;
}

function moment(ms) {
  return new Date(ms).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
}

function clockTime(ms) {
  const d = new Date(ms);
  const hour = d.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  return range === "month" ? d.toLocaleDateString("en-GB", { day: "numeric", month: "short" }) : hour;
}

// --- charts -----------------------------------------------------------------------------------------

function svg(name, attributes, parent, text) {
  const e = document.createElementNS(SVG, name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  if (text !== undefined) e.textContent = text;
  if (parent) parent.appendChild(e);
  return e;
}

// A round number at or above `max`, so that the lines of the grid fall on round values.
function ceiling(max) {
  if (max <= 0) return 1;
  const power = Math.pow(10, Math.floor(Math.log10(max)));
  return [1, 2, 2.5, 4, 5, 10].map((f) => f * power).find((v) => v >= max - 1e-9);
}

function frame(holder, label, max, format, from, to) {
  const width = Math.max(280, holder.clientWidth || 600), height = 190;
  const box = { left: 46, right: width - 6, top: 8, bottom: height - 22 };
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (let i = 0; i <= 4; ++i) {
    const y = box.bottom - ((box.bottom - box.top) * i) / 4;
    svg("line", { x1: box.left, x2: box.right, y1: y, y2: y, class: i ? "grid" : "axis" }, root);
    if (i % 2 === 0) svg("text", { x: box.left - 6, y: y + 4, "text-anchor": "end" }, root, format((max * i) / 4));
  }
  const ticks = width < 500 ? 2 : 4;
  for (let i = 0; i <= ticks; ++i) {
    const anchor = i === 0 ? "start" : i === ticks ? "end" : "middle";
    svg("text", { x: box.left + ((box.right - box.left) * i) / ticks, y: height - 5, "text-anchor": anchor }, root,
      clockTime(from + ((to - from) * i) / ticks));
  }
  holder.replaceChildren(root);
  return { root, box, x: (t) => box.left + ((box.right - box.left) * (t - from)) / (to - from),
    y: (v) => box.bottom - ((box.bottom - box.top) * v) / max };
}

// items: [{from, to, value, title}]
function bars(holder, label, items, kind, from, to) {
  const max = ceiling(Math.max(4, ...items.map((i) => i.value)));
  const f = frame(holder, label, max, (v) => (Number.isInteger(v) || v >= 100 ? count(v) : v.toFixed(1)), from, to);
  for (const item of items) {
    if (item.value <= 0) continue;
    const x = f.x(item.from), w = Math.max(1.5, f.x(item.to) - x - 1);
    const y = Math.min(f.y(item.value), f.box.bottom - 1.5);
    const bar = svg("rect", { x, y, width: w, height: f.box.bottom - y, rx: Math.min(2, w / 2), class: `bar bar-${kind}` }, f.root);
    svg("title", {}, bar, item.title);
  }
}

// series: [{name, label, points: [{at, value}]}]
function lines(holder, label, series, from, to) {
  const all = series.flatMap((s) => s.points.map((p) => p.value));
  const max = ceiling(Math.max(0.1, ...all));
  const f = frame(holder, label, max, duration, from, to);
  series.forEach((s, i) => {
    if (s.points.length) {
      const d = s.points.map((p, n) => `${n ? "L" : "M"}${f.x(p.at).toFixed(1)} ${f.y(p.value).toFixed(1)}`).join("");
      svg("path", { d: s.points.length > 1 ? d : `${d}h2`, class: `line line-${s.name}` }, f.root);
    }
    svg("text", { x: f.box.left + 8 + i * 70, y: f.box.top + 10, class: `label-${s.name}` }, f.root, s.label);
  });
}

function table(holder, head, rows) {
  const t = document.createElement("table");
  const row = (parent, cells, tag) => {
    const tr = parent.insertRow();
    cells.forEach((c, i) => {
      const cell = document.createElement(tag);
      cell.textContent = c;
      if (i) cell.className = "num";
      tr.appendChild(cell);
    });
  };
  row(t.createTHead(), head, "th");
  const body = t.createTBody();
  rows.forEach((r) => row(body, r, "td"));
  holder.replaceChildren(t);
}

// --- forecast and history ---------------------------------------------------------------------------

async function json(path, options) {
  const response = await fetch(path, options);
  const text = await response.text();
  let value;
  try { value = JSON.parse(text); } catch { value = { errmsg: text.trim() }; }
  if (!response.ok) throw new Error(value.errmsg || `the server answered ${response.status}`);
  return value;
}

function topRules(byRule) {
  return Object.entries(byRule || {}).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]).slice(0, 4)
    .map(([rule, n]) => `\n${rule}: ${count(n)}`).join("");
}

// Of time series: what goes is buckets, so also how many points and bytes that is.
function ofBuckets(f) {
  const sum = (field) => f.intervals.reduce((all, i) => all + Number(i[field] || 0), 0);
  const points = sum("points");
  return points > 0 ? `; of time series ${count(points)} points, ${(sum("bytes") / 1e6).toFixed(1)} MB` : "";
}

function drawForecast(f) {
  const items = f.intervals.map((i) => ({ from: millis(i.from), to: millis(i.to), value: i.count }));
  items.forEach((i, n) => { i.title = `${moment(i.from)}: ${count(i.value)}${topRules(f.intervals[n].byRule)}`; });
  const total = items.reduce((sum, i) => sum + i.value, 0);
  const approximate = f.exact ? "" : `about (±${Math.round((f.errorFraction || 0) * 100)} %) `;
  $("forecast-summary").textContent = `${approximate}${count(total)} in this time, ${count(f.overdue)} overdue, ` +
    `${count(f.beyond)} later, ${count(f.never)} never${ofBuckets(f)}`;
  if (items.length === 0) return;
  bars($("forecast-chart"), `Documents that will expire: ${$("forecast-summary").textContent}`, items, "expire",
    items[0].from, items[items.length - 1].to);
  table($("forecast-table"), ["From", "Documents"], items.filter((i) => i.value > 0).map((i) => [moment(i.from), count(i.value)]));
}

function drawHistory(h) {
  // By the server's clock, which tests may have moved.
  const to = lastStatus ? lastStatus.now : Date.now(), from = to - h.slotMillis * 60;
  const slots = h.slots.filter((s) => s.from + h.slotMillis > from && s.from <= to);
  const items = slots.map((s) => ({ from: Math.max(from, s.from), to: Math.min(to, s.from + h.slotMillis), value: s.reaped,
    title: `${moment(s.from)}: ${count(s.reaped)}` }));
  const total = items.reduce((sum, i) => sum + i.value, 0);
  $("history-summary").textContent = `${count(total)} documents since ${moment(slots.length ? slots[0].from : to)}`;
  bars($("history-chart"), `Documents removed: ${$("history-summary").textContent}`, items, "reaped", from, to);
  table($("history-table"), ["From", "Removed", "Read p99", "Write p99"], slots.filter((s) => s.reaped > 0).map((s) =>
    [moment(s.from), count(s.reaped), duration(s.readP99Micros / 1000), duration(s.writeP99Micros / 1000)]));
  const line = (name, label, field, ops) => ({ name, label, points: slots.filter((s) => s[ops] > 0).map((s) =>
    ({ at: Math.min(to, Math.max(from, s.from + h.slotMillis / 2)), value: s[field] / 1000 })) });
  const series = [line("read", "reads", "readP99Micros", "reads"), line("write", "writes", "writeP99Micros", "writes")];
  const worst = Math.max(0, ...series[0].points.map((p) => p.value));
  $("latency-summary").textContent = series[0].points.length ? `worst second of reads: ${duration(worst)}` : "no reads in this time";
  lines($("latency-chart"), `p99 latency of reads and writes; ${$("latency-summary").textContent}`, series, from, to);
}

async function drawCharts() {
  const wanted = range;
  const [forecast, history] = await Promise.allSettled([json(`/api/forecast?range=${wanted}`), json(`/api/history?range=${wanted}`)]);
  if (wanted !== range) return;
  if (forecast.status === "fulfilled") drawForecast(forecast.value);
  else $("forecast-summary").textContent = forecast.reason.message;
  if (history.status === "fulfilled") drawHistory(history.value);
  else $("history-summary").textContent = history.reason.message;
}

// --- rules ------------------------------------------------------------------------------------------

function ruleKey(r) { return `${r.ns}|${r.kind}|${r.index || ""}`; }

function ruleName(r) {
  if (r.kind === "document") return "per document";
  if (r.kind === "clustered") return "clustered _id";
  return r.index || r.kind;
}

function ruleRow(key) {
  const tr = document.createElement("tr");
  tr.dataset.key = key;
  ["Collection", "Rule", "State", "Next deadline", "Lag", "Backlog", "Removed", "A second", ""].forEach((label, i) => {
    const td = tr.insertCell();
    if (label) td.dataset.label = label;
    if (i >= 4 && i <= 7) td.className = "num";
  });
  const state = document.createElement("span"), note = document.createElement("span");
  note.className = "note";
  const both = document.createElement("div");
  both.append(state, note);
  tr.cells[2].appendChild(both);
  const button = document.createElement("button");
  button.type = "button";
  button.addEventListener("click", () => {
    const r = tr.rule;
    const action = r.state === "paused" ? "resume" : "pause";
    const request = { action, ns: r.ns };
    if (r.index) request.index = r.index;
    act(request, button, `${action === "pause" ? "Paused" : "Resumed"} ${r.ns} ${ruleName(r)}.`);
  });
  tr.cells[8].appendChild(button);
  return tr;
}

// Why a rule does not do its work, if there is something to say.
function ruleNote(r, s) {
  if (r.lastError) return r.lastError;
  if (r.reason) return r.reason;
  if (r.guard) return `held by the guard: ${count(r.guard.wouldExpireNow)} documents at once, ${Math.round(r.guard.fractionOfCollection * 100)} % of all; ttlRelease lets it act`;
  if (r.state === "paused") {
    const p = s.pauses.filter((x) => (!x.ns || x.ns === r.ns) && (!x.db || r.ns.startsWith(`${x.db}.`)) && (!x.index || x.index === r.index));
    const end = Math.max(...p.map((x) => (x.until ? millis(x.until) : Infinity)));
    return Number.isFinite(end) ? `until ${moment(end)}` : "until it is resumed";
  }
  if (r.waitsFor === "window") return r.waitsUntil ? `waits for its window, ${moment(millis(r.waitsUntil))}` : "waits for its window";
  if (r.waitsFor === "limit") return "at its limit of documents a second";
  return "";
}

// Rows are kept and changed in place, so that a button does not lose the keyboard's focus.
function drawRules(rules, now, s) {
  const body = $("rules").tBodies[0];
  const old = new Map([...body.rows].map((tr) => [tr.dataset.key, tr]));
  rules.forEach((r, position) => {
    const key = ruleKey(r);
    const tr = old.get(key) || ruleRow(key);
    old.delete(key);
    tr.rule = r;
    const texts = [r.ns, ruleName(r), null, when(millis(r.nextDeadline), now), duration(r.lagMillis), count(r.pending),
      count(r.deleted), count(r.ratePerSecond)];
    texts.forEach((t, i) => { if (t !== null && tr.cells[i].textContent !== t) tr.cells[i].textContent = t; });
    const [state, note] = tr.cells[2].firstChild.children;
    state.textContent = r.state;
    state.className = `state state-${r.lastError ? "failing" : r.state}`;
    const why = ruleNote(r, s);
    if (note.textContent !== why) note.textContent = note.title = why;
    note.classList.toggle("bad", Boolean(r.lastError));
    const button = tr.cells[8].firstChild;
    button.textContent = r.state === "paused" ? "Resume" : "Pause";
    button.hidden = !["active", "paused"].includes(r.state);
    button.setAttribute("aria-label", `${button.textContent} ${r.ns} ${ruleName(r)}`);
    if (body.rows[position] !== tr) body.insertBefore(tr, body.rows[position] || null);
  });
  old.forEach((tr) => tr.remove());
  const t = s.ruleTotals;
  $("rules").hidden = rules.length === 0;
  $("rules-empty").hidden = rules.length !== 0;
  $("rules-empty").textContent = t.rules ? "No rule has this in its name." : "No collection has a TTL index or documents with an expiry.";
  $("rules-tools").hidden = t.rules <= 10;
  const states = Object.entries(t.states).map(([state, n]) => `${count(n)} ${state}`).join(", ");
  const text = t.shown < t.matching ? `${count(t.shown)} of ${count(t.matching)}, those that need looking at first (${states})`
    : t.matching < t.rules ? `${count(t.matching)} of ${count(t.rules)} rules` : `${count(t.rules)} rules: ${states}`;
  if ($("rules-count").textContent !== text) $("rules-count").textContent = text;
}

// What keeps all of it, or documents of it, from expiring.
function drawNotices(s) {
  const lines = [];
  if (s.restored) lines.push(`The data is that of ${moment(millis(s.restored.dataTime))}, restored from the backup ${s.restored.backup} of ${moment(millis(s.restored.backupTime))}: nothing is removed until that is allowed (ttlRelease: 1, restored: true, confirm: true). ttlForecast: 1 counts what would go at once.`);
  if (s.clock) lines.push(`The clock has jumped: nothing expires until it is back or the time is confirmed (ttlRelease: 1, confirm: true). Expected about ${moment(millis(s.clock.expected))}.`);
  const backup = s.backup;
  if (backup && backup.running) lines.push(`A backup is being made${backup.bytesTotal ? `: ${Math.floor(100 * backup.bytesDone / backup.bytesTotal)} %` : ""}.`);
  const failed = backup && backup.lastFailure;
  if (failed) lines.push(`The last backup failed, ${moment(millis(failed.time))}: ${failed.error}`);
  const archive = s.logArchive;
  if (archive && archive.lostEntries > 0) lines.push(`${count(archive.lostEntries)} entries of the log were trimmed before they could be archived: the archive will have a gap. Take a backup once it runs again.`);
  else if (archive && archive.state === "givenUp") lines.push("The log cannot be archived, has grown to its bound, and is trimmed: the archive will have a gap.");
  else if (archive && archive.state === "failing") lines.push(`The log cannot be archived since ${duration(archive.waitingMillis)}: ${archive.error || "see the log"}.`);
  if (s.parameters && s.parameters.ttlMonitorEnabled === false) lines.push("The TTL monitor is off (ttlMonitorEnabled): nothing is removed.");
  for (const p of s.pauses || [])
    if (!p.ns) lines.push(`${p.db ? `All rules of ${p.db} are` : "Everything is"} paused ${p.until ? `until ${moment(millis(p.until))}` : "until it is resumed"}.`);
  const holds = s.holds || [];
  for (const h of holds.slice(0, 5))
    lines.push(`Held in ${h.ns}: documents with ${JSON.stringify(h.filter)}${h.reason ? ` (${h.reason})` : ""}${h.until ? `, until ${moment(millis(h.until))}` : ""}.`);
  for (const l of s.links || []) {
    const state = l.paused ? "paused" : l.phase === "copy" ? "copies" : "follows";
    const silent = l.seenMillisAgo > 15000 ? `, silent for ${duration(l.seenMillisAgo)}` : `, ${duration(l.lagMillis || 0)} behind`;
    const clocks = l.advice ? ` Its source's clock is ${duration(Math.abs(l.clockAheadMillis))} ${l.clockAheadMillis > 0 ? "behind" : "ahead of"} this one's.` : "";
    lines.push(`Link ${l.link} from ${l.source || "another cluster"}: ${state}${silent}.${clocks}`);
  }
  const open = s.transactions || [];
  for (const t of open)
    lines.push(`An open transaction holds back expiry in ${t.ns}: begun ${duration(t.openMillis)} ago` +
      `${t.client ? ` by ${t.client}${t.appName ? ` (${t.appName})` : ""}` : ""}, ${count(t.locks)} ${t.locks === 1 ? "document" : "documents"} locked; ` +
      `it is aborted at ${moment(Date.parse(t.expiryTime))} at the latest.`);
  if (s.transactionsTotal > open.length) lines.push(`And ${count(s.transactionsTotal - open.length)} more transactions.`);
  if (holds.length > 5) lines.push(`And ${count(holds.length - 5)} more holds (ttlStatus lists them).`);
  const box = $("notices"), text = lines.join("\n");
  if (box.dataset.text !== text) {
    box.dataset.text = text;
    box.replaceChildren(...lines.map((l) => { const p = document.createElement("p"); p.textContent = l; return p; }));
  }
  box.hidden = lines.length === 0;
}

const DOWN = 8;

// What a member does besides its state, if there is something to say.
function memberNote(m) {
  if (m.state === DOWN) return m.lastHeartbeatMessage || "";
  const notes = [];
  if (m.initialSync) notes.push(`copies the data, ${Math.floor(100 * m.initialSync.bytesCopied / Math.max(1, m.initialSync.bytesTotal))} %`);
  if (Math.abs(m.clockSkewMillis || 0) > 1000) notes.push(`its clock is ${duration(Math.abs(m.clockSkewMillis))} ${m.clockSkewMillis > 0 ? "ahead of" : "behind"} this one's`);
  return notes.join("; ");
}

function memberRow(key) {
  const tr = document.createElement("tr");
  tr.dataset.key = key;
  ["Member", "State", "Lag", "Last heartbeat", "Leads since"].forEach((label, i) => {
    const td = tr.insertCell();
    td.dataset.label = label;
    if (i === 2) td.className = "num";
  });
  const state = document.createElement("span"), note = document.createElement("span"), both = document.createElement("div");
  note.className = "note";
  both.append(state, note);
  tr.cells[1].appendChild(both);
  return tr;
}

function drawMembers(set) {
  $("members-section").hidden = !set;
  if (!set) return;
  $("set-name").textContent = set.set;
  const now = millis(set.date), primary = set.members.find((m) => m.stateStr === "PRIMARY");
  const elected = primary && primary.electionDate ? `, elected ${duration(Math.max(0, now - millis(primary.electionDate)))} ago` : "";
  const line = `${primary ? `${primary.name} leads${elected} (term ${set.term})` : "No member leads: writes wait for an election"}. ` +
    `${count(set.majorityVoteCount)} of ${count(set.votingMembersCount)} voting members are a majority.`;
  if ($("members-line").textContent !== line) $("members-line").textContent = line;
  $("members-line").className = primary ? "muted" : "bad";
  // How far behind whoever has applied most: the word of members that cannot be reached is no word.
  const at = (m) => (m.state === DOWN ? 0 : millis(m.lastAppliedWallTime) || 0);
  const newest = Math.max(...set.members.map(at));
  const body = $("members").tBodies[0], old = new Map([...body.rows].map((tr) => [tr.dataset.key, tr]));
  set.members.forEach((m, position) => {
    const tr = old.get(m.name) || memberRow(m.name);
    old.delete(m.name);
    const texts = [m.name + (m.self ? " (this one)" : ""), null, at(m) ? duration(Math.max(0, newest - at(m))) : "–",
      m.self ? "–" : millis(m.lastHeartbeatRecv) ? `${duration(Math.max(0, now - millis(m.lastHeartbeatRecv)))} ago` : "never",
      m.stateStr === "PRIMARY" && m.electionDate ? moment(millis(m.electionDate)) : "–"];
    texts.forEach((t, i) => { if (t !== null && tr.cells[i].textContent !== t) tr.cells[i].textContent = t; });
    const [state, note] = tr.cells[1].firstChild.children, down = m.state === DOWN;
    state.textContent = down ? "not reachable" : m.stateStr;
    state.className = `state state-${down ? "failing" : m.stateStr}`;
    const text = memberNote(m);
    if (note.textContent !== text) note.textContent = note.title = text;
    if (body.rows[position] !== tr) body.insertBefore(tr, body.rows[position] || null);
  });
  old.forEach((tr) => tr.remove());
}

// --- live -------------------------------------------------------------------------------------------

function fill(input, value) {
  if (value !== undefined && document.activeElement !== input && !input.dataset.edited) input.value = value;
}

// Cache hits are those since the last status, so that what was long ago does not hide what is now.
let lastStore;
function drawStore(store) {
  if (!store) return;
  const before = lastStore || { cacheHits: 0, cacheMisses: 0 };
  const hits = store.cacheHits - before.cacheHits, asked = hits + store.cacheMisses - before.cacheMisses;
  if (asked > 0) $("tile-cache").textContent = `${(100 * hits / asked).toFixed(1)} %`;
  $("tile-runs").textContent = count(store.sortedRuns);
  $("tile-debt").textContent = `${(store.pendingCompactionBytes / 1e6).toFixed(1)} MB`;
  $("tile-amplification").textContent = store.amplification ? store.amplification.toFixed(1) : "–";
  $("tile-stalls").textContent = count(store.stalls);
  lastStore = store;
}

function draw(s) {
  lastStatus = s;
  const rules = s.rules || [];
  $("server").textContent = `${s.host} · ${s.version} · up ${duration(s.uptimeMillis)} · ${count(s.connections)} connections`;
  if (s.ruleTotals) {
    $("tile-pending").textContent = count(s.ruleTotals.pending);
    $("tile-lag").textContent = duration(s.ruleTotals.lagMillis);
  }
  $("tile-rate").textContent = count(s.reaped);
  $("tile-deleted").textContent = count(s.deletedDocuments);
  $("tile-reads").textContent = count(s.reads);
  $("tile-p99").textContent = s.reads ? duration(s.readP99Micros / 1000) : "–";
  drawStore(s.store);
  // "–": none since the server's start.
  const made = s.backup && s.backup.last;
  $("tile-backup").textContent = made ? duration(s.now - millis(made.time)) : "–";
  $("archive").hidden = !s.logArchive;
  if (s.logArchive) $("tile-archive").textContent = duration(s.logArchive.waitingMillis);
  if (s.error) say(s.error, "bad");
  if (s.ruleTotals) drawRules(rules, s.now, s);
  drawNotices(s);
  drawMembers(s.replicaSet);
  if (s.parameters) {
    fill($("rate"), s.parameters.ttlMaxDocsPerSecond);
    fill($("purge"), s.parameters.metadataPurgeIntervalSecs);
  }
}

let events = null, heard = 0;

function listen() {
  if (events) events.close();
  const filter = $("filter").value.trim();
  events = new EventSource(filter ? `/events?filter=${encodeURIComponent(filter)}` : "/events");
  const badge = $("connection");
  events.onopen = () => { heard = Date.now(); badge.textContent = "live"; badge.className = "badge live"; drawCharts(); };
  events.onmessage = (e) => { heard = Date.now(); draw(JSON.parse(e.data)); };
  events.onerror = () => { badge.textContent = "no connection, trying again"; badge.className = "badge lost"; };
}

// EventSource tries again by itself, but not after an answer that was none (a proxy's), nor when the other side is
// gone without a word.
function relisten() {
  if (document.hidden || !events) return;
  if (events.readyState === EventSource.CLOSED || Date.now() - heard > 10000) { heard = Date.now(); listen(); }
}

// --- actions ----------------------------------------------------------------------------------------

function say(text, kind) {
  $("message").textContent = text;
  $("message").className = kind;
}

async function act(request, button, done) {
  // Not `disabled`: that would take the keyboard's focus away.
  if (button.getAttribute("aria-disabled") === "true") return false;
  button.setAttribute("aria-disabled", "true");
  try {
    await json("/api/action", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(request) });
    say(done, "good");
    return true;
  } catch (e) {
    say(`Not done: ${e.message}`, "bad");
    return false;
  } finally {
    button.removeAttribute("aria-disabled");
  }
}

function setting(form, input, action, what) {
  input.addEventListener("input", () => { input.dataset.edited = "1"; });
  form.addEventListener("submit", async (e) => {
    e.preventDefault();
    const value = Number(input.value);
    if (await act({ action, value }, form.querySelector("button"), `${what}: ${whole.format(value)}.`)) delete input.dataset.edited;
  });
}

for (const button of document.querySelectorAll("[data-range]"))
  button.addEventListener("click", () => {
    range = button.dataset.range;
    for (const b of document.querySelectorAll("[data-range]")) b.setAttribute("aria-pressed", String(b === button));
    drawCharts();
  });
setting($("rate-form"), $("rate"), "rateLimit", "Documents a second");
setting($("purge-form"), $("purge"), "purgeInterval", "Seconds that tombstones are kept");
let typed = 0;
$("filter").addEventListener("input", () => { clearTimeout(typed); typed = setTimeout(listen, 250); });
let resized = 0;
window.addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(drawCharts, 150); });
setInterval(() => { if (!document.hidden) drawCharts(); }, 5000);
setInterval(relisten, 2000);
listen();
