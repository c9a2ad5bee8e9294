"use strict";
// What every interactive timeline has: an axis on a canvas; wheel zooms, drag pans, click picks.

const ROW = 24, AXIS = 30, GAP = 4;

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

const time = (us) => us.toFixed(us < 10 ? 3 : us < 1000 ? 2 : 1) + " us";

// Names come from files: they become text, never markup.
function node(tag, ...parts) {
  const made = document.createElement(tag);
  made.append(...parts);
  return made;
}
const lined = (lines) => lines.flatMap((parts, n) => (n ? [node("br"), ...parts] : parts));

// *data* knows `full`, where the axis ends, in us. A timeline says what lies where: at(x, y) finds
// something, told(it) names it, same(it, other) knows it again, step(by) goes to the next one and
// search() to one that is asked for; show() tells of the one that is picked, draw() draws all.
class Zoomed {
  constructor(host, data, left) {
    this.host = host;
    this.data = data;
    this.left = left;
    this.canvas = host.querySelector("canvas");
    this.view = host.querySelector(".view");
    this.details = host.querySelector(".details");
    this.where = host.querySelector(".where");
    this.from = 0;
    this.to = data.full;
    this.peers = [];
    this.picked = null;
    this.over = null;
  }
  begin() {
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.resize();
    this.show();
  }
  color(name) { return getComputedStyle(this.host).getPropertyValue(`--${name}`).trim(); }

  listen() {
    const c = this.canvas;
    this.view.addEventListener("scroll", () => this.draw());
    let held = null, low = 0, moved = false;
    c.addEventListener("wheel", (e) => {
      if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) this.pan((e.deltaX || e.deltaY) / this.scale());
      else this.zoom(Math.exp(e.deltaY * 0.0015), this.timeAt(e.offsetX));
      e.preventDefault();
    }, { passive: false });
    c.addEventListener("pointerdown", (e) => {
      held = e.offsetX; low = e.clientY; moved = false; c.setPointerCapture(e.pointerId); c.classList.add("held");
    });
    c.addEventListener("pointermove", (e) => {
      if (held === null) { this.hover(e.offsetX, e.offsetY); return; }
      if (Math.abs(e.offsetX - held) > 2 || Math.abs(e.clientY - low) > 2) moved = true;
      if (!moved) return;
      this.view.scrollTop += low - e.clientY;
      this.pan((held - e.offsetX) / this.scale());
      held = e.offsetX;
      low = e.clientY;
    });
    c.addEventListener("pointerup", (e) => {
      c.classList.remove("held");
      held = null;
      if (!moved) this.pick(this.at(e.offsetX, e.offsetY));
    });
    c.addEventListener("pointerleave", () => { this.over = null; this.draw(); });
    c.addEventListener("dblclick", () => this.reset());
    c.addEventListener("keydown", (e) => {
      const step = (this.to - this.from) / 8, middle = (this.to + this.from) / 2;
      const acts = { ArrowLeft: () => this.step(-1) || this.pan(-step), ArrowRight: () => this.step(1) || this.pan(step),
        "+": () => this.zoom(0.6, middle), "-": () => this.zoom(1.6, middle), 0: () => this.reset(),
        Escape: () => this.pick(null) };
      if (acts[e.key]) { acts[e.key](); e.preventDefault(); }
    });
    for (const button of this.host.querySelectorAll("button"))
      button.addEventListener("click", () => {
        const middle = (this.to + this.from) / 2;
        ({ in: () => this.zoom(0.5, middle), out: () => this.zoom(2, middle), all: () => this.reset(),
          next: () => this.search() })[button.dataset.act]();
      });
    this.host.querySelector("input").addEventListener("keydown", (e) => { if (e.key === "Enter") this.search(); });
  }

  // ---- where ----

  scale() { return (this.width - this.left) / (this.to - this.from); }
  x(us) { return this.left + (us - this.from) * this.scale(); }
  timeAt(x) { return this.from + (x - this.left) / this.scale(); }
  reset() { this.from = 0; this.to = this.data.full; this.pan(0); }
  pan(us) {
    const wide = this.to - this.from, most = Math.max(0, this.data.full - wide);
    this.from = Math.min(Math.max(0, this.from + us), most);
    this.to = this.from + wide;
    this.draw();
    // Runs that are compared are seen at one scale, whichever of them is moved.
    for (const peer of this.peers) { peer.from = this.from; peer.to = this.to; peer.draw(); }
  }
  zoom(by, around) {
    const full = this.data.full;
    const wide = Math.min(full, Math.max(full / 1e6, (this.to - this.from) * by));
    const share = (around - this.from) / (this.to - this.from);
    this.from = around - share * wide;
    this.to = this.from + wide;
    this.pan(0);
  }
  resize() {
    const ratio = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    this.canvas.style.height = this.height + "px";
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.ink = this.canvas.getContext("2d");
    this.ink.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.draw();
  }

  // ---- what ----

  hover(x, y) {
    const found = this.at(x, y);
    const same = found && this.over && this.same(found, this.over);
    if (same || (!found && !this.over)) return;
    this.over = found;
    this.canvas.title = found ? this.told(found) : "";
    this.draw();
  }
  pick(found) { this.picked = found; this.show(); this.draw(); }

  // ---- the axis ----

  axis(g) {
    const span = this.to - this.from, raw = span / Math.max(2, this.width / 130);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
    const digits = Math.max(0, -Math.floor(Math.log10(step)));
    const grid = this.color("grid"), soft = this.color("soft");
    g.font = "11px 'DejaVu Sans', Verdana, sans-serif";
    g.textAlign = "center";
    g.textBaseline = "top";
    for (let n = Math.ceil(this.from / step); n * step <= this.to; n++) {
      const x = Math.round(this.x(n * step)) + 0.5;
      g.strokeStyle = grid;
      g.beginPath(); g.moveTo(x, 0); g.lineTo(x, this.height - AXIS + 4); g.stroke();
      g.fillStyle = soft;
      if (x < this.width - 30) g.fillText((n * step).toFixed(digits) + (n === Math.ceil(this.from / step) ? " us" : ""), x, this.height - AXIS + 10);
    }
  }
}

const begun = (make) => Promise.all([...document.querySelectorAll(".timeline")].map(async (host) => {
  const text = document.getElementById(host.dataset.source).textContent;
  return make(host, await unpacked(text));
})).then((all) => {
  for (const one of all) one.peers = all.filter((other) => other !== one);
  return all;
});
