"use strict";
// Where elements lie, by the facts that npusim.layout gave: no names of layouts in here.

/** A matrix in a layout; throws Error where it cannot be one. */
function placement(facts, rows, columns, dtype, name) {
  const layout = facts.layouts[name];
  const fractal = layout.fractals[dtype];
  if (fractal === undefined) {
    throw new Error(`${name} holds ${Object.keys(layout.fractals).join(", ")}, not ${dtype}`);
  }
  const bits = facts.bits[dtype];
  const [height, width] = fractal ? [fractal[0] ?? rows, fractal[1]] : [1, columns];
  const down = Math.ceil(rows / height), across = Math.ceil(columns / width);
  // ND is a column of fractals of one row.
  const axes = layout.axes || "ijyx";
  const extents = { i: down, j: across, y: height, x: width };
  const steps = {};
  let count = 1;
  for (const axis of [...axes].reverse()) {
    steps[axis] = count;
    count *= extents[axis];
  }
  const element = (row, column) =>
    Math.floor(row / height) * steps.i + (row % height) * steps.y +
    Math.floor(column / width) * steps.j + (column % width) * steps.x;
  const spot = (number) => {
    const at = {};
    for (const axis of axes) at[axis] = Math.floor(number / steps[axis]) % extents[axis];
    const row = at.i * height + at.y, column = at.j * width + at.x;
    return { row, column, padding: row >= rows || column >= columns };
  };
  const lines = [axes[2], axes[3]].map((axis) => extents[axis]);
  return {
    rows, columns, dtype, name, bits, count, element, spot, lines,
    is_nd: layout.axes === null,
    size: height * width,
    fractal: [height, width],
    padded: [down * height, across * width],
    nbytes: Math.ceil((count * bits) / 8),
    byte: (number) => Math.floor((number * bits) / 8),
    // Where it begins, and the number and the fractal that an element has: a window has those of the whole.
    row: 0, column: 0,
    at: (number) => number,
    lies: (number) => Math.floor(number / (height * width)),
  };
}

/** A part of *whole*, which begins with fractals; bytes and numbers are those in the whole. */
function windowed(facts, whole, { row, column, rows, columns }) {
  const of = placement(facts, rows, columns, whole.dtype, whole.name);
  const at = (number) => {
    const spot = of.spot(number);
    return whole.element(row + spot.row, column + spot.column);
  };
  return { ...of, whole, row, column, at, lies: (number) => whole.lies(at(number)), byte: (number) => whole.byte(at(number)) };
}

/** What the copy of one row into Nz asks of the memory; start is its first byte. */
function burst(facts, start, width) {
  const { sector_bytes: sector, line_bytes: line } = facts.device;
  const lines = Math.floor((start + width - 1) / line) - Math.floor(start / line) + 1;
  const moved = start % sector === 0 ? Math.ceil(width / sector) * sector : lines * line;
  return { start, width, lines, moved, blocks: Math.ceil(width / facts.block_bytes) };
}

/** Bytes of a row, or null where rows do not begin with a byte. */
function row_bytes(of) {
  return (of.columns * of.bits) % 8 ? null : (of.columns * of.bits) / 8;
}

/** For each element, row by row, which one a kernel gets that takes *written* for *read*; of both the
 *  part that *from* gives, or all. -1 is padding, -2 lies beyond the tensor. */
function misread(written, read, from = { row: 0, column: 0, rows: read.rows, columns: read.columns }) {
  const found = [];
  for (let row = from.row; row < from.row + from.rows; row++) {
    for (let column = from.column; column < from.column + from.columns; column++) {
      const number = read.element(row, column);
      const there = number < written.count ? written.spot(number) : null;
      const got = there && there.row * written.columns + there.column;
      found.push(there === null ? -2 : there.padding ? -1 : got);
    }
  }
  return found;
}

/** The value that element number n of the example has. */
function value(n) {
  const rest = n % 17;
  return ((rest * rest + 3 * rest) % 17) - 8;
}

/** The sum of each column of the elements *numbers*; null where some lie beyond the tensor. */
function sums(numbers, columns) {
  const found = new Array(columns).fill(0);
  numbers.forEach((n, place) => {
    const column = place % columns;
    if (n === -2) found[column] = null;
    else if (found[column] !== null) found[column] += n === -1 ? 0 : value(n);
  });
  return found;
}
