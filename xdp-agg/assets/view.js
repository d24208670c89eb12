// The page as a whole: figures, ports, refusals, events, and that the daemon is silent.

import { $, attribute, element, keyed, lines, quantity, say, show } from "./dom.js";
import { bar, curves, onResize, takeColours } from "./draw.js";
import { forgetDrawings, jobs, jobsUnknown } from "./jobs.js";
import { SAMPLES } from "./model.js";
import { pace } from "./pace.js";
import { REFUSALS, bits, clock, count, duration, many, perSecond, share } from "./words.js";

/** Events that are kept on the page. */
const EVENTS_MAX = 200;

/** Figures that are of now, or none. */
const RATES = ["in", "out", "blocks", "refused", "resent"];

function tile(name, label) {
  const made = element(
    "div",
    "",
    element("dt", "", label),
    element("dd", "value old"),
    element("dd", "more"),
  );
  made.id = `tile-${name}`;
  if (RATES.includes(name)) made.className = "rate";
  return made;
}

function tiles(shown) {
  const { daemon, jobs } = shown;
  const ranks = jobs.reduce((all, job) => all + job.ranks.length, 0);
  const inUse = jobs.reduce((all, job) => all + job.slots_in_use, 0);
  const slots = jobs.reduce((all, job) => all + job.slots, 0);
  const resent = jobs.map((job) => job.resent).filter((part) => part !== null);
  const worst = resent.length ? Math.max(...resent) : null;
  const refused = shown.refusals.reduce((all, { total }) => all + total, 0);
  const refusedNow = shown.refusals.some(({ now }) => now === null)
    ? null
    : shown.refusals.reduce((all, { now }) => all + now, 0);
  const line = (values, colour, rest) => [{ values, colour, filled: true, ...rest }];
  const items = [
    { name: "in", label: "In", value: bits(shown.rx), curve: line(shown.rxHistory, "good") },
    { name: "out", label: "Out", value: bits(shown.tx), curve: line(shown.txHistory, "out") },
    {
      name: "blocks",
      label: "Blocks summed",
      value: perSecond(shown.blocks),
      curve: line(shown.blocksHistory, "good"),
    },
    {
      name: "ranks",
      label: "Ranks",
      value: [count(ranks), ""],
      more: `of ${many(jobs.length, "job")}`,
    },
    {
      name: "slots",
      label: "Slots in use",
      value: [count(inUse), ""],
      more: `of ${count(slots)} given; ${count(daemon.slots_free)} free`,
      part: slots ? inUse / slots : 0,
    },
    {
      name: "resent",
      label: "Sent again",
      value: [share(worst), ""],
      more: jobs.length > 1 ? "by the worst job" : "of results",
    },
    {
      name: "refused",
      label: "Refused",
      value: perSecond(refusedNow),
      more: `${count(refused)} in all`,
    },
    {
      name: "uptime",
      label: "Up",
      value: [duration(Math.floor(daemon.uptime_seconds)), ""],
      more: `engine ${daemon.engine}`,
    },
  ];
  keyed(
    $("tiles"),
    items,
    ({ name }) => name,
    ({ name, label, curve, part }) => {
      const made = tile(name, label);
      if (curve || part !== undefined) {
        made.canvas = element("canvas", "old");
        made.canvas.setAttribute("aria-hidden", "true");
        made.append(element("dd", "", made.canvas));
      }
      if (curve) made.children[2].remove();
      return made;
    },
    (node, { value, more, curve, part }) => {
      quantity(node.children[1], value);
      if (more !== undefined) say(node.children[2], more);
      if (curve) curves(node.canvas, curve, SAMPLES);
      if (part !== undefined) bar(node.canvas, part, "good");
    },
  );
}

function ports({ ports: all }) {
  show($("no-ports"), !all.length);
  show($("port-table"), all.length > 0);
  keyed(
    $("port-rows"),
    all,
    ({ name }) => name,
    ({ name }) => {
      const head = element("th", "port", element("b", "", name), element("span", "peer"));
      head.scope = "row";
      const canvas = element("canvas", "old");
      canvas.setAttribute("role", "img");
      const cell = (swatch) =>
        element("td", "n old", element("span", swatch), element("span"), element("small"));
      return element(
        "tr",
        "",
        head,
        cell("swatch"),
        cell("swatch out"),
        element("td", "spark", canvas),
      );
    },
    (row, port) => {
      const [head, rx, tx, spark] = row.children;
      const dropped = port.rx_dropped + port.tx_dropped;
      const faults = [port.up ? "" : "✕ down", dropped ? `${count(dropped)} dropped` : ""];
      say(head.lastElementChild, faults.filter(Boolean).join(", "));
      const fill = (cell, rate, packets) => {
        say(cell.children[1], bits(rate).join(" "));
        say(
          cell.children[2],
          packets === null ? "" : `${perSecond(packets).join("").replace("/s", "")} packets/s`,
        );
      };
      fill(rx, port.rx, port.rxPackets);
      fill(tx, port.tx, port.txPackets);
      attribute(spark.firstElementChild, "aria-label", `rates of ${port.name}`);
      curves(
        spark.firstElementChild,
        [
          { values: port.rxHistory, colour: "good", filled: true },
          { values: port.txHistory, colour: "out", dashed: true },
        ],
        SAMPLES,
      );
    },
  );
}

