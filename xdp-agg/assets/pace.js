// Who is waited for, in words.

import { $, element, lines, say } from "./dom.js";
import { clipped, count, duration, list, many } from "./words.js";

/** Waits that are named; more of them are counted. */
const WAITS_MAX = 6;
/** Characters of a job's title where it stands in a sentence. */
const TITLE_MAX = 40;

/** What is said of one that is waited for: the words, and the time. */
function wait({ job, who, seconds }) {
  return [`${clipped(job.title, TITLE_MAX)} waits for ${who}`, ` for ${duration(seconds)}`];
}

/** Who is waited for, or that nobody is: a sentence, and one below it. */
function standing({ daemon, jobs, waits }) {
  if (waits.length) {
    const { job, blocks, heartbeat } = waits[0];
    const others = job.ranks.filter(({ state }) => state === "ok").length;
    const said = [
      blocks === null ? "" : `${many(blocks, "block")} behind.`,
      // Whether the process is stopped, or alive and late, is the next question.
      heartbeat > 0 ? `Its process last answered a heartbeat ${duration(heartbeat)} ago.` : "",
      `${others === 1 ? "One other rank is" : `${count(others)} other ranks are`} in step.`,
    ];
    return [null, said.filter(Boolean).join(" ")];
  }
  const where = (state) =>
    jobs.flatMap((job) =>
      job.ranks
        .filter((rank) => rank.state === state)
        .map(({ rank }) => `rank ${rank} of ${clipped(job.title, TITLE_MAX)}`),
    );
  const named = (all) =>
    list(
      all.length > WAITS_MAX ? [...all.slice(0, WAITS_MAX), `${all.length - WAITS_MAX} more`] : all,
    );
  const some = (n) => (n === 1 ? "One rank is" : `${count(n)} ranks are`);
  const [lost, missing] = [where("lost"), where("missing")];
  if (lost.length) return [`${some(lost.length)} lost.`, `${named(lost)}: the others go on.`];
  if (missing.length) return [`${some(missing.length)} not here yet.`, named(missing)];
  if (!jobs.length) {
    return [
      "No job yet.",
      daemon.ready ? "The daemon is ready for workers." : "The daemon is not ready for workers.",
    ];
  }
  const ranks = jobs.reduce((all, job) => all + job.ranks.length, 0);
  return [
    ranks === 1 ? "The only rank is in step." : `All ${count(ranks)} ranks are in step.`,
    "Nobody is waited for.",
  ];
}

/** The first line, and those below it. */
export function pace(shown) {
  const { waits } = shown;
  const headline = $("headline");
  const [sentence, below] = standing(shown);
  let announced = sentence;
  if (sentence === null) {
    const [words, since] = wait(waits[0]);
    if (headline.words !== words) {
      headline.words = words;
      headline.said = null;
      const mark = element("span", "mark", "▲");
      mark.setAttribute("aria-hidden", "true");
      headline.replaceChildren(mark, element("span", "who", words), element("span", "since"));
    }
    say(headline.lastElementChild, since);
    announced = words;
  } else {
    headline.words = null;
    say(headline, sentence);
  }
  say($("subline"), below);
  const others = waits
    .slice(1, WAITS_MAX)
    .map(wait)
    .map((said) => said.join(""));
  if (waits.length > WAITS_MAX) others.push(`and ${many(waits.length - WAITS_MAX, "more rank")}`);
  lines($("waits"), others);
  // Without the time, or it would be read out each second.
  if (waits.length > 1) announced += `; ${many(waits.length - 1, "other")} waited for too`;
  say($("announced"), announced);
  const title = waits.length
    ? `▲ ${clipped(waits[0].job.title, TITLE_MAX)} waits · xdp-agg`
    : "xdp-agg";
  say(document.querySelector("title"), title);
}
