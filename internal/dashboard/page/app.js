// The live page: a Fleet as a picture. The server sends what changed, by keys; see parts.go.
//
// Addresses: #/ shows everything, #/<namespace> one namespace, #/<namespace>/<name> a CollaSet, and
// #/<namespace>/<kind>/<name> any workload.

import {
  $,
  ago,
  div,
  li,
  quiet,
  strong,
  td,
  command,
  el,
  many,
  meter,
  nameOf,
  num,
  past,
  sentence,
  setClock,
  setFlags,
  since,
  span,
  splitNext,
  untilNow,
} from "./dom.js";
import { showActions } from "./actions.js";
import { draw, drawNow, hideTip, legend, meaning, readPalette, size, states, swatch, unwatch, watch } from "./cells.js";

const cardsAtOnce = 12,
  rowsAtOnce = 100,
  calmAtOnce = 300,
  sentencesAtOnce = 4;
const lingers = 60e3; // how long a rollout that is done stays among those that move

const fleet = { about: {}, budgets: new Map(), jobs: new Map(), decorations: new Map(), workloads: new Map() };
const podHome = new Map(); // key of a Pod to its workload
const cards = new Map();
let limit = cardsAtOnce,
  calmLimit = calmAtOnce,
  stateFilter = "",
  codeFilter = "",
  due = false,
  isFirst = true;

// --- what arrives

function workloadOf(key) {
  let w = fleet.workloads.get(key);
  if (!w) fleet.workloads.set(key, (w = { key, meta: null, pods: new Map(), version: 0, moved: 0 }));
  return w;
}

function take(change) {
  if (change.begin) {
    fleet.budgets.clear();
    fleet.jobs.clear();
    fleet.decorations.clear();
    fleet.workloads.clear();
    podHome.clear();
  }
  for (const key of change.gone || []) {
    const [kind] = key.split("/", 1);
    if (kind === "budget") fleet.budgets.delete(key);
    else if (kind === "job") fleet.jobs.delete(key);
    else if (kind === "decoration") fleet.decorations.delete(key);
    else if (kind === "workload") fleet.workloads.delete(key);
    else if (kind === "pod") {
      const w = fleet.workloads.get(podHome.get(key));
      if (w && w.pods.delete(key)) w.version++;
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
      w.meta = value;
      w.version++;
    } else if (kind === "pod") {
      const was = podHome.get(key);
      if (was && was !== value.workload) fleet.workloads.get(was)?.pods.delete(key);
      podHome.set(key, value.workload);
      const w = workloadOf(value.workload);
      w.pods.set(key, value);
      w.version++;
    }
  }
  if (fleet.about.observedAt) setClock(fleet.about.observedAt);
  setFlags(fleet.about.flags);
  for (const w of fleet.workloads.values()) if (w.meta && moves(w)) w.moved = Date.now();
  schedule();
}

function schedule() {
  if (due) return;
  due = true;
  requestAnimationFrame(draft);
}

// A button that is replaced between press and release is never clicked, so nothing is drawn meanwhile.
let pressed = false;
addEventListener("pointerdown", () => {
  pressed = true;
});
for (const end of ["pointerup", "pointercancel", "blur"])
  addEventListener(end, () => {
    pressed = false;
  });

function draft() {
  if (pressed) return requestAnimationFrame(draft);
  due = false;
  const focused = document.activeElement,
    id = focused?.dataset?.id,
    home = focused?.closest("[data-key]")?.dataset.key;
  render();
  if (!id || focused.isConnected) return;
  const same = [...document.querySelectorAll("[data-id]")].filter((e) => e.dataset.id === id);
  (same.find((e) => e.closest("[data-key]")?.dataset.key === home) || same[0])?.focus();
}

// --- where the reader is

const here = () => {
  if (!location.hash.startsWith("#/")) return { namespace: "", kind: "", name: "" };
  const [namespace, ...rest] = location.hash
    .slice(2)
    .split("/")
    .map((word) => {
      try {
        return decodeURIComponent(word);
      } catch {
        return word;
      }
    });
  const [kind, name] = rest.length > 1 ? rest : ["collaset", rest[0] || ""];
  return { namespace, kind, name };
};
const addressOf = (m) =>
  ["#", m.namespace, ...(m.kind === "CollaSet" ? [] : [m.kind.toLowerCase()]), m.name]
    .map((word, i) => (i ? encodeURIComponent(word) : word))
    .join("/");
const workloadHere = () => {
  const { namespace, kind, name } = here();
  return [...fleet.workloads.values()].find(
    (w) => w.meta && w.meta.namespace === namespace && w.meta.name === name && w.meta.kind.toLowerCase() === kind,
  );
};
const within = (thing) => !here().namespace || thing.namespace === here().namespace;
const link = (m) => el("a", { href: addressOf(m), "data-id": `open/${m.kind}/${nameOf(m)}` }, nameOf(m));

addEventListener("hashchange", () => {
  limit = cardsAtOnce;
  hideTip();
  schedule();
  requestAnimationFrame(() => {
    // after it is drawn
    scrollTo(0, 0);
    if (here().name) $("one-title").focus();
  });
});

// --- what it means

const isOut = (p) => p.state !== "Serving" && p.state !== "Waiting";
const isOld = (m, p) => Boolean(m.updatedRevision) && p.revision !== m.updatedRevision;
const total = (m) => Object.values(m.counts || {}).reduce((a, b) => a + b, 0);

// moves reports whether a workload is not simply as it should be.
function moves(w) {
  const m = w.meta;
  return (
    Boolean(m.blockers?.length) ||
    (m.counts?.Serving || 0) < total(m) ||
    (m.desired ?? total(m)) !== total(m) ||
    (Boolean(m.updatedRevision) && (m.currentRevision !== m.updatedRevision || (m.updated || 0) < total(m)))
  );
}
const isMoving = (w) => moves(w) || Date.now() - w.moved < lingers;

