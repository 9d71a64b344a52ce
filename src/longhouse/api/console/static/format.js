// Times, durations and numbers in words.

const STEPS = [[60, "s", 1], [3600, "m", 60], [86400, "h", 3600], [Infinity, "d", 86400]];

/** A number of seconds, such as `0.6 s`, `4 m`, `2 h`. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const [, unit, size] = STEPS.find(([limit]) => seconds < limit);
  return `${Math.floor(seconds / size)} ${unit}`;
}

/** A number of seconds in two units, such as `1 h 29 m`: where an hour more or less matters. */
export function span(seconds) {
  if (seconds === null || seconds === undefined || seconds < 60) return duration(seconds);
  const [size, unit, below, small] = [[86400, "d", 3600, "h"], [3600, "h", 60, "m"], [60, "m", 1, "s"]].find(([one]) => seconds >= one);
  const rest = Math.floor((seconds % size) / below);
  return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${small}` : ""}`;
}

export function secondsBetween(from, to) {
  return from && to ? (new Date(to) - new Date(from)) / 1000 : null;
}

/** How long ago, such as `4 m ago`; what lies ahead is `in 4 m`. */
export function ago(moment) {
  if (!moment) return "–";
  const seconds = (Date.now() - new Date(moment)) / 1000;
  if (Math.abs(seconds) < 10) return "now";
  return seconds > 0 ? `${duration(seconds)} ago` : `in ${duration(-seconds)}`;
}

// Made once: to make one costs more than a whole row of a long list.
const TIME = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
const CLOCK = new Intl.DateTimeFormat([], TIME);
const DAY = { year: "numeric", month: "numeric", day: "numeric" };
const DATE = new Intl.DateTimeFormat([], { ...DAY, ...TIME });
const NUMBER = new Intl.NumberFormat("en");

export function clock(moment) {
  return moment ? CLOCK.format(new Date(moment)) : "–";
}

/** A time zone that this browser does not know is shown in the time zone of whoever looks. */
function formatIn(timeZone) {
  try {
    return timeZone ? new Intl.DateTimeFormat([], { ...DAY, ...TIME, timeZone }) : DATE;
  } catch (error) {
    if (error instanceof RangeError) return DATE;
    throw error;
  }
}

/** In the time zone of whoever looks, or in this one. */
export function dateAndTime(moment, timeZone = null) {
  if (!moment) return "–";
  return formatIn(timeZone).format(new Date(moment));
}

/** A whole number, short from ten thousand on: `12.3k`. */
export function count(number) {
  if (number === null || number === undefined) return "–";
  if (number < 10_000) return NUMBER.format(number);
  return number < 1_000_000 ? `${(number / 1000).toFixed(1)}k` : `${(number / 1_000_000).toFixed(1)}M`;
}

export function bytes(number) {
  if (number === null || number === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  const nth = number < 1 ? 0 : Math.min(4, Math.floor(Math.log10(number) / 3));
  return `${(number / 1000 ** nth).toFixed(nth ? 1 : 0)} ${units[nth]}`;
}

export function percent(share) {
  return share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`;
}

/** The first words of a text in one line. */
export function firstWords(text, length = 80) {
  const line = String(text ?? "").replace(/\s+/g, " ").trim();
  return line.length > length ? `${line.slice(0, length - 1)}…` : line;
}

/** How long until a moment, such as `23 h 59 m left`; past it, that the time is over. */
export function left(moment) {
  const seconds = Math.floor((new Date(moment) - Date.now()) / 1000);
  if (seconds <= 0) return "time is over";
  const [days, hours, minutes] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  if (days) return `${days} d ${hours} h left`;
  if (hours) return `${hours} h ${minutes} m left`;
  return `${minutes}:${String(seconds % 60).padStart(2, "0")} left`;
}

// Controls but tab and line feed, marks that turn the direction of writing, zero-width and blank characters; but not what
// joins emoji to one.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u206f\u2800\u2d7f\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff9-\ufffc\u{1107f}\u{16fe4}\u{1d159}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]|(?<!\p{Extended_Pictographic}[\ufe0f\p{Emoji_Modifier}]?)\u200d|\u200d(?!\p{Extended_Pictographic})/gu;
const TURNING = /[\u202a-\u202e\u2066-\u2069]/g;
// No language piles up more marks on a letter; many more are painted over the lines around it.
const PILED = /(?<=\p{M}{4})\p{M}/gu;

function escaped(char) {
  const point = char.codePointAt(0).toString(16);
  return point.length > 4 ? `\\u{${point}}` : `\\u${point.padStart(4, "0")}`;
}

/** A text as it is decided on: what is unseen in it, or makes other text read differently, is written out. */
export function visible(text) {
  return String(text).replace(UNSEEN, escaped).replace(PILED, escaped);
}

/** A text as it is talked in: only what turns or covers other text is written out, for many languages need the rest. */
export function straight(text) {
  return String(text).replace(TURNING, escaped).replace(PILED, escaped);
}

/** A text in one line without marks that could turn the line around. */
export function plainLine(text, length = 80) {
  return firstWords(String(text ?? "").replace(UNSEEN, "").replace(PILED, ""), length);
}

/** A state as people read it: `WAITING_FOR_APPROVAL` → `waiting for approval`. */
export function words(name) {
  return visible(name ?? "").toLowerCase().replaceAll("_", " ");
}

/**
 * The value of JSON text, in which every number stays as it was written: as numbers of the browser long ones would be
 * rounded. Text that is no JSON stays text, and so does JSON with such numbers in a browser that cannot keep them.
 */
export function jsonOf(text) {
  try {
    if (!JSON.rawJSON) return /[\d.]{16}|\d[eE]/.test(text) ? text : JSON.parse(text);
    return JSON.parse(text, (_, value, { source }) => (typeof value === "number" && String(value) !== source ? JSON.rawJSON(source) : value));
  } catch {
    return text;
  }
}

/** Is a value of `jsonOf` a list of names and values? */
export function hasNames(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value) && !JSON.isRawJSON?.(value);
}

/** Indented JSON; a text that is no JSON as it is. */
export function pretty(value) {
  const parsed = typeof value === "string" ? jsonOf(value) : value;
  return parsed === value && typeof value === "string" ? value : JSON.stringify(parsed, null, 2) ?? "";
}
