// Actions on a workload: buttons, a confirmation that says what will happen, and what came of it. The server decides
// what is offered, what it does and whether the user may; see actions.go.

import { $, command, div, el, nameOf, quiet, sentence } from "./dom.js";

// The token comes with the address that the terminal shows. It is kept for this tab, and out of the address.
let token = "";
function takeToken() {
  const given = /^#token=(\w+)$/.exec(location.hash)?.[1];
  if (!given) return;
  token = given;
  try {
    sessionStorage.setItem("token", token);
  } catch {
    /* not kept when the page is loaded again */
  }
  history.replaceState(null, "", "#/");
}
try {
  token = sessionStorage.getItem("token") || "";
} catch {
  /* none is kept */
}
takeToken();
addEventListener("hashchange", takeToken);

const label = (verb) => verb[0].toUpperCase() + verb.slice(1);
const retryAfter = 5e3; // milliseconds

let workload = null, // whose actions are shown
  key = "", // what they depend on
  offer = null,
  failedAt = 0;

// showActions shows what may be done to a workload. It is called whenever the page is drawn, and asks only if something
// has changed that decides.
export function showActions(m, isActing) {
  const isOther = !workload || nameOf(workload) !== nameOf(m) || workload.kind !== m.kind;
  workload = { kind: m.kind, namespace: m.namespace, name: m.name };
  $("acts").hidden = !isActing || m.kind !== "CollaSet";
  if (isOther) {
    turn++;
    offer = null;
    key = "";
    renderOffer("");
    told("", []);
  }
  if ($("acts").hidden) return;
  if (!token) return renderOffer("To act, open the address that the terminal shows: it has a token.");
  const now = JSON.stringify([
    m.paused,
    m.currentRevision,
    m.updatedRevision,
    m.course?.state,
    m.course?.partition,
    (m.reasons || []).some((r) => r.code === "SpecNotObserved"),
  ]);
  if (now === key && !(failedAt && Date.now() - failedAt > retryAfter)) return;
  key = now;
  readOffer();
}

async function ask(path, options = {}) {
  const response = await fetch(path, {
    ...options,
    headers: { "Kuperator-Token": token, ...options.headers },
  });
  const text = await response.text();
  if (!response.ok) throw new Error(text);
  return JSON.parse(text);
}

let turn = 0; // answers that are overtaken are not shown

async function readOffer() {
  const mine = ++turn;
  failedAt = 0;
  try {
    const found = await ask(`api/actions?${new URLSearchParams(workload)}`);
    if (mine !== turn) return;
    offer = found;
    renderOffer("");
  } catch (error) {
    if (mine !== turn) return;
    offer = null;
    failedAt = Date.now();
    renderOffer(`What may be done is not known. ${sentences(error.message)}`);
  }
}

const isSame = (about) => workload && nameOf(about) === nameOf(workload);

let drawn = "";

// renderOffer draws the buttons, unless they are as they were: the focus may be on one.
function renderOffer(problem) {
  const actions = offer?.actions || [];
  const text = JSON.stringify([problem, nameOf(workload), actions.map((a) => [a.verb, a.refused])]);
  if (text === drawn) return;
  drawn = text;
  const focused = $("acts-buttons").contains(document.activeElement) ? document.activeElement.dataset.id : "";
  $("acts-buttons").replaceChildren(
    ...actions.map((a) =>
      el(
        "button",
        {
          type: "button",
          "data-id": `act/${a.verb}`,
          "aria-haspopup": "dialog",
          "aria-disabled": a.refused ? "true" : undefined,
          "aria-describedby": a.refused ? "acts-refused" : undefined,
          onclick: () => {
            if (!a.refused) confirm(a.verb);
          },
        },
        label(a.verb),
      ),
    ),
  );
  if (focused) focusOn(focused);
  const byReason = new Map();
  for (const { verb, refused } of actions)
    if (refused) byReason.set(refused, [...(byReason.get(refused) || []), verb]);
  $("acts-refused").replaceChildren(
    problem,
    ...[...byReason].map(([why, verbs]) => div(`${verbs.map(label).join(", ")}: ${why.replace(/[^.!?]$/, "$&.")}`)),
  );
}

// focusOn moves the focus to a button, or near it if it is gone: the page may show what came of an action before or
// after the confirmation closes.
function focusOn(id) {
  const buttons = [...$("acts-buttons").children];
  (buttons.find((b) => b.dataset.id === id) || buttons[0] || $("one-title")).focus();
}

// sentences is what the server says, each line as a sentence.
const sentences = (text) => text.trim().split("\n").map(sentence).join(" ");

function told(text, details, isBad = false) {
  $("acts-result").classList.toggle("bad", isBad);
  $("acts-result").replaceChildren(text, ...details.map((d) => div(quiet(d))));
}

// --- the confirmation

let confirmed = null, // what happens when it is confirmed
  opened = 0;

async function confirm(verb) {
  const about = workload,
    dialog = $("confirm");
  confirmed = null;
  opened++;
  $("confirm-title").textContent = `${label(verb)} ${nameOf(about)}?`;
  $("confirm-text").textContent = "Asking what will happen.";
  $("confirm-more").replaceChildren();
  $("confirm-yes").textContent = label(verb);
  $("confirm-yes").disabled = true;
  dialog.dataset.verb = verb;
  dialog.showModal();
  try {
    const found = await ask(`api/actions?${new URLSearchParams({ ...about, verb })}`);
    if (!isAsking(about, verb)) return;
    const a = found.actions.find((x) => x.verb === verb);
    if (!a) {
      $("confirm-text").textContent = "It has changed meanwhile, and there is nothing to do any more.";
      return;
    }
    $("confirm-text").textContent = a.happens;
    $("confirm-more").replaceChildren(
      ...(a.warnings || []).map((w) => el("p", { class: "reason" }, sentences(w))),
      a.refused ? el("p", { class: "reason bad" }, sentences(a.refused)) : "",
      a.command ? div(quiet("In a terminal"), command(a.command)) : "",
    );
    if (a.refused) return;
    confirmed = { ...about, verb, version: found.version, revision: a.revision };
    $("confirm-yes").disabled = false;
  } catch (error) {
    if (isAsking(about, verb)) $("confirm-text").textContent = `No answer. ${sentences(error.message)}`;
  }
}

const isAsking = (about, verb) => $("confirm").open && $("confirm").dataset.verb === verb && isSame(about);

async function act() {
  const order = confirmed;
  if (!order) return;
  const mine = opened;
  confirmed = null;
  $("confirm-yes").disabled = true;
  try {
    const outcome = await ask("api/act", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(order),
    });
    if (isSame(order)) told(sentence(outcome.text), outcome.details || []);
  } catch (error) {
    const [reason, ...answer] = error.message.trim().split("\n");
    if (isSame(order)) told(`${label(order.verb)} failed. ${sentence(reason)}`, answer, true);
  }
  if (mine === opened) $("confirm").close();
  readOffer(); // whatever came of it
}

$("confirm-yes").addEventListener("click", act);
$("confirm-no").addEventListener("click", () => $("confirm").close());
$("confirm").addEventListener("close", () => {
  confirmed = null;
  focusOn(`act/${$("confirm").dataset.verb}`);
});