// Classes, not numbers: cards do not change places whenever a Pod moves on.
const need = (w) => (w.meta.course?.state === "Failed" || w.meta.counts?.Down ? 2 : moves(w) ? 1 : 0);

const blockersOf = (thing) =>
  [...(thing.operations || []).map((o) => o.reasons?.[0]), thing.reasons?.[0]].filter(Boolean);
const alarming = new Set(["ControllerMissing", "Frozen", "RolloutHalted", "Stalled", "InvalidRule"]);
const isDead = (c) =>
  c.state === "Stale" || (c.state === "Absent" && c.name === "lifecycle-controller" && fleet.workloads.size > 0);

// --- drawing

function render() {
  const { about } = fleet;
  if (!about.observedAt) return;
  $("scope").textContent = [about.context, about.scope].filter(Boolean).join(" · ");
  renderNamespaces();
  renderAlarms(about);
  const { name, namespace } = here();
  $("reading").hidden = true;
  $("all").hidden = Boolean(name);
  $("one").hidden = !name;
  const moving = [...fleet.workloads.values()]
    .filter((w) => w.meta && within(w.meta))
    .reduce((n, w) => n + total(w.meta) - (w.meta.counts?.Serving || 0), 0);
  document.title = [
    `${moving ? `(${moving}) ` : ""}${name || namespace || "Kuperator"}`,
    about.context,
    name || namespace ? "Kuperator" : "",
  ]
    .filter(Boolean)
    .join(" · ");
  if (name) return renderOne();
  dropOne();
  renderStates();
  renderCards();
  renderWaits();
  renderBudgets();
  renderJobs();
  renderDecorations();
  renderComponents(about.components || []);
  renderGaps(about.gaps || []);
  isFirst = false;
}

function renderNamespaces() {
  const names = [
    ...new Set(
      [...[...fleet.workloads.values()].map((w) => w.meta).filter(Boolean), ...fleet.budgets.values()].map(
        (x) => x.namespace,
      ),
    ),
  ].sort();
  const now = here().namespace;
  if (now && !names.includes(now)) names.push(now);
  $("namespace-label").hidden = names.length < 2;
  const select = $("namespace"),
    wanted = ["", ...names].join(" ");
  if (select.dataset.names !== wanted) {
    select.dataset.names = wanted;
    select.replaceChildren(el("option", { value: "" }, "all"), ...names.map((n) => el("option", { value: n }, n)));
  }
  select.value = now;
}

function renderAlarms(about) {
  const alarms = [];
  for (const f of about.freezes || []) {
    alarms.push(
      div(
        strong(f.cluster ? "The cluster is frozen" : `Namespace ${f.namespace} is frozen`),
        f.why ? `: ${f.why}` : "",
        f.by ? ` (${f.by})` : "",
        f.until ? `, until ${new Date(f.until).toLocaleString()}` : "",
        ". Nothing new is taken out of service.",
        command(`kubectl kuperator unfreeze ${f.cluster ? "--cluster" : f.namespace}`),
      ),
    );
  }
  for (const c of (about.components || []).filter(isDead)) {
    alarms.push(
      div(
        strong(`${c.name} is not running`),
        c.state === "Stale" ? `: ${c.holder || "its leader"} has stopped renewing its Lease` : ": it has no Lease",
        c.renewed ? ` since ${new Date(c.renewed).toLocaleTimeString()}` : "",
        command(
          `kubectl -n ${about.system || "kuperator-system"} get deployment,pods -l app.kubernetes.io/name=${c.name}`,
        ),
      ),
    );
  }
  const text = alarms.map((a) => a.textContent).join();
  if ($("alarms").dataset.text === text) return; // a screen reader reads it once
  $("alarms").dataset.text = text;
  $("alarms").replaceChildren(...alarms);
  $("alarms").hidden = alarms.length === 0;
}

function renderStates() {
  const counts = {};
  for (const w of fleet.workloads.values())
    if (w.meta && within(w.meta))
      for (const [s, n] of Object.entries(w.meta.counts || {})) counts[s] = (counts[s] || 0) + n;
  $("states").replaceChildren(
    ...states
      .filter((s) => counts[s] || s === stateFilter)
      .map((s) =>
        li(
          el(
            "button",
            {
              type: "button",
              "data-id": `state/${s}`,
              title: meaning[s],
              "aria-pressed": String(stateFilter === s),
              onclick: () => {
                stateFilter = stateFilter === s ? "" : s;
                limit = cardsAtOnce;
                schedule();
              },
            },
            swatch(s),
            `${s} ${num(counts[s] || 0)}`,
          ),
        ),
      ),
  );
}

function renderWaits() {
  const byCode = new Map();
  const count = (reason, subject) => {
    const e = byCode.get(reason.code) || { pods: 0, sets: 0, example: reason, subject };
    byCode.set(reason.code, e);
    return e;
  };
  for (const w of fleet.workloads.values()) {
    if (!w.meta || !within(w.meta)) continue;
    for (const p of w.pods.values()) for (const r of blockersOf(p)) count(r, { kind: "Pod", ...p }).pods++;
    const r = w.meta.reasons?.[0];
    if (r) count(r, w.meta).sets++;
  }
  const sorted = [...byCode].sort(([a, x], [b, y]) => y.pods + y.sets - x.pods - x.sets || a.localeCompare(b));
  $("waits-none").hidden = sorted.length > 0;
  $("waits").replaceChildren(
    ...sorted.map(([code, e]) =>
      li(
        el(
          "button",
          {
            type: "button",
            class: "plain code",
            "data-id": `code/${code}`,
            "aria-pressed": String(codeFilter === code),
            onclick: () => {
              codeFilter = codeFilter === code ? "" : code;
              limit = cardsAtOnce;
              schedule();
            },
          },
          code,
        ),
        ` ${[e.pods && many(e.pods, "Pod"), e.sets && many(e.sets, "workload")].filter(Boolean).join(", ")}`,
        div(quiet(`${nameOf(e.subject)}: `), e.example.message, since(e.example.since)),
      ),
    ),
  );
}

