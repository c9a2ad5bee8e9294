// The timeline of a run: what each micro-op did, what it waited for, and what a span adds up to.

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
    const path = lane.path.map(([pipe, since, until]) => [pipe, since * us, until * us]);
    return { ...lane, start, free, end, cycles: lane.free, ops, shift, setter, path, ...sorted(ops, data.pipes) };
  });
  const total = data.cycles * us, end = Math.max(total, data.end_us);
  const handed = data.handed.map(([l0, p0, set, l1, p1, passed]) => ({ from: [l0, p0, set * us], to: [l1, p1, passed * us] }));
  return { ...data, lanes, handed, total, end, full: end * 1.01 };
}

class Timeline extends Lanes {
  constructor(host, data) {
    super(host, data);
    this.waiting = null;
    this.behind = new Details(data, () => this.arrived());
    this.chooser = host.querySelector(".cores");
    this.chooser.addEventListener("input", () => this.choosing());
    this.begin();
  }

  arrived() {
    const { waiting } = this;
    this.waiting = null;
    if (waiting) waiting(); else this.draw();
    // Once, what is chosen is added up again of the micro-ops that are there now.
    if (this.behind.awaited || !this.isCoarse || !this.chosen) return;
    this.isCoarse = false;
    this.show();
  }
  choose(one, other, done) {
    for (const each of [this, ...this.peers]) each.isCoarse = true;
    super.choose(one, other, done);
  }

  // ---- what ----

  at(x, y) {
    const row = this.rows.find((r) => r.lane !== undefined && y >= r.y && y < r.y + ROW);
    if (!row || x < LEFT) return null;
    const found = this.nearest(row, { lane: row.lane }, x), inner = found && this.inner(found, this.wide(found));
    return inner ? this.nearest(row, { lane: row.lane, part: inner }, x) : found;
  }
  // The one of a row of a lane, or of a part of it, that lies at *x*.
  nearest(row, of, x) {
    const lane = this.laneOf(of), found = lane.pipes[row.pipe];
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
    return best === null ? null : { ...of, op: best };
  }
  same(one, other) { return one.lane === other.lane && one.op === other.op && one.part === other.part; }
  told(found) {
    const lane = this.laneOf(found), i = found.op;
    return `${this.data.words[lane.ops[i][1]]}, ${time(lane.start[i])} to ${time(lane.end[i])}`;
  }
  order({ lane, op }) { return lane * 1e8 + op; }
  // Show one; *closer* as well if it is too short to be seen.
  go(found, closer = false) {
    const lane = this.laneOf(found), held = lane.end[found.op] - lane.start[found.op];
    if (closer && this.wide(found) < SEEN) this.zoom(held / (this.to - this.from) * (this.width - LEFT) / (2 * SEEN), lane.start[found.op]);
    const wide = this.to - this.from;
    if (!this.wanted(lane)) { this.chooser.value = ""; this.wanted = () => true; }
    this.folded.delete(found.lane);
    this.laid();
    if (lane.end[found.op] < this.from || lane.start[found.op] > this.to) {
      this.from = lane.start[found.op] - wide / 2;
      this.to = this.from + wide;
    }
    const { y } = this.places.get(`${found.lane} ${lane.ops[found.op][0]}`);
    if (y < this.view.scrollTop) this.view.scrollTop = y - HEAD;
    else if (y + ROW > this.view.scrollTop + this.high) this.view.scrollTop = y + 2 * ROW - this.high;
    this.pick(found);
    this.pan(0);
  }
  step(by) {
    if (!this.picked) return false;
    const lane = this.laneOf(this.picked), found = lane.pipes[lane.ops[this.picked.op][0]];
    const next = found[found.indexOf(this.picked.op) + by];
    if (next !== undefined) this.go({ ...this.picked, op: next });
    return true;
  }
  matching(words) {
    // A micro-op has words in what it does or in the line that wrote it.
    const all = this.data.words, found = [];
    this.fits = new Map();
    if (!words.length) return found;
    for (const op of this.data.bodies.flat()) {
      const text = `${all[op[2]]} ${op[5] >= 0 ? all[op[5]] : ""}`.toLowerCase();
      this.fits.set(op, !op[7] && words.every((word) => text.includes(word)));
    }
    // What is joined has what its micro-ops have.
    const bodies = this.data.bodies.map((body) => new Set(body.filter((op) => this.fits.get(op)).map((op) => op[0])));
    for (const lane of this.data.lanes)
      for (const op of lane.ops)
        if (op[9] >= 0 && lane.details[op[9]][2].some(([body]) => bodies[body].has(op[0]))) this.fits.set(op, true);
    this.data.lanes.forEach((lane, l) => {
      if (!this.wanted(lane)) return;
      for (let i = 0; i < lane.ops.length; i++) if (this.fits.get(lane.ops[i])) found.push({ lane: l, op: i });
    });
    return found;
  }
  none(word) { return `No micro-op has ${word} in it.`; }

