// What every interactive timeline has: an axis that stays in sight, zoom, spans that are chosen with
// what they add up to, a search, and one that is picked.

const ROW = 24, AXIS = 30, GAP = 4;

const time = (us) => us.toFixed(us < 10 ? 3 : us < 1000 ? 2 : 1) + " us";

// Names come from files: they become text, never markup.
function node(tag, ...parts) {
  const made = document.createElement(tag);
  made.append(...parts);
  return made;
}
const lined = (lines) => lines.flatMap((parts, n) => (n ? [node("br"), ...parts] : parts));

// What tables say of a share of something.
const shared = (part, all) => all > 0 ? `${(100 * part / all).toFixed(1)} %` : "";

// A table of what was found; all but the first *texts* columns are numbers.
function tabled(caption, head, rows, texts) {
  const cell = (tag, value, n) => {
    const made = node(tag, ...(Array.isArray(value) ? value : [String(value)]));
    if (tag === "th") made.scope = "col";
    if (n >= texts) made.className = "number";
    return made;
  };
  const line = (tag, cells) => node("tr", ...cells.map((value, n) => cell(tag, value, n)));
  const made = node("table", node("caption", caption), node("thead", line("th", head)), node("tbody", ...rows.map((cells) => line("td", cells))));
  const box = node("div", made);
  box.className = "scroll";
  box.tabIndex = 0;
  return box;
}
function swatch(color) {
  const made = node("span");
  made.className = "swatch";
  made.style.background = color;
  return made;
}

// *data* knows `full`, where the axis ends, in us. A timeline says what lies where: at(x, y) finds
// something, told(it) names it, same(it, other) knows it again, order(it) says when it comes,
// step(by) goes to the next one, matching(words) finds all with these words and go(it) shows one;
// facts(it) describes one, sums(from, to) of a span of time, help() of neither; paint(g) draws all.
class Zoomed {
  constructor(host, data, left) {
    this.host = host;
    this.data = data;
    this.left = left;
    this.canvas = host.querySelector(".view canvas");
    this.ruler = host.querySelector("canvas.axis");
    this.view = host.querySelector(".view");
    this.tall = host.querySelector(".tall");
    this.details = host.querySelector(".details");
    this.where = host.querySelector(".where");
    this.input = host.querySelector("input[type=search]");
    this.count = host.querySelector(".count");
    this.from = 0;
    this.to = data.full;
    this.peers = [];
    this.seen = true;
    this.stale = false;
    this.picked = null;
    this.over = null;
    this.chosen = null;
    this.pointer = null;
    this.asked = "";
    this.hits = [];
  }
  begin() {
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.view);
    new IntersectionObserver((found) => { this.seen = found.at(-1).isIntersecting; this.late(); }).observe(this.host);
    addEventListener("beforeprint", () => this.late(true));
    addEventListener("language", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.resize();
    this.show();
  }
  color(name) { return getComputedStyle(this.host).getPropertyValue(`--${name}`).trim(); }

  // ---- hands ----