const outOf = (b) => Math.max(0, b.desired - b.available);

// used says how much of a budget is used of what it allows.
function used(b) {
  const out = outOf(b),
    waits = b.blocked ? `, ${num(b.blocked)} ${b.blocked === 1 ? "waits" : "wait"}` : "";
  if (b.allowed === undefined)
    return {
      text: `${num(b.available)} of ${num(b.desired)} available${waits}`,
      bar: meter("used", `Pods of budget ${nameOf(b)} out of service`, out, b.desired),
    };
  return {
    text: `${num(out)} of ${num(b.allowed)} out${waits}`,
    bar: meter(out > b.allowed ? "over" : "used", `budget ${nameOf(b)}: used of allowed`, out, b.allowed),
  };
}

function renderBudgets() {
  const budgets = [...fleet.budgets.values()]
    .filter(within)
    .sort((a, b) => b.blocked - a.blocked || b.granted - a.granted || nameOf(a).localeCompare(nameOf(b)));
  $("budgets-total").textContent = budgets.length ? num(budgets.length) : "";
  $("budgets-none").hidden = budgets.length > 0;
  const open = new Set([...document.querySelectorAll("#budgets details[open]")].map((d) => d.dataset.key));
  const shown = budgets.slice(0, 20);
  $("budgets").replaceChildren(
    ...shown.map((b) => {
      const key = nameOf(b),
        { text, bar } = used(b);
      return li(
        strong(key),
        ` ${(b.bounds || []).join(", ")}`,
        bar,
        text,
        quiet(`; ${num(b.available)} of ${num(b.desired)} available, ${num(b.granted)} granted`),
        (b.reasons || []).map((r) => reason(r, { kind: "PodTransitionRule", ...b })),
        b.holders?.length
          ? el(
              "details",
              { "data-key": key, open: open.has(key) },
              el("summary", {}, `held by ${many(b.holders.length, "Pod")}`),
              el("ul", {}, holders(b.holders, b.namespace)),
            )
          : "",
      );
    }),
    ...(budgets.length > shown.length
      ? [el("li", { class: "quiet" }, `and ${budgets.length - shown.length} more, none with more Pods waiting`)]
      : []),
  );
}

const holders = (list, namespace) =>
  list
    .slice(0, rowsAtOnce)
    .map((h) =>
      li(
        whyButton("Pod", namespace, h.pod),
        ` ${h.operation || h.state || ""}`,
        since(h.since),
        h.waitsFor ? `: ${h.waitsFor.message}` : "",
      ),
    );

function jobItem(j) {
  const done = j.succeeded + j.failed;
  const counts = [
    `${num(done)} of ${many(j.total, "target")} done`,
    j.failed && `${num(j.failed)} failed`,
    j.underWay && `${num(j.underWay)} under way`,
  ];
  return li(
    whyButton("OperationJob", j.namespace, j.name),
    ` ${j.action}, `,
    el(j.progress === "Failed" ? "strong" : "span", {}, j.progress.toLowerCase()),
    j.ended ? past(j.ended) : since(j.created),
    meter(j.failed ? "failed" : "", `targets of ${nameOf(j)} that are done`, done, j.total),
    counts.filter(Boolean).join(", "),
    (j.reasons || []).slice(0, 1).map((r) => reason(r, { kind: "OperationJob", ...j })),
  );
}

// Those that run first, the newest of them first.
function renderJobs() {
  const jobs = [...fleet.jobs.values()]
    .filter(within)
    .sort(
      (a, b) =>
        Boolean(a.ended) - Boolean(b.ended) ||
        Date.parse(b.created) - Date.parse(a.created) ||
        nameOf(a).localeCompare(nameOf(b)),
    );
  $("jobs-total").textContent = jobs.length ? num(jobs.length) : "";
  $("jobs-none").hidden = jobs.length > 0;
  const shown = jobs.slice(0, 20);
  $("jobs").replaceChildren(
    ...shown.map(jobItem),
    ...(jobs.length > shown.length ? [el("li", { class: "quiet" }, `and ${jobs.length - shown.length} more`)] : []),
  );
}

function decorationItem(d) {
  const [count, what] = d.deleting
    ? [d.matched - d.injected, "are without it"]
    : [d.updated, `have ${d.updatedRevision || "its template"}`];
  return li(
    whyButton("PodDecoration", d.namespace, d.name),
    d.deleting ? " is being deleted" : d.paused ? " paused" : "",
    meter("", `Pods of ${nameOf(d)} that ${what}`, count, d.matched),
    `${num(count)} of ${many(d.matched, "Pod")} ${what}`,
    d.deleting ? "" : `, ${num(d.available)} serve`,
    (d.reasons || []).slice(0, 1).map((r) => reason(r, { kind: "PodDecoration", ...d })),
  );
}

// Those that wait for something first.
function renderDecorations() {
  const all = [...fleet.decorations.values()]
    .filter(within)
    .sort((a, b) => Boolean(b.reasons) - Boolean(a.reasons) || nameOf(a).localeCompare(nameOf(b)));
  $("decorations-total").textContent = all.length ? num(all.length) : "";
  $("decorations-part").hidden = all.length === 0;
  const shown = all.slice(0, 20);
  $("decorations").replaceChildren(
    ...shown.map(decorationItem),
    ...(all.length > shown.length ? [el("li", { class: "quiet" }, `and ${all.length - shown.length} more`)] : []),
  );
}

function renderComponents(components) {
  $("components").replaceChildren(
    ...(components.length ? components : [{ name: "unknown: Leases cannot be read", state: "" }]).map((c) =>
      li(
        c.name,
        " ",
        c.state === "Running"
          ? quiet("running")
          : c.state
            ? el(
                isDead(c) ? "strong" : "span",
                {},
                c.state === "Stale" ? "not running" : "not installed, or not started",
              )
            : "",
      ),
    ),
  );
}

