// Numbers and states in words.

const grouped = new Intl.NumberFormat("en");

/** A count, such as `12,345`. */
export const count = (n) => (n === null ? "–" : grouped.format(Math.round(n)));

/** Three digits that count, and a unit: `[digits, unit]`. */
function scaled(n, units, unit) {
  if (n === null) return ["–", ""];
  let power = 0;
  while (n >= 999.5 && power < units.length - 1) {
    n /= 1000;
    power += 1;
  }
  // Fewer than ten of something are told from none; bits come whole.
  const few = power === 0 && n < 9.95 && n !== Math.round(n) ? 1 : 0;
  const digits = power === 0 ? few : n >= 99.95 ? 0 : n >= 9.995 ? 1 : 2;
  return [n.toFixed(digits), units[power] + unit];
}

/** Bytes a second as the rate of a link. */
export const bits = (bytesPerSecond) =>
  scaled(bytesPerSecond === null ? null : bytesPerSecond * 8, ["", "k", "M", "G", "T"], "bit/s");

/** So many a second. */
export const perSecond = (n) => scaled(n, ["", "k", "M", "G"], "/s");

/** A share, such as `0.12 %`; small ones that are not nothing stay so. */
export function share(part) {
  if (part === null) return "–";
  if (part === 0) return "0 %";
  if (part > 0 && part < 0.0001) return "< 0.01 %";
  return `${(part * 100).toFixed(part >= 0.1 ? 0 : part >= 0.01 ? 1 : 2)} %`;
}

/** A time for people: `3.2 s`, `4 min 5 s`, `2 d 3 h`. */
export function duration(seconds) {
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const parts = [
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
    [1, "s"],
  ];
  const first = parts.findIndex(([length]) => seconds >= length);
  let rest = Math.floor(seconds);
  const said = parts.slice(first, first + 2).map(([length, name]) => {
    const whole = Math.floor(rest / length);
    rest -= whole * length;
    return `${whole} ${name}`;
  });
  return said.join(" ");
}

/** A short time: `85 µs`, `3.2 ms`, `1.5 s`. */
export function brief(seconds) {
  if (seconds === null) return "–";
  const [n, unit] =
    seconds < 1e-3
      ? [seconds * 1e6, "µs"]
      : seconds < 1
        ? [seconds * 1e3, "ms"]
        : [seconds, "s"];
  return `${n.toFixed(n < 9.95 ? 1 : 0)} ${unit}`;
}

/** The time of day at this computer. */
export function clock(unixMs) {
  const at = new Date(unixMs);
  const two = (n) => String(n).padStart(2, "0");
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** `one rank`, `3 ranks`. */
export const many = (n, what) => (n === 1 ? `one ${what}` : `${count(n)} ${what}s`);

/** A list in a sentence: `0, 1 and 2`. */
export function list(items) {
  if (items.length < 2) return items.join("");
  return `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`;
}

/** A rank's states: a mark that tells them apart without colour, and words. */
export const STATES = {
  ok: ["●", "in step"],
  late: ["▲", "late"],
  lost: ["✕", "lost"],
  left: ["○", "left"],
  missing: ["○", "not here"],
  waiting: ["◔", "joins next"],
};

/** Why a packet was refused. */
export const REFUSALS = {
  truncated: "shorter than its headers say",
  version: "another version of the wire format",
  malformed: "a value that this version does not define",
  job: "no such job here",
  cookie: "not the job’s cookie",
  epoch: "of another epoch of the job",
  member: "no such rank, or from another address",
  size: "empty, or larger than a block",
  window: "a block beyond the window",
  mismatch: "its rank made another call than the others",
  quota: "more packets than the job’s quota",
};

/** At most so many characters of a name that a stranger chose. */
export const clipped = (name, most) => {
  const characters = [...name];
  return characters.length > most ? `${characters.slice(0, most - 1).join("")}…` : name;
};
