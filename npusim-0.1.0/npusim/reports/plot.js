// A chart with two logarithmic axes, to zoom and to pan; what stands between them is defined elsewhere.

const SVG = "http://www.w3.org/2000/svg";

// An element of a drawing; what is undefined stays away.
function drawn(tag, attributes = {}, ...parts) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) made.setAttribute(name, value);
  made.append(...parts);
  return made;
}

// A number of 4 digits, with a prefix: 353.9 TFLOPS.
function scaled(value, unit) {
  const [size, prefix] = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([size]) => value >= size) ?? [1, ""];
  return `${+(value / size).toPrecision(4)} ${prefix}${unit}`;
}
const digits = (value, most = 4) => value.toLocaleString("en", { maximumSignificantDigits: most });

// Round numbers from 10 ** low to 10 ** high, about *most* of them at most: powers of ten, their
// halves and fifths where there is room, and equal steps within a decade.
function ticks(low, high, most) {
  const wide = high - low, found = [];
  const add = (value) => {
    const at = Math.log10(value);
    if (at >= low - 1e-9 && at <= high + 1e-9) found.push(+value.toPrecision(9));
  };
  if (wide < 0.7) {
    const from = 10 ** low, raw = (10 ** high - from) / most, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
    for (let n = Math.ceil(from / step - 1e-9); n * step <= 10 ** high; n++) add(n * step);
    return found;
  }
  const every = Math.ceil(wide / most), parts = every === 1 && 3 * wide <= most ? [1, 2, 5] : [1];
  for (let power = Math.floor(low); power <= high; power++)
    if (power % every === 0) for (const part of parts) add(part * 10 ** power);
  return found;
}

// Where labels may stand: clear of each other, of the points, and if possible of all lines.
class Room {
  constructor(wide, high, lines) { Object.assign(this, { wide, high, lines, taken: [] }); }
  take(x, y, half) { this.taken.push([x, y, half]); }
  // The squares that a text covers: from x, y on, which is the middle of its height, along *angle*.
  static squares(x, y, length, angle, half) {
    const count = Math.max(1, Math.ceil(length / half)), found = [];
    for (let n = 0, step = length / count; n <= count; n++) found.push([x + n * step * Math.cos(angle), y + n * step * Math.sin(angle), half]);
    return found;
  }
  // How many lines the squares lie on, or of the label of the line *own* are nearer to others than to
  // it; null where there is no room for them.
  crossed(squares, own) {
    const inside = squares.every(([x, y, half]) => x >= 2 && x <= this.wide - 2 && y >= half && y <= this.high - half);
    const apart = ([x, y, half], [x2, y2, half2]) => Math.max(Math.abs(x - x2), Math.abs(y - y2)) >= half + half2;
    const free = (square) => this.taken.every((other) => apart(square, other));
    if (!inside || !squares.every(free)) return null;
    const down = (line, [x, y]) => (line(x) ?? Infinity) - y;
    const isNear = (line, square) => {
      const far = down(line, square);
      if (!own) return Math.abs(far) < square[2];
      // Behind its own line another one may be as near as it likes.
      const to = down(own, square);
      return Math.abs(far) <= Math.abs(to) || far * to < 0 && Math.abs(far) < Math.abs(to) + 3;
    };
    return this.lines.filter((line) => line !== own && squares.some((square) => isNear(line, square))).length;
  }
  // The first of *places* that crosses the fewest lines, at most so many; it is taken.
  place(places, most, own) {
    let best = null, least = most + 1;
    for (const place of places) {
      const count = this.crossed(place.squares, own);
      if (count !== null && count < least) { best = place; least = count; }
      if (least === 0) break;
    }
    if (best) this.taken.push(...best.squares);
    return best;
  }
}

const DEEPEST = 64, TOP = 26, BOTTOM = 40, RIGHT = 14, NARROW = 560, CLICK = 4;