function renderGaps(gaps) {
  $("gaps-part").hidden = gaps.length === 0;
  $("gaps").replaceChildren(
    ...gaps.map((g) => li(`${g.unsaid || g.what}. `, g.missing ? `Permission to ${g.missing} is missing.` : g.why)),
  );
}

// --- workloads

function fits(w, text) {
  if (!w.meta || !within(w.meta)) return false;
  if (stateFilter && !w.meta.counts?.[stateFilter]) return false;
  const pods = () => w.pods.values();
  if (
    codeFilter &&
    !(w.meta.reasons?.[0]?.code === codeFilter || pods().some((p) => blockersOf(p).some((r) => r.code === codeFilter)))
  )
    return false;
  if (!text) return true;
  return (
    `${w.meta.kind} ${nameOf(w.meta)}`.toLowerCase().includes(text) ||
    pods().some((p) => p.name.toLowerCase().includes(text) || p.node?.toLowerCase().includes(text))
  );
}

function renderCards() {
  const text = $("find").value.trim().toLowerCase();
  const byName = (a, b) => nameOf(a.meta).localeCompare(nameOf(b.meta)) || a.key.localeCompare(b.key);
  const shown = [...fleet.workloads.values()].filter((w) => fits(w, text));
  const isNarrowed = Boolean(text || stateFilter || codeFilter); // then nothing is folded
  const needs = new Map(shown.map((w) => [w, need(w)]));
  const moving = shown
    .filter((w) => isNarrowed || isMoving(w))
    .sort((a, b) => needs.get(b) - needs.get(a) || byName(a, b));
  const calm = isNarrowed ? [] : shown.filter((w) => !isMoving(w)).sort(byName);
  $("moving-title").textContent = isNarrowed
    ? many(shown.length, "workload")
    : moving.length
      ? `${many(moving.length, "workload")} ${moving.length === 1 ? "moves" : "move"}`
      : "Nothing moves";
  $("workloads-none").hidden = shown.length > 0;
  const wanted = moving.slice(0, limit);
  const keys = new Set(wanted.map((w) => w.key));
  for (const [key, c] of cards)
    if (!keys.has(key)) {
      c.root.remove();
      unwatch(c);
      cards.delete(key);
    }
  let before = $("cards").firstElementChild;
  for (const w of wanted) {
    let c = cards.get(w.key);
    const isNew = !c;
    if (isNew) cards.set(w.key, (c = card(w)));
    c.w = w;
    if (c.root !== before) $("cards").insertBefore(c.root, before);
    else before = before.nextElementSibling;
    update(c);
    if (isNew) drawNow(c);
  }
  const rest = moving.length - limit;
  $("more").hidden = rest <= 0;
  $("more").textContent = `Show ${Math.min(cardsAtOnce, rest)} more of ${rest}`;
  renderCalm(calm, moving.length === 0);
}

function renderCalm(calm, isAll) {
  $("calm").hidden = calm.length === 0;
  $("calm-title").textContent = `${many(calm.length, "calm workload")}, ${many(
    calm.reduce((n, w) => n + total(w.meta), 0),
    "Pod",
  )}, all in service`;
  if (isFirst && isAll) $("calm").open = true;
  if (!$("calm").open) return;
  $("calm-list").replaceChildren(
    ...calm
      .slice(0, calmLimit)
      .map((w) =>
        li(
          w.meta.kind === "CollaSet" ? "" : `${w.meta.kind} `,
          link(w.meta),
          " ",
          quiet(
            many(total(w.meta), "Pod"),
            w.meta.course?.images?.length ? `, ${shortImage(w.meta.course.images[0].image)}` : "",
          ),
        ),
      ),
  );
  const rest = calm.length - calmLimit;
  $("calm-more").hidden = rest <= 0;
  $("calm-more").textContent = `Show ${Math.min(calmAtOnce, rest)} more of ${rest}`;
}

function card(w, isWhole = false) {
  const c = { w, isWhole, rows: isWhole ? 20 : rowsAtOnce };
  c.canvas = el("canvas", { role: "img" });
  c.head = el("header");
  c.course = el("div");
  c.legend = el("div");
  c.reasons = el("div");
  c.table = el("div");
  c.details = el(
    "details",
    {
      ontoggle: () => {
        c.version = -1;
        schedule();
      },
    },
    el("summary"),
    c.table,
  );
  c.details.open = isWhole;
  c.root = el(
    "article",
    { class: "card", "data-key": w.key },
    c.head,
    el("div", { class: "body" }, div(c.course, c.canvas, c.legend), c.reasons),
    c.details,
  );
  c.ask = (p) => ask("Pod", p.namespace, p.name);
  c.isOld = (p) => isOld(c.w.meta, p);
  c.dims = (p) =>
    (stateFilter && p.state !== stateFilter) || (codeFilter && !blockersOf(p).some((r) => r.code === codeFilter));
  watch(c);
  return c;
}

const collator = new Intl.Collator("en", { numeric: true });

