// The Pods of a workload as cells of one picture: colour and shape tell the state, a cut corner the old revision.

import { $, el, num } from "./dom.js";

export const states = [
  "Down",
  "Leaving",
  "Operating",
  "Returning",
  "Waiting",
  "Starting",
  "Terminating",
  "Ended",
  "Serving",
];
export const meaning = {
  Starting: "new, has not served yet",
  Serving: "in service",
  Waiting: "in service, an operation waits for permission",
  Leaving: "an operation takes it out of service",
  Operating: "out of service, an operator acts",
  Returning: "returns to service",
  Down: "not in service, and no operation says why",
  Terminating: "being deleted",
  Ended: "ran to its end",
};
// What is left out of a square: the picture is readable without colours.
const shape = {
  Serving: "full",
  Waiting: "dot",
  Leaving: "left",
  Operating: "frame",
  Returning: "right",
  Starting: "plus",
  Down: "cross",
  Terminating: "bar",
  Ended: "corner",
};

let palette = {};
export function readPalette() {
  const style = getComputedStyle(document.documentElement);
  palette = Object.fromEntries(states.map((s) => [s, style.getPropertyValue(`--${s}`).trim()]));
  palette.page = style.getPropertyValue("--card").trim();
}
readPalette();

function square(ctx, state, x, y, s, old) {
  ctx.fillStyle = palette[state] || palette.Ended;
  ctx.fillRect(x, y, s, s);
  ctx.fillStyle = palette.page;
  const t = s / 3;
  switch (
    s < 5 ? "full" : shape[state] // in less than five pixels a shape is noise
  ) {
    case "dot":
      ctx.fillRect(x + t, y + t, t, t);
      break;
    case "frame":
      ctx.fillRect(x + s / 5, y + s / 5, (3 * s) / 5, (3 * s) / 5);
      break;
    case "left":
      ctx.fillRect(x, y + s / 2, s, s / 2 - s / 8);
      break;
    case "right":
      ctx.fillRect(x, y + s / 8, s, s / 2 - s / 8);
      break;
    case "plus":
      ctx.fillRect(x, y, t, t);
      ctx.fillRect(x + 2 * t, y, t, t);
      ctx.fillRect(x, y + 2 * t, t, t);
      ctx.fillRect(x + 2 * t, y + 2 * t, t, t);
      break;
    case "cross":
      ctx.fillRect(x + t, y, t, t);
      ctx.fillRect(x, y + t, t, t);
      ctx.fillRect(x + 2 * t, y + t, t, t);
      ctx.fillRect(x + t, y + 2 * t, t, t);
      break;
    case "bar":
      ctx.fillRect(x, y, s, t);
      ctx.fillRect(x, y + 2 * t, s, t);
      break;
    case "corner":
      ctx.fillRect(x + s / 2, y, s / 2, s / 2);
      break;
  }
  if (!old) return;
  ctx.beginPath();
  ctx.moveTo(x + s, y + s);
  ctx.lineTo(x + s, y + s * 0.4);
  ctx.lineTo(x + s * 0.4, y + s);
  ctx.fill();
}

export function swatch(state, old) {
  const c = el("canvas", { class: "swatch", width: 28, height: 28, "aria-hidden": "true" });
  square(c.getContext("2d"), state, 0, 0, 28, old);
  return c;
}

// legend names the states of the Pods, with their numbers.
export function legend(counts, hasOld) {
  return el(
    "ul",
    { class: "legend" },
    states.filter((s) => counts[s]).map((s) => el("li", { title: meaning[s] }, swatch(s), `${num(counts[s])} ${s}`)),
    hasOld ? el("li", {}, swatch("Serving", true), "cut corner: old revision") : "",
  );
}

function grid(c) {
  const width = c.canvas.parentElement.clientWidth,
    n = c.pods.length;
  const cell = n > 4000 ? (width < 600 ? 4 : 6) : n > 800 ? 9 : n > 200 ? 12 : 16;
  const columns = Math.max(1, Math.floor(width / cell));
  return { width, cell, columns, height: Math.ceil(n / columns) * cell };
}

// size gives the picture its height before it is drawn, so that nothing moves when it is.
export const size = (c) => {
  c.canvas.style.height = `${grid(c).height}px`;
};

const seen = new IntersectionObserver(
  (entries) => {
    for (const e of entries) {
      e.target.card.visible = e.isIntersecting;
      if (e.isIntersecting) draw(e.target.card);
    }
  },
  { rootMargin: "300px" },
);

export function watch(c) {
  c.canvas.card = c;
  seen.observe(c.canvas);
  const at = (event) => podAt(c, event);
  c.canvas.addEventListener("pointermove", (event) =>
    event.pointerType === "mouse" && at(event) ? tip(c, at(event), event, false) : hideTip(),
  );
  c.canvas.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") hideTip();
  });
  c.canvas.addEventListener("click", (event) => {
    const p = at(event);
    if (!p) return;
    if (event.pointerType === "touch") return tip(c, p, event, true);
    hideTip();
    c.ask(p);
  });
}
export const unwatch = (c) => {
  seen.unobserve(c.canvas);
  hideTip();
};

// drawNow draws what is in sight without waiting for the observer: no hole where the picture will be.
export function drawNow(c) {
  if (c.visible || c.canvas.getBoundingClientRect().top < innerHeight) draw(c);
}

export function draw(c) {
  if (!c.pods || !c.canvas.isConnected) return;
  const g = grid(c),
    ratio = window.devicePixelRatio || 1;
  c.canvas.style.height = `${g.height}px`;
  c.canvas.width = g.width * ratio;
  c.canvas.height = g.height * ratio;
  const ctx = c.canvas.getContext("2d"),
    s = g.cell - Math.max(1, Math.floor(g.cell / 6));
  ctx.scale(ratio, ratio);
  c.pods.forEach((p, i) => {
    ctx.globalAlpha = c.dims(p) ? 0.2 : 1;
    square(ctx, p.state, (i % g.columns) * g.cell, Math.floor(i / g.columns) * g.cell, s, c.isOld(p));
  });
}

function podAt(c, event) {
  const box = c.canvas.getBoundingClientRect(),
    g = grid(c);
  const column = Math.floor((event.clientX - box.left) / g.cell),
    line = Math.floor((event.clientY - box.top) / g.cell);
  return column >= 0 && column < g.columns ? c.pods[line * g.columns + column] : undefined;
}

// tip says what the cell under the pointer is. A finger gets a button to ask why; a mouse clicks the cell.
function tip(c, p, event, isTouch) {
  const box = $("tip");
  box.replaceChildren(
    el("div", {}, swatch(p.state, c.isOld(p)), el("strong", {}, p.name)),
    el("div", {}, `${p.state}: ${meaning[p.state]}`),
    p.revision ? el("div", { class: "quiet" }, `revision ${p.revision}${c.isOld(p) ? ", old" : ""}`) : "",
    isTouch
      ? el(
          "button",
          {
            type: "button",
            onclick: () => {
              hideTip();
              c.ask(p);
            },
          },
          "Why?",
        )
      : "",
  );
  box.hidden = false;
  const x = Math.max(8, Math.min(event.clientX + 12, innerWidth - box.offsetWidth - 8));
  const y =
    event.clientY + 16 + box.offsetHeight < innerHeight ? event.clientY + 16 : event.clientY - box.offsetHeight - 12;
  box.style.left = `${x}px`;
  box.style.top = `${Math.max(8, y)}px`;
}
export const hideTip = () => {
  $("tip").hidden = true;
};
addEventListener("scroll", hideTip, { passive: true });
