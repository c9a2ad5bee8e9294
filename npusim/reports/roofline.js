// The roofline of a page: what each memory, pipe and path allows, and what the runs reached of it.

const MARK = 6.5, DASHES = ["", "9 5", "2 4", "12 4 2 4", "5 3"];
const corners = (count, turn, far = () => 1) => [...Array(count).keys()].map((n) => {
  const angle = (turn + 360 * n / count) * Math.PI / 180;
  return [far(n) * Math.cos(angle), far(n) * Math.sin(angle)];
});
const cross = (turn) => corners(12, turn, (n) => n % 3 === 1 ? 0.5 : 1.05);
// Markers by the letters that matplotlib has for them.
const MARKERS = {
  o: corners(32, 0), s: corners(4, 45, () => 1.2), "^": corners(3, -90, () => 1.3), D: corners(4, 0, () => 1.25), v: corners(3, 90, () => 1.3),
  "<": corners(3, 180, () => 1.3), ">": corners(3, 0, () => 1.3), P: cross(-30), X: cross(15), p: corners(5, -90, () => 1.15),
  h: corners(6, -90, () => 1.15), d: corners(4, 0, (n) => n % 2 ? 1.3 : 0.8), H: corners(6, 0, () => 1.15), 8: corners(8, 22.5, () => 1.1),
};
const marker = (letter) => drawn("path", { class: "sign", d: `M${MARKERS[letter].map(([x, y]) => `${(x * MARK).toFixed(2)} ${(y * MARK).toFixed(2)}`).join("L")}Z` });
const percent = (share) => `${digits(100 * share, share < 0.01 ? 2 : 3)} %`;
const unique = (all) => [...new Set(all)];

class Roofline extends Plot {
  constructor(host, data) {
    super(host);
    this.data = data;
    this.rows = data.rows.map(([run, title, name, slanted, flat, intensity, ops]) => {
      const [roof, peak] = [data.limits[slanted], data.limits[flat]], bound = intensity * roof.per_s;
      return { run, title, name, slanted, flat, intensity, ops, allowed: Math.min(peak.per_s, bound), share: ops / Math.min(peak.per_s, bound), isSlanted: bound < peak.per_s };
    });
    this.several = data.runs.length > 1;
    this.chooser = host.querySelector("select");
    this.legend = host.querySelector(".legend");
    this.details = host.querySelector(".details");
    this.where = host.querySelector(".where");
    this.tip = node("div");
    this.tip.className = "tip";
    this.tip.hidden = true;
    this.tip.setAttribute("aria-hidden", "true");
    this.box.append(this.tip);
    this.svg.setAttribute("aria-label", `roofline of ${host.dataset.about}`);
    this.svg.setAttribute("aria-describedby", "keysroofs");
    // Not of the drawing: one that hears of focus is a stop of its own for Tab.
    this.box.addEventListener("focusin", (e) => this.focused(this.item(e.target)));
    this.box.addEventListener("focusout", () => this.hover(null));
    this.names = ["roofs", "point", "slanted", "flat", "runs"];
    this.away = new Set();
    this.told = this.picked = null;
    this.chooser.addEventListener("change", () => { this.picked = null; this.choose(); this.changed(); });
    this.choose();
  }
  changed() {}

  // ---- what is shown ----