  // ---- cores ----

  act(name) {
    if (name !== "fold") { super.act(name); return; }
    const all = this.data.lanes.map((_, l) => l), folded = all.every((l) => this.folded.has(l));
    this.folded = new Set(folded ? [] : all);
    this.laid();
    this.changed();
  }
  click(x, y) {
    const pinned = y < this.top + HEAD ? this.pinned() : null;
    const head = pinned ?? this.rows.find((row) => row.head !== undefined && y >= row.y && y < row.y + HEAD);
    if (head) this.fold(head.head); else super.click(x, y);
  }
  fold(l) {
    if (!this.folded.delete(l)) this.folded.add(l);
    this.laid();
    this.changed();
  }
  choosing() {
    // Numbers, spans of numbers and kinds of cores; nothing is all of them.
    const parts = this.chooser.value.toLowerCase().split(/[\s,]+/).filter((part) => part);
    const fits = (lane, part) => {
      const [first, last] = part.split("-").map((number) => number === "" ? NaN : Number(number));
      return part === lane.kind || lane.cores.some((core) => core >= first && core <= (part.includes("-") ? last : first));
    };
    this.wanted = (lane) => !parts.length || parts.some((part) => fits(lane, part));
    this.laid();
    this.seek();
    this.show();
  }
  laid() { this.layout(); this.resize(); }
  state() {
    const { picked } = this;
    return { core: this.chooser.value.trim(), fold: [...this.folded].sort((a, b) => a - b).join(","),
      op: picked ? [picked.lane, picked.op, picked.part].filter((each) => each !== undefined).join(".") : "", ...super.state() };
  }
  restore(told) {
    const numbers = (text, mark) => text.split(mark).filter((each) => /^\d+$/.test(each)).map(Number);
    this.chooser.value = told("core");
    this.folded = new Set(numbers(told("fold"), ",").filter((l) => l < this.data.lanes.length));
    this.choosing();
    super.restore(told);
    const [l, op, part] = numbers(told("op"), "."), lane = this.data.lanes[l];
    const isPart = part !== undefined && lane?.details[part], inner = isPart && this.behind.of(l, part);
    // What must be unpacked before it can be shown is shown then.
    if (isPart && !inner) this.waiting = () => this.restore(told);
    const known = isPart ? inner : lane;
    if (known && known.ops[op] && !known.ops[op][7]) this.go(isPart ? { lane: l, op, part } : { lane: l, op });
    else this.pick(null);
  }

  // ---- what a span adds up to ----

  sums(from, to) {
    const ops = new Map(), lines = [], { words, pipes, colors } = this.data;
    // What is seen micro-op by micro-op counts so.
    const each = (l, own, found, add) => {
      for (let n = this.first(own, found, from); n < found.length && own.start[found[n]] < to; n++) {
        const number = own === this.data.lanes[l] ? this.inner({ lane: l, op: found[n] }, this.wide({ lane: l, op: found[n] })) : undefined;
        const inner = number === undefined ? null : this.behind.of(l, number);
        if (inner) each(l, inner, inner.pipes[own.ops[found[n]][0]], add); else add(own, found[n]);
      }
    };
    this.data.lanes.forEach((lane, l) => this.wanted(lane) && lane.pipes.forEach((found, pipe) => {
      let held = 0, count = 0;
      each(l, lane, found, (lane, i) => {
        const op = lane.ops[i], part = Math.min(lane.free[i], to) - Math.max(lane.start[i], from);
        if (part <= 0) return;
        const joined = op.length > 8, name = joined ? "summarised micro-ops" : words[op[1]], key = `${pipe} ${name}`;
        const own = part * share(lane, i), many = joined ? parseInt(words[op[2]], 10) : 1;
        if (!ops.has(key)) ops.set(key, { pipe, name, count: 0, held: 0, bytes: 0 });
        const sum = ops.get(key);
        sum.count += many * lane.cores.length;
        sum.held += own * lane.cores.length;
        sum.bytes += op[3] * lane.cores.length * part / (lane.free[i] - lane.start[i]);
        held += own;
        count += many;
      });
      if (count) lines.push([lane.name, [swatch(colors[pipe]), pipes[pipe]], count.toLocaleString("en"), time(held), shared(held, to - from)]);
    }));
    const rows = [...ops.values()].sort((a, b) => b.held - a.held).map(({ pipe, name, count, held, bytes }) =>
      [[swatch(colors[pipe]), name], count.toLocaleString("en"), time(held), bytes ? Math.round(bytes).toLocaleString("en") : ""]);
    return [
      tabled("By operation, all these cores together", ["operation", "micro-ops", "active", "bytes"], rows, 1),
      tabled("By line, each core", ["core", "pipe", "micro-ops", "active", "of the span"], lines, 2),
    ];
  }

