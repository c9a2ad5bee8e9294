// The roofline of a page: what each memory, pipe and path allows, and what the runs reached of it.

const MARK = 6.5, DASHES = ["", "9 5", "2 4", "12 4 2 4", "5 3"];
const corners = (count, turn, far = () => 1) => [...Array(count).keys()].map((n) => {
  const angle = (turn + 360 * n / count) * Math.PI / 180;
  return [far(n) * Math.cos(angle), far(n) * Math.sin(angle)];
});
const cross = (turn) => corners(12, turn, (n) => n % 3 === 1 ? 0.5 : 1.05);
// Markers by the letters that matplotlib has for them.
const MARKERS = {
  o: corners(32, 0), s: corners(4, 45, () => 1.2), D: corners(4, 0, () => 1.25), d: corners(4, 0, (n) => n % 2 ? 1.3 : 0.8),
  "^": corners(3, -90, () => 1.3), v: corners(3, 90, () => 1.3), "<": corners(3, 180, () => 1.3), ">": corners(3, 0, () => 1.3),
  P: cross(-30), X: cross(15), p: corners(5, -90, () => 1.15), h: corners(6, -90, () => 1.15), H: corners(6, 0, () => 1.15),
  8: corners(8, 22.5, () => 1.1),
};
function marker(letter) {
  const places = MARKERS[letter].map((place) => place.map((at) => (at * MARK).toFixed(2)).join(" "));
  return drawn("path", { class: "sign", d: `M${places.join("L")}Z` });
}

class Roofline extends Plot {
  constructor(host, data) {
    super(host);
    this.roofs = new Roofs(data);
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
    this.names = ["roofs", "point", "slanted", "flat", "runs"];
    this.away = new Set();
    this.told = this.picked = null;
    // Not of the drawing: one that hears of focus is a stop of its own for Tab.
    this.box.addEventListener("focusin", (e) => this.focused(this.item(e.target)));
    this.box.addEventListener("focusout", () => this.hover(null));
    this.chooser.addEventListener("change", () => { this.picked = null; this.choose(); this.changed(); });
    this.choose();
  }
  changed() {}

  // ---- what is shown ----

  choose() {
    // The items of a title; the axes hold all their points and ridges.
    const rows = this.roofs.of(this.chooser.value), least = (all) => Math.min(...all), most = (all) => Math.max(...all);
    this.items = this.roofs.items(rows);
    for (const item of this.items) this.make(item);
    const [points, roofs] = [true, false].map((isPoint) => this.items.filter((item) => (item.kind === "point") === isPoint));
    this.marks.replaceChildren(...points.map((item) => item.element));
    this.lines.replaceChildren(...roofs.map((item) => item.element));
    this.tell(null);
    this.enter(this.items[0]);
    this.explain();
    this.show();
    const across = rows.flatMap((row) => [row.intensity, row.ridge]), left = least(across) / 6;
    const low = least([least(rows.map((row) => row.ops)) / 4, left * least(rows.map((row) => row.slanted.per_s))]);
    // Of floating operations only where all are.
    this.units[1] = unique(rows.map((row) => row.flat.unit)).sort().at(-1);
    this.hold([left, low], [most(across) * 6, most(rows.map((row) => row.flat.per_s)) * 3]);
  }
  make(item) {
    const parts = item.limit ? [drawn("path", { class: "hit" }), drawn("path", { class: "line", "stroke-dasharray": this.dash(item) })]
      : [drawn("path", { class: "drop" }), drawn("g", {}, drawn("circle", { class: "hit", r: 13 }), marker(this.roofs.look(item)[2]))];
    const said = { role: "button", "aria-pressed": false, "aria-label": this.roofs.brief(item).join("; "), tabindex: -1 };
    item.element = drawn("g", { class: `item ${item.kind}`, ...said }, ...parts);
    item.element.item = item;
    this.ink(item, item.element);
  }
  ink(item, element) {
    const look = this.roofs.look(item);
    if (!look) return;
    element.style.setProperty("--light", look[0]);
    element.style.setProperty("--dark", look[1]);
  }
  dash({ limit }) { return this.roofs.several && DASHES[limit.chip.n % DASHES.length] || undefined; }
  item(element) { return element?.closest?.(".item")?.item ?? null; }
  point(row) { return this.items.find((item) => item.kind === "point" && item.rows.includes(row)); }
  isSeen(item) { return item.rows.some((row) => !this.away.has(row.run)); }