  choose() {
    // The points and the roofs of a group; what coincides is one.
    const group = this.chooser.value, rows = this.rows.filter((row) => group === "all" || row.title === group);
    const gather = (kind, key, order) => {
      const found = new Map();
      for (const row of rows) found.set(key(row), [...(found.get(key(row)) ?? []), row]);
      return [...found.values()].map((own) => ({ kind, rows: own.sort((a, b) => a.allowed - b.allowed), row: own[0] })).sort((a, b) => order(a.row) - order(b.row));
    };
    const points = gather("point", (row) => `${row.run} ${row.intensity} ${row.ops}`, (row) => row.run * 1e9 + Math.log(row.intensity));
    const roofs = (part) => gather(part, (row) => row[part], (row) => -this.data.limits[row[part]].per_s).map((item) => ({ ...item, limit: this.data.limits[item.row[part]] }));
    this.items = [...points, ...roofs("slanted"), ...roofs("flat")];
    this.items.forEach((item) => this.make(item));
    this.lines.replaceChildren(...this.items.filter((item) => item.kind !== "point").map((item) => item.element));
    this.marks.replaceChildren(...this.items.filter((item) => item.kind === "point").map((item) => item.element));
    this.tell(null);
    this.enter(this.items[0]);
    const limits = (part) => rows.map((row) => this.data.limits[row[part]].per_s), across = rows.flatMap((row) => [row.intensity, this.ridge(row)]);
    const left = Math.min(...across) / 6, lowest = Math.min(Math.min(...rows.map((row) => row.ops)) / 4, left * Math.min(...limits("slanted")));
    this.units[1] = unique(rows.map((row) => this.data.limits[row.flat].unit)).sort().at(-1);
    this.explain();
    this.show();
    this.hold([left, lowest], [Math.max(...across) * 6, Math.max(...limits("flat")) * 3]);
  }
  ridge(row) { return this.data.limits[row.flat].per_s / this.data.limits[row.slanted].per_s; }
  make(item) {
    const { kind } = item, line = kind !== "point";
    const parts = line ? [drawn("path", { class: "hit" }), drawn("path", { class: "line", "stroke-dasharray": this.dash(item) })]
      : [drawn("path", { class: "drop" }), drawn("g", {}, drawn("circle", { class: "hit", r: 13 }), marker(this.look(item)[2]))];
    item.element = drawn("g", { class: `item ${kind}`, role: "button", "aria-pressed": false, "aria-label": this.brief(item).join("; "), tabindex: -1 }, ...parts);
    item.element.item = item;
    this.paintOf(item, item.element);
  }
  paintOf(item, element) {
    const look = this.look(item);
    if (!look) return;
    element.style.setProperty("--light", look[0]);
    element.style.setProperty("--dark", look[1]);
  }
  // A run has a look of its own, and its roofs have its colour; of a single run, each roof has one.
  look({ kind, row, rows }) {
    const { looks, limits } = this.data;
    if (!this.several) {
      this.order ??= unique(this.rows.map((each) => each.slanted));
      return kind === "flat" ? null : looks[this.order.indexOf(row.slanted) % looks.length];
    }
    if (kind === "point") return looks[row.run % looks.length];
    const own = unique(this.data.runs.keys()).filter((run) => this.data.runs[run].chip === limits[rows[0][kind]].chip);
    return own.length === 1 ? looks[own[0] % looks.length] : null;
  }
  dash(item) { return this.several ? DASHES[item.limit.chip % DASHES.length] || undefined : undefined; }
  item(element) { return element?.closest?.(".item")?.item ?? null; }
  isSeen(item) { return item.rows.some((row) => !this.away.has(row.run)); }

  // ---- what is told ----

