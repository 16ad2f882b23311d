// The live page: a Fleet as a picture. The server sends what changed, by keys; see parts.go.

const states = ["Down", "Leaving", "Operating", "Returning", "Waiting", "Starting", "Terminating", "Ended", "Serving"];
const meaning = {
  Starting: "new, has not served yet", Serving: "in service", Waiting: "in service, an operation waits for permission",
  Leaving: "an operation takes it out of service", Operating: "out of service, an operator acts", Returning: "returns to service",
  Down: "not in service, and no operation says why", Terminating: "being deleted", Ended: "ran to its end",
};
// What is left out of a square: the picture is readable without colours.
const shape = { Serving: "full", Waiting: "dot", Leaving: "left", Operating: "frame", Returning: "right", Starting: "plus", Down: "cross", Terminating: "bar", Ended: "corner" };
const cardsAtOnce = 200, rowsAtOnce = 100;

const fleet = { about: {}, budgets: new Map(), jobs: new Map(), decorations: new Map(), workloads: new Map() };
const podHome = new Map(); // key of a Pod to its workload
const $ = (id) => document.getElementById(id);
const cards = new Map();
let limit = cardsAtOnce, stateFilter = "", codeFilter = "", due = false;

function el(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") e.className = value;
    else if (name.startsWith("on")) e.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) e.setAttribute(name, value === true ? "" : value);
  }
  e.append(...children.filter((c) => c !== undefined && c !== null && c !== ""));
  return e;
}

const many = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

function ago(time) {
  if (!time) return "";
  const s = Math.max(0, Math.round((Date.now() + skew - Date.parse(time)) / 1000));
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  if (s < 172800) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}
const since = (time) => (time ? el("time", { class: "quiet", datetime: time, title: new Date(time).toLocaleString() }, ` since ${ago(time)}`) : "");
let skew = 0; // the API server's clock less ours, in milliseconds

// --- what arrives

function workloadOf(key) {
  let w = fleet.workloads.get(key);
  if (!w) fleet.workloads.set(key, (w = { key, meta: null, pods: new Map(), dirty: true }));
  return w;
}

function take(change) {
  if (change.begin) {
    fleet.budgets.clear(); fleet.jobs.clear(); fleet.decorations.clear(); fleet.workloads.clear(); podHome.clear();
  }
  for (const key of change.gone || []) {
    const [kind] = key.split("/", 1);
    if (kind === "budget") fleet.budgets.delete(key);
    else if (kind === "job") fleet.jobs.delete(key);
    else if (kind === "decoration") fleet.decorations.delete(key);
    else if (kind === "workload") fleet.workloads.delete(key);
    else if (kind === "pod") {
      const w = fleet.workloads.get(podHome.get(key));
      if (w && w.pods.delete(key)) w.dirty = true;
      podHome.delete(key);
    }
  }
  for (const [key, value] of Object.entries(change.set || {})) {
    const [kind] = key.split("/", 1);
    if (kind === "about") fleet.about = value;
    else if (kind === "budget") fleet.budgets.set(key, value);
    else if (kind === "job") fleet.jobs.set(key, value);
    else if (kind === "decoration") fleet.decorations.set(key, value);
    else if (kind === "workload") {
      const w = workloadOf(key);
      w.meta = value; w.dirty = true;
    } else if (kind === "pod") {
      const was = podHome.get(key);
      if (was && was !== value.workload) fleet.workloads.get(was)?.pods.delete(key);
      podHome.set(key, value.workload);
      const w = workloadOf(value.workload);
      w.pods.set(key, value); w.dirty = true;
    }
  }
  if (fleet.about.observedAt) skew = Date.parse(fleet.about.observedAt) - Date.now();
  schedule();
}

function schedule() {
  if (due) return;
  due = true;
  requestAnimationFrame(draft);
}

// A button that is replaced between press and release is never clicked, so nothing is drawn meanwhile.
let pressed = false;
addEventListener("pointerdown", () => { pressed = true; });
for (const end of ["pointerup", "pointercancel", "blur"]) addEventListener(end, () => { pressed = false; });