  show() { this.details.replaceChildren(...(this.picked ? this.facts(this.picked) : this.help())); }
  help() {
    return lined([["A point is what a run reached; the line that is its roof is what was allowed there: bytes a second where it slants, "
      + "operations a second where it is flat. Click either to see by how much it was missed, and where the numbers come from."]]);
  }
  facts(item) {
    const link = (row) => {
      const made = node("a", this.roofs.nameOf(row));
      made.addEventListener("click", () => this.go(this.point(row)));
      return made;
    };
    const list = node("dl", ...this.roofs.facts(item, link).flatMap(([name, told]) => [node("dt", name), node("dd", ...told)]));
    const limits = this.roofs.parts(item), { chip } = limits[0];
    const numbers = unique(limits.flatMap((limit) => limit.keys)).map((key) => {
      const [value, trust, text] = chip.numbers[key];
      return [[node("code", key)], value.toLocaleString("en"), trust, text];
    });
    return [list, tabled(`Numbers of ${chip.name} that its roof is made of`, ["number", "value", "confidence", "source"], numbers, 4)];
  }
  explain() {
    // Which look is which: a click leaves a run out, and picks a roof.
    const { roofs } = this, entry = (item, signs, text, act) => {
      const size = { viewBox: "-14 -8 28 16", width: 28, height: 16 };
      const made = node("button", drawn("svg", { ...size, class: `item ${item.kind}`, "aria-hidden": true }, ...signs), text);
      this.ink(item, made.firstChild);
      made.addEventListener("click", act);
      return made;
    };
    const runs = !roofs.several ? [] : roofs.runs.map((run) => {
      const item = { kind: "point", row: { run } };
      const made = entry(item, [marker(roofs.look(item)[2])], `${run.letter} ${run.name}`, () => {
        if (!this.away.delete(run)) this.away.add(run);
        made.setAttribute("aria-pressed", !this.away.has(run));
        this.draw();
        this.changed();
      });
      made.setAttribute("aria-pressed", !this.away.has(run));
      return made;
    });
    const lines = this.items.filter((item) => item.kind === "slanted").map((item) => {
      const line = drawn("path", { class: "line", d: "M-14 0H14", "stroke-dasharray": this.dash(item) });
      return entry(item, roofs.several ? [line] : [line, marker(roofs.look(item)[2])], roofs.title(item), () => this.go(item));
    });
    this.legend.replaceChildren(...runs, ...lines);
  }

  // ---- hands ----

