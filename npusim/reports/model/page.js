// The page of a run of a model: kernels by stream below the modules that launch them, and a tree.

const LEFT = 92, DEEP = 20, MOST_DEPTH = 6;

const size = (bytes) => {
  const [power, unit] = [[12, "TB"], [9, "GB"], [6, "MB"], [3, "kB"], [0, "B"]].find(([n]) => bytes >= 10 ** n) || [0, "B"];
  return `${power ? (bytes / 10 ** power).toPrecision(3) : bytes} ${unit}`;
};
const percent = (share) => share > 0 && share < 0.005 ? "< 1 %" : `${Math.round(100 * share)} %`;
const KERNEL = ["op", "template", "work", "inputs", "outputs", "cores", "us", "launch", "read", "written", "gm", "bound", "share"];

function decoded(data) {
  // Gaps become times, streams know their launches, and launches in a row make spans of modules.
  const kernels = data.kernels.map((row) => Object.fromEntries(row.map((value, n) => [KERNEL[n], value])));
  const count = data.kernel.length, start = new Float64Array(count), end = new Float64Array(count);
  let at = 0;
  for (let i = 0; i < count; i++) {
    start[i] = at + data.gap[i];
    at = end[i] = start[i] + kernels[data.kernel[i]].us;
  }
  const streams = new Map();
  data.stream.forEach((stream, i) => {
    if (!streams.has(stream)) streams.set(stream, []);
    streams.get(stream).push(i);
  });
  const spans = [];
  const open = [];
  for (let i = 0; i < count; i++) {
    const steps = data.steps[data.words[data.module[i]]].slice(0, MOST_DEPTH);
    let same = 0;
    while (same < open.length && same < steps.length && open[same].name === steps[same]) same++;
    open.length = same;
    for (let depth = same; depth < steps.length; depth++) {
      const span = { name: steps[depth], path: steps.slice(0, depth + 1).join("."), first: i };
      (spans[depth] = spans[depth] || []).push(span);
      open.push(span);
    }
    for (const span of open) span.last = i;
  }
  const times = new Map();
  data.kernel.forEach((k) => times.set(k, (times.get(k) || 0) + 1));
  return { ...data, kernels, start, end, streams: [...streams], spans, times, total: at };
}

class Launches extends Zoomed {
  constructor(host, data) {
    super(host, data, LEFT);
    this.rows = [];
    let y = 4;
    data.spans.forEach((spans, depth) => { this.rows.push({ spans, depth, y, high: DEEP }); y += DEEP; });
    y += 6;
    for (const [stream, found] of data.streams) { this.rows.push({ stream, found, y, high: ROW + 6 }); y += ROW + 8; }
    this.height = y;
    this.begin();
  }

  // ---- what ----