  named(rows) { return unique(rows.map((row) => row.name)).join(", "); }
  chip(limit) {
    const { chips, runs } = this.data;
    if (!this.several) return chips[limit.chip].name;
    return `${chips[limit.chip].name} (${runs.filter((run) => this.data.chips[run.chip] === chips[limit.chip]).map((run) => run.letter).join(", ")})`;
  }
  value(limit) { return scaled(limit.per_s, limit.unit); }
  trust(limit) { return unique(limit.terms.flatMap(([, keys]) => keys).map((key) => this.data.chips[limit.chip].numbers[key][1])).filter((word) => word).join(", "); }
  formula(limit) { return limit.terms.map(([factor, keys]) => [...(factor === 1 ? [] : [digits(factor)]), ...keys].join(" x ")).join(" + "); }
  source(limit) { return `source: ${this.formula(limit)} (${this.trust(limit)})`; }
  reached(row) { return scaled(row.ops, this.data.limits[row.flat].unit); }
  allowed(row) { return scaled(row.allowed, this.data.limits[row.flat].unit); }
  above(row) {
    const slanted = this.data.limits[row.slanted], flat = this.data.limits[row.flat];
    return row.isSlanted ? `the slanted part of its roof: ${row.name}, ${this.value(slanted)}` : `the flat part of its roof: ${flat.words}, ${this.value(flat)}`;
  }
  over(row) { return this.data.limits[row.isSlanted ? row.slanted : row.flat]; }
  whose(row) { return this.several ? `${this.data.runs[row.run].letter}, ${this.data.runs[row.run].name}` : this.data.runs[row.run].name; }
  title({ kind, row, rows, limit }) {
    if (kind === "point") return `${this.named(rows)}${this.several ? `, ${this.data.runs[row.run].letter}` : ""}`;
    const whose = this.data.chips.length > 1 ? ` of ${this.chip(limit)}` : "";
    return kind === "flat" ? `${limit.words}${whose}: ${this.value(limit)}` : `${this.named(rows)}${whose}: ${this.value(limit)}`;
  }
  brief(item) {
    // In some lines, for who points at it and for who hears it.
    const { kind, row, rows, limit } = item;
    if (kind === "point") return [this.title(item), `reached ${this.reached(row)}, ${percent(row.share)} of the ${this.allowed(row)} allowed`,
      `at ${digits(row.intensity)} operations a byte`, `above it ${this.above(row)}`, this.source(this.over(row))];
    const best = rows.reduce((a, b) => (b.share > a.share ? b : a));
    return [this.title(item), kind === "flat" ? "a flat part: no more operations a second" : "a slanted part: no more bytes a second",
      this.source(limit), `most is reached by ${best.name}${this.several ? ` of ${this.data.runs[best.run].letter}` : ""}: ${this.reached(best)}, ${percent(best.share)} of the ${this.allowed(best)} allowed`];
  }
  facts(item) {
    const { kind, row, rows, limit } = item, { limits } = this.data;
    if (kind !== "point") return this.facted([
      ["roof", [this.title(item)]],
      ["part", [kind === "flat" ? "flat: no more operations a second" : `slanted: no more bytes a second, up to ${unique(rows.map((each) => digits(this.ridge(each)))).join(" or ")} operations a byte`]],
      ["made of", [node("code", this.formula(limit))]],
      ["points", lined(rows.map((each) => [this.link(each), ` reached ${this.reached(each)}, ${percent(each.share)} of the ${this.allowed(each)} allowed`]))],
    ], [limit]);
    const parts = unique(rows.flatMap((each) => [this.over(each), limits[each.slanted], limits[each.flat]]));
    const told = (say) => {
      // For each of the rows that coincide here, or for all of which it is the same together.
      const alike = new Map();
      for (const each of rows) alike.set(say(each), [...(alike.get(say(each)) ?? []), each]);
      return lined([...alike].map(([text, own]) => [alike.size > 1 ? `${this.named(own)}: ${text}` : text]));
    };
    return this.facted([
      ["point", [`${this.named(rows)} of ${this.whose(row)}`]],
      ["reached", [`${this.reached(row)} at ${digits(row.intensity)} operations a byte`]],
      ["allowed", told((each) => `${this.allowed(each)}, of which ${percent(each.share)} are reached`)],
      ["above it", told((each) => this.above(each))],
      ...parts.map((part) => [part.unit === "B/s" ? "slanted part" : "flat part", [`${this.value(part)} = `, node("code", this.formula(part))]]),
    ], parts);
  }
  facted(rows, limits) {
    const chip = this.data.chips[limits[0].chip], keys = unique(limits.flatMap((limit) => limit.terms.flatMap(([, own]) => own)));
    const list = node("dl", ...rows.flatMap(([name, told]) => [node("dt", name), node("dd", ...told)]));
    const numbers = keys.map((key) => { const [value, trust, text] = chip.numbers[key]; return [[node("code", key)], value.toLocaleString("en"), trust, text]; });
    return [list, tabled(`Numbers of ${chip.name} that its roof is made of`, ["number", "value", "confidence", "source"], numbers, 4)];
  }
  link(row) {
    const made = node("a", this.several ? `${row.name} of ${this.data.runs[row.run].letter}` : row.name);
    made.addEventListener("click", () => this.go(this.items.find((item) => item.kind === "point" && item.rows.includes(row))));
    return made;
  }
  help() {
    return lined([["A point is what a run reached; the line that is its roof is what was allowed there: bytes a second where it slants, operations a second where it is flat. "
      + "Click either to see by how much it was missed, and where the numbers come from."]]);
  }
  show() { this.details.replaceChildren(...(this.picked ? this.facts(this.picked) : this.help())); }
  explain() {
    // Which look is which: runs can be left out, roofs be picked.
    const entry = (item, sign, text, act) => {
      const made = node("button", drawn("svg", { viewBox: "-14 -8 28 16", width: 28, height: 16, class: `item ${item.kind}`, "aria-hidden": true }, ...sign), text);
      this.paintOf(item, made.firstChild);
      made.addEventListener("click", () => act(made));
      return made;
    };
    const runs = this.several ? this.data.runs.map((run, n) => {
      const made = entry({ kind: "point", row: { run: n } }, [marker(this.data.looks[n % this.data.looks.length][2])], `${run.letter} ${run.name}`, () => {
        if (!this.away.delete(n)) this.away.add(n);
        made.setAttribute("aria-pressed", !this.away.has(n));
        this.draw();
        this.changed();
      });
      made.setAttribute("aria-pressed", !this.away.has(n));
      return made;
    }) : [];
    const roofs = this.items.filter((item) => item.kind === "slanted").map((item) => entry(item, [drawn("path", { class: "line", d: "M-14 0H14", "stroke-dasharray": this.dash(item) }),
      ...(this.several ? [] : [marker(this.look(item)[2])])], this.title(item), () => this.go(item)));
    this.legend.replaceChildren(...runs, ...roofs);
  }

