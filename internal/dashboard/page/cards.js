// A card for each workload that moves, and the calm ones folded.

import { draw, drawNow, legend, size, states, swatch, unwatch, watch } from "./cells.js";
import { $, ago, div, el, li, many, nameOf, num, quiet, since, span, strong, td, untilNow } from "./dom.js";
import { used } from "./overview.js";
import { phases, reason, rowsAtOnce, shortImage, whyButton } from "./parts.js";
import {
  blockersOf,
  calmAtOnce,
  cardsAtOnce,
  fleet,
  isMoving,
  isOld,
  isOut,
  link,
  moves,
  need,
  schedule,
  total,
  view,
  within,
} from "./state.js";
import { ask } from "./why.js";

const sentencesAtOnce = 4;

// cards are those that are shown, by the keys of their workloads.
export const cards = new Map();

function fits(w, text) {
  if (!w.meta || !within(w.meta)) return false;
  if (view.state && !w.meta.counts?.[view.state]) return false;
  const pods = () => w.pods.values();
  if (
    view.code &&
    !(w.meta.reasons?.[0]?.code === view.code || pods().some((p) => blockersOf(p).some((r) => r.code === view.code)))
  )
    return false;
  if (!text) return true;
  return (
    `${w.meta.kind} ${nameOf(w.meta)}`.toLowerCase().includes(text) ||
    pods().some((p) => p.name.toLowerCase().includes(text) || p.node?.toLowerCase().includes(text))
  );
}

export function renderCards() {
  const text = $("find").value.trim().toLowerCase();
  const byName = (a, b) => nameOf(a.meta).localeCompare(nameOf(b.meta)) || a.key.localeCompare(b.key);
  const shown = [...fleet.workloads.values()].filter((w) => fits(w, text));
  const isNarrowed = Boolean(text || view.state || view.code); // then nothing is folded
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
  const wanted = moving.slice(0, view.limit);
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
  const rest = moving.length - view.limit;
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
  if (view.isFirst && isAll) $("calm").open = true;
  if (!$("calm").open) return;
  $("calm-list").replaceChildren(
    ...calm
      .slice(0, view.calmLimit)
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
  const rest = calm.length - view.calmLimit;
  $("calm-more").hidden = rest <= 0;
  $("calm-more").textContent = `Show ${Math.min(calmAtOnce, rest)} more of ${rest}`;
}

export function card(w, isWhole = false) {
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
    (view.state && p.state !== view.state) || (view.code && !blockersOf(p).some((r) => r.code === view.code));
  watch(c);
  return c;
}

const collator = new Intl.Collator("en", { numeric: true });

export function update(c) {
  const { w } = c,
    m = w.meta,
    filter = view.code + view.state;
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
    view.code
      ? blockersOf(p).some((r) => r.code === view.code)
      : view.state
        ? p.state === view.state
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