  from_us(row, n) { return this.data.start[row.spans ? row.spans[n].first : row.found[n]]; }
  end_us(row, n) { return this.data.end[row.spans ? row.spans[n].last : row.found[n]]; }
  length(row) { return (row.spans || row.found).length; }
  first(row, us) {
    // The first entry of a row that has not ended before *us*; ends ascend.
    let low = 0, high = this.length(row);
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end_us(row, middle) < us) low = middle + 1; else high = middle;
    }
    return low;
  }
  at(x, y) {
    const r = this.rows.findIndex((row) => y >= row.y && y < row.y + row.high);
    if (r < 0 || x < this.left) return null;
    const row = this.rows[r], us = this.timeAt(x), slack = 3 / this.scale();
    let best = null, distance = slack;
    for (let n = this.first(row, us - slack); n < this.length(row); n++) {
      const from = this.from_us(row, n), end = this.end_us(row, n);
      if (from > us + slack) break;
      const away = us < from ? from - us : us > end ? us - end : -1;
      if (away < distance) { best = n; distance = away; }
    }
    return best === null ? null : { row: r, n: best };
  }
  same(one, other) { return one.row === other.row && one.n === other.n; }
  told({ row: r, n }) {
    const row = this.rows[r], kernel = row.found && this.data.kernels[this.data.kernel[row.found[n]]];
    const name = kernel ? kernel.op : row.spans[n].path;
    return `${name}, ${time(this.end_us(row, n) - this.from_us(row, n))}`;
  }
  go(found) {
    const row = this.rows[found.row], wide = this.to - this.from;
    const from = this.from_us(row, found.n), end = this.end_us(row, found.n);
    if (end < this.from || from > this.to) {
      this.from = from - wide / 2;
      this.to = this.from + wide;
    }
    this.pick(found);
    this.pan(0);
  }
  step(by) {
    if (!this.picked) return false;
    const n = this.picked.n + by;
    if (n >= 0 && n < this.length(this.rows[this.picked.row])) this.go({ row: this.picked.row, n });
    return true;
  }
  order({ row: r, n }) {
    const row = this.rows[r];
    return row.spans ? row.spans[n].last : row.found[n];
  }
  matching(words) {
    const { data } = this, has = (text) => words.every((word) => text.toLowerCase().includes(word));
    if (!words.length) return [];
    const known = data.words.map(has), kernels = data.kernels.map((kernel) => has(kernel.op)), places = new Map();
    this.rows.forEach((row, r) => row.found && row.found.forEach((i, n) => places.set(i, { row: r, n })));
    const fits = (kernel, i) => kernels[kernel] || known[data.operator[i]] || known[data.module[i]];
    return data.kernel.flatMap((kernel, i) => fits(kernel, i) ? [places.get(i)] : []);
  }
  none(word) { return `No launch has ${word} in it.`; }

  // ---- what a span adds up to ----

  sums(from, to) {
    const { data } = this, works = new Map(), ops = new Map(), all = Math.max(1e-9, to - from);
    data.kernel.forEach((k, i) => {
      const part = Math.min(data.end[i], to) - Math.max(data.start[i], from), kernel = data.kernels[k];
      if (part <= 0) return;
      for (const [sums, key] of [[works, kernel.work], [ops, kernel.op]]) {
        const own = sums.get(key) || [0, 0, kernel.work];
        sums.set(key, [own[0] + 1, own[1] + part, own[2]]);
      }
    });
    const rows = (sums, name) => [...sums].sort((a, b) => b[1][1] - a[1][1]).map(([key, [count, us, work]]) =>
      [[swatch(data.colors[work]), name(key)], count.toLocaleString("en"), time(us), shared(us, all)]);
    const head = ["launches", "time", "of the span"];
    return [
      tabled("By operator", ["operator", ...head], rows(ops, (op) => op), 1),
      tabled("By kind of work", ["work", ...head], rows(works, (work) => data.works[work]), 1),
    ];
  }

  // ---- what is picked ----

  help() {
    return ["Click a kernel or a module to see what it is and what bounds it; drag to summarise a selection."];
  }
  facts({ row: r, n }) {
    const row = this.rows[r], told = row.spans ? this.module(row.spans[n]) : this.launch(row.found[n]);
    return [node("dl", ...told.flatMap(([name, parts]) => [node("dt", name), node("dd", ...parts)]))];
  }
  launch(i) {
    const { data } = this, k = data.kernel[i], kernel = data.kernels[k], words = data.words;
    const path = words[data.module[i]], graph = words[data.graph[i]];
    const rate = (bytes) => (bytes / kernel.us / 1e3).toPrecision(3);
    return [
      ["kernel", [node("b", kernel.op), kernel.template ? ` (${kernel.template})` : "", " \u00a0", swatch(data.colors[kernel.work]), data.works[kernel.work]]],
      ["launched by", [node("code", words[data.operator[i]]), path ? " in " : "", node("code", path), graph ? `, part of ${graph}` : ""]],
      ["when", [`${time(data.start[i])} to ${time(data.end[i])} on stream ${data.stream[i]}: ${time(kernel.us)}, `
        + `of which launch and completion ${time(kernel.launch)}; ${data.times.get(k)} alike take ${time(data.times.get(k) * kernel.us)}`]],
      ["tensors", [`${kernel.inputs} \u2192 ${kernel.outputs}; ${kernel.cores} core${kernel.cores === 1 ? "" : "s"}`]],
      ["bytes", [`cores read ${size(kernel.read)} and write ${size(kernel.written)}; ${size(kernel.gm)} from and to global memory, ${rate(kernel.gm)} GB/s`]],
      ["bound by", [`${kernel.bound}, ${percent(kernel.share)} of its time`]],
    ];
  }
  module(span) {
    const { data } = this, works = new Map();
    for (let i = span.first; i <= span.last; i++) {
      const kernel = data.kernels[data.kernel[i]];
      works.set(kernel.work, (works.get(kernel.work) || 0) + kernel.us);
    }
    const sum = [...works.values()].reduce((a, b) => a + b, 0), link = node("a", "zoom to it");
    link.addEventListener("click", () => {
      this.from = data.start[span.first];
      this.to = data.end[span.last];
      this.zoom(1.04, (this.from + this.to) / 2);
    });
    const told = [...works].sort((a, b) => b[1] - a[1]).flatMap(([work, us]) =>
      [swatch(data.colors[work]), `${data.works[work]} ${percent(us / sum)} \u00a0 `]);
    return [
      ["module", [node("code", span.path), " \u00a0", link]],
      ["when", [`${time(data.start[span.first])} to ${time(data.end[span.last])}: ${time(sum)} in `
        + `${span.last - span.first + 1} launches, ${percent(sum / data.total)} of all`]],
      ["work", told],
    ];
  }

  // ---- drawing ----

  paint(g) {
    const ink = this.color("ink"), soft = this.color("soft");
    for (const row of this.rows) {
      g.font = "12px 'DejaVu Sans', Verdana, sans-serif";
      g.textBaseline = "middle";
      g.textAlign = "right";
      g.fillStyle = row.spans ? soft : ink;
      const name = row.spans ? (row.depth ? "" : "modules") : `stream ${row.stream}`;
      g.fillText(name, this.left - 10, row.y + row.high / 2);
      g.save();
      g.beginPath();
      g.rect(this.left, row.y, this.width - this.left, row.high);
      g.clip();
      if (row.spans) this.modules(g, row); else this.kernels(g, row);
      this.marks(g, row);
      g.restore();
    }
    this.where.textContent = `${time(Math.max(0, this.from))} to ${time(Math.min(this.data.total, this.to))} of ${time(this.data.total)}`;
  }
  modules(g, row) {
    const fill = this.color("under"), edge = this.color("edge"), ink = this.color("ink");
    let thin = -Infinity;
    for (let n = this.first(row, this.from); n < row.spans.length; n++) {
      const from = this.from_us(row, n), x = this.x(from), wide = this.x(this.end_us(row, n)) - x;
      if (from > this.to) break;
      // Of many within a pixel, one is drawn.
      if (wide < 1 && x - thin < 1) continue;
      if (wide < 1) thin = x;
      g.fillStyle = fill;
      g.fillRect(x, row.y + 1, Math.max(1, wide), row.high - 2);
      g.fillStyle = edge;
      g.fillRect(x, row.y + 1, 1, row.high - 2);
      if (wide > 20) this.label(g, row.spans[n].name, x, x + wide, row, ink);
    }
  }
  kernels(g, row) {
    const { data } = this, high = row.high - GAP, top = row.y + GAP / 2;
    let joined = null;
    const flush = () => {
      // Of many within a pixel or two, each kind of work is as high as its share of the time.
      if (!joined) return;
      const x = this.x(joined.from), wide = Math.max(1, this.x(joined.to) - x);
      let y = top + high;
      for (const [work, us] of joined.works) {
        const tall = high * us / (joined.to - joined.from);
        g.fillStyle = data.colors[work];
        g.fillRect(x, y - tall, wide, tall);
        y -= tall;
      }
      joined = null;
    };
    const names = [];
    for (let n = this.first(row, this.from); n < row.found.length; n++) {
      const i = row.found[n], kernel = data.kernels[data.kernel[i]];
      if (data.start[i] > this.to) break;
      const x = this.x(data.start[i]), wide = kernel.us * this.scale();
      if (wide < 2) {
        if (joined && (data.end[i] - joined.from) * this.scale() > 2) flush();
        joined = joined || { from: data.start[i], to: data.end[i], works: new Map() };
        joined.to = data.end[i];
        joined.works.set(kernel.work, (joined.works.get(kernel.work) || 0) + kernel.us);
        continue;
      }
      flush();
      g.fillStyle = data.colors[kernel.work];
      g.fillRect(x, top, wide - (wide > 4 ? 1 : 0), high);
      if (wide > 24) names.push([kernel.op, x, x + wide]);
    }
    flush();
    for (const [name, from, to] of names) this.label(g, name, from, to, row, "black");
  }
  label(g, text, from, to, row, color) {
    const left = Math.max(this.left, from) + 4, room = Math.min(this.width, to) - left - 3;
    g.font = "11px 'DejaVu Sans', Verdana, sans-serif";
    g.textAlign = "left";
    g.fillStyle = color;
    if (g.measureText(text).width < room) g.fillText(text, left, row.y + row.high / 2);
  }
  marks(g, row) {
    for (const [mark, color] of [[this.over, this.color("soft")], [this.picked, this.color("ink")]]) {
      if (!mark || this.rows[mark.row] !== row) continue;
      const x = this.x(this.from_us(row, mark.n));
      g.strokeStyle = color;
      g.lineWidth = mark === this.picked ? 2 : 1;
      g.strokeRect(x, row.y + 1, Math.max(2, this.x(this.end_us(row, mark.n)) - x), row.high - 2);
      g.lineWidth = 1;
    }
  }
}

// ---- the tree of modules ----

function folded(table) {
  // A row is seen unless one that it lies in is folded.
  let closed = Infinity;
  for (const row of table.tBodies[0].rows) {
    const depth = +row.dataset.depth;
    if (depth <= closed) closed = Infinity;
    row.hidden = depth > closed;
    if (!row.hidden && row.classList.contains("folded")) closed = depth;
  }
}
for (const table of document.querySelectorAll("table.tree")) {
  table.addEventListener("click", (e) => {
    if (!e.target.classList.contains("fold")) return;
    e.target.closest("tr").classList.toggle("folded");
    folded(table);
  });
}
for (const button of document.querySelectorAll(".unfold"))
  button.addEventListener("click", () => {
    const table = button.parentElement.querySelector("table.tree");
    for (const row of table.tBodies[0].rows) row.classList.remove("folded");
    folded(table);
  });

window.timelines = begun((host, data) => new Launches(host, decoded(data)));