  // ---- hands ----

  hover(element, x, y) {
    const item = this.item(element);
    this.where.textContent = x === undefined || x < 0 || y < 0 || x > this.wide || y > this.high ? ""
      : `${digits(this.under(0, x), 3)} op/byte, ${scaled(+this.under(1, y).toPrecision(3), this.units[1])}`;
    if (item !== this.told) this.tell(item, x, y);
  }
  tell(item, x, y) {
    // A few lines beside it, which keep within the chart.
    this.told?.element.classList.remove("told");
    this.told = item;
    this.tip.hidden = !item;
    if (!item) return;
    item.element.classList.add("told");
    const [title, ...rest] = this.brief(item);
    const more = this.beside(item).length - 1;
    if (more) rest.push(`${more} more here; click again for the next`);
    this.tip.replaceChildren(node("b", title), ...rest.map((line) => node("div", line)));
    const [left, top] = item.kind === "point" ? this.spot(item) : [x ?? this.wide / 2, y ?? this.high / 2], { offsetWidth: wide, offsetHeight: high } = this.tip;
    const across = this.left + left + 16 + wide < this.box.clientWidth ? left + 16 : left - 16 - wide;
    this.tip.style.left = `${Math.max(0, Math.min(this.left + across, this.box.clientWidth - wide))}px`;
    this.tip.style.top = `${TOP + top + 16 + high < this.high + TOP ? TOP + top + 16 : Math.max(0, TOP + top - 16 - high)}px`;
  }
  spot({ row }) { return [this.at(0, row.intensity), this.at(1, row.ops)]; }
  middle(item) {
    // Where a roof is in sight, or a place of it that can be.
    if (item.kind === "point") return this.spot(item);
    const [from, to] = this.ends(item), within = (value, wide) => Math.min(Math.max(value, 30), wide - 30);
    const x = within((Math.max(0, from[0]) + Math.min(this.wide, to[0])) / 2, this.wide), slope = (to[1] - from[1]) / (to[0] - from[0] || 1);
    const held = Math.min(Math.max(x, from[0]), to[0]);
    return [held, from[1] + (held - from[0]) * slope];
  }
  focused(item) {
    if (!item) return;
    this.enter(item);
    const spot = this.middle(item);
    this.reveal(...spot);
    this.tell(item, ...this.middle(item));
  }
  enter(item) {
    // Tab comes to the one that was last in focus; arrow keys lead on.
    this.current?.element.setAttribute("tabindex", -1);
    this.current = item;
    item.element.setAttribute("tabindex", 0);
  }
  // Points that cover each other, of which each click picks the next.
  beside(item) {
    if (item.kind !== "point") return [item];
    const [x, y] = this.spot(item), near = (other) => Math.hypot(...this.spot(other).map((at, axis) => at - [x, y][axis])) < MARK;
    return this.items.filter((other) => other.kind === "point" && this.isSeen(other) && near(other));
  }
  pick(target) {
    const found = this.item(target), near = found ? this.beside(found) : [], place = near.indexOf(this.picked);
    this.set(place < 0 ? found : near[(place + 1) % near.length]);
  }
  set(item) {
    this.picked = item;
    for (const each of this.items) { each.element.classList.toggle("picked", each === item); each.element.setAttribute("aria-pressed", each === item); }
    this.show();
    this.changed();
  }
  go(item) {
    this.set(item);
    item.element.focus({ preventScroll: true });
  }
  act(key) {
    const { current } = this, seen = this.items.filter((item) => this.isSeen(item)), step = (by) => seen.at((seen.indexOf(current) + by) % seen.length);
    const part = (kind) => seen.find((item) => item.kind === kind && item.row[kind] === current.row[kind] || item.kind === kind && item.rows.includes(current.row));
    const acts = { ArrowRight: () => step(1), ArrowLeft: () => step(-1), ArrowUp: () => current.kind === "point" ? part(current.row.isSlanted ? "slanted" : "flat") : current,
      ArrowDown: () => current.kind === "point" ? current : seen.find((item) => item.kind === "point" && item.rows.some((row) => current.rows.includes(row))) };
    if (acts[key]) acts[key]()?.element.focus({ preventScroll: true });
    else if (key === "Enter" || key === " ") this.set(current);
    else if (key === "Escape") { this.set(null); this.tell(null); }
    else return false;
    return true;
  }

