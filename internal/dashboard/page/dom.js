// Small things of which the page is made: elements, numbers, times, and commands to copy.

export const $ = (id) => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") e.className = value;
    else if (name.startsWith("on")) e.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) e.setAttribute(name, value === true ? "" : value);
  }
  e.append(...children.flat(Infinity).filter((c) => c !== undefined && c !== null && c !== "" && c !== false));
  return e;
}

const plain =
  (tag) =>
  (...children) =>
    el(tag, {}, ...children);
export const [li, div, td, strong] = ["li", "div", "td", "strong"].map(plain);
export const quiet = (...children) => el("span", { class: "quiet" }, ...children);

export const num = (n) => n.toLocaleString("en");
export const many = (n, word) => `${num(n)} ${word}${n === 1 ? "" : "s"}`;
export const nameOf = (thing) => `${thing.namespace ? thing.namespace + "/" : ""}${thing.name}`;

// sentence begins with a capital, unless the first word is a name, and ends with a full stop.
export const sentence = (text) =>
  text.replace(/^[a-z]+(?=[ ,])/, (word) => word[0].toUpperCase() + word.slice(1)).replace(/[^.!?]$/, "$&.");

let skew = 0; // the API server's clock less ours, in milliseconds
export const setClock = (time) => {
  skew = Date.parse(time) - Date.now();
};
export const untilNow = (time) => Date.now() + skew - Date.parse(time);

export function span(milliseconds) {
  const s = Math.max(0, Math.round(milliseconds / 1000));
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  if (s < 172800) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}
export const ago = (time) => (time ? span(untilNow(time)) : "");
const timeOf = (time, text) =>
  el("time", { class: "quiet", datetime: time, title: new Date(time).toLocaleString() }, text);
export const since = (time) => (time ? timeOf(time, ` for ${ago(time)}`) : "");
export const past = (time) => (time ? timeOf(time, ` ${ago(time)} ago`) : "");

export function fill(part) {
  const d = el("div");
  d.style.width = `${100 * Math.min(1, part)}%`;
  return d;
}

export function meter(kind, label, now, max) {
  return el(
    "div",
    {
      class: `meter ${kind}`,
      role: "meter",
      "aria-label": label,
      "aria-valuemin": 0,
      "aria-valuemax": max,
      "aria-valuenow": Math.min(now, max),
    },
    fill(max ? now / max : 0),
  );
}

// --- commands

let flags = ""; // what a command needs to reach the cluster that the page shows
export const setFlags = (text) => {
  flags = text || "";
};

// splitNext parts an advice into its words and the command at its end, if it has one.
export function splitNext(next = "") {
  const found = /(?:^|: )(kubectl .+?)(?=$|\. |; )/.exec(next);
  if (!found) return { words: next, command: "" };
  return { words: (next.slice(0, found.index) + next.slice(found.index + found[0].length)).trim(), command: found[1] };
}

export function command(text) {
  const whole = flags ? `${text} ${flags}` : text;
  const code = el(
    "code",
    {},
    whole.split(" ").flatMap((word, i) => [i ? " " : "", el("span", {}, word)]),
  ); // no break within a flag
  const button = el(
    "button",
    {
      type: "button",
      "data-id": `copy/${whole}`,
      "aria-label": `Copy ${whole}`,
      onclick: async () => {
        try {
          await navigator.clipboard.writeText(whole);
          button.textContent = "Copied";
        } catch {
          getSelection().selectAllChildren(code);
          button.textContent = "Selected";
        }
      },
    },
    "Copy",
  );
  return el("div", { class: "command" }, code, button);
}
