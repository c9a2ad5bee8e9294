// How the lanes of cores and pipes are laid out and drawn; page.js knows what they mean.

const HEAD = 26, LEFT = 78, DIM = 0.22;
// From so many pixels on a span of a summary shows its micro-ops, and so wide is what a search finds.
const OPEN = 48, SEEN = 60;
const FONT = "'DejaVu Sans', Verdana, sans-serif";

// Of the time from its start until its pipe is free, how much an entry holds it: all of it, or what
// micro-ops that are joined into one do.
const share = (lane, i) => lane.ops[i].length > 8 ? lane.ops[i][8] / Math.max(1, lane.cycles[i]) : 1;
const channels = (color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
const tint = (color, share, paper) => "#" + channels(color).map((one, n) =>
  Math.round(channels(paper)[n] * (1 - share) + one * share).toString(16).padStart(2, "0")).join("");

class Lanes extends Zoomed {
  constructor(host, data) {
    super(host, data, LEFT);
    this.folded = new Set();
    this.wanted = () => true;
    this.fits = new Map();
    this.heads = data.lanes.map((lane, l) => this.head(lane, l));
    this.tall.append(...this.heads);
    this.layout();
  }
  head(lane, l) {
    // For keys and readers of screens; hands reach through it to the canvas. Arrow keys go from one
    // to the next, so that Tab stops at one of them only.
    const made = node("button");
    made.className = "head";
    made.setAttribute("aria-label", lane.name);
    made.addEventListener("click", () => this.fold(l));
    made.addEventListener("focus", () => this.stop(made));
    made.addEventListener("keydown", (e) => {
      const shown = this.heads.filter((head) => !head.hidden), by = { ArrowUp: -1, ArrowDown: 1 }[e.key];
      if (by) { shown[shown.indexOf(made) + by]?.focus(); e.preventDefault(); }
    });
    return made;
  }
  stop(at) { for (const head of this.heads) head.tabIndex = head === at ? 0 : -1; }
  headed() {
    this.heads.forEach((head, l) => {
      head.hidden = !this.wanted(this.data.lanes[l]);
      head.setAttribute("aria-expanded", !this.folded.has(l));
    });
    for (const { head, y } of this.rows) if (head !== undefined) this.heads[head].style.top = `${y}px`;
    const shown = this.heads.filter((head) => !head.hidden);
    this.stop(shown.find((head) => head === document.activeElement) ?? shown[0]);
  }
  layout() {
    // Cores that are wanted, each with a row for a pipe unless it is folded.
    this.rows = [];
    this.places = new Map();
    let y = 0;
    this.data.lanes.forEach((lane, l) => {
      if (!this.wanted(lane)) return;
      this.rows.push({ head: l, y, high: HEAD });
      y += HEAD;
      if (this.folded.has(l)) return;
      lane.pipes.forEach((found, pipe) => {
        if (!found.length) return;
        const row = { lane: l, pipe, y, high: ROW };
        this.rows.push(row);
        this.places.set(`${l} ${pipe}`, row);
        y += ROW;
      });
    });
    this.height = Math.max(y + GAP, 2 * HEAD);
    this.headed();
  }

  // A lane, or the part of one that is shown micro-op by micro-op.
  laneOf({ lane, part }) { return part === undefined ? this.data.lanes[lane] : this.behind.of(lane, part); }
  wide(found) {
    const lane = this.laneOf(found);
    return (lane.end[found.op] - lane.start[found.op]) * this.scale();
  }
  // The part that stands for an entry of so many pixels, if its micro-ops are there.
  inner({ lane, part, op }, pixels) {
    const number = part === undefined ? this.data.lanes[lane].ops[op][9] ?? -1 : -1;
    return number >= 0 && pixels > OPEN && this.behind.of(lane, number) ? number : undefined;
  }
  // The title of the core whose rows are in sight where it has been scrolled away.
  pinned() {
    const heads = this.rows.filter((row) => row.head !== undefined), at = heads.findLastIndex((row) => row.y < this.top);
    const next = heads[at + 1];
    return at < 0 || (next && next.y < this.top + HEAD) ? null : heads[at];
  }

  first(lane, found, us) {
    // The first of a pipe's micro-ops whose result is not there before *us*; ends ascend.
    let low = 0, high = found.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane.end[found[middle]] < us) low = middle + 1; else high = middle;
    }
    return low;
  }

  // ---- drawing ----

  paint(g) {
    const ink = this.color("ink"), soft = this.color("soft"), fade = this.color("fade");
    this.inks = { ink, soft, fade };
    this.opened = new Map();
    g.textBaseline = "middle";
    if (!this.rows.length) {
      g.fillStyle = soft;
      g.textAlign = "left";
      g.font = `12px ${FONT}`;
      g.fillText(say("No core that ran is chosen."), 8, HEAD);
    }
    for (const row of this.rows) {
      if (row.y + row.high < this.top || row.y > this.top + this.high) continue;
      g.fillStyle = ink;
      if (row.head !== undefined) { this.title(g, row.head, row.y); continue; }
      g.font = `12px ${FONT}`;
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
    const pinned = this.pinned();
    if (pinned) {
      g.fillStyle = this.color("back");
      g.fillRect(0, this.top, this.width, HEAD);
      g.fillStyle = ink;
      this.title(g, pinned.head, this.top);
    }
    const { total, end } = this.data, shorter = total < end * (1 - 1e-6);
    this.where.textContent = `${time(Math.max(0, this.from))} to ${time(Math.min(end, this.to))} of ${time(end)}`
      + (shorter ? `; this run ends at ${time(total)}` : "");
  }
  title(g, l, y) {
    g.textAlign = "left";
    g.font = `bold 12px ${FONT}`;
    g.fillText(`${this.folded.has(l) ? "\u25b8" : "\u25be"} ${say(this.data.lanes[l].name)}`, 8, y + HEAD / 2 + 2);
  }
  lane(g, row) {
    const opened = [], names = this.spans(g, row, { lane: row.lane }, opened);
    for (const part of opened) {
      this.opened.set(`${row.lane} ${part}`, { lane: row.lane, part });
      names.push(...this.spans(g, row, { lane: row.lane, part }, []));
    }
    this.path(g, row);
    g.font = `11px ${FONT}`;
    g.textAlign = "left";
    // Neighbours may come from different parts.
    names.sort(([one, i], [other, n]) => one.start[i] - other.start[n]);
    for (const [place, [lane, i, own]] of names.entries()) {
      const next = names[place + 1], room = next ? Math.min(own, this.x(next[0].start[next[1]]) - this.x(Math.max(this.from, lane.start[i]))) : own;
      const text = this.data.words[lane.ops[i][1]];
      g.fillStyle = this.asked !== "" && !this.fits.get(lane.ops[i]) ? this.inks.soft : "black";
      if (g.measureText(text).width < room - 6) g.fillText(text, Math.max(LEFT, this.x(lane.start[i])) + 4, row.y + ROW / 2);
    }
    for (const [mark, style] of [[this.over, this.inks.soft], [this.picked, this.inks.ink]]) {
      const lane = mark && mark.lane === row.lane && this.laneOf(mark);
      if (!lane || lane.ops[mark.op][0] !== row.pipe) continue;
      g.strokeStyle = style;
      g.lineWidth = mark === this.picked ? 2 : 1;
      const x = this.x(lane.start[mark.op]);
      g.strokeRect(x, row.y + GAP / 2, Math.max(2, this.x(lane.end[mark.op]) - x), ROW - GAP);
      g.lineWidth = 1;
    }
  }
  // Draw a lane, or a part of it, on a row; parts that are to be drawn one by one are left for *opened*.
  // Returns those with room for a name.
  spans(g, row, of, opened) {
    const lane = this.laneOf(of), found = lane.pipes[row.pipe], color = this.data.colors[row.pipe];
    const light = tint(color, 0.35, this.inks.fade), searched = this.asked !== "", top = row.y + GAP / 2, high = ROW - GAP;
    let joined = null, names = [];
    const flush = () => {
      // Many within a pixel: as high as the share of the time that they hold the pipe.
      if (!joined) return;
      const share = Math.min(1, Math.max(0.15, joined.held / Math.max(1e-12, joined.to - joined.from)));
      g.fillStyle = color;
      g.globalAlpha = searched && !joined.fits ? DIM : 1;
      g.fillRect(this.x(joined.from), top + high * (1 - share), Math.max(1, this.x(joined.to) - this.x(joined.from)), high * share);
      g.globalAlpha = 1;
      joined = null;
    };
    const pixel = 1 / this.scale();
    for (let n = this.first(lane, found, this.from); n < found.length; n++) {
      const i = found[n];
      if (lane.start[i] > this.to) break;
      if (lane.end[i] - lane.free[i] > pixel) {
        g.fillStyle = light;
        g.globalAlpha = searched && !this.fits.get(lane.ops[i]) ? DIM : 1;
        g.fillRect(this.x(lane.free[i]), top, (lane.end[i] - lane.free[i]) / pixel, high);
      }
    }
    g.globalAlpha = 1;
    for (let n = this.first(lane, found, this.from); n < found.length; n++) {
      const i = found[n], wide = (lane.free[i] - lane.start[i]) / pixel;
      if (lane.start[i] > this.to) break;
      if (wide < 2) {
        if (joined && (lane.free[i] - joined.from) / pixel > 2) flush();
        joined = joined || { from: lane.start[i], to: lane.free[i], held: 0, fits: false };
        joined.fits = joined.fits || this.fits.get(lane.ops[i]) === true;
        joined.to = Math.max(joined.to, lane.free[i]);
        joined.held += share(lane, i) * (lane.free[i] - lane.start[i]);
        continue;
      }
      flush();
      const inner = this.inner({ ...of, op: i }, wide);
      if (inner !== undefined) { opened.push(inner); continue; }
      // Joined micro-ops are as high as the share of the time that they hold the pipe.
      const tall = high * Math.max(0.15, share(lane, i));
      g.fillStyle = color;
      // What a search finds stands out: all else is dim.
      g.globalAlpha = searched && !this.fits.get(lane.ops[i]) ? DIM : 1;
      g.fillRect(this.x(lane.start[i]), top + high - tall, wide - (wide > 4 ? 1 : 0), tall);
      g.globalAlpha = 1;
      const next = n + 1 < found.length ? lane.start[found[n + 1]] : this.to;
      const room = Math.min(lane.end[i], next) - Math.max(this.from, lane.start[i]);
      if (room / pixel > 40) names.push([lane, i, room / pixel]);
    }
    flush();
    return names;
  }
  path(g, row) {
    g.fillStyle = this.inks.ink;
    for (const [pipe, since, until] of this.data.lanes[row.lane].path)
      if (pipe === row.pipe && until >= this.from && since <= this.to)
        g.fillRect(this.x(since), row.y + ROW - 3, Math.max(1, this.x(until) - this.x(since)), 3);
  }
  // The set of a flag inside a core that a wait took, and what the flag carries; null if none is known.
  setOf({ lane: l, part, op }) {
    const lane = this.laneOf({ lane: l, part });
    if (part !== undefined) return lane.sets.has(op) ? this.behind.find(l, lane.sets.get(op)) : null;
    const [set, words] = lane.setter.get(op) ?? [];
    return set === undefined ? null : { lane: l, op: set, words };
  }
  // Where a flag that a wait took begins and ends: its lane, pipe and time; undefined if none is known.
  flag(wait) {
    const lane = this.laneOf(wait), set = this.setOf(wait), pipe = lane.ops[wait.op][0];
    if (!set) return this.other(wait);
    const from = this.laneOf(set);
    return { from: [wait.lane, from.ops[set.op][0], from.end[set.op]], to: [wait.lane, pipe, lane.free[wait.op]] };
  }
  arrows(g) {
    const most = 150, shown = [], across = [], seen = new Set(), picked = this.picked;
    const inside = ({ from, to }) => to[2] >= this.from && from[2] <= this.to;
    // Those that a pipe stood still for.
    const add = (of, op) => {
      const lane = this.laneOf(of);
      if (shown.length > most || lane.free[op] < this.from || lane.start[op] > this.to) return;
      const flag = this.flag({ ...of, op });
      if (flag && flag.from[2] > lane.start[op] && inside(flag)) shown.push(flag);
    };
    for (const row of this.rows)
      if (row.lane !== undefined && row.y + ROW > this.top && row.y < this.top + this.high) seen.add(row.lane);
    for (const l of seen) for (const wait of this.data.lanes[l].setter.keys()) add({ lane: l }, wait);
    for (const of of this.opened.values()) for (const wait of this.laneOf(of)?.sets.keys() ?? []) add(of, wait);
    for (const flag of this.data.handed)
      if (seen.has(flag.to[0]) && across.length <= most && inside(flag)) across.push(flag);
    g.save();
    g.beginPath();
    g.rect(LEFT, 0, this.width - LEFT, this.height);
    g.clip();
    if (shown.length <= most) for (const flag of shown) this.arrow(g, flag, false, this.inks.ink);
    if (across.length <= most) for (const flag of across) this.arrow(g, flag, false, this.color("link"));
    const waits = picked ? this.waited(this.laneOf(picked), picked.op) : [];
    for (const flag of waits.map((op) => this.flag({ ...picked, op })))
      if (flag) this.arrow(g, flag, true, flag.from[0] === flag.to[0] ? this.inks.ink : this.color("link"));
    g.restore();
  }
  // The flag of another core that a wait took.
  other(wait) {
    const lane = this.laneOf(wait), pipe = lane.ops[wait.op][0], free = lane.free[wait.op];
    return this.data.handed.find(({ to }) => to[0] === wait.lane && to[1] === pipe && Math.abs(to[2] - free) < 1e-9);
  }
  arrow(g, { from: [l0, p0, set], to: [l1, p1, passed] }, strong, color) {
    const from = this.places.get(`${l0} ${p0}`), to = this.places.get(`${l1} ${p1}`);
    if (!from || !to || from === to) return;
    const x0 = this.x(set), x1 = this.x(passed);
    const down = to.y > from.y, y0 = from.y + ROW / 2, y1 = down ? to.y + 3 : to.y + ROW - 3;
    g.strokeStyle = g.fillStyle = color;
    g.globalAlpha = strong || l0 !== l1 ? 1 : 0.5;
    g.lineWidth = strong ? 1.6 : 0.8;
    g.beginPath(); g.moveTo(x0, y0); g.lineTo(x1, y1); g.stroke();
    const angle = Math.atan2(y1 - y0, x1 - x0), size = strong ? 7 : 5;
    g.beginPath();
    g.moveTo(x1, y1);
    g.lineTo(x1 - size * Math.cos(angle - 0.4), y1 - size * Math.sin(angle - 0.4));
    g.lineTo(x1 - size * Math.cos(angle + 0.4), y1 - size * Math.sin(angle + 0.4));
    g.fill();
    g.globalAlpha = g.lineWidth = 1;
  }
}