  // ---- the micro-op that is picked ----

  waited(lane, i) {
    // The flags and barriers between a micro-op and the one before it on the same pipe.
    const all = lane.all[lane.ops[i][0]], found = [];
    for (let n = all.indexOf(i) - 1; n >= 0 && lane.ops[all[n]][7]; n--) found.unshift(all[n]);
    return found;
  }
  reason(found) {
    const lane = this.laneOf(found), i = found.op, words = this.data.words, lines = [];
    for (const wait of this.waited(lane, i)) {
      const set = this.setOf({ ...found, op: wait }), took = time(lane.free[wait] - lane.start[wait]);
      const text = words[lane.ops[wait][2]], across = set ? undefined : this.other({ ...found, op: wait });
      if (set) {
        const own = this.laneOf(set), producer = this.before(own, set.op);
        const carried = words[set.words] ? `, ${words[set.words]}` : "";
        const line = [`${took} for ${text}${carried}: raised at ${time(own.end[set.op])}`];
        if (producer !== null) line.push(" by ", this.link({ ...set, op: producer }));
        lines.push(line);
      } else if (across) lines.push(this.raised(took, text, across));
      else if (!text.startsWith("set_flag") && !text.startsWith("cross_core_set"))
        lines.push([`${took} for ${text}`]);
    }
    const all = lane.all[lane.ops[i][0]], place = all.indexOf(i);
    const before = place ? lane.free[all[place - 1]] : found.part === undefined ? 0 : lane.start[i], gap = lane.start[i] - before;
    if (gap > 1e-9) lines.push([`${time(gap)} until the scalar unit handed it out`]);
    return lines.length ? lined(lines) : ["nothing: it followed at once"];
  }
  raised(took, text, { from: [l, pipe, us] }) {
    // The flag of another core, and what that core had done before.
    const lane = this.data.lanes[l], op = lane.pipes[pipe].findLast((i) => lane.end[i] <= us + 1e-9);
    const line = [`${took} for ${text}: raised at ${time(us)} by ${lane.name}, ${this.data.pipes[pipe]}`];
    if (op !== undefined) line.push(" after ", this.link({ lane: l, op }));
    return line;
  }
  link(to) {
    const made = node("a", this.data.words[this.laneOf(to).ops[to.op][1]]);
    made.addEventListener("click", () => this.go(to));
    return made;
  }
  before(lane, set) {
    const all = lane.all[lane.ops[set][0]];
    for (let n = all.indexOf(set) - 1; n >= 0; n--) if (!lane.ops[all[n]][7]) return all[n];
    return null;
  }
  help() {
    return lined([["Click a micro-op to see what it is, what it waited for, its bytes and the line that wrote it; "
      + "drag to summarise a selection."],
    ["Black underline = critical path: delaying it delays the kernel. Everything else has slack. "
      + "Arrows: flags that a pipe stalled on; coloured ones come from other cores."]]);
  }
  facts(found) {
    const lane = this.laneOf(found), i = found.op, op = lane.ops[i], words = this.data.words;
    const [pipe, , text, nbytes, way, line, code, , joined] = op;
    const held = lane.free[i] - lane.start[i];
    const moves = lane.shift[i] < 0 ? [] : words[lane.shift[i]].split(", ").filter((move) =>
      words[text].includes(move.split(" ")[0] + "+") && !move.endsWith(" + 0 bytes"));
    const what = [node("code", words[text])];
    if (moves.length) {
      const shift = node("span", `(here ${moves.join(", ")})`);
      shift.className = "soft";
      what.push(" ", shift);
    }
    const rows = [
      [joined === undefined ? "micro-op" : "summary of", what],
      ["where", [`${lane.name}, `, swatch(this.data.colors[pipe]), this.data.pipes[pipe]]],
      ["when", [`${time(lane.start[i])} to ${time(lane.end[i])}; ` + (joined === undefined
        ? `holds its pipe for ${time(held)} (${Math.round(held * this.data.clock_hz / 1e6)} cycles)`
        : `held the pipe for ${joined} cycles, ${Math.round(100 * share(lane, i))} % of that time`)]],
    ];
    if (joined === undefined) rows.push(["waited for", this.reason(found)]);
    else if (nbytes) rows.push(["bytes", [`${nbytes} from and to global memory`]]);
    if (way >= 0) {
      const rate = held ? `, ${(nbytes / held / 1e3).toPrecision(3)} GB/s while it holds its pipe` : "";
      rows.push(["bytes", [`${nbytes} on ${words[way]}${rate}`]]);
    }
    if (line >= 0) rows.push(["written by", [node("code", words[line] + (words[code] ? `\u00a0 ${words[code]}` : ""))]]);
    return [node("dl", ...rows.flatMap(([name, told]) => [node("dt", name), node("dd", ...told)]))];
  }
}

window.timelines = begun((host, data) => new Timeline(host, decoded(data)));