  hover(element, x, y) {
    const item = this.item(element), isInside = x >= 0 && y >= 0 && x <= this.wide && y <= this.high;
    this.where.textContent = isInside ? `${digits(this.under(0, x), 3)} op/byte, ${scaled(+this.under(1, y).toPrecision(3), this.units[1])}` : "";
    if (item !== this.told) this.tell(item, x, y);
  }
  tell(item, x, y) {
    // A few lines next to it: within the chart, or where that is too small, below it.
    this.told?.element.classList.remove("told");
    this.told = item;
    this.tip.hidden = !item;
    if (!item) return;
    item.element.classList.add("told");
    const [title, ...rest] = this.roofs.brief(item), more = this.covered(item).length - 1;
    if (more) rest.push(`${more} more here; click again for the next`);
    this.tip.replaceChildren(node("b", title), ...rest.map((line) => node("div", line)));
    const [left, top] = item.limit ? [x ?? this.wide / 2, y ?? this.high / 2] : this.spot(item);
    const { offsetWidth: wide, offsetHeight: high } = this.tip, most = this.box.clientWidth - wide;
    const beside = this.left + left + 16 <= most ? left + 16 : left - 16 - wide;
    const fitsAbove = TOP + top >= 16 + high, below = top + 16 + high < this.high || !fitsAbove ? top + 16 : top - 16 - high;
    this.tip.style.left = `${Math.max(0, Math.min(this.left + beside, most))}px`;
    this.tip.style.top = `${TOP + below}px`;
  }
  focused(item) {
    if (!item) return;
    this.enter(item);
    this.reveal(...this.middle(item));
    this.tell(item, ...this.middle(item));
  }
  enter(item) {
    // Tab comes to the one that was last in focus; arrow keys lead on.
    this.current?.element.setAttribute("tabindex", -1);
    this.current = item;
    item.element.setAttribute("tabindex", 0);
  }
  // Points that cover each other, of which each click picks the next.
  covered(item) {
    if (item.limit) return [item];
    const [x, y] = this.spot(item), isNear = ([x2, y2]) => Math.hypot(x - x2, y - y2) < MARK;
    return this.items.filter((other) => !other.limit && this.isSeen(other) && isNear(this.spot(other)));
  }
  pick(element) {
    const found = this.item(element), all = found ? this.covered(found) : [], place = all.indexOf(this.picked);
    this.set(place < 0 ? found : all[(place + 1) % all.length]);
  }
  set(item) {
    this.picked = item;
    for (const each of this.items) {
      each.element.classList.toggle("picked", each === item);
      each.element.setAttribute("aria-pressed", each === item);
    }
    this.show();
    this.changed();
  }
  go(item) {
    this.set(item);
    item.element.focus({ preventScroll: true });
  }
  act(key) {
    const { current } = this, { row } = current, seen = this.items.filter((item) => this.isSeen(item));
    const step = (by) => seen.at((seen.indexOf(current) + by) % seen.length);
    const to = { ArrowRight: () => step(1), ArrowLeft: () => step(-1),
      ArrowUp: () => current.limit ? current : seen.find((item) => item.kind === row.over && item.rows.includes(row)),
      ArrowDown: () => current.limit ? seen.find((item) => !item.limit && item.rows.some((own) => current.rows.includes(own))) : current };
    if (to[key]) to[key]()?.element.focus({ preventScroll: true });
    else if (key === "Enter" || key === " ") this.set(current);
    else if (key === "Escape") { this.set(null); this.tell(null); }
    else return false;
    return true;
  }

  // ---- where ----

  spot({ row }) { return [this.at(0, row.intensity), this.at(1, row.ops)]; }
  ends({ kind, rows, limit }) {
    // Pixels: a roof slants up to the last of its ridges, and is flat from the first one on.
    const ridges = rows.map((row) => row.ridge), [low, high] = this.full.map((ends, n) => 10 ** (ends[0] + 2 * n - 1));
    const [from, to] = kind === "slanted" ? [low, Math.max(...ridges)] : [Math.min(...ridges), high];
    return [from, to].map((x) => [this.at(0, x), this.at(1, kind === "slanted" ? x * limit.per_s : limit.per_s)]);
  }
  height(item) {
    // Of its line, for pixels of the other axis.
    const [[left, bottom], [right, top]] = this.ends(item);
    return (x) => x < left || x > right ? null : bottom + (x - left) * (top - bottom) / (right - left);
  }
  middle(item) {
    // Of what is in sight of it, or of all of it where nothing is.
    if (!item.limit) return this.spot(item);
    const [[left], [right]] = this.ends(item), middle = (Math.max(0, left) + Math.min(this.wide, right)) / 2;
    const x = Math.min(Math.max(middle, left), right);
    return [x, this.height(item)(x)];
  }

  // ---- drawing ----

