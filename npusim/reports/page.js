// The timeline of a run: lanes of cores and pipes, and what each micro-op waited for.

const HEAD = 26, LEFT = 78;

function decoded(data) {
  // Differences become times, bodies become micro-ops, and each pipe knows its own in order.
  const us = 1e6 / data.clock_hz;
  const lanes = data.lanes.map((lane) => {
    const count = lane.start.length;
    const start = new Float64Array(count), free = new Float64Array(count), end = new Float64Array(count);
    let at = 0;
    for (let i = 0; i < count; i++) {
      at += lane.start[i];
      start[i] = at * us;
      free[i] = (at + lane.free[i]) * us;
      end[i] = (at + lane.free[i] + lane.end[i]) * us;
    }
    const ops = [], shift = [];
    for (const [body, words] of lane.calls)
      for (const op of data.bodies[body]) { ops.push(op); shift.push(words); }
    const setter = new Map(lane.waits.map(([wait, set, words]) => [wait, [set, words]]));
    const waiters = new Map(lane.waits.map(([wait, set]) => [set, wait]));
    const pipes = data.pipes.map(() => []), all = data.pipes.map(() => []);
    ops.forEach((op, i) => { all[op[0]].push(i); if (!op[7]) pipes[op[0]].push(i); });
    const path = lane.path.map(([pipe, since, until]) => [pipe, since * us, until * us]);
    return { name: lane.name, start, free, end, cycles: lane.free, ops, shift, setter, waiters, pipes, all, path };
  });
  const total = data.cycles * us, end = Math.max(total, data.end_us);
  return { ...data, lanes, total, end, full: end * 1.01 };
}

// Of the time from its start until its pipe is free, how much an entry holds it: all of it, or what
// micro-ops that are joined into one do.
const share = (lane, i) => lane.ops[i].length > 8 ? lane.ops[i][8] / Math.max(1, lane.cycles[i]) : 1;
const tint = (color, share) => "#" + [1, 3, 5].map((at) =>
  Math.round(255 - share * (255 - parseInt(color.slice(at, at + 2), 16))).toString(16).padStart(2, "0")).join("");

class Timeline extends Zoomed {
  constructor(host, data) {
    super(host, data, LEFT);
    this.rows = [];
    let y = 0;
    data.lanes.forEach((lane, l) => {
      this.rows.push({ head: lane.name, y });
      y += HEAD;
      lane.pipes.forEach((found, pipe) => {
        if (found.length) { this.rows.push({ lane: l, pipe, y }); y += ROW; }
      });
    });
    this.height = y + AXIS;
    this.begin();
  }

  // ---- what ----