  listen() {
    this.view.addEventListener("scroll", () => this.draw());
    this.canvas.addEventListener("wheel", (e) => {
      const aside = e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY);
      if (e.ctrlKey || e.metaKey) this.zoom(Math.exp(e.deltaY * 0.0015), this.timeAt(e.offsetX));
      else if (aside) this.pan((e.deltaX || e.deltaY) / this.scale());
      else return;
      e.preventDefault();
    }, { passive: false });
    this.points();
    this.canvas.addEventListener("dblclick", () => this.reset());
    this.canvas.addEventListener("keydown", (e) => this.key(e));
    for (const button of this.host.querySelectorAll("button"))
      button.addEventListener("click", () => this.act(button.dataset.act));
    this.input.addEventListener("input", () => this.seek());
    this.input.addEventListener("keydown", (e) => {
      if (e.key === "Enter") this.search(e.shiftKey ? -1 : 1);
      if (e.key === "Escape") { this.input.value = ""; this.seek(); this.canvas.focus(); }
    });
  }
  act(name) {
    const middle = (this.to + this.from) / 2;
    ({ in: () => this.zoom(0.5, middle), out: () => this.zoom(2, middle), all: () => this.reset(),
      sum: () => this.choose(this.from, this.to, true), next: () => this.search(1), previous: () => this.search(-1) })[name]?.();
  }
  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const step = (this.to - this.from) / 8, around = this.pointer ?? (this.to + this.from) / 2;
    const acts = { ArrowLeft: () => this.step(-1) || this.pan(-step), ArrowRight: () => this.step(1) || this.pan(step),
      a: () => this.pan(-step), d: () => this.pan(step), w: () => this.zoom(0.7, around), s: () => this.zoom(1 / 0.7, around),
      "+": () => this.zoom(0.6, around), "-": () => this.zoom(1.6, around), 0: () => this.reset(),
      t: () => this.act("sum"), z: () => this.chosen && this.frame(...this.chosen), "/": () => this.input.focus(),
      Escape: () => this.pick(null) };
    const act = acts[e.key.length === 1 ? e.key.toLowerCase() : e.key];
    if (act) { act(); e.preventDefault(); }
  }
  points() {
    // A mouse that is dragged chooses a span, with Shift it pans; a finger pans, two of them zoom.
    const c = this.canvas, held = new Map();
    let start = 0, moved = false, pans = false;
    c.addEventListener("pointerdown", (e) => {
      c.setPointerCapture(e.pointerId);
      held.set(e.pointerId, e.offsetX);
      start = e.offsetX;
      moved = held.size > 1;
      pans = e.shiftKey || e.button === 1 || e.pointerType === "touch";
    });
    c.addEventListener("pointermove", (e) => {
      this.pointer = this.timeAt(e.offsetX);
      if (!held.has(e.pointerId)) { this.hover(e.offsetX, e.offsetY + this.view.scrollTop); return; }
      if (!moved && Math.abs(e.offsetX - start) < 4) return;
      const last = held.get(e.pointerId), [other] = [...held].filter(([id]) => id !== e.pointerId).map(([, x]) => x);
      moved = true;
      held.set(e.pointerId, e.offsetX);
      if (other !== undefined) {
        const was = Math.max(8, Math.abs(last - other)), is = Math.max(8, Math.abs(e.offsetX - other));
        this.zoom(was / is, this.timeAt(other));
      } else if (pans) this.pan((last - e.offsetX) / this.scale());
      else this.choose(this.timeAt(start), this.timeAt(e.offsetX), false);
    });
    const ended = (e) => {
      held.delete(e.pointerId);
      if (moved && !pans && this.chosen) this.choose(...this.chosen, true);
    };
    c.addEventListener("pointerup", (e) => {
      ended(e);
      if (!moved) this.click(e.offsetX, e.offsetY + this.view.scrollTop);
    });
    c.addEventListener("pointercancel", ended);
    c.addEventListener("pointerleave", () => { this.over = this.pointer = null; this.draw(); });
  }

  // ---- where ----

  scale() { return (this.width - this.left) / (this.to - this.from); }
  x(us) { return this.left + (us - this.from) * this.scale(); }
  timeAt(x) { return this.from + (x - this.left) / this.scale(); }
  reset() { this.from = 0; this.to = this.data.full; this.pan(0); }
  frame(from, to) {
    this.from = from;
    this.to = Math.min(Math.max(to, from + this.data.full / 1e6), from + this.data.full);
    this.pan(0);
  }
  pan(us) {
    const wide = this.to - this.from, most = Math.max(0, this.data.full - wide);
    this.from = Math.min(Math.max(0, this.from + us), most);
    this.to = this.from + wide;
    this.draw();
    // Runs that are compared are seen at one scale, whichever of them is moved.
    for (const peer of this.peers) { peer.from = this.from; peer.to = this.to; peer.redraw(); }
    this.changed();
  }
  zoom(by, around) {
    const full = this.data.full;
    const wide = Math.min(full, Math.max(full / 1e6, (this.to - this.from) * by));
    const share = (around - this.from) / (this.to - this.from);
    this.from = around - share * wide;
    this.to = this.from + wide;
    this.pan(0);
  }
  choose(one, other, done) {
    // A span of time, in all runs; what it adds up to is listed when it is *done*.
    const within = (us) => Math.min(Math.max(0, us), this.data.full);
    const chosen = [within(Math.min(one, other)), within(Math.max(one, other))];
    for (const each of [this, ...this.peers]) {
      each.chosen = chosen;
      each.redraw();
      if (done) each.show();
    }
    if (done) this.changed();
  }
  changed() {}
  state() { return { find: this.asked }; }
  restore(told) {
    this.input.value = told("find");
    this.seek();
  }
  resize() {
    this.width = this.view.clientWidth;
    this.tall.style.height = this.height + "px";
    const inked = (canvas, high) => {
      const ratio = window.devicePixelRatio || 1;
      canvas.style.width = this.width + "px";
      canvas.style.height = high + "px";
      canvas.width = Math.round(this.width * ratio);
      canvas.height = Math.round(high * ratio);
      const ink = canvas.getContext("2d");
      ink.setTransform(ratio, 0, 0, ratio, 0, 0);
      return ink;
    };
    // As high as what is in sight: browsers limit how high a canvas can be.
    this.high = this.view.clientHeight;
    this.ink = inked(this.canvas, this.high);
    this.rule = inked(this.ruler, AXIS);
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
  click(x, y) { this.pick(this.at(x, y)); }
  pick(found) {
    this.picked = found;
    if (!found) for (const each of [this, ...this.peers]) { each.chosen = null; if (each !== this) { each.show(); each.redraw(); } }
    this.show();
    this.draw();
    this.changed();
  }
  show() {
    const parts = this.picked ? this.facts(this.picked) : [];
    if (this.chosen) parts.push(...this.summed(...this.chosen));
    this.details.classList.toggle("chosen", parts.length > 0);
    this.details.replaceChildren(...(parts.length ? parts : this.help()));
  }
  summed(from, to) {
    const zoom = node("button", "Zoom to selection"), none = node("button", "Clear");
    zoom.addEventListener("click", () => this.frame(from, to));
    none.addEventListener("click", () => this.pick(null));
    const head = node("p", node("b", `${time(from)} to ${time(to)}: ${time(to - from)} `), zoom, " ", none);
    const tables = node("div", ...this.sums(from, to));
    tables.className = "sums";
    return [head, tables];
  }

  // ---- search ----

  seek() {
    const words = this.input.value.trim().toLowerCase().split(/\s+/).filter((word) => word);
    this.asked = words.join(" ");
    this.hits = this.matching(words);
    this.counted();
    this.draw();
    this.changed();
  }
  counted() {
    const place = this.picked ? this.hits.findIndex((hit) => this.same(hit, this.picked)) + 1 : 0;
    const all = this.hits.length.toLocaleString("en");
    this.count.textContent = !this.asked ? "" : place ? `${place.toLocaleString("en")} of ${all}` : `${all} found`;
  }
  search(by) {
    if (this.input.value.trim().toLowerCase().split(/\s+/).join(" ") !== this.asked) this.seek();
    if (!this.asked) return;
    if (!this.hits.length) { this.details.textContent = this.none(this.asked); return; }
    const at = this.picked ? this.order(this.picked) : by > 0 ? -1 : Infinity, { hits } = this;
    const next = by > 0 ? hits.find((hit) => this.order(hit) > at) : hits.findLast((hit) => this.order(hit) < at);
    this.go(next ?? hits.at(by > 0 ? 0 : -1), true);
    this.counted();
  }

  // ---- drawing ----

  redraw() {
    // Of many timelines those out of sight wait until they are seen.
    this.stale = true;
    this.late();
  }
  late(always = false) { if (this.stale && (this.seen || always)) this.draw(); }
  draw() {
    if (!this.ink || !this.width) return;
    this.stale = false;
    const g = this.ink;
    this.top = this.view.scrollTop;
    g.clearRect(0, 0, this.width, this.high);
    this.axis(g);
    g.save();
    g.translate(0, -this.top);
    this.paint(g);
    g.restore();
    if (this.chosen) this.span(g, this.high, 0.14);
  }
  span(g, high, alpha) {
    const [from, to] = this.chosen.map((us) => Math.min(Math.max(this.left, this.x(us)), this.width));
    g.save();
    g.fillStyle = this.color("link");
    g.globalAlpha = alpha;
    g.fillRect(from, 0, to - from, high);
    g.globalAlpha = 1;
    g.fillRect(from, 0, 1, high);
    g.fillRect(to - 1, 0, 1, high);
    g.restore();
  }
  axis(g) {
    // Lines on the lanes, and their times on the ruler above, which stays in sight.
    const span = this.to - this.from, raw = span / Math.max(2, this.width / 130), r = this.rule;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
    const digits = Math.max(0, -Math.floor(Math.log10(step)));
    const grid = this.color("grid"), soft = this.color("soft"), first = Math.ceil(this.from / step);
    r.clearRect(0, 0, this.width, AXIS);
    r.font = "11px 'DejaVu Sans', Verdana, sans-serif";
    r.textAlign = "center";
    r.textBaseline = "top";
    for (let n = first; n * step <= this.to; n++) {
      const x = Math.round(this.x(n * step)) + 0.5;
      for (const [ink, low, high] of [[g, 0, this.high], [r, AXIS - 6, AXIS]]) {
        ink.strokeStyle = grid;
        ink.beginPath(); ink.moveTo(x, low); ink.lineTo(x, high); ink.stroke();
      }
      r.fillStyle = soft;
      if (x < this.width - 24) r.fillText((n * step).toFixed(digits) + (n === first ? " us" : ""), x, 3);
    }
    if (!this.chosen) return;
    this.span(r, AXIS, 0.2);
    const [from, to] = this.chosen, middle = (this.x(from) + this.x(to)) / 2;
    r.fillStyle = this.color("ink");
    r.fillText(time(to - from), Math.min(Math.max(middle, this.left + 30), this.width - 34), AXIS - 14);
  }
}

const begun = (make) => Promise.all([...document.querySelectorAll(".timeline")].map(async (host) => {
  const text = document.getElementById(host.dataset.source).textContent;
  return make(host, await unpacked(text));
})).then(async (all) => {
  for (const one of all) one.peers = all.filter((other) => other !== one);
  await linked(all);
  return all;
});
