// What is on the page beside the cards: states, reasons, budgets, jobs, decorations, controllers, gaps.

import { meaning, states, swatch } from "./cells.js";
import { $, div, el, li, many, meter, nameOf, num, past, quiet, since, strong } from "./dom.js";
import { holders, reason, whyButton } from "./parts.js";
import { blockersOf, cardsAtOnce, fleet, isDead, schedule, view, within } from "./state.js";

export function renderStates() {
  const counts = {};
  for (const w of fleet.workloads.values())
    if (w.meta && within(w.meta))
      for (const [s, n] of Object.entries(w.meta.counts || {})) counts[s] = (counts[s] || 0) + n;
  $("states").replaceChildren(
    ...states
      .filter((s) => counts[s] || s === view.state)
      .map((s) =>
        li(
          el(
            "button",
            {
              type: "button",
              "data-id": `state/${s}`,
              title: meaning[s],
              "aria-pressed": String(view.state === s),
              onclick: () => {
                view.state = view.state === s ? "" : s;
                view.limit = cardsAtOnce;
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

export function renderWaits() {
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
            "aria-pressed": String(view.code === code),
            onclick: () => {
              view.code = view.code === code ? "" : code;
              view.limit = cardsAtOnce;
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
export function used(b) {
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

export function renderBudgets() {
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

export function jobItem(j) {
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
export function renderJobs() {
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

export function decorationItem(d) {
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
export function renderDecorations() {
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

export function renderComponents(components) {
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

export function renderGaps(gaps) {
  $("gaps-part").hidden = gaps.length === 0;
  $("gaps").replaceChildren(
    ...gaps.map((g) => li(`${g.unsaid || g.what}. `, g.missing ? `Permission to ${g.missing} is missing.` : g.why)),
  );
}
