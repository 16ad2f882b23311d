// Why a Pod, a workload or a job is not where it should be: the panel at the side.

import { hideTip, meaning, swatch } from "./cells.js";
import { $, command, div, el, li, nameOf, past, since, splitNext, strong } from "./dom.js";
import { holders, phases, rows, rowsAtOnce, whyButton, whyCommand } from "./parts.js";
import { isPressed } from "./state.js";

let asked = null,
  opener = null;

let told = "",
  toldAt = 0;

export async function ask(kind, namespace, name, from) {
  opener = from || opener;
  told = "";
  asked = { kind, namespace, name };
  $("why").hidden = false;
  $("why-title").textContent = `${kind} ${nameOf(asked)}`;
  $("why-text").replaceChildren(el("p", { class: "quiet" }, "asking"));
  $("why-title").focus();
  await refresh();
}

export async function refresh() {
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
  if (asked !== about || isPressed() || (text === told && Date.now() - toldAt < 30e3)) return;
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