function draft() {
  if (pressed) return requestAnimationFrame(draft);
  due = false;
  const focused = document.activeElement, id = focused?.dataset?.id, home = focused?.closest("[data-key]")?.dataset.key;
  render();
  if (!id || focused.isConnected) return;
  const same = [...document.querySelectorAll("[data-id]")].filter((e) => e.dataset.id === id);
  (same.find((e) => e.closest("[data-key]")?.dataset.key === home) || same[0])?.focus();
}

// --- drawing

function render() {
  const { about } = fleet;
  $("scope").textContent = about.scope || "";
  renderAlarms(about);
  renderStates(about.counts || {});
  renderWaits();
  renderBudgets();
  renderJobs();
  renderDecorations();
  renderComponents(about.components || []);
  renderCards();
}

function renderAlarms(about) {
  const lines = [];
  for (const f of about.freezes || []) lines.push(el("p", {}, el("strong", {}, f.cluster ? "The cluster is frozen" : `Namespace ${f.namespace} is frozen`), f.why ? `: ${f.why}` : "", f.by ? ` (${f.by})` : "", f.until ? `, until ${new Date(f.until).toLocaleString()}` : ""));
  for (const g of about.gaps || []) lines.push(el("p", {}, `Not shown: ${g.unsaid || g.what}. `, g.missing ? `Permission to ${g.missing} is missing.` : g.why));
  $("alarms").replaceChildren(...lines);
  $("alarms").hidden = lines.length === 0;
}

function swatch(state) {
  const c = el("canvas", { class: "swatch", width: 28, height: 28, "aria-hidden": "true" });
  square(c.getContext("2d"), state, 0, 0, 28);
  return c;
}

function renderStates(counts) {
  const total = Object.values(counts).reduce((a, b) => a + b, 0);
  $("pods-total").textContent = total.toLocaleString("en");
  $("states").replaceChildren(...states.filter((s) => counts[s] || s === stateFilter).map((s) =>
    el("li", {}, el("button", { type: "button", "data-id": `state/${s}`, title: meaning[s], "aria-pressed": String(stateFilter === s), onclick: () => { stateFilter = stateFilter === s ? "" : s; limit = cardsAtOnce; schedule(); } },
      swatch(s), `${s} ${(counts[s] || 0).toLocaleString("en")}`))));
  const moving = total - (counts.Serving || 0);
  document.title = moving ? `(${moving}) Kuperator` : "Kuperator";
}

const blockersOf = (thing) => [...(thing.operations || []).map((o) => o.reasons?.[0]), thing.reasons?.[0]].filter(Boolean);

function renderWaits() {
  const byCode = new Map();
  const count = (reason, w, what) => {
    const e = byCode.get(reason.code) || { pods: 0, sets: 0, example: reason, on: what };
    byCode.set(reason.code, e);
    return e;
  };
  for (const w of fleet.workloads.values()) {
    for (const p of w.pods.values()) for (const r of blockersOf(p)) count(r, w, `${p.namespace}/${p.name}`).pods++;
    const r = w.meta?.reasons?.[0];
    if (r) count(r, w, nameOf(w.meta)).sets++;
  }
  const sorted = [...byCode].sort(([a, x], [b, y]) => y.pods + y.sets - x.pods - x.sets || a.localeCompare(b));
  $("waits-none").hidden = sorted.length > 0;
  $("waits").replaceChildren(...sorted.map(([code, e]) => el("li", {},
    el("button", { type: "button", class: "plain code", "data-id": `code/${code}`, "aria-pressed": String(codeFilter === code), onclick: () => { codeFilter = codeFilter === code ? "" : code; limit = cardsAtOnce; schedule(); } }, code),
    ` ${[e.pods && many(e.pods, "Pod"), e.sets && many(e.sets, "workload")].filter(Boolean).join(", ")}`,
    el("div", {}, el("span", { class: "quiet" }, `${e.on}: `), e.example.message, since(e.example.since)))));
}

