// Jobs, and the ranks of those that are opened.

import { $, attribute, classes, element, keyed, lines, say, show } from "./dom.js";
import { bar, strip } from "./draw.js";
import { host } from "./model.js";
import { STATES, brief, count, duration, list, many, perSecond, share } from "./words.js";

/** How a job does, in words after a mark. */
function stateOf(job) {
  if (job.late.length) {
    const late = job.late.slice(0, 4).map(({ short }) => short);
    const more = job.late.length - late.length;
    return `▲ waits for ${list(more ? [...late, `${more} more`] : late)}`;
  }
  const in_ = (wanted) => job.ranks.filter(({ state }) => state === wanted).length;
  if (in_("lost")) return `✕ ${many(in_("lost"), "rank")} lost`;
  if (in_("missing")) return `○ ${job.phase}: ${in_("missing")} of ${job.workers} ranks not here`;
  if (job.phase !== "running") return `○ ${job.phase}`;
  return job.blocks === 0 ? "● in step, no call now" : "● in step";
}

function figure(label) {
  return element("div", "figure", element("b"), element("span", "", label));
}

function makeJob(job) {
  const name = element("div", "name", element("h3", "", job.title), element("p", "state"));
  const canvas = element("canvas", "strip old");
  canvas.setAttribute("role", "img");
  const figures = ["blocks", "slots", "sent again", "running"].map(figure);
  const summary = element("summary", "", name, canvas, ...figures);
  const details = element("details", "job", summary);
  details.id = `job-${job.id}`;
  details.canvas = canvas;
  details.addEventListener("toggle", () => rankTable(details, details.job));
  return details;
}

function rankTable(details, job) {
  if (!details.open) return;
  if (!details.body) {
    const titles = [
      ["Rank"],
      ["Address"],
      ["State"],
      ["Block", "n blocks"],
      ["Behind", "n"],
      ["Wait", "n"],
      ["Again", "n again"],
      ["Heartbeat", "n heartbeat"],
    ];
    const head = element("tr", "");
    for (const [title, className] of titles) {
      const cell = element("th", className, title);
      cell.scope = "col";
      head.append(cell);
    }
    details.facts = element("p", "facts");
    details.branches = element("ul", "branches");
    details.rows = element("tbody");
    const caption = element("caption", "quiet", `Ranks of ${job.title}`);
    details.body = element(
      "div",
      "ranks old",
      details.facts,
      details.branches,
      element("table", "", caption, element("thead", "", head), details.rows),
    );
    details.append(details.body);
  }
  const facts = [
    `data path ${job.id}`,
    `epoch ${job.epoch}`,
    `phase ${job.phase}`,
    many(job.workers, "worker"),
    `blocks of ${count(job.block_bytes)} bytes`,
    `${count(job.blocks_completed)} blocks summed`,
    `${count(job.resends)} results sent again`,
    `${count(job.rejected)} refused`,
  ];
  const { p50_seconds: median, p99_seconds: slow } = job.completion;
  if (median !== null) facts.push(`a block takes ${brief(median)}, one in 100 ${brief(slow)}`);
  if (job.mode) facts.push(`results by ${job.mode}`);
  if (job.reforms)
    facts.push(`formed again ${job.reforms === 1 ? "once" : `${count(job.reforms)} times`}`);
  if (job.parent) facts.push(`sums go on to ${job.parent.address}`);
  say(details.facts, `${facts.join(" · ")}`);
  lines(
    details.branches,
    job.branches.map(({ daemon, ranks, linked, late }) => {
      const state = late ? "▲ late" : linked ? "● in step" : "✕ not linked";
      return `Aggregator ${daemon} sums ranks ${ranks.join(", ")}: ${state}`;
    }),
  );
  keyed(
    details.rows,
    job.ranks,
    ({ rank }) => rank,
    ({ rank }) => {
      const head = element("th", "", String(rank));
      head.scope = "row";
      const lag = element("td", "n lag", element("span"));
      lag.canvas = element("canvas");
      lag.canvas.setAttribute("aria-hidden", "true");
      lag.append(lag.canvas);
      const address = element("td", "address", element("span"), element("span", "port-number"));
      return element(
        "tr",
        "",
        head,
        address,
        element("td", "rank-state"),
        element("td", "n blocks"),
        lag,
        element("td", "n"),
        element("td", "n again"),
        element("td", "n heartbeat"),
      );
    },
    (row, rank) => {
      const [mark, words] = STATES[rank.state] ?? ["?", rank.state];
      classes(row, `rank-${rank.state}`);
      const [, address, state, blocks, lag, waited, again, heartbeat] = row.children;
      if (address.whole !== rank.address) {
        address.whole = rank.address;
        const name = host(rank.address);
        say(address.firstElementChild, name);
        say(address.lastElementChild, (rank.address ?? "").slice(name.length));
      }
      say(state, `${mark} ${words}`);
      say(blocks, count(rank.blocks_contributed));
      say(lag.firstElementChild, count(rank.lag_blocks));
      if (lag.drawn !== rank.near) {
        lag.drawn = rank.near;
        bar(lag.canvas, 1 - rank.near, rank.state === "late" ? "late" : "soft");
      }
      say(waited, rank.lag_seconds > 0 ? duration(rank.lag_seconds) : "–");
      say(again, count(rank.repetitions));
      const beat = rank.heartbeat_seconds;
      say(heartbeat, beat === null ? "–" : `${duration(beat)} ago`);
    },
  );
}

/** All jobs. */
export function jobs({ jobs: all }) {
  show($("no-jobs"), !all.length);
  show($("filter"), all.length > 3);
  const only = $("only-waiting").checked && all.length > 3;
  const shown = only ? all.filter((job) => job.late.length || job.stalled) : all;
  show($("none-waits"), only && !shown.length);
  say($("job-count"), all.length ? count(all.length) : "");
  keyed(
    $("job-list"),
    shown,
    ({ id, name }) => `${id} ${name}`,
    makeJob,
    (node, job) => {
      node.job = job;
      classes(node, job.late.length ? "job waits" : "job");
      const [name, canvas, blocks, slots, again, up] = node.firstElementChild.children;
      const state = stateOf(job);
      say(name.lastElementChild, state);
      attribute(canvas, "aria-label", `${job.ranks.length} ranks: ${state.slice(2)}`);
      const drawing = job.ranks.map(({ state, near }) => `${state}${near}`).join();
      if (node.drawing !== drawing) {
        node.drawing = drawing;
        strip(canvas, job.ranks);
      }
      say(blocks.firstElementChild, perSecond(job.blocks).join(" "));
      say(slots.firstElementChild, `${count(job.slots_in_use)} / ${count(job.slots)}`);
      say(again.firstElementChild, share(job.resent));
      const running = job.uptime_seconds;
      say(up.firstElementChild, running === null ? "–" : duration(Math.floor(running)));
      rankTable(node, job);
    },
  );
}

/** How they do is not known. */
export function jobsUnknown() {
  for (const job of $("job-list").children) {
    const [name, , blocks, , again] = job.firstElementChild.children;
    say(name.lastElementChild, "? not known now");
    classes(job, "job");
    say(blocks.firstElementChild, "–");
    say(again.firstElementChild, "–");
  }
}

/** All drawings are to be made anew. */
export function forgetDrawings() {
  for (const job of $("job-list").children) {
    job.drawing = null;
    for (const row of job.rows?.children ?? []) row.children[4].drawn = null;
  }
}