function refusals({ refusals: all }) {
  show($("no-refusals"), !all.length);
  show($("refusal-table"), all.length > 0);
  keyed(
    $("refusal-rows"),
    all,
    ({ reason }) => reason,
    ({ reason }) => {
      const head = element(
        "th",
        "",
        reason.replaceAll("_", " "),
        element("small", "", REFUSALS[reason] ?? ""),
      );
      head.scope = "row";
      return element("tr", "", head, element("td", "n old"), element("td", "n"));
    },
    (row, { now, total }) => {
      say(row.children[1], perSecond(now).join(" "));
      say(row.children[2], count(total));
    },
  );
}

function warnings({ daemon }) {
  const said = [...daemon.not_ready.map((why) => `Not ready: ${why}`), ...daemon.warnings];
  show($("warnings"), said.length > 0);
  lines($("warning-list"), said);
}

/** All that the newest answer says. */
export function update(shown) {
  const { daemon } = shown;
  say($("live-text"), "live");
  document.body.dataset.state = "live";
  say(
    $("where"),
    `${location.host}${daemon.interfaces.length ? `, on ${daemon.interfaces.join(", ")}` : ""}`,
  );
  say($("about"), `xdp-agg ${daemon.version}, engine ${daemon.engine}`);
  pace(shown);
  warnings(shown);
  tiles(shown);
  jobs(shown);
  ports(shown);
  refusals(shown);
}

/** Further events, the oldest first. */
export function addEvents(events) {
  const shown = $("event-list");
  for (const event of events) {
    const time = element("time", "", clock(event.time_unix_ms));
    time.dateTime = new Date(event.time_unix_ms).toISOString();
    shown.prepend(
      element(
        "li",
        "",
        time,
        element("span", "kind", event.kind.replaceAll("_", " ")),
        element("span", "what", event.text),
      ),
    );
  }
  while (shown.children.length > EVENTS_MAX) shown.lastElementChild.remove();
  show($("no-events"), !shown.children.length);
}

/** So many events were forgotten by the daemon before this page asked. */
export function addMissed(missed) {
  $("event-list").prepend(
    element(
      "li",
      "",
      element("span", "", "…"),
      element("span", "kind", `${many(missed, "event")} missed`),
    ),
  );
}

/** Events of another daemon are none of this one's. */
export function forgetEvents() {
  $("event-list").replaceChildren();
}

/** No answer: since when, and why. What the page shows was true then. */
export function silent(seconds, why) {
  document.body.dataset.state = "silent";
  if (seconds === null) {
    say($("live-text"), "no answer");
    say($("headline"), "The daemon does not answer.");
    say($("announced"), "The daemon does not answer.");
  } else {
    const ago = seconds < 60 ? `${Math.floor(seconds)} s` : duration(seconds);
    say($("live-text"), `last answer ${ago} ago`);
    say($("headline"), `The daemon does not answer. Last answer ${ago} ago.`);
    say($("announced"), "The daemon does not answer.");
  }
  $("headline").words = null;
  say(
    $("subline"),
    `${why} What is hatched below was so at the last answer, and may be otherwise now.`,
  );
  say(document.querySelector("title"), "✕ no answer · xdp-agg");
  lines($("waits"), []);
  // A rate is of now, or it is none.
  for (const node of document.querySelectorAll(".rate .value")) {
    quantity(node, ["–", ""]);
  }
  for (const node of document.querySelectorAll("#port-rows td.n")) {
    say(node.children[1], "–");
    say(node.children[2], "");
  }
  for (const row of $("refusal-rows").children) say(row.children[1], "–");
  jobsUnknown();
}

/** Draws anew what depends on the scheme or the size: `again` shows the newest answer once more. */
export function onRedraw(again) {
  const redraw = () => {
    takeColours();
    forgetDrawings();
    again();
  };
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  onResize(redraw);
  $("only-waiting").addEventListener("change", redraw);
  takeColours();
}

/** How a first job is begun, with this daemon's address. */
export function howToStart() {
  const host = ["127.0.0.1", "localhost", "[::1]"].includes(location.hostname)
    ? "aggregator"
    : location.hostname;
  say($("how"), `XDP_AGG_ADDR=${host} torchrun --nnodes 4 train.py`);
}