function renderBudgets() {
  const budgets = [...fleet.budgets.values()].sort((a, b) => b.blocked - a.blocked || b.granted - a.granted || nameOf(a).localeCompare(nameOf(b)));
  $("budgets-total").textContent = budgets.length ? budgets.length.toLocaleString("en") : "";
  $("budgets-none").hidden = budgets.length > 0;
  const open = new Set([...document.querySelectorAll("#budgets details[open]")].map((d) => d.dataset.key));
  const shown = budgets.slice(0, 20);
  $("budgets").replaceChildren(...shown.map((b) => {
    const key = nameOf(b), part = b.desired ? Math.min(1, b.available / b.desired) : 1;
    return el("li", {},
      el("strong", {}, key), ` ${(b.bounds || []).join(", ")}`,
      el("div", { class: b.blocked ? "meter spent" : "meter", role: "meter", "aria-label": `available Pods of ${key}`, "aria-valuemin": 0, "aria-valuemax": b.desired, "aria-valuenow": Math.min(b.available, b.desired) }, fill(part)),
      `${b.available.toLocaleString("en")} of ${b.desired.toLocaleString("en")} available, ${b.granted.toLocaleString("en")} granted, ${b.blocked.toLocaleString("en")} waiting`,
      ...(b.reasons || []).map(reason),
      b.holders?.length ? el("details", { "data-key": key, open: open.has(key) }, el("summary", {}, `held by ${many(b.holders.length, "Pod")}`),
        el("ul", {}, ...b.holders.slice(0, rowsAtOnce).map((h) => el("li", {}, whyButton("Pod", b.namespace, h.pod), ` ${h.operation || h.state || ""}`, since(h.since), h.waitsFor ? `: ${h.waitsFor.message}` : "")))) : "");
  }), ...(budgets.length > shown.length ? [el("li", { class: "quiet" }, `and ${budgets.length - shown.length} more, none with more Pods waiting`)] : []));
}

// Those that run first, the newest of them first.
function renderJobs() {
  const jobs = [...fleet.jobs.values()].sort((a, b) => Boolean(a.ended) - Boolean(b.ended) || Date.parse(b.created) - Date.parse(a.created) || nameOf(a).localeCompare(nameOf(b)));
  $("jobs-total").textContent = jobs.length ? jobs.length.toLocaleString("en") : "";
  $("jobs-none").hidden = jobs.length > 0;
  const shown = jobs.slice(0, 20);
  $("jobs").replaceChildren(...shown.map((j) => {
    const done = j.succeeded + j.failed;
    const counts = [`${done.toLocaleString("en")} of ${many(j.total, "target")} done`, j.failed && `${j.failed.toLocaleString("en")} failed`, j.underWay && `${j.underWay.toLocaleString("en")} under way`];
    return el("li", {},
      whyButton("OperationJob", j.namespace, j.name), ` ${j.action}, `, el(j.progress === "Failed" ? "strong" : "span", {}, j.progress.toLowerCase()), since(j.ended || j.created),
      el("div", { class: j.failed ? "meter failed" : "meter", role: "meter", "aria-label": `targets of ${nameOf(j)} that are done`, "aria-valuemin": 0, "aria-valuemax": j.total, "aria-valuenow": done }, fill(j.total ? done / j.total : 0)),
      counts.filter(Boolean).join(", "),
      ...(j.reasons || []).slice(0, 1).map(reason));
  }), ...(jobs.length > shown.length ? [el("li", { class: "quiet" }, `and ${jobs.length - shown.length} more`)] : []));
}

// Those that wait for something first.
function renderDecorations() {
  const all = [...fleet.decorations.values()].sort((a, b) => Boolean(b.reasons) - Boolean(a.reasons) || nameOf(a).localeCompare(nameOf(b)));
  $("decorations-total").textContent = all.length ? all.length.toLocaleString("en") : "";
  $("decorations-part").hidden = all.length === 0;
  const shown = all.slice(0, 20);
  $("decorations").replaceChildren(...shown.map((d) => {
    const [count, what] = d.deleting ? [d.matched - d.injected, "are without it"] : [d.updated, `have ${d.updatedRevision || "its template"}`];
    return el("li", {},
      whyButton("PodDecoration", d.namespace, d.name), d.deleting ? " is being deleted, " : d.paused ? " paused, " : " ",
      el("div", { class: "meter", role: "meter", "aria-label": `Pods of ${nameOf(d)} that ${what}`, "aria-valuemin": 0, "aria-valuemax": d.matched, "aria-valuenow": count }, fill(d.matched ? count / d.matched : 0)),
      `${count.toLocaleString("en")} of ${many(d.matched, "Pod")} ${what}`, d.deleting ? "" : `, ${d.available.toLocaleString("en")} serve`,
      ...(d.reasons || []).slice(0, 1).map(reason));
  }), ...(all.length > shown.length ? [el("li", { class: "quiet" }, `and ${all.length - shown.length} more`)] : []));
}

