// The page of one workload: its card, and what the server says about it when it is asked.

import { showActions } from "./actions.js";
import { card, update } from "./cards.js";
import { drawNow, unwatch } from "./cells.js";
import { $, command, el, li, many, nameOf, past, span, strong, td, untilNow } from "./dom.js";
import { decorationItem, jobItem } from "./overview.js";
import { part, rows, rowsAtOnce, shortImage, whyButton, whyCommand } from "./parts.js";
import { fleet, here, schedule, workloadHere } from "./state.js";

let one = null; // what is shown: its card, what was asked for, the answer

export function dropOne() {
  if (!one) return;
  one.card?.root.remove();
  if (one.card) unwatch(one.card);
  $("one-details").replaceChildren();
  one = null;
}

export function renderOne() {
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

export async function readDetails() {
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
      d.podEvents?.length
        ? [
            el("h3", {}, "Warnings about its Pods"),
            rows(
              d.podEvents.map((e) =>
                li(
                  whyButton("Pod", m.namespace, e.pod),
                  ": ",
                  el("span", { class: "code" }, e.reason),
                  ` ${e.count > 1 ? `×${e.count} ` : ""}`,
                  e.message,
                  past(e.last),
                ),
              ),
            ),
          ]
        : "",
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

// cardHere is the card of the workload; undefined if none is shown.
export const cardHere = () => one?.card;