function update(c) {
  const { w } = c,
    m = w.meta,
    filter = codeFilter + stateFilter;
  renderCourse(c); // budgets and times change without it
  c.reasons.replaceChildren(...sentences(m));
  if (c.version === w.version && c.filter === filter) return;
  c.version = w.version;
  if (c.filter !== filter) {
    c.filter = filter;
    if (filter) c.details.open = true; // whoever chooses some Pods wants to see which
  }
  c.pods = [...w.pods.values()].sort((a, b) => collator.compare(a.name, b.name));
  const counts =
    states
      .filter((s) => m.counts?.[s])
      .map((s) => `${num(m.counts[s])} ${s}`)
      .join(", ") || "no Pods";
  c.canvas.setAttribute("aria-label", `Pods of ${nameOf(m)}: ${counts}`);
  c.canvas.hidden = c.pods.length === 0;
  c.root.classList.toggle("wide", c.pods.length > 500);
  c.legend.replaceChildren(
    legend(
      m.counts || {},
      c.pods.some((p) => isOld(m, p)),
    ),
  );
  const moving = c.pods.filter((p) =>
    codeFilter
      ? blockersOf(p).some((r) => r.code === codeFilter)
      : stateFilter
        ? p.state === stateFilter
        : p.state !== "Serving" || blockersOf(p).length,
  );
  const listed =
    c.isWhole && !filter ? [...moving, ...c.pods.filter((p) => !moving.includes(p)).slice(0, c.rows)] : moving;
  const count = c.isWhole && !filter ? c.pods.length : moving.length;
  c.details.hidden = count === 0;
  const which = filter ? " of this kind" : c.isWhole ? "" : " not simply serving";
  c.details.firstElementChild.textContent = many(count, "Pod") + which;
  c.table.replaceChildren();
  if (c.details.open && count) {
    c.table.append(
      el(
        "table",
        { class: "pods" },
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            ["Pod", "State", "Operation", "Waits for"].map((h) => el("th", { scope: "col" }, h)),
          ),
        ),
        el(
          "tbody",
          {},
          listed.slice(0, c.rows).map((p) => row(p, m)),
        ),
      ),
    );
    if (count > c.rows)
      c.table.append(
        el(
          "button",
          {
            type: "button",
            "data-id": "rows",
            onclick: () => {
              c.rows += rowsAtOnce;
              c.version = -1;
              schedule();
            },
          },
          `${num(count - c.rows)} more`,
        ),
      );
  }
  size(c);
  if (c.visible) draw(c);
}

const shortImage = (image) => image.slice(image.lastIndexOf("/") + 1);

function images(m) {
  const list = m.course?.images || [],
    changed = list.filter((i) => i.before);
  const rolls = m.updatedRevision && m.currentRevision !== m.updatedRevision;
  const how = rolls && m.course?.inPlace !== undefined ? `, ${m.course.inPlace ? "in place" : "re-created"}` : "";
  if (changed.length) {
    return el(
      "div",
      { class: "images" },
      changed.map((i, at) =>
        el(
          "div",
          { title: `${i.before} → ${i.image}` },
          list.length > 1 ? quiet(`${i.container} `) : "",
          el("b", {}, shortImage(i.before), " → ", shortImage(i.image)),
          at === changed.length - 1 ? how : "",
        ),
      ),
    );
  }
  if (rolls) return el("div", { class: "images" }, el("b", {}, m.currentRevision, " → ", m.updatedRevision), how);
  return el("div", { class: "images quiet" }, list.map((i) => shortImage(i.image)).join(", "));
}

// badge is how the rollout is, in two words.
function badge(m, isStill) {
  const { course } = m;
  if (m.paused) return el("span", { class: "badge" }, "paused");
  if (course?.state === "Failed") return el("span", { class: "badge bad" }, "failed");
  if (isStill && course?.state === "Done" && course.kept)
    return el("span", { class: "badge" }, "held by its partition");
  if (!isStill && course) return el("span", { class: "badge done" }, "done");
  if (course?.state !== "Waits" || !course.expected) return "";
  const left = -untilNow(course.expected);
  return left > 0
    ? el(
        "span",
        { class: "badge", title: "at the speed of the Pods that were updated last" },
        `about ${span(left)} left`,
      )
    : "";
}

function timing(m) {
  const { course } = m,
    parts = [];
  if (course?.partition)
    parts.push(
      `partition ${course.partition}: ` +
        (course.kept === 1 ? "1 Pod stays as it is" : `${num(course.kept || 0)} Pods stay as they are`),
    );
  if (course?.progressed && course.state === "Waits" && untilNow(course.progressed) > 60e3) {
    const left = -untilNow(course.deadline);
    parts.push(
      `no progress for ${ago(course.progressed)}`,
      left > 0 ? `counts as failed in ${span(left)}` : "its deadline has passed",
    );
  }
  return parts.length ? el("div", { class: "quiet" }, parts.join(", ")) : "";
}

function renderCourse(c) {
  const { w } = c,
    m = w.meta,
    have = total(m),
    desired = m.desired ?? have;
  c.head.replaceChildren(
    el("h3", {}, c.isWhole ? "Now" : [m.kind === "CollaSet" ? "" : `${m.kind} `, link(m)]),
    badge(m, moves(w)),
  );
  let done = 0,
    moving = 0,
    old = 0;
  for (const p of w.pods.values()) {
    if (isOut(p)) moving++;
    else if (isOld(m, p)) old++;
    else done++;
  }
  const isRollout = old > 0 || (Boolean(m.updatedRevision) && m.currentRevision !== m.updatedRevision);
  const missing = Math.max(0, desired - have),
    numbers = [];
  const parts = [
    ["updated", done, isRollout ? "updated" : "in service"],
    ["moving", moving, isRollout ? "moving" : "out of service"],
    ["old", old, "old"],
    ["missing", missing, "missing"],
  ].filter(([, n]) => n > 0);
  for (const [kind, n, word] of parts)
    numbers.push(
      el("span", {}, el("span", { class: `key ${kind}`, "aria-hidden": "true" }), strong(num(n)), ` ${word}`),
    );
  const bar = el(
    "div",
    {
      class: "bar",
      role: "img",
      "aria-label": `${nameOf(m)}: ${parts.map(([, n, word]) => `${num(n)} ${word}`).join(", ")}`,
    },
    parts.map(([kind, n]) => {
      const part = el("span", { class: kind });
      part.style.flexGrow = n;
      return part;
    }),
  );
  numbers.push(quiet(`of ${many(desired, "Pod")}`));
  const budgets = (m.rules || [])
    .map((name) => fleet.budgets.get(`budget/${m.namespace}/${name}`))
    .filter(Boolean)
    .map((b) => {
      const { text, bar: usedBar } = used(b);
      return el("div", { class: "budget" }, el("span", {}, `budget ${b.name}: ${text}`), usedBar);
    });
  c.course.replaceChildren(images(m), bar, el("div", { class: "numbers" }, numbers), ...budgets, timing(m));
}

