// What a roofline knows of its points and its roofs, in numbers and in words.

const percent = (share) => `${digits(100 * share, share < 0.01 ? 2 : 3)} %`;
const unique = (all) => [...new Set(all)];

// A row is what one run reached of one roof, whose two parts are limits; an item is what is drawn once:
// the rows of a point, or of a part of a roof, that coincide. Its *row* is the one with the lowest roof.
class Roofs {
  constructor({ runs, chips, limits, rows, titles, looks }) {
    Object.assign(this, { titles, looks });
    this.chips = chips.map((chip, n) => ({ ...chip, n }));
    this.runs = runs.map((run, n) => ({ ...run, n, chip: this.chips[run.chip] }));
    this.limits = limits.map((limit) => ({ ...limit, chip: this.chips[limit.chip], keys: limit.terms.flatMap(([, keys]) => keys) }));
    this.several = runs.length > 1;
    this.rows = rows.map(([run, title, name, slanted, flat, intensity, ops]) => {
      const row = { run: this.runs[run], title, name, slanted: this.limits[slanted], flat: this.limits[flat], intensity, ops };
      const bound = intensity * row.slanted.per_s, peak = row.flat.per_s;
      row.allowed = Math.min(peak, bound);
      row.share = ops / row.allowed;
      row.over = bound < peak ? "slanted" : "flat";
      row.ridge = peak / row.slanted.per_s;
      return row;
    });
  }

  // The rows of a title, or of all.
  of(title) { return this.rows.filter((row) => title === "all" || row.title === title); }
  // The items of these rows, in the order in which keys lead through them.
  items(rows) {
    const gather = (kind, key, order) => {
      const found = new Map();
      for (const row of rows) found.set(key(row), [...(found.get(key(row)) ?? []), row]);
      const items = [...found.values()].map((own) => own.sort((a, b) => a.allowed - b.allowed)).map((own) => ({ kind, rows: own, row: own[0] }));
      return items.sort((a, b) => order(a.row) - order(b.row));
    };
    const part = (kind) => gather(kind, (row) => row[kind], (row) => -row[kind].per_s).map((item) => ({ ...item, limit: item.row[kind] }));
    const points = gather("point", ({ run, intensity, ops }) => `${run.n} ${intensity} ${ops}`, (row) => row.intensity);
    return [...points.sort((a, b) => a.row.run.n - b.row.run.n), ...part("slanted"), ...part("flat")];
  }
  // A run has a look of its own, and its roofs have its colour; of a single run, each roof has one.
  look({ kind, row, limit }) {
    if (!this.several) {
      this.order ??= unique(this.rows.map((each) => each.slanted));
      return kind === "flat" ? null : this.looks[this.order.indexOf(row.slanted) % this.looks.length];
    }
    const runs = limit ? this.runs.filter((run) => run.chip === limit.chip) : [row.run];
    return runs.length === 1 ? this.looks[runs[0].n % this.looks.length] : null;
  }

  // ---- words ----

  value(limit) { return scaled(limit.per_s, limit.unit); }
  formula({ terms }) { return terms.map(([factor, keys]) => [...(factor === 1 ? [] : [digits(factor)]), ...keys].join(" x ")).join(" + "); }
  // How sure the numbers of a limit are, as the device file has it.
  trust({ chip, keys }) { return unique(keys.map((key) => chip.numbers[key][1])).filter((word) => word).join(", "); }
  source(limit) { return `source: ${this.formula(limit)} (${this.trust(limit)})`; }
  ops(row, per_s) { return scaled(per_s, row.flat.unit); }
  reached(row) { return `reached ${this.ops(row, row.ops)}, ${percent(row.share)} of the ${this.ops(row, row.allowed)} allowed`; }
  above({ name, over, slanted, flat }) {
    return `the ${over} part of its roof: ${over === "slanted" ? name : flat.words}, ${this.value(over === "slanted" ? slanted : flat)}`;
  }
  names(rows) { return unique(rows.map((row) => row.name)).join(", "); }
  // The chip of a limit, where there are several, with the runs on it.
  chip({ chip }, before) {
    if (this.chips.length === 1) return "";
    return `${before}${chip.name} (${this.runs.filter((run) => run.chip === chip).map((run) => run.letter).join(", ")})`;
  }
  whose({ run }) { return this.several ? `${run.letter}, ${run.name}` : run.name; }
  nameOf(row) { return this.several ? `${row.name} of ${row.run.letter}` : row.name; }
  title({ kind, row, rows, limit }) {
    if (kind === "point") return this.names(rows) + (this.several ? `, ${row.run.letter}` : "");
    return `${kind === "flat" ? limit.words : this.names(rows)}${this.chip(limit, " of ")}: ${this.value(limit)}`;
  }
  // Some lines for who points at an item, and for who hears it.
  brief(item) {
    const { kind, row, rows, limit } = item, best = rows.reduce((a, b) => (b.share > a.share ? b : a));
    const more = kind === "point"
      ? [this.reached(row), `at ${digits(row.intensity)} operations a byte`, `above it ${this.above(row)}`, this.source(row[row.over])]
      : [kind === "flat" ? "a flat part: no more operations a second" : "a slanted part: no more bytes a second",
        this.source(limit), `of its points ${this.nameOf(best)} has the most: ${this.reached(best)}`];
    return [this.title(item), ...more];
  }
  // What is told of an item at length, as terms and what they say; *link* makes one of a row's point.
  facts(item, link) {
    const { kind, row, rows, limit } = item;
    if (kind === "point") return this.factsOfPoint(row, rows);
    const ridges = unique(rows.map((each) => digits(each.ridge))).join(" or ");
    return [
      ["roof", [this.title(item)]],
      ["part", [kind === "flat" ? "flat: no more operations a second" : `slanted: no more bytes a second, up to ${ridges} operations a byte`]],
      ["made of", [node("code", this.formula(limit))]],
      ["points", lined(rows.map((each) => [link(each), ` ${this.reached(each)}`]))],
    ];
  }
  factsOfPoint(row, rows) {
    const told = (say) => {
      // Of all rows together where it is the same for all.
      const alike = new Map();
      for (const each of rows) alike.set(say(each), [...(alike.get(say(each)) ?? []), each]);
      return lined([...alike].map(([text, own]) => [alike.size > 1 ? `${this.names(own)}: ${text}` : text]));
    };
    const part = (limit) => [limit.unit === "B/s" ? "slanted part" : "flat part", [`${this.value(limit)} = `, node("code", this.formula(limit))]];
    return [
      ["point", [`${this.names(rows)} of ${this.whose(row)}`]],
      ["reached", [`${this.ops(row, row.ops)} at ${digits(row.intensity)} operations a byte`]],
      ["allowed", told((each) => `${this.ops(each, each.allowed)}, of which ${percent(each.share)} are reached`)],
      ["above it", told((each) => this.above(each))],
      ...this.parts({ rows }).map(part),
    ];
  }
  // The limits that an item is about, that above its point first.
  parts({ limit, rows }) { return limit ? [limit] : unique(rows.flatMap((row) => [row[row.over], row.slanted, row.flat])); }
}