  // ---- drawing ----

  ends({ kind, rows, limit }) {
    // Pixels where a roof begins and ends: it slants up to the last of its ridges, and is flat from the first one on.
    const ridges = rows.map((row) => this.ridge(row)), low = 10 ** (this.full[0][0] - 1), high = 10 ** (this.full[1][0] + 1);
    const [from, to] = kind === "slanted" ? [low, Math.max(...ridges)] : [Math.min(...ridges), high];
    return [from, to].map((x) => [this.at(0, x), this.at(1, kind === "slanted" ? x * limit.per_s : limit.per_s)]);
  }
  paint() {
    const lines = [];
    for (const item of this.items) {
      const { kind, element, row } = item;
      element.style.display = this.isSeen(item) ? "" : "none";
      if (kind === "point") {
        const [x, y] = this.spot(item);
        element.lastChild.setAttribute("transform", `translate(${x} ${y})`);
        element.firstChild.setAttribute("d", `M${x} ${y}V${this.at(1, row.allowed)}`);
        continue;
      }
      const [from, to] = this.ends(item);
      for (const part of element.children) part.setAttribute("d", `M${from.join(" ")}L${to.join(" ")}`);
      item.height = (x) => x < from[0] || x > to[0] ? null : from[1] + (x - from[0]) * (to[1] - from[1]) / (to[0] - from[0]);
      if (this.isSeen(item)) lines.push(item.height);
    }
    // Tab comes to what is in sight.
    if (!this.isSeen(this.current)) this.enter(this.items.find((item) => this.isSeen(item)) ?? this.current);
    this.name(new Room(this.wide, this.high, lines));
    if (this.told) this.tell(this.told, ...this.middle(this.told));
  }
  name(room) {
    // Roofs have their names where there is room, the highest first, then points have theirs.
    const seen = this.items.filter((item) => this.isSeen(item)), of = (kind) => seen.filter((item) => item.kind === kind);
    for (const item of of("point")) room.take(...this.spot(item), MARK + 3);
    const whose = (limit) => this.data.chips.length > 1 ? `, ${this.chip(limit)}` : "";
    for (const item of of("flat")) {
      const [[left], [, y]] = [this.ends(item)[0], this.ends(item)[1]], value = this.value(item.limit);
      const places = (length) => [this.wide - length - 6, (Math.max(0, left) + this.wide - length) / 2, Math.max(6, left + 6)].flatMap((x) => [[x, y - 11, 0], [x, y + 11, 0]]);
      this.write(room, [`${item.limit.words}${whose(item.limit)}: ${value}`, `${value}${whose(item.limit)}`, value], places, { own: item.height, color: (text) => this.paintOf(item, text) });
    }
    for (const item of of("slanted")) {
      const [from, to] = this.ends(item), angle = Math.atan2(to[1] - from[1], to[0] - from[0]), aside = [12 * Math.sin(angle), -12 * Math.cos(angle)];
      // From where the line comes into sight until it leaves it.
      const enter = Math.max(0, from[0] + (this.high - from[1]) / Math.tan(angle)), leave = Math.min(this.wide, to[0], from[0] - from[1] / Math.tan(angle));
      const places = (length) => [0.06, 0.2, 0.34, 0.48, 0.62, 0.76, 0.9].flatMap((share) => {
        const x = enter + share * (leave - enter - length * Math.cos(angle)), y = from[1] + (x - from[0]) * Math.tan(angle);
        return [1, -1].map((side) => [x + side * aside[0], y + side * aside[1], angle]);
      });
      const value = this.value(item.limit), first = item.row.name;
      this.write(room, [`${this.named(item.rows)} ${value}${whose(item.limit)}`, `${first} ${value}`, first], places, { own: item.height, color: (text) => this.paintOf(item, text) });
    }
    for (const item of of("point")) {
      const [x, y] = this.spot(item), letter = this.several ? `${this.data.runs[item.row.run].letter} ` : "", share = percent(item.row.share);
      const places = (length) => [[x - length / 2, y + 19, 0], [x - length / 2, y - 19, 0], [x + 13, y, 0], [x - 13 - length, y, 0], [x + 9, y + 16, 0], [x - 9 - length, y + 16, 0]];
      this.write(room, [`${letter}${this.named(item.rows)} ${share}`, `${letter}${item.row.name} ${share}`, `${letter}${item.row.name}`, ...(this.several ? [letter.trim()] : [])], places, { most: 1, bold: true });
    }
  }

