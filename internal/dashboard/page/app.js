// The live page: a Fleet as a picture. The server sends what changed, by keys; see parts.go. This file draws the page
// and ties it together; each view has a file of its own.
//
// Addresses: #/ shows everything, #/<namespace> one namespace, #/<namespace>/<name> a CollaSet, and
// #/<namespace>/<kind>/<name> any workload.

import { cards, renderCards } from "./cards.js";
import { draw, hideTip, readPalette, size } from "./cells.js";
import { $, command, div, el, strong } from "./dom.js";
import {
  renderBudgets,
  renderComponents,
  renderDecorations,
  renderGaps,
  renderJobs,
  renderStates,
  renderWaits,
} from "./overview.js";
import { calmAtOnce, cardsAtOnce, drawBy, fleet, here, isDead, schedule, take, total, view, within } from "./state.js";
import { refresh } from "./why.js";
import { cardHere, dropOne, readDetails, renderOne } from "./workload.js";

drawBy(render);

addEventListener("hashchange", () => {
  view.limit = cardsAtOnce;
  hideTip();
  schedule();
  requestAnimationFrame(() => {
    // after it is drawn
    scrollTo(0, 0);
    if (here().name) $("one-title").focus();
  });
});

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
  view.isFirst = false;
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

// --- what the reader does

setInterval(refresh, 3000);
setInterval(readDetails, 5000);
setInterval(schedule, 10000); // ages go on although nothing changes

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("main").focus();
}); // its address is none of ours
$("find").addEventListener("input", () => {
  view.limit = cardsAtOnce;
  schedule();
});
$("filter").addEventListener("submit", (event) => event.preventDefault());
$("namespace").addEventListener("input", () => {
  location.hash = `#/${encodeURIComponent($("namespace").value)}`;
});
$("more").addEventListener("click", () => {
  view.limit += cardsAtOnce;
  schedule();
});
$("calm-more").addEventListener("click", () => {
  view.calmLimit += calmAtOnce;
  schedule();
});
$("calm").addEventListener("toggle", schedule);
const shown = () => [...cards.values(), cardHere()].filter(Boolean);
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