  first(lane, found, us) {
    // The first of a pipe's micro-ops whose result is not there before *us*; ends ascend.
    let low = 0, high = found.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane.end[found[middle]] < us) low = middle + 1; else high = middle;
    }
    return low;
  }
  at(x, y) {
    const row = this.rows.find((r) => r.lane !== undefined && y >= r.y && y < r.y + ROW);
    if (!row || x < LEFT) return null;
    const lane = this.data.lanes[row.lane], found = lane.pipes[row.pipe];
    const slack = 3 / this.scale(), us = this.timeAt(x);
    let best = null, distance = slack;
    for (let n = this.first(lane, found, us - slack); n < found.length; n++) {
      const i = found[n];
      if (lane.start[i] > us + slack) break;
      const away = us < lane.start[i] ? lane.start[i] - us : us > lane.end[i] ? us - lane.end[i] : 0;
      // Of two on top of each other the one that holds the pipe is meant.
      const held = us >= lane.start[i] && us <= lane.free[i] ? -1 : away;
      if (held < distance || (held === distance && best === null)) { best = i; distance = held; }
    }
    return best === null ? null : { lane: row.lane, op: best };
  }
  same(one, other) { return one.lane === other.lane && one.op === other.op; }
  told({ lane: l, op: i }) {
    const lane = this.data.lanes[l];
    return `${this.data.words[lane.ops[i][1]]}, ${time(lane.start[i])} to ${time(lane.end[i])}`;
  }
  go(found) {
    const lane = this.data.lanes[found.lane], wide = this.to - this.from;
    if (lane.end[found.op] < this.from || lane.start[found.op] > this.to) {
      this.from = lane.start[found.op] - wide / 2;
      this.to = this.from + wide;
    }
    this.pick(found);
    this.pan(0);
  }
  step(by) {
    if (!this.picked) return false;
    const lane = this.data.lanes[this.picked.lane], found = lane.pipes[lane.ops[this.picked.op][0]];
    const next = found[found.indexOf(this.picked.op) + by];
    if (next !== undefined) this.go({ lane: this.picked.lane, op: next });
    return true;
  }
  search() {
    const word = this.host.querySelector("input").value.trim().toLowerCase();
    if (!word) return;
    const fits = this.data.words.map((text) => text.toLowerCase().includes(word));
    const from = this.picked || { lane: 0, op: -1 }, lanes = this.data.lanes.length;
    for (let turn = 0; turn <= lanes; turn++) {
      const l = (from.lane + turn) % lanes, lane = this.data.lanes[l];
      for (let i = turn ? 0 : from.op + 1; i < lane.ops.length; i++)
        if (!lane.ops[i][7] && fits[lane.ops[i][2]]) { this.go({ lane: l, op: i }); return; }
    }
    this.details.textContent = `No micro-op has ${word} in it.`;
  }

  // ---- the micro-op that is picked ----

  waited(lane, i) {
    // The flags and barriers between a micro-op and the one before it on the same pipe.
    const all = lane.all[lane.ops[i][0]], found = [];
    for (let n = all.indexOf(i) - 1; n >= 0 && lane.ops[all[n]][7]; n--) found.unshift(all[n]);
    return found;
  }
  reason(l, i) {
    const lane = this.data.lanes[l], words = this.data.words, lines = [];
    for (const wait of this.waited(lane, i)) {
      const set = lane.setter.get(wait), took = time(lane.free[wait] - lane.start[wait]);
      const text = words[lane.ops[wait][2]];
      if (set) {
        const producer = this.before(lane, set[0]);
        const carried = words[set[1]] ? `, ${words[set[1]]}` : "";
        const line = [`${took} for ${text}${carried}: raised at ${time(lane.end[set[0]])}`];
        if (producer !== null) line.push(" by ", this.link(l, producer));
        lines.push(line);
      } else if (!text.startsWith("set_flag") && !text.startsWith("cross_core_set"))
        lines.push([`${took} for ${text}`]);
    }
    const all = lane.all[lane.ops[i][0]], place = all.indexOf(i);
    const before = place ? lane.free[all[place - 1]] : 0, gap = lane.start[i] - before;
    if (gap > 1e-9) lines.push([`${time(gap)} until the scalar unit handed it out`]);
    return lines.length ? lined(lines) : ["nothing: it followed at once"];
  }
  link(l, op) {
    const made = node("a", this.data.words[this.data.lanes[l].ops[op][1]]);
    made.addEventListener("click", () => this.go({ lane: l, op }));
    return made;
  }
  before(lane, set) {
    const all = lane.all[lane.ops[set][0]];
    for (let n = all.indexOf(set) - 1; n >= 0; n--) if (!lane.ops[all[n]][7]) return all[n];
    return null;
  }
  show() {
    if (!this.picked) {
      const lines = [["Click a micro-op to see what it is, what it waited for, its bytes and the line that wrote it. "
        + "Wheel: zoom; drag: pan; arrow keys: the next micro-op of the pipe; double click: all."],
      ["A dark line below: the critical path, which the end waits for; the rest could be later."]];
      this.details.replaceChildren(...lined(lines));
      return;
    }
    const { lane: l, op: i } = this.picked, lane = this.data.lanes[l], op = lane.ops[i], words = this.data.words;
    const [pipe, , text, nbytes, way, line, code, , joined] = op;
    const held = lane.free[i] - lane.start[i];
    const moves = lane.shift[i] < 0 ? [] : words[lane.shift[i]].split(", ").filter((move) =>
      words[text].includes(move.split(" ")[0] + "+") && !move.endsWith(" + 0 bytes"));
    const what = [node("code", words[text])], swatch = node("span");
    if (moves.length) {
      const shift = node("span", `(here ${moves.join(", ")})`);
      shift.className = "soft";
      what.push(" ", shift);
    }
    swatch.className = "swatch";
    swatch.style.background = this.data.colors[pipe];
    const rows = [
      [joined === undefined ? "micro-op" : "joined", what],
      ["where", [`${lane.name}, `, swatch, this.data.pipes[pipe]]],
      ["when", [`${time(lane.start[i])} to ${time(lane.end[i])}; ` + (joined === undefined
        ? `holds its pipe for ${time(held)} (${Math.round(held * this.data.clock_hz / 1e6)} cycles)`
        : `held the pipe for ${joined} cycles, ${Math.round(100 * share(lane, i))} % of that time`)]],
    ];
    if (joined === undefined) rows.push(["waited for", this.reason(l, i)]);
    else if (nbytes) rows.push(["bytes", [`${nbytes} from and to global memory`]]);
    if (way >= 0) {
      const rate = held ? `, ${(nbytes / held / 1e3).toPrecision(3)} GB/s while it holds its pipe` : "";
      rows.push(["bytes", [`${nbytes} on ${words[way]}${rate}`]]);
    }
    if (line >= 0) rows.push(["written by", [node("code", words[line] + (words[code] ? `\u00a0 ${words[code]}` : ""))]]);
    this.details.replaceChildren(node("dl", ...rows.flatMap(([name, told]) => [node("dt", name), node("dd", ...told)])));
  }

  // ---- drawing ----

  draw() {
    const g = this.ink;
    if (!g || !this.width) return;
    g.clearRect(0, 0, this.width, this.height);
    this.axis(g);
    for (const row of this.rows) {
      g.textBaseline = "middle";
      g.textAlign = "left";
      g.fillStyle = "#222";
      if (row.head !== undefined) {
        g.font = "bold 12px 'DejaVu Sans', Verdana, sans-serif";
        g.fillText(row.head, 8, row.y + HEAD / 2 + 2);
        continue;
      }
      g.font = "12px 'DejaVu Sans', Verdana, sans-serif";
      g.textAlign = "right";
      g.fillText(this.data.pipes[row.pipe], LEFT - 10, row.y + ROW / 2);
      g.save();
      g.beginPath();
      g.rect(LEFT, row.y, this.width - LEFT, ROW);
      g.clip();
      this.lane(g, row);
      g.restore();
    }
    this.arrows(g);
    const { total, end } = this.data;
    this.where.textContent = `${time(Math.max(0, this.from))} to ${time(Math.min(end, this.to))} of ${time(end)}`
      + (total < end ? `; this run ends at ${time(total)}` : "");
  }
  lane(g, row) {
    const lane = this.data.lanes[row.lane], found = lane.pipes[row.pipe], color = this.data.colors[row.pipe];
    const light = tint(color, 0.35), top = row.y + GAP / 2, high = ROW - GAP;
    let joined = null, names = [];
    const flush = () => {
      // Many within a pixel: as high as the share of the time that they hold the pipe.
      if (!joined) return;
      const share = Math.min(1, Math.max(0.15, joined.held / Math.max(1e-12, joined.to - joined.from)));
      g.fillStyle = color;
      g.fillRect(this.x(joined.from), top + high * (1 - share), Math.max(1, this.x(joined.to) - this.x(joined.from)), high * share);
      joined = null;
    };
    const pixel = 1 / this.scale();
    for (let n = this.first(lane, found, this.from); n < found.length; n++) {
      const i = found[n];
      if (lane.start[i] > this.to) break;
      if (lane.end[i] - lane.free[i] > pixel) {
        g.fillStyle = light;
        g.fillRect(this.x(lane.free[i]), top, (lane.end[i] - lane.free[i]) / pixel, high);
      }
    }
    for (let n = this.first(lane, found, this.from); n < found.length; n++) {
      const i = found[n], wide = (lane.free[i] - lane.start[i]) / pixel;
      if (lane.start[i] > this.to) break;
      if (wide < 2) {
        if (joined && (lane.free[i] - joined.from) / pixel > 2) flush();
        joined = joined || { from: lane.start[i], to: lane.free[i], held: 0 };
        joined.to = Math.max(joined.to, lane.free[i]);
        joined.held += share(lane, i) * (lane.free[i] - lane.start[i]);
        continue;
      }
      flush();
      // Joined micro-ops are as high as the share of the time that they hold the pipe.
      const tall = high * Math.max(0.15, share(lane, i));
      g.fillStyle = color;
      g.fillRect(this.x(lane.start[i]), top + high - tall, wide - (wide > 4 ? 1 : 0), tall);
      const next = n + 1 < found.length ? lane.start[found[n + 1]] : this.to;
      const room = Math.min(lane.end[i], next) - Math.max(this.from, lane.start[i]);
      if (room / pixel > 40) names.push([i, room / pixel]);
    }
    flush();
    this.path(g, row);
    g.fillStyle = "black";
    g.font = "11px 'DejaVu Sans', Verdana, sans-serif";
    g.textAlign = "left";
    for (const [i, room] of names) {
      const text = this.data.words[lane.ops[i][1]];
      if (g.measureText(text).width < room - 6) g.fillText(text, Math.max(LEFT, this.x(lane.start[i])) + 4, row.y + ROW / 2);
    }
    for (const [mark, style] of [[this.over, "#666"], [this.picked, "#000"]])
      if (mark && mark.lane === row.lane && lane.ops[mark.op][0] === row.pipe) {
        g.strokeStyle = style;
        g.lineWidth = mark === this.picked ? 2 : 1;
        const x = this.x(lane.start[mark.op]);
        g.strokeRect(x, top, Math.max(2, this.x(lane.end[mark.op]) - x), high);
        g.lineWidth = 1;
      }
  }
  path(g, row) {
    g.fillStyle = "#222";
    for (const [pipe, since, until] of this.data.lanes[row.lane].path)
      if (pipe === row.pipe && until >= this.from && since <= this.to)
        g.fillRect(this.x(since), row.y + ROW - 3, Math.max(1, this.x(until) - this.x(since)), 3);
  }
  arrows(g) {
    const most = 150, shown = [], seen = new Set();
    const top = this.view.scrollTop, bottom = top + this.view.clientHeight;
    for (const row of this.rows) if (row.lane !== undefined && row.y + ROW > top && row.y < bottom) seen.add(row.lane);
    this.data.lanes.forEach((lane, l) => {
      if (!seen.has(l)) return;
      for (const [wait, [set]] of lane.setter) {
        if (lane.free[wait] < this.from || lane.end[set] > this.to || lane.end[set] <= lane.start[wait]) continue;
        if (shown.length <= most) shown.push([l, set, wait, false]);
      }
    });
    if (shown.length > most) shown.length = 0;
    if (this.picked) {
      const lane = this.data.lanes[this.picked.lane];
      for (const wait of this.waited(lane, this.picked.op))
        if (lane.setter.has(wait)) shown.push([this.picked.lane, lane.setter.get(wait)[0], wait, true]);
    }
    g.save();
    g.beginPath();
    g.rect(LEFT, 0, this.width - LEFT, this.height - AXIS);
    g.clip();
    for (const [l, set, wait, strong] of shown) this.arrow(g, l, set, wait, strong);
    g.restore();
  }
  arrow(g, l, set, wait, strong) {
    const lane = this.data.lanes[l];
    const row = (i) => this.rows.find((r) => r.lane === l && r.pipe === lane.ops[i][0]);
    const from = row(set), to = row(wait);
    if (!from || !to || from === to) return;
    const x0 = this.x(lane.end[set]), x1 = this.x(lane.free[wait]);
    const down = to.y > from.y, y0 = from.y + ROW / 2, y1 = down ? to.y + 3 : to.y + ROW - 3;
    g.strokeStyle = g.fillStyle = strong ? "#000" : "rgba(0,0,0,0.45)";
    g.lineWidth = strong ? 1.6 : 0.8;
    g.beginPath(); g.moveTo(x0, y0); g.lineTo(x1, y1); g.stroke();
    const angle = Math.atan2(y1 - y0, x1 - x0), size = strong ? 7 : 5;
    g.beginPath();
    g.moveTo(x1, y1);
    g.lineTo(x1 - size * Math.cos(angle - 0.4), y1 - size * Math.sin(angle - 0.4));
    g.lineTo(x1 - size * Math.cos(angle + 0.4), y1 - size * Math.sin(angle + 0.4));
    g.fill();
    g.lineWidth = 1;
  }
}

window.timelines = begun((host, data) => new Timeline(host, decoded(data)));
