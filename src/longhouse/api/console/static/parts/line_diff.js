// The difference of two texts, line by line.

/** Beyond so many lines all are shown as gone and as new: to compare more takes longer than it is worth. */
const LONGEST = 600;

/** `[mark, line]` with mark `" "`, `"-"` or `"+"`. */
export function lineDiff(before, after) {
  const [old, now] = [before.split("\n"), after.split("\n")];
  let start = 0;
  while (start < old.length && start < now.length && old[start] === now[start]) start += 1;
  let end = 0;
  while (end < old.length - start && end < now.length - start && old.at(-1 - end) === now.at(-1 - end)) end += 1;
  const middle = between(old.slice(start, old.length - end), now.slice(start, now.length - end));
  const same = (line) => [" ", line];
  return [...old.slice(0, start).map(same), ...middle, ...old.slice(old.length - end).map(same)];
}

function between(old, now) {
  if (old.length > LONGEST || now.length > LONGEST)
    return [...old.map((line) => ["-", line]), ...now.map((line) => ["+", line])];
  const table = lengths(old, now);
  const found = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) {
      found.push([" ", old[i]]);
      [i, j] = [i + 1, j + 1];
    } else if (j >= now.length || (i < old.length && table[i + 1][j] >= table[i][j + 1])) {
      found.push(["-", old[i]]);
      i += 1;
    } else {
      found.push(["+", now[j]]);
      j += 1;
    }
  }
  return found;
}

/** The longest common part of what follows each pair of lines. */
function lengths(old, now) {
  const table = Array.from({ length: old.length + 1 }, () => new Uint16Array(now.length + 1));
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      table[i][j] = old[i] === now[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
    }
  }
  return table;
}