function fill(part) {
  const d = el("div");
  d.style.width = `${100 * part}%`;
  return d;
}

function renderComponents(components) {
  $("components").replaceChildren(...(components.length ? components : [{ name: "unknown: Leases cannot be read", state: "" }]).map((c) =>
    el("li", {}, c.name, c.state ? " " : "", c.state === "Running" ? el("span", { class: "quiet" }, "running") : el("strong", {}, c.state === "Stale" ? "nobody leads" : c.state === "Absent" ? "absent" : ""), c.state === "Stale" ? since(c.renewed) : "")));
}

const nameOf = (thing) => `${thing.namespace ? thing.namespace + "/" : ""}${thing.name}`;
const need = (w) => {
  let n = w.meta?.reasons?.length ? 1e6 : 0;
  for (const [state, count] of Object.entries(w.meta?.counts || {})) if (state !== "Serving") n += (state === "Down" ? 1000 : 1) * count;
  return n;
};

function fits(w, text) {
  if (!w.meta) return false;
  if ($("show").value === "moving" && need(w) === 0) return false;
  if (stateFilter && !w.meta.counts?.[stateFilter]) return false;
  const pods = () => w.pods.values();
  if (codeFilter && !(w.meta.reasons?.[0]?.code === codeFilter || pods().some((p) => blockersOf(p).some((r) => r.code === codeFilter)))) return false;
  if (!text) return true;
  return `${w.meta.kind} ${nameOf(w.meta)}`.toLowerCase().includes(text) || pods().some((p) => p.name.toLowerCase().includes(text) || p.node?.toLowerCase().includes(text));
}

function renderCards() {
  const text = $("find").value.trim().toLowerCase();
  const byName = (a, b) => nameOf(a.meta).localeCompare(nameOf(b.meta)) || a.key.localeCompare(b.key);
  const shown = [...fleet.workloads.values()].filter((w) => fits(w, text));
  if ($("order").value === "need") {
    const needs = new Map(shown.map((w) => [w, need(w)]));
    shown.sort((a, b) => needs.get(b) - needs.get(a) || byName(a, b));
  } else shown.sort(byName);
  $("workloads-total").textContent = shown.length.toLocaleString("en");
  $("workloads-none").hidden = shown.length > 0;
  const wanted = shown.slice(0, limit);
  const keys = new Set(wanted.map((w) => w.key));
  for (const [key, c] of cards) if (!keys.has(key)) { c.root.remove(); seen.unobserve(c.canvas); cards.delete(key); }
  let before = $("cards").firstElementChild;
  for (const w of wanted) {
    let c = cards.get(w.key);
    if (!c) cards.set(w.key, (c = card(w)));
    c.w = w;
    if (c.root !== before) $("cards").insertBefore(c.root, before);
    else before = before.nextElementSibling;
    if (w.dirty || c.filter !== codeFilter + stateFilter) update(c);
  }
  $("more").hidden = shown.length <= limit;
  $("more").textContent = `Show ${Math.min(cardsAtOnce, shown.length - limit)} more of ${shown.length - limit}`;
}

function card(w) {
  const c = { w, rows: rowsAtOnce };
  c.canvas = el("canvas", { role: "img" });
  c.head = el("header");
  c.reasons = el("div");
  c.table = el("div");
  c.details = el("details", { ontoggle: () => { c.w.dirty = true; schedule(); } }, el("summary"), c.table);
  c.root = el("article", { class: "card", "data-key": w.key }, c.head, c.canvas, c.reasons, c.details);
  c.canvas.addEventListener("click", (event) => { const p = podAt(c, event); if (p) ask("Pod", p.namespace, p.name); });
  c.canvas.addEventListener("mousemove", (event) => { const p = podAt(c, event); c.canvas.title = p ? `${p.name}: ${p.state}` : ""; });
  seen.observe(c.canvas);
  c.canvas.card = c;
  return c;
}

