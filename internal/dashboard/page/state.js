// What the page knows: the fleet as the server tells it, which part of it the reader wants to see, and when that is
// drawn again.

import { el, nameOf, setClock, setFlags } from "./dom.js";

export const cardsAtOnce = 12,
  calmAtOnce = 300;
const lingers = 60e3; // how long a rollout that is done stays among those that move

export const fleet = { about: {}, budgets: new Map(), jobs: new Map(), decorations: new Map(), workloads: new Map() };
const podHome = new Map(); // key of a Pod to its workload

// view is what the reader has chosen.
export const view = {
  limit: cardsAtOnce, // cards that are shown at once
  calmLimit: calmAtOnce,
  state: "", // only Pods of that state
  code: "", // only Pods that wait for that
  isFirst: true, // nothing has been drawn yet
};

// --- what arrives

function workloadOf(key) {
  let w = fleet.workloads.get(key);
  if (!w) fleet.workloads.set(key, (w = { key, meta: null, pods: new Map(), version: 0, moved: 0 }));
  return w;
}

export function take(change) {
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

// --- when it is drawn

let due = false,
  render = () => {};

// drawBy says what draws the page.
export const drawBy = (f) => {
  render = f;
};

export function schedule() {
  if (due) return;
  due = true;
  requestAnimationFrame(draft);
}

// A button that is replaced between press and release is never clicked, so nothing is drawn meanwhile.
let pressed = false;
export const isPressed = () => pressed;
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

export const here = () => {
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
export const workloadHere = () => {
  const { namespace, kind, name } = here();
  return [...fleet.workloads.values()].find(
    (w) => w.meta && w.meta.namespace === namespace && w.meta.name === name && w.meta.kind.toLowerCase() === kind,
  );
};
export const within = (thing) => !here().namespace || thing.namespace === here().namespace;
export const link = (m) => el("a", { href: addressOf(m), "data-id": `open/${m.kind}/${nameOf(m)}` }, nameOf(m));

// --- what it means

export const isOut = (p) => p.state !== "Serving" && p.state !== "Waiting";
export const isOld = (m, p) => Boolean(m.updatedRevision) && p.revision !== m.updatedRevision;
export const total = (m) => Object.values(m.counts || {}).reduce((a, b) => a + b, 0);

// moves reports whether a workload is not simply as it should be.
export function moves(w) {
  const m = w.meta;
  return (
    Boolean(m.blockers?.length) ||
    (m.counts?.Serving || 0) < total(m) ||
    (m.desired ?? total(m)) !== total(m) ||
    (Boolean(m.updatedRevision) && (m.currentRevision !== m.updatedRevision || (m.updated || 0) < total(m)))
  );
}
export const isMoving = (w) => moves(w) || Date.now() - w.moved < lingers;

// Classes, not numbers: cards do not change places whenever a Pod moves on.
export const need = (w) => (w.meta.course?.state === "Failed" || w.meta.counts?.Down ? 2 : moves(w) ? 1 : 0);

export const blockersOf = (thing) =>
  [...(thing.operations || []).map((o) => o.reasons?.[0]), thing.reasons?.[0]].filter(Boolean);
export const alarming = new Set(["ControllerMissing", "Frozen", "RolloutHalted", "Stalled", "InvalidRule"]);
export const isDead = (c) =>
  c.state === "Stale" || (c.state === "Absent" && c.name === "lifecycle-controller" && fleet.workloads.size > 0);