// Whoever draws on it has paint(), and says with hold(low, high) what there is to see; hover(element,
// x, y), pick(element) and act(key), which says whether it took the key, are called for hands.
class Plot {
  constructor(host) {
    this.host = host;
    this.box = host.querySelector(".plot");
    this.axes = drawn("g", { "aria-hidden": true });
    this.grid = drawn("g", { "aria-hidden": true, class: "grid" });
    this.lines = drawn("g");
    this.marks = drawn("g");
    this.labels = drawn("g", { "aria-hidden": true, class: "labels" });
    // An inner drawing cuts off what lies outside.
    const paper = drawn("rect", { class: "paper", width: "100%", height: "100%" });
    this.area = drawn("svg", {}, paper, this.grid, this.lines, this.marks, this.labels);
    this.svg = drawn("svg", { role: "group" }, this.axes, this.area);
    this.box.append(this.svg);
    this.units = ["op/byte", "OPS"];
    this.from = [0, 0];
    this.to = [1, 1];
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.box);
  }

  // ---- where ----

  // Of an axis, 0 for the one along the bottom: pixels of a value, and the other way round.
  pixels(axis) { return [this.wide, this.high][axis]; }
  at(axis, value) {
    const share = (Math.log10(value) - this.from[axis]) / (this.to[axis] - this.from[axis]);
    return axis ? this.high * (1 - share) : this.wide * share;
  }
  under(axis, pixel) {
    const share = axis ? 1 - pixel / this.high : pixel / this.wide;
    return 10 ** (this.from[axis] + share * (this.to[axis] - this.from[axis]));
  }
  hold(low, high) {
    // What there is to see: values of both axes.
    this.full = [low.map(Math.log10), high.map(Math.log10)];
    this.reset();
  }
  reset() {
    [this.from, this.to] = this.full.map((ends) => [...ends]);
    this.draw();
  }
  zoom(by, x, y) {
    [x, y].forEach((pixel, axis) => {
      const around = Math.log10(this.under(axis, pixel)), was = this.to[axis] - this.from[axis];
      const full = this.full[1][axis] - this.full[0][axis], wide = Math.min(full, Math.max(full / DEEPEST, was * by));
      this.from[axis] = around - (around - this.from[axis]) * wide / was;
      this.to[axis] = this.from[axis] + wide;
    });
    this.pan(0, 0);
  }
  pan(x, y) {
    // By pixels, and no further than there is something to see.
    [-x, y].forEach((pixels, axis) => {
      const wide = this.to[axis] - this.from[axis], [low, high] = this.full.map((ends) => ends[axis]);
      this.from[axis] = Math.min(Math.max(low, this.from[axis] + pixels / this.pixels(axis) * wide), high - wide);
      this.to[axis] = this.from[axis] + wide;
    });
    this.draw();
  }
  reveal(x, y) {
    // Move until this place is in sight.
    const within = (pixel, wide) => pixel < 20 ? 40 - pixel : pixel > wide - 20 ? wide - 40 - pixel : 0;
    this.pan(within(x, this.wide), within(y, this.high));
  }

  // ---- hands ----

  listen() {
    const around = () => this.pointer ?? [this.wide / 2, this.high / 2];
    const acts = { in: () => this.zoom(0.5, ...around()), out: () => this.zoom(2, ...around()), all: () => this.reset() };
    for (const button of this.host.querySelectorAll(".bar button")) button.addEventListener("click", acts[button.dataset.act]);
    this.svg.addEventListener("wheel", (e) => {
      if (!e.ctrlKey && !e.metaKey) return;
      this.zoom(Math.exp(e.deltaY * 0.0015), ...this.place(e));
      e.preventDefault();
    }, { passive: false });
    this.svg.addEventListener("dblclick", () => this.reset());
    this.svg.addEventListener("keydown", (e) => {
      if (e.ctrlKey || e.metaKey || e.altKey) return;
      const key = e.key.length === 1 ? e.key.toLowerCase() : e.key, step = this.wide / 8;
      const zoom = (by) => () => this.zoom(by, ...around()), pan = (by) => () => this.pan(by, 0);
      const act = { a: pan(step), d: pan(-step), w: zoom(0.7), s: zoom(1 / 0.7), "+": zoom(0.6), "-": zoom(1.6), 0: () => this.reset() }[key];
      if (act) act(); else if (!this.act(key)) return;
      e.preventDefault();
    });
    this.drags();
  }
  place(e) {
    // The box of an inner drawing is that of all it holds, seen or not.
    const box = this.svg.getBoundingClientRect();
    return [e.clientX - box.left - this.left, e.clientY - box.top - TOP];
  }
  drags() {
    // A mouse pans, a finger to the sides; two fingers zoom.
    const held = new Map();
    let start = null, moved = false;
    this.svg.addEventListener("pointerdown", (e) => {
      held.set(e.pointerId, this.place(e));
      moved = held.size > 1;
      start = this.place(e);
    });
    this.svg.addEventListener("pointermove", (e) => {
      const [x, y] = this.pointer = this.place(e), last = held.get(e.pointerId);
      if (!last) { this.hover(e.target, x, y); return; }
      if (!moved && Math.hypot(x - start[0], y - start[1]) < CLICK) return;
      moved = true;
      this.svg.setPointerCapture(e.pointerId);
      held.set(e.pointerId, [x, y]);
      const [other] = [...held].filter(([id]) => id !== e.pointerId).map(([, at]) => at);
      const apart = (at) => Math.max(8, Math.hypot(at[0] - other[0], at[1] - other[1]));
      if (other) this.zoom(apart(last) / apart([x, y]), ...other);
      else this.pan(x - last[0], y - last[1]);
    });
    const ended = (e) => held.delete(e.pointerId);
    this.svg.addEventListener("pointerup", (e) => { if (ended(e) && !moved) this.pick(e.target); });
    this.svg.addEventListener("pointercancel", ended);
    this.svg.addEventListener("pointerleave", () => { this.pointer = null; this.hover(null); });
  }

  // ---- drawing ----

  resize() {
    const width = this.box.clientWidth;
    if (!width) return;
    this.narrow = width < NARROW;
    this.left = this.narrow ? 46 : 92;
    this.wide = width - this.left - RIGHT;
    this.high = Math.round(Math.min(460, Math.max(250, 0.46 * width), 0.7 * innerHeight));
    const height = this.high + TOP + BOTTOM;
    const set = (element, known) => Object.entries(known).forEach(([name, value]) => element.setAttribute(name, value));
    set(this.svg, { viewBox: `0 0 ${width} ${height}`, width, height });
    set(this.area, { x: this.left, y: TOP, width: this.wide, height: this.high });
    this.draw();
  }
  draw() {
    if (!this.wide || !this.full) return;
    this.axis();
    this.labels.replaceChildren();
    this.paint();
  }
  axis() {
    // Lines across the area, and their values at its edge, which stay in sight.
    const [across, up] = this.units, grid = [], words = [], bottom = TOP + this.high;
    const word = (text, attributes) => words.push(drawn("text", attributes, text));
    for (const value of ticks(this.from[0], this.to[0], this.wide / 70)) {
      const x = this.at(0, value);
      grid.push(drawn("path", { d: `M${x} 0V${this.high}` }));
      word(digits(value), { x: this.left + x, y: bottom + 16, "text-anchor": "middle" });
    }
    for (const value of ticks(this.from[1], this.to[1], this.high / 38)) {
      const y = this.at(1, value);
      grid.push(drawn("path", { d: `M0 ${y}H${this.wide}` }));
      word(scaled(value, this.narrow ? "" : up), { x: this.left - 8, y: TOP + y + 4, "text-anchor": "end" });
    }
    word(`operations a second (${up})`, { x: this.narrow ? 2 : this.left, y: 14, class: "title" });
    word(`operations a byte (${across})`, { x: this.left + this.wide, y: bottom + 34, "text-anchor": "end", class: "title" });
    this.axes.replaceChildren(...words);
    this.grid.replaceChildren(...grid);
  }
  // The first of *texts* that finds room at one of *places*, each [x, y, angle] of its beginning; it may
  // cross *most* lines, or as the name of the line *own* none.
  write(room, texts, places, { most = 0, own, color, bold = false }) {
    for (const text of texts) {
      const length = this.length(text, bold);
      const known = places(length).map(([x, y, angle]) => ({ x, y, angle, squares: Room.squares(x, y, length, angle, 7) }));
      const found = room.place(known, most, own);
      if (!found) continue;
      const turn = found.angle ? `rotate(${found.angle * 180 / Math.PI} ${found.x} ${found.y})` : undefined;
      const made = drawn("text", { x: found.x, y: found.y, dy: "0.35em", transform: turn, class: bold ? "item bold" : "item" }, text);
      color?.(made);
      this.labels.append(made);
      return;
    }
  }
  length(text, bold) {
    this.pen ??= document.createElement("canvas").getContext("2d");
    this.pen.font = `${bold ? "bold " : ""}11px ${getComputedStyle(this.box).fontFamily}`;
    return this.pen.measureText(text).width;
  }
}