function update(c) {
  const { w } = c, m = w.meta;
  w.dirty = false;
  if (c.filter !== codeFilter + stateFilter) {
    c.filter = codeFilter + stateFilter;
    if (c.filter) c.details.open = true; // whoever chooses some Pods wants to see which
  }
  const counts = states.filter((s) => m.counts?.[s]).map((s) => `${m.counts[s].toLocaleString("en")} ${s}`).join(", ") || "no Pods";
  const have = Object.values(m.counts || {}).reduce((a, b) => a + b, 0), of = m.desired ?? have;
  c.head.replaceChildren(
    el("h3", {}, m.kind === "Pod" ? "" : `${m.kind} `, whyButton(m.kind, m.namespace, m.name)),
    el("span", {}, counts, m.desired !== undefined && m.desired !== have ? ` (${m.desired.toLocaleString("en")} wanted)` : ""),
    m.paused ? el("strong", {}, "paused") : "",
    m.updatedRevision && (m.updated || 0) < of ? el("span", {}, `${(m.updated || 0).toLocaleString("en")} of ${of.toLocaleString("en")} at ${m.updatedRevision}`) : "");
  if (m.updatedRevision && (m.updated || 0) < of) c.head.append(el("div", { class: "meter wide", role: "meter", "aria-label": `updated Pods of ${m.name}`, "aria-valuemin": 0, "aria-valuemax": of, "aria-valuenow": m.updated || 0 }, fill(of ? (m.updated || 0) / of : 0)));
  c.canvas.setAttribute("aria-label", `Pods of ${nameOf(m)}: ${counts}`);
  c.reasons.replaceChildren(...(m.reasons || []).map(reason));
  c.pods = [...w.pods.values()].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  const listed = c.pods.filter((p) => codeFilter ? blockersOf(p).some((r) => r.code === codeFilter) : stateFilter ? p.state === stateFilter : p.state !== "Serving" || blockersOf(p).length);
  c.details.hidden = listed.length === 0;
  c.details.firstElementChild.textContent = `${many(listed.length, "Pod")} ${codeFilter || stateFilter ? "of this kind" : "not simply serving"}`;
  c.table.replaceChildren();
  if (c.details.open && listed.length) {
    c.table.append(el("table", {}, el("thead", {}, el("tr", {}, ...["Pod", "State", "Operation", "Waits for"].map((h) => el("th", { scope: "col" }, h)))),
      el("tbody", {}, ...listed.slice(0, c.rows).map(row))));
    if (listed.length > c.rows) c.table.append(el("button", { type: "button", onclick: () => { c.rows += rowsAtOnce; c.w.dirty = true; schedule(); } }, `${listed.length - c.rows} more`));
  }
  if (c.visible) draw(c);
}

function row(p) {
  const o = p.operations || [], r = blockersOf(p)[0];
  return el("tr", {}, el("td", {}, whyButton("Pod", p.namespace, p.name)), el("td", {}, swatch(p.state), p.state, since(p.since)),
    el("td", {}, o.map((x) => `${x.type || x.id} ${x.phase}`).join("; ")), el("td", {}, r ? el("span", {}, el("span", { class: "code" }, r.code), `: ${r.message}`) : ""));
}

const seen = new IntersectionObserver((entries) => {
  for (const e of entries) {
    const c = e.target.card;
    c.visible = e.isIntersecting;
    if (c.visible && c.pods) draw(c);
  }
}, { rootMargin: "300px" });

function grid(c) {
  const width = c.canvas.parentElement.clientWidth, n = c.pods.length;
  const cell = n > 4000 ? 7 : n > 800 ? 9 : n > 200 ? 12 : 16;
  const columns = Math.max(1, Math.floor(width / cell));
  return { width, cell, columns, height: Math.ceil(n / columns) * cell };
}

function draw(c) {
  const g = grid(c), ratio = window.devicePixelRatio || 1;
  c.canvas.style.height = `${g.height}px`;
  c.canvas.width = g.width * ratio;
  c.canvas.height = g.height * ratio;
  const ctx = c.canvas.getContext("2d");
  ctx.scale(ratio, ratio);
  c.pods.forEach((p, i) => {
    const dim = (stateFilter && p.state !== stateFilter) || (codeFilter && !blockersOf(p).some((r) => r.code === codeFilter));
    ctx.globalAlpha = dim ? 0.2 : 1;
    square(ctx, p.state, (i % g.columns) * g.cell, Math.floor(i / g.columns) * g.cell, g.cell - Math.max(1, Math.floor(g.cell / 6)));
  });
}