// sentences are what the workload and its Pods wait for.
function sentences(m) {
  const all = m.blockers || [],
    shown = all.slice(0, sentencesAtOnce);
  return [
    ...shown.map((b) => {
      const r = b.example,
        isItself = r.on && r.on.kind === m.kind && r.on.name === m.name;
      if (!b.count || isItself) return reason(r, m, b.count ? ` (${many(b.count, "Pod")})` : "");
      return reason(r, { kind: "Pod", namespace: m.namespace, name: b.pods[0] }, "", [
        whyButton("Pod", m.namespace, b.pods[0]),
        b.count > 1 ? ` and ${num(b.count - 1)} more: ` : ": ",
      ]);
    }),
    all.length > shown.length ? el("p", { class: "quiet" }, `and ${all.length - shown.length} more`) : "",
  ].filter(Boolean);
}

const steps = ["PreCheck", "Preparing", "Operate", "PostCheck", "Completing"];
const stepOf = {
  Requested: 0,
  PreCheck: 0,
  PreChecked: 1,
  Preparing: 1,
  Operate: 2,
  Finished: 3,
  PostCheck: 3,
  PostChecked: 4,
  Completing: 4,
};

// phases is where an operation is on its way.
function phases(o) {
  const at = stepOf[o.phase],
    by = o.job ? `operationjob/${o.job}` : o.id;
  return div(
    `${o.type || "operation"} `,
    o.type && by !== o.type ? quiet(`by ${by} `) : "",
    at === undefined
      ? o.phase
      : el(
          "ol",
          { class: "phases", "aria-label": `phase ${o.phase}` },
          steps.map((s, i) =>
            el(
              "li",
              { class: i < at ? "past" : i === at ? "now" : "", "aria-current": i === at ? "step" : undefined },
              s,
            ),
          ),
        ),
    since(o.since),
    o.overdue ? div(o.overdue) : "",
  );
}

function row(p, m) {
  const r = blockersOf(p)[0];
  return el(
    "tr",
    {},
    td(
      whyButton("Pod", p.namespace, p.name),
      m.updatedRevision && p.revision ? quiet(isOld(m, p) ? " old revision" : " updated") : "",
    ),
    td(el("span", { class: "state" }, swatch(p.state, isOld(m, p)), p.state), since(p.since)),
    td((p.operations || []).map(phases)),
    td(r ? el("span", {}, el("span", { class: "code" }, r.code), `: ${r.message}`) : ""),
  );
}

// reason is a reason as a sentence, with what to do and the command to copy. What it is about comes before it.
function reason(r, subject, after = "", before = "") {
  const { words, command: next } = splitNext(r.next);
  return el(
    "div",
    { class: alarming.has(r.code) ? "reason bad" : "reason" },
    div(before, r.message, after, since(r.since), " ", el("span", { class: "tag" }, r.code)),
    words ? el("div", { class: "quiet" }, sentence(words)) : "",
    command(next || whyCommand(subject.kind, subject.namespace, subject.name)),
  );
}

const whyCommand = (kind, namespace, name) =>
  kind === "PodTransitionRule"
    ? `kubectl -n ${namespace} describe podtransitionrule ${name}`
    : `kubectl kuperator why ${kind.toLowerCase()}/${name}${namespace ? ` -n ${namespace}` : ""}`;

// --- one workload

let one = null; // what is shown: its card, what was asked for, the answer

function dropOne() {
  if (!one) return;
  one.card?.root.remove();
  if (one.card) unwatch(one.card);
  $("one-details").replaceChildren();
  one = null;
}

function renderOne() {
  const w = workloadHere(),
    address = location.hash;
  const { namespace, name } = here();
  const isOfMany = Boolean(namespace) && fleet.about.scope === "all namespaces";
  $("back").href = isOfMany ? `#/${encodeURIComponent(namespace)}` : "#/";
  $("back").textContent = isOfMany ? `← Workloads of namespace ${namespace}` : "← All workloads";
  $("one-none").hidden = Boolean(w);
  $("one-title").textContent = w ? `${w.meta.kind} ${nameOf(w.meta)}` : `${namespace}/${name}`;
  if (!w) {
    $("acts").hidden = true;
    return dropOne();
  }
  if (one?.address !== address) {
    dropOne();
    one = {
      address,
      ref: { kind: w.meta.kind, namespace, name: w.meta.name },
      card: card(w, true),
      details: null,
      error: "",
    };
    $("one-card").replaceChildren(one.card.root);
    update(one.card);
    drawNow(one.card);
    readDetails();
  }
  one.card.w = w;
  update(one.card);
  showActions(w.meta, fleet.about.actions);
  $("one-details").replaceChildren(
    ...(one.error
      ? [part("No answer", el("p", {}, one.error))]
      : one.details
        ? details(one.details, w.meta)
        : [el("p", { class: "quiet" }, "asking")]),
  );
}

async function readDetails() {
  const asked = one;
  if (!asked) return;
  try {
    const response = await fetch(`api/details?${new URLSearchParams(asked.ref)}`);
    const text = await response.text();
    if (!response.ok) throw new Error(text);
    asked.details = JSON.parse(text);
    asked.error = "";
  } catch (error) {
    asked.error = error.message;
  }
  if (one === asked) schedule();
}

const onEviction = {
  Replace: "an eviction replaces a Pod: another one serves first",
  ReplaceWhenBlocked: "an eviction replaces a Pod if a budget does not let it go",
};