  paint() {
    // Tab comes to what is in sight.
    if (!this.isSeen(this.current)) this.enter(this.items.find((item) => this.isSeen(item)) ?? this.current);
    for (const item of this.items) {
      const { element } = item;
      element.style.display = this.isSeen(item) ? "" : "none";
      if (item.limit) {
        const [from, to] = this.ends(item);
        for (const part of element.children) part.setAttribute("d", `M${from.join(" ")}L${to.join(" ")}`);
        item.line = this.height(item);
      } else {
        const [x, y] = this.spot(item);
        element.lastChild.setAttribute("transform", `translate(${x} ${y})`);
        element.firstChild.setAttribute("d", `M${x} ${y}V${this.at(1, item.row.allowed)}`);
      }
    }
    this.label();
    if (this.told) this.tell(this.told, ...this.middle(this.told));
  }
  label() {
    // Roofs have their names where there is room, the highest first, then points have theirs.
    const seen = this.items.filter((item) => this.isSeen(item)), of = (kind) => seen.filter((item) => item.kind === kind);
    const room = new Room(this.wide, this.high, seen.filter((item) => item.limit).map((item) => item.line));
    for (const item of of("point")) room.take(...this.spot(item), MARK + 3);
    for (const item of of("flat")) this.labelFlat(room, item);
    for (const item of of("slanted")) this.labelSlanted(room, item);
    for (const item of of("point")) this.labelPoint(room, item);
  }
  labelFlat(room, item) {
    const [[left], [, y]] = this.ends(item), value = this.roofs.value(item.limit), chip = this.roofs.chip(item.limit, ", ");
    const places = (length) => [this.wide - length - 6, (Math.max(0, left) + this.wide - length) / 2, Math.max(6, left + 6)]
      .flatMap((x) => [[x, y - 11, 0], [x, y + 11, 0]]);
    const texts = [`${item.limit.words}${chip}: ${value}`, value + chip, value];
    this.write(room, texts, places, { own: item.line, color: (text) => this.ink(item, text) });
  }
  labelSlanted(room, item) {
    const [[left, bottom], [right, top]] = this.ends(item), angle = Math.atan2(top - bottom, right - left), slope = Math.tan(angle);
    // From where the line comes into sight until it leaves it.
    const enter = Math.max(0, left + (this.high - bottom) / slope), leave = Math.min(this.wide, right, left - bottom / slope);
    const [aside, up] = [12 * Math.sin(angle), -12 * Math.cos(angle)];
    const places = (length) => [0.06, 0.2, 0.34, 0.48, 0.62, 0.76, 0.9].flatMap((share) => {
      const x = enter + share * (leave - enter - length * Math.cos(angle)), y = bottom + (x - left) * slope;
      return [[x + aside, y + up, angle], [x - aside, y - up, angle]];
    });
    const value = this.roofs.value(item.limit), { name } = item.row;
    const texts = [`${this.roofs.names(item.rows)} ${value}${this.roofs.chip(item.limit, ", ")}`, `${name} ${value}`, name];
    this.write(room, texts, places, { own: item.line, color: (text) => this.ink(item, text) });
  }
  labelPoint(room, item) {
    const [x, y] = this.spot(item), { run, name, share } = item.row, letter = this.roofs.several ? [run.letter] : [];
    const places = (length) => [[x - length / 2, y + 19, 0], [x - length / 2, y - 19, 0], [x + 13, y, 0], [x - 13 - length, y, 0],
      [x + 9, y + 16, 0], [x - 9 - length, y + 16, 0]];
    const texts = [[this.roofs.names(item.rows), percent(share)], [name, percent(share)], [name]].map((words) => [...letter, ...words].join(" "));
    this.write(room, [...texts, ...letter], places, { most: 1, bold: true });
  }

  // ---- address ----

  state() {
    const { picked, away, roofs } = this, title = this.chooser.value, isFirst = title === roofs.titles[0][0];
    const shown = roofs.runs.filter((run) => !away.has(run)).map((run) => run.letter).join(",") || "none";
    const place = picked && { [picked.kind]: `${picked.row.run.n}.${this.own(picked.row.run).indexOf(picked.row)}` };
    return { roofs: isFirst && !picked ? "" : title, ...place, runs: away.size ? shown : "" };
  }
  own(run) { return this.roofs.rows.filter((row) => row.run === run); }
  restore(told) {
    const letters = told("runs") && told("runs").split(","), titles = [...this.chooser.options].map((option) => option.value);
    this.away = new Set(this.roofs.runs.filter((run) => letters && !letters.includes(run.letter)));
    this.chooser.value = titles.includes(told("roofs")) ? told("roofs") : titles[0];
    this.picked = null;
    this.choose();
    for (const kind of ["point", "slanted", "flat"]) {
      const [run, place] = told(kind).split(".").map(Number), row = this.own(this.roofs.runs[run])[place];
      const found = row && this.items.find((item) => item.kind === kind && item.rows.includes(row));
      if (found) { this.set(found); this.enter(found); }
    }
  }
}

beside.push(...[...document.querySelectorAll(".roofline")].map(async (host) => {
  const data = await unpacked(document.getElementById(host.dataset.source).textContent);
  return window.roofline = new Roofline(host, data);
}));