let palette = {};
function readPalette() {
  const style = getComputedStyle(document.documentElement);
  palette = Object.fromEntries(states.map((s) => [s, style.getPropertyValue(`--${s}`).trim()]));
  palette.page = style.getPropertyValue("--card").trim();
}
readPalette();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readPalette(); for (const c of cards.values()) c.w.dirty = true; schedule(); });

function square(ctx, state, x, y, s) {
  ctx.fillStyle = palette[state] || palette.Ended;
  ctx.fillRect(x, y, s, s);
  ctx.fillStyle = palette.page;
  const t = s / 3;
  switch (shape[state]) {
    case "dot": ctx.fillRect(x + t, y + t, t, t); break;
    case "frame": ctx.fillRect(x + s / 5, y + s / 5, 3 * s / 5, 3 * s / 5); break;
    case "left": ctx.fillRect(x, y + s / 2, s, s / 2 - s / 8); break;
    case "right": ctx.fillRect(x, y + s / 8, s, s / 2 - s / 8); break;
    case "plus": ctx.fillRect(x, y, t, t); ctx.fillRect(x + 2 * t, y, t, t); ctx.fillRect(x, y + 2 * t, t, t); ctx.fillRect(x + 2 * t, y + 2 * t, t, t); break;
    case "cross": ctx.fillRect(x + t, y, t, t); ctx.fillRect(x, y + t, t, t); ctx.fillRect(x + 2 * t, y + t, t, t); ctx.fillRect(x + t, y + 2 * t, t, t); break;
    case "bar": ctx.fillRect(x, y, s, t); ctx.fillRect(x, y + 2 * t, s, t); break;
    case "corner": ctx.fillRect(x + s / 2, y, s / 2, s / 2); break;
  }
}

function podAt(c, event) {
  const box = c.canvas.getBoundingClientRect(), g = grid(c);
  const column = Math.floor((event.clientX - box.left) / g.cell), line = Math.floor((event.clientY - box.top) / g.cell);
  return column < g.columns ? c.pods[line * g.columns + column] : undefined;
}

function reason(r) {
  return el("div", { class: "reason" }, el("span", { class: "code" }, r.code), `: ${r.message}`, since(r.since), r.next ? el("div", {}, r.next) : "");
}

// --- why

let asked = null;

function whyButton(kind, namespace, name) {
  return el("button", { type: "button", class: "plain", "data-id": `why/${kind}/${namespace}/${name}`, onclick: (event) => { opener = event.currentTarget; ask(kind, namespace, name); } }, kind === "Pod" ? name : nameOf({ namespace, name }));
}
let opener = null;

async function ask(kind, namespace, name) {
  asked = { kind, namespace, name };
  $("why").hidden = false;
  $("why-title").textContent = `${kind} ${nameOf(asked)}`;
  $("why-text").replaceChildren(el("p", { class: "quiet" }, "asking"));
  $("why-title").focus();
  await refresh();
}

async function refresh() {
  if (!asked) return;
  const about = asked;
  let parts;
  try {
    const response = await fetch(`api/why?${new URLSearchParams(about)}`);
    const text = await response.text();
    if (!response.ok) throw new Error(text);
    parts = answer(JSON.parse(text));
  } catch (error) {
    parts = [el("p", {}, `No answer: ${error.message}`)];
  }
  if (asked === about) $("why-text").replaceChildren(...parts);
}