const part = (title, ...children) => el("section", {}, el("h2", {}, title), children);
const rows = (items) => el("ul", { class: "rows" }, items);

function details(d, m) {
  const parts = [];
  const known = (map, kind, names) => (names || []).map((n) => map.get(`${kind}/${m.namespace}/${n}`) || n);
  const item = (make, kind) => (x) => (typeof x === "string" ? li(whyButton(kind, m.namespace, x)) : make(x));
  if (d.revisions?.length) {
    parts.push(
      part(
        "Revisions",
        el(
          "table",
          {},
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              ["Revision", "Pods", "Images", "From the one before"].map((h) => el("th", { scope: "col" }, h)),
            ),
          ),
          el(
            "tbody",
            {},
            d.revisions
              .toReversed()
              .map((r) =>
                el(
                  "tr",
                  {},
                  td(
                    strong(String(r.revision)),
                    ` ${r.name}`,
                    el(
                      "div",
                      { class: "quiet" },
                      [r.updated && "updated", r.current && "current"].filter(Boolean).join(", "),
                      past(r.created),
                    ),
                  ),
                  td(many(r.pods, "Pod")),
                  td(r.images.map((i) => el("div", { title: i }, shortImageOf(i)))),
                  td(
                    r.inPlace === undefined
                      ? ""
                      : r.inPlace
                        ? "in place"
                        : `re-created: ${(r.fields || []).join(", ")}`,
                  ),
                ),
              ),
          ),
        ),
        command(`kubectl kuperator history collaset/${m.name} -n ${m.namespace}`),
      ),
    );
  }
  if (m.course) {
    const c = m.course;
    parts.push(
      part(
        "Rollout",
        rows(
          [
            li(
              c.partition
                ? `partition ${c.partition}: ${many(c.kept || 0, "Pod")} kept at the revision before`
                : "no partition: all Pods are updated",
            ),
            c.inPlace !== undefined
              ? li(
                  c.inPlace
                    ? "Pods are updated in place"
                    : `Pods are re-created because of ${(c.fields || []).join(", ")}`,
                )
              : "",
            c.progressed
              ? li(
                  "last progress",
                  past(c.progressed),
                  -untilNow(c.deadline) > 0
                    ? `, deadline in ${span(-untilNow(c.deadline))}`
                    : ", its deadline has passed",
                )
              : "",
            c.expected
              ? li(
                  -untilNow(c.expected) > 0
                    ? `about ${span(-untilNow(c.expected))} left at the speed of the last Pods`
                    : "slower than the Pods before",
                )
              : "",
            li(onEviction[d.onEviction] || "an eviction deletes a Pod gracefully, and it is re-created"),
          ].filter(Boolean),
        ),
        m.paused ? command(`kubectl kuperator resume collaset/${m.name} -n ${m.namespace}`) : "",
        c.partition ? command(`kubectl kuperator promote collaset/${m.name} -n ${m.namespace}`) : "",
      ),
    );
  }
  const jobs = known(fleet.jobs, "job", d.jobs),
    decorations = known(fleet.decorations, "decoration", d.decorations);
  if (jobs.length) parts.push(part("Jobs", rows(jobs.map(item(jobItem, "OperationJob")))));
  if (decorations.length)
    parts.push(part("PodDecorations", rows(decorations.map(item(decorationItem, "PodDecoration")))));
  if (d.drains?.length) {
    parts.push(
      part(
        "Drains",
        rows(
          d.drains
            .slice(0, rowsAtOnce)
            .map((l) =>
              li(
                whyButton("Pod", m.namespace, l.pod),
                ` on ${l.node || "no node"}${l.cordoned ? ", which is cordoned" : ""}`,
                l.asked ? `: evicted, is to be ${l.asked}` : "",
              ),
            ),
        ),
        [...new Set(d.drains.filter((l) => l.cordoned).map((l) => l.node))]
          .slice(0, 3)
          .map((n) => command(`kubectl kuperator drain-check ${n}`)),
      ),
    );
  }
  parts.push(
    part(
      "Events",
      d.events?.length
        ? rows(
            d.events.map((e) =>
              li(
                el("span", { class: e.normal ? "" : "code" }, e.reason),
                ` ${e.count > 1 ? `×${e.count} ` : ""}`,
                e.message,
                past(e.last),
              ),
            ),
          )
        : el("p", { class: "quiet" }, "None within the last hour or so."),
      (d.gaps || []).map((g) =>
        el(
          "p",
          { class: "quiet" },
          `Not known: ${g.unsaid || g.what}. ${g.missing ? `Permission to ${g.missing} is missing.` : g.why}`,
        ),
      ),
    ),
  );
  parts.push(
    part(
      "In a terminal",
      command(whyCommand(m.kind, m.namespace, m.name)),
      command(`kubectl kuperator status ${m.kind.toLowerCase()}/${m.name} -n ${m.namespace} --watch`),
    ),
  );
  return parts;
}

const shortImageOf = (text) => {
  const [container, ...image] = text.split("=");
  return `${container} ${shortImage(image.join("="))}`;
};

// --- why

let asked = null,
  opener = null;

function whyButton(kind, namespace, name) {
  return el(
    "button",
    {
      type: "button",
      class: "plain",
      "data-id": `why/${kind}/${namespace}/${name}`,
      onclick: (event) => {
        opener = event.currentTarget;
        ask(kind, namespace, name);
      },
    },
    kind === "Pod" ? name : nameOf({ namespace, name }),
  );
}

let told = "",
  toldAt = 0;

