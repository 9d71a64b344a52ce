// A time axis that cuts long times without work short, so that an hour of waiting does not hide a second of work.

/** A time without work is cut if it is longer than this, and longer than this share of all work. */
const CUT_FROM = 1500;
const CUT_SHARE = 0.2;
/** The share of the width that a cut takes, and that all cuts take together. */
const CUT_WIDTH = 0.075;
const CUTS_WIDTH = 0.4;
const STEPS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000,
  1_800_000, 3_600_000, 7_200_000, 21_600_000, 86_400_000,
];

/** The axis from `start` to `end` (milliseconds); `spans` are the `[from, to]` in which something worked. */
export function axisOf(spans, start, end) {
  const parts = partsOf(merged(spans, start, end), start, Math.max(end, start + 1));
  const cuts = parts.filter((part) => part.isCut).length;
  const cutWidth = cuts ? Math.min(CUT_WIDTH, CUTS_WIDTH / cuts) : 0;
  const kept = parts.reduce((sum, part) => sum + (part.isCut ? 0 : part.to - part.from), 0);
  const scale = kept ? (1 - cuts * cutWidth) / kept : 0;
  let left = 0;
  for (const part of parts) {
    part.left = left;
    part.width = part.isCut ? cutWidth : (part.to - part.from) * scale;
    left += part.width;
  }
  return {
    start,
    end,
    parts,
    scale,
    cuts: parts.filter((part) => part.isCut),
    at: (moment) => position(parts, moment),
  };
}

function merged(spans, start, end) {
  const inside = spans
    .filter(([from, to]) => to >= start && from <= end)
    .map(([from, to]) => [Math.max(from, start), Math.min(to, end)]);
  const found = [];
  for (const [from, to] of inside.sort((one, other) => one[0] - other[0])) {
    const last = found.at(-1);
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else found.push([from, to]);
  }
  return found;
}

/** Times that are shown to scale, and those that are cut. */
function partsOf(busy, start, end) {
  const work = busy.reduce((sum, [from, to]) => sum + to - from, 0);
  const longest = Math.max(CUT_FROM, work * CUT_SHARE);
  const parts = [];
  let from = start;
  for (const [begin, until] of [...busy, [end, end]]) {
    const last = parts.at(-1);
    if (begin - from > longest) parts.push({ from, to: begin, isCut: true }, { from: begin, to: until, isCut: false });
    else if (last && !last.isCut) last.to = until;
    else parts.push({ from, to: until, isCut: false });
    from = Math.max(from, until);
  }
  return parts.filter((part) => part.isCut || part.to > part.from);
}

/** Where a moment lies, from 0 to 1. */
function position(parts, moment) {
  let low = 0;
  let high = parts.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (parts[middle].from <= moment) low = middle;
    else high = middle - 1;
  }
  const part = parts[low];
  const share = (moment - part.from) / Math.max(1, part.to - part.from);
  return part.left + Math.max(0, Math.min(1, share)) * part.width;
}

/** Marks along the axis: `{left, moment, offset}`; the first of each part tells the time, the others how much later. */
export function ticksOf(axis, apart = 0.12) {
  const step = STEPS.find((one) => one * axis.scale >= apart) ?? STEPS.at(-1);
  const found = [];
  for (const part of axis.parts) {
    if (part.isCut) continue;
    found.push({ left: part.left, moment: part.from, offset: 0 });
    for (let offset = step; offset < part.to - part.from; offset += step) {
      found.push({ left: part.left + offset * axis.scale, moment: part.from + offset, offset });
    }
  }
  return found.filter(
    (tick, nth) =>
      !tick.offset || tick.left < (found[nth + 1]?.offset === 0 ? found[nth + 1].left - apart * 0.7 : 1 - apart * 0.4),
  );
}