  // ---- address ----

  state() {
    const { picked, away, data } = this, group = this.chooser.value;
    const kept = data.runs.filter((_, n) => !away.has(n)).map((run) => run.letter).join(",");
    return { roofs: group === data.titles[0][0] && !picked ? "" : group, ...(picked ? { [picked.kind]: `${picked.row.run}.${this.number(picked.row)}` } : {}), runs: away.size ? kept || "none" : "" };
  }
  number(row) { return this.rows.filter((each) => each.run === row.run).indexOf(row); }
  restore(told) {
    const letters = told("runs").split(",");
    this.away = new Set(told("runs") ? [...this.data.runs.keys()].filter((n) => !letters.includes(this.data.runs[n].letter)) : []);
    const known = [...this.chooser.options].map((option) => option.value);
    this.chooser.value = known.includes(told("roofs")) ? told("roofs") : known[0];
    this.picked = null;
    this.choose();
    for (const kind of ["point", "slanted", "flat"]) {
      const [run, place] = told(kind).split(".").map(Number), row = this.rows.filter((each) => each.run === run)[place];
      const found = row && this.items.find((item) => item.kind === kind && item.rows.includes(row));
      if (found) { this.set(found); this.enter(found); }
    }
  }
}

beside.push(...[...document.querySelectorAll(".roofline")].map(async (host) => {
  const data = await unpacked(document.getElementById(host.dataset.source).textContent);
  return window.roofline = new Roofline(host, data);
}));