async function ask(kind, namespace, name) {
  told = "";
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
  let parts, text;
  try {
    const response = await fetch(`api/why?${new URLSearchParams(about)}`);
    text = await response.text();
    if (!response.ok) throw new Error(text);
    const a = JSON.parse(text);
    text = JSON.stringify({ ...a, observedAt: "" });
    if (asked === about) parts = answer(a);
  } catch (error) {
    text = error.message;
    parts = [el("p", {}, `No answer: ${text}`)];
  }
  // What is the same is not told again to a screen reader, but for its ages.
  if (asked !== about || pressed || (text === told && Date.now() - toldAt < 30e3)) return;
  told = text;
  toldAt = Date.now();
  const id = $("why-text").contains(document.activeElement) ? document.activeElement.dataset.id : "";
  $("why-text").replaceChildren(...parts);
  if (id) [...$("why-text").querySelectorAll("[data-id]")].find((e) => e.dataset.id === id)?.focus();
}

function answer(a) {
  const parts = [el("p", {}, a.summary)];
  const full = (r) => {
    const { words, command: next } = splitNext(r.next);
    return div(
      el("span", { class: "code" }, r.code),
      `: ${r.message}`,
      since(r.since),
      r.next ? el("p", {}, strong("What to do: "), words) : "",
      next ? command(next) : "",
      r.holders?.length
        ? div(el("p", {}, "The budget is held by"), el("ul", { class: "rows" }, holders(r.holders, asked.namespace)))
        : "",
    );
  };
  if (a.blocker) parts.push(el("div", { class: "first" }, full(a.blocker)));
  if (a.pod) {
    parts.push(
      el("h3", {}, "Its life"),
      el(
        "p",
        {},
        swatch(a.pod.state),
        strong(a.pod.state),
        `: ${meaning[a.pod.state]}`,
        since(a.pod.since),
        a.pod.node ? `, on ${a.pod.node}` : "",
        a.pod.revision ? `, revision ${a.pod.revision}` : "",
      ),
      ...(a.pod.operations || []).map(phases),
      ...(a.pod.marks || []).map((m) => el("p", {}, `${m.label} is asked for by ${m.askers.join(", ")}`)),
    );
  }
  const more = (a.reasons || []).slice(a.blocker ? 1 : 0);
  if (more.length) parts.push(el("h3", {}, "Also"), rows(more.map((r) => li(full(r)))));
  if (a.job?.targets?.length)
    parts.push(
      el("h3", {}, "Targets"),
      rows(
        a.job.targets.slice(0, rowsAtOnce).map((t) =>
          li(
            whyButton("Pod", asked.namespace, t.pod),
            ` ${t.progress.toLowerCase()}`,
            t.newPod ? el("span", {}, ", new Pod ", whyButton("Pod", asked.namespace, t.newPod)) : "",
            t.recreated ? `, re-created, not restarted in place: ${t.recreated}` : "",
            [t.error || t.reasons?.[0]]
              .filter(Boolean)
              .map((r) => el("span", {}, ": ", el("span", { class: "code" }, r.code), ` ${r.message}`)),
          ),
        ),
      ),
    );
  if (a.stuck?.length)
    parts.push(
      el("h3", {}, "Pods that wait"),
      rows(
        a.stuck.map((s) =>
          li(
            el("span", { class: "code" }, s.code),
            ` ${s.count}: ${s.example.message} `,
            s.pods.flatMap((p) => [whyButton("Pod", asked.namespace, p), " "]),
          ),
        ),
      ),
    );
  if (a.events?.length)
    parts.push(
      el("h3", {}, "Warnings"),
      rows(
        a.events.map((e) =>
          li(el("span", { class: "code" }, e.reason), e.count > 1 ? ` ×${e.count} ` : " ", e.message, past(e.last)),
        ),
      ),
    );
  for (const g of a.gaps || [])
    parts.push(
      el(
        "p",
        { class: "quiet" },
        `Not known: ${g.unsaid || g.what}. ${g.missing ? `Permission to ${g.missing} is missing.` : g.why}`,
      ),
    );
  parts.push(el("h3", {}, "In a terminal"), command(whyCommand(asked.kind, asked.namespace, asked.name)));
  return parts;
}

function closeWhy() {
  asked = null;
  $("why").hidden = true;
  const back = opener?.isConnected
    ? opener
    : [...document.querySelectorAll("main [data-id]")].find((e) => e.dataset.id === opener?.dataset.id);
  back?.focus();
}
$("why-close").addEventListener("click", closeWhy);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !$("confirm").open) {
    hideTip();
    if (asked) closeWhy();
  }
});
setInterval(refresh, 3000);
setInterval(readDetails, 5000);
setInterval(schedule, 10000); // ages go on although nothing changes

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("main").focus();
}); // its address is none of ours
$("find").addEventListener("input", () => {
  limit = cardsAtOnce;
  schedule();
});
$("filter").addEventListener("submit", (event) => event.preventDefault());
$("namespace").addEventListener("input", () => {
  location.hash = `#/${encodeURIComponent($("namespace").value)}`;
});
$("more").addEventListener("click", () => {
  limit += cardsAtOnce;
  schedule();
});
$("calm-more").addEventListener("click", () => {
  calmLimit += calmAtOnce;
  schedule();
});
$("calm").addEventListener("toggle", schedule);
const shown = () => [...cards.values(), ...(one?.card ? [one.card] : [])];
window.addEventListener("resize", () => {
  for (const c of shown()) {
    size(c);
    if (c.visible) draw(c);
  }
});
document.documentElement.addEventListener("theme", () => {
  readPalette();
  for (const c of shown()) {
    c.version = -1;
    if (c.visible) draw(c);
  }
  schedule();
});

// --- the stream

const stream = new EventSource("api/fleet");
const isLive = () => {
  $("link").textContent = "live";
  $("link").classList.remove("lost");
};
const isLost = (text) => {
  $("link").textContent = text;
  $("link").classList.add("lost");
};
stream.addEventListener("open", isLive);
stream.addEventListener("error", () => isLost("connection lost: what you see is old"));
stream.addEventListener("message", (event) => take(JSON.parse(event.data)));
stream.addEventListener("problem", (event) => isLost(`cannot read the cluster: ${JSON.parse(event.data)}`));
stream.addEventListener("fine", isLive);
