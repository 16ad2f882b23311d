// Pieces that several views have: reasons, phases, holders, images.

import { command, div, el, li, nameOf, quiet, sentence, since, splitNext } from "./dom.js";
import { alarming } from "./state.js";
import { ask } from "./why.js";

export const rowsAtOnce = 100;

export const holders = (list, namespace) =>
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

export const shortImage = (image) => image.slice(image.lastIndexOf("/") + 1);

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
export function phases(o) {
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

// reason is a reason as a sentence, with what to do and the command to copy. What it is about comes before it.
export function reason(r, subject, after = "", before = "") {
  const { words, command: next } = splitNext(r.next);
  return el(
    "div",
    { class: alarming.has(r.code) ? "reason bad" : "reason" },
    div(before, r.message, after, since(r.since), " ", el("span", { class: "tag" }, r.code)),
    words ? el("div", { class: "quiet" }, sentence(words)) : "",
    command(next || whyCommand(subject.kind, subject.namespace, subject.name)),
  );
}

export const whyCommand = (kind, namespace, name) =>
  kind === "PodTransitionRule"
    ? `kubectl -n ${namespace} describe podtransitionrule ${name}`
    : `kubectl kuperator why ${kind.toLowerCase()}/${name}${namespace ? ` -n ${namespace}` : ""}`;

export const part = (title, ...children) => el("section", {}, el("h2", {}, title), children);
export const rows = (items) => el("ul", { class: "rows" }, items);

export function whyButton(kind, namespace, name) {
  return el(
    "button",
    {
      type: "button",
      class: "plain",
      "data-id": `why/${kind}/${namespace}/${name}`,
      onclick: (event) => ask(kind, namespace, name, event.currentTarget),
    },
    kind === "Pod" ? name : nameOf({ namespace, name }),
  );
}