function answer(a) {
  const parts = [el("p", {}, a.summary)];
  const full = (r) => el("div", {}, el("span", { class: "code" }, r.code), `: ${r.message}`, since(r.since),
    r.next ? el("p", {}, el("strong", {}, "What to do: "), r.next) : "",
    r.holders?.length ? el("div", {}, el("p", {}, "The budget is held by"), el("ul", { class: "rows" }, ...r.holders.slice(0, rowsAtOnce).map((h) => el("li", {}, whyButton("Pod", asked.namespace, h.pod), ` ${h.operation || h.state || ""}`, since(h.since), h.waitsFor ? `: ${h.waitsFor.message}` : "")))) : "");
  if (a.blocker) parts.push(el("div", { class: "first" }, full(a.blocker)));
  const more = (a.reasons || []).slice(a.blocker ? 1 : 0);
  if (more.length) parts.push(el("h3", {}, "Also"), el("ul", { class: "rows" }, ...more.map((r) => el("li", {}, full(r)))));
  for (const o of a.pod?.operations || []) parts.push(el("p", {}, `Operation ${o.type || ""} (${o.job ? `operationjob/${o.job}` : o.id}): ${o.phase}`, since(o.since), o.overdue ? `. ${o.overdue}` : ""));
  for (const m of a.pod?.marks || []) parts.push(el("p", {}, `${m.label} is asked for by ${m.askers.join(", ")}`));
  if (a.job?.targets?.length) parts.push(el("h3", {}, "Targets"), el("ul", { class: "rows" }, ...a.job.targets.slice(0, rowsAtOnce).map((t) => el("li", {}, whyButton("Pod", asked.namespace, t.pod), ` ${t.progress.toLowerCase()}`,
    t.newPod ? el("span", {}, ", new Pod ", whyButton("Pod", asked.namespace, t.newPod)) : "", t.recreated ? `, re-created, not restarted in place: ${t.recreated}` : "",
    ...[t.error || t.reasons?.[0]].filter(Boolean).map((r) => el("span", {}, ": ", el("span", { class: "code" }, r.code), ` ${r.message}`))))));
  if (a.stuck?.length) parts.push(el("h3", {}, "Pods that wait"), el("ul", { class: "rows" }, ...a.stuck.map((s) => el("li", {}, el("span", { class: "code" }, s.code), ` ${s.count}: ${s.example.message} `, ...s.pods.flatMap((p) => [whyButton("Pod", asked.namespace, p), " "])))));
  if (a.events?.length) parts.push(el("h3", {}, "Warnings"), el("ul", { class: "rows" }, ...a.events.map((e) => el("li", {}, el("span", { class: "code" }, e.reason), ` ${e.count > 1 ? `×${e.count} ` : ""}`, e.message, e.last ? el("span", { class: "quiet" }, ` ${ago(e.last)} ago`) : ""))));
  for (const g of a.gaps || []) parts.push(el("p", { class: "quiet" }, `Not known: ${g.unsaid || g.what}. ${g.missing ? `Permission to ${g.missing} is missing.` : g.why}`));
  const kind = asked.kind.toLowerCase();
  parts.push(el("h3", {}, "In a terminal"), el("pre", {}, `kubectl kuperator why ${kind}/${asked.name}${asked.namespace ? ` -n ${asked.namespace}` : ""}`));
  return parts;
}

function closeWhy() {
  asked = null;
  $("why").hidden = true;
  const back = opener?.isConnected ? opener : [...document.querySelectorAll("main [data-id]")].find((e) => e.dataset.id === opener?.dataset.id);
  back?.focus();
}
$("why-close").addEventListener("click", closeWhy);
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && asked) closeWhy(); });
setInterval(refresh, 3000);
setInterval(schedule, 10000); // ages go on although nothing changes

for (const id of ["find", "show", "order"]) $(id).addEventListener("input", () => { limit = cardsAtOnce; schedule(); });
$("filter").addEventListener("submit", (event) => event.preventDefault());
$("more").addEventListener("click", () => { limit += cardsAtOnce; schedule(); });
window.addEventListener("resize", () => { for (const c of cards.values()) if (c.visible && c.pods) draw(c); });

// --- the stream

const stream = new EventSource("api/fleet");
stream.addEventListener("open", () => { $("link").textContent = "live"; $("link").classList.remove("lost"); });
stream.addEventListener("error", () => { $("link").textContent = "connection lost: what you see is old"; $("link").classList.add("lost"); });
stream.addEventListener("message", (event) => take(JSON.parse(event.data)));
stream.addEventListener("problem", (event) => { $("link").textContent = `cannot read the cluster: ${JSON.parse(event.data)}`; $("link").classList.add("lost"); });
stream.addEventListener("fine", () => { $("link").textContent = "live"; $("link").classList.remove("lost"); });
